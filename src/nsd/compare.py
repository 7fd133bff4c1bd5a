"""Arms side by side on the same prompts in one run: plain decoding, standard speculation, nucleus speculation.

Arms are interleaved prompt by prompt in rotating order, after a warm-up that is not counted. Plain decoding runs in the
same loop; transformers' own `generate` is an arm beside it where the target has it, and when that is faster, speed-ups
over plain decoding are against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from nsd.api import Pair, Prompt
from nsd.decoding import Completion, Request, Stats
from nsd.errors import ConfigError, PromptError
from nsd.events import Block
from nsd.laws import MAX_SEED

ARMS = ("ar", "sd", "nsd")
TRANSFORMERS = "transformers"
FEWEST_FOR_INTERVAL = 5

_WARM_UP_TOKENS = 8
_RESAMPLES = 2000
_RULE_SETTINGS = ("rule", "theta", "ties", "max_deviation", "agreement", "policy", "rule_numbers")

OnBlock = Callable[[str, int, Block], None]


@dataclass(slots=True)
class Arm:
    """One arm's completions, in the order of (repeat, prompt), with the tokens and seconds of each."""

    name: str
    completions: list[Completion] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, completion: Completion) -> None:
        """Count one completion; its seconds are those of its steps, the prefill included."""
        self.completions.append(completion)
        self.tokens.append(completion.stats.output_tokens)
        self.seconds.append(completion.stats.prefill_s + completion.stats.decode_s)

    def stats(self) -> Stats:
        """All its counters together."""
        return sum((c.stats for c in self.completions), Stats())

    @property
    def rate(self) -> float:
        """Tokens per second over everything it decoded."""
        return sum(self.tokens) / sum(self.seconds) if self.tokens else 0.0

    def rates(self, picks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The rate of each resample: picks [resamples, n] -> [resamples]."""
        tokens, seconds = np.array(self.tokens, dtype=np.float64), np.array(self.seconds)
        rates: npt.NDArray[np.float64] = tokens[picks].sum(1) / seconds[picks].sum(1)
        return rates


@dataclass(frozen=True, slots=True)
class Comparison:
    """All arms, the order in which they ran, and why transformers' generate is not among them (None if it is)."""

    arms: dict[str, Arm]
    order: tuple[tuple[str, ...], ...]
    transformers_reason: str | None

    @property
    def transformers_rate(self) -> float | None:
        """Tokens per second of transformers' own generate, None if not measured."""
        return self.arms[TRANSFORMERS].rate if TRANSFORMERS in self.arms else None

    @property
    def baseline(self) -> str:
        """What speed-ups over plain decoding are measured against: the faster of our loop and transformers'."""
        faster = self.transformers_rate is not None and self.transformers_rate > self.arms["ar"].rate
        return TRANSFORMERS if faster else "ar"

    def _pairs(self) -> dict[str, tuple[str, str]]:
        pairs = {
            "nsd_over_ar": ("nsd", self.baseline),
            "nsd_over_sd": ("nsd", "sd"),
            "sd_over_ar": ("sd", self.baseline),
            "ar_over_transformers": ("ar", TRANSFORMERS),
        }
        return {name: pair for name, pair in pairs.items() if pair[1] in self.arms}

    def speedups(self) -> dict[str, float | None]:
        """Ratios of tokens per second over the whole run."""
        found = {name: self.arms[fast].rate / self.arms[slow].rate for name, (fast, slow) in self._pairs().items()}
        return {"ar_over_transformers": None, **found}

    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """95% bootstrap intervals of the same ratios, completions resampled in pairs; None for fewer than five."""
        count = len(self.arms["ar"].tokens)
        if count < FEWEST_FOR_INTERVAL:
            return dict.fromkeys(self._pairs())
        picks = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
        spans: dict[str, tuple[float, float] | None] = {}
        for name, (fast, slow) in self._pairs().items():
            low, high = np.quantile(self.arms[fast].rates(picks) / self.arms[slow].rates(picks), [0.025, 0.975])
            spans[name] = (float(low), float(high))
        return spans

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        arms = [
            {"name": name, "stats": arm.stats().as_json(), "completions": [c.as_json() for c in arm.completions]}
            for name, arm in self.arms.items()
            if name != TRANSFORMERS
        ]
        few = len(self.arms["ar"].tokens) < FEWEST_FOR_INTERVAL
        return {
            "arms": arms,
            "speedup": self.speedups(),
            "speedup_interval_95": self.intervals(),
            "baseline": self.baseline,
            "transformers_tokens_per_second": self.transformers_rate,
            "order": [list(names) for names in self.order],
            "reasons": {
                **({} if self.transformers_reason is None else {"ar_over_transformers": self.transformers_reason}),
                **({"speedup_interval_95": f"an interval needs {FEWEST_FOR_INTERVAL} runs of each arm"} if few else {}),
            },
        }


def compare(
    pair: Pair,
    prompts: Sequence[Prompt],
    *,
    repeats: int = 1,
    chat: bool = False,
    with_transformers: bool = True,
    on_block: OnBlock | None = None,
    **settings: Any,
) -> Comparison:
    """Run all arms on all prompts. settings belong to the NSD arm; SD shares all but the rule, AR also drafts nothing.

    Every figure of speed comes with the exact price, so accounting is full unless settings say otherwise.

    on_block(arm, prompt number, event) is called as events come. Seeds are the given one plus the repeat.
    """
    if not prompts:
        raise PromptError("no prompt was given, wanted at least one")
    seed = settings.get("seed", 0)
    if repeats < 1 or seed + repeats - 1 > MAX_SEED:
        raise ConfigError(
            f"repeats is {repeats} from seed {seed}, wanted at least 1 and seeds below 2^64; try --repeats 5"
        )
    settings = {"accounting": "full", **settings}
    exact = {k: v for k, v in settings.items() if k not in _RULE_SETTINGS}
    runs = {
        "ar": (Pair(pair.target, None), {**exact, "rule": "sd", "k": None, "block_length": None}),
        "sd": (pair, {**exact, "rule": "sd"}),
        "nsd": (pair, {"rule": "nsd", **settings}),
    }
    arms = {name: Arm(name) for name in ARMS}
    for arm_pair, arm_settings in runs.values():
        warm = arm_pair.generate(
            list[Any](prompts[:1]), chat=chat, **{**arm_settings, "max_new_tokens": _WARM_UP_TOKENS}
        )
    other, reason = _transformers(pair, warm[0].request) if with_transformers else (None, "not asked for")
    if other is not None:
        other.measure(warm[0].request)
        arms[TRANSFORMERS] = Arm(TRANSFORMERS)
    order: list[tuple[str, ...]] = []
    names = tuple(arms)
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            turn = (repeat * len(prompts) + number) % len(names)
            order.append((*names[turn:], *names[:turn]))
            request = runs["ar"][0].run([prompt], chat=chat, **{**runs["ar"][1], "seed": seed + repeat}).requests[0]
            for name in order[-1]:
                if name == TRANSFORMERS:
                    assert other is not None
                    tokens, seconds = other.measure(request)
                    arms[name].tokens.append(tokens)
                    arms[name].seconds.append(seconds)
                    continue
                arm_pair, arm_settings = runs[name]
                run = arm_pair.run([prompt], chat=chat, **{**arm_settings, "seed": seed + repeat})
                for block in run:
                    if on_block is not None:
                        on_block(name, number, block)
                arms[name].add(run.completions()[0])
    return Comparison(arms, tuple(order), reason)


class _Generate:
    """transformers' own generate, on the same prompt with the same law and limits."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def measure(self, request: Request) -> tuple[int, float]:
        """Decode once -> tokens and seconds."""
        import torch

        s = request.sampling
        options: dict[str, Any] = {"do_sample": s.temperature > 0, "repetition_penalty": s.repetition_penalty}
        if s.temperature > 0:
            options |= {"temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p, "min_p": s.min_p or None}
        if request.ignore_eos:
            options["eos_token_id"] = None
        ids = torch.tensor([request.prompt], device=self._model.device)
        mask = torch.ones_like(ids)
        torch.manual_seed(request.seed % 2**63)
        started = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(ids, attention_mask=mask, max_new_tokens=request.max_new_tokens, **options)
        return int(out.shape[1] - ids.shape[1]), perf_counter() - started


def _transformers(pair: Pair, request: Request) -> tuple[_Generate | None, str | None]:
    """transformers' generate for this target, or why it cannot stand beside our loop."""
    reference = getattr(pair.target, "reference", None)
    model = reference() if callable(reference) else getattr(pair.target, "model", None)
    s = request.sampling
    if model is None or not hasattr(model, "generate"):
        return None, "the target is not a transformers model"
    if s.presence_penalty or s.frequency_penalty or s.banned or s.processors or request.stop:
        return None, "transformers' generate has no such penalties, processors or stop strings"
    return _Generate(model), None
