"""Arms side by side on the same prompts in one run: plain decoding, standard speculation, nucleus speculation.

Arms are interleaved prompt by prompt in rotating order, after a warm-up that is not counted. Plain decoding runs in the
same loop; transformers' own `generate` is timed beside it, and when that is faster, speed-ups are against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from nsd.api import Pair, Prompt
from nsd.decoding import Completion, Stats
from nsd.events import Block

ARMS = ("ar", "sd", "nsd")
_WARM_UP_TOKENS = 8
_RESAMPLES = 2000

OnBlock = Callable[[str, int, Block], None]


@dataclass(slots=True)
class Arm:
    """One arm's completions, in the order of (repeat, prompt)."""

    name: str
    completions: list[Completion] = field(default_factory=list)

    @property
    def stats(self) -> Stats:
        """All its counters together."""
        return sum((c.stats for c in self.completions), Stats())

    @property
    def rate(self) -> float:
        """Tokens per second over everything it decoded."""
        return self.stats.tokens_per_second or 0.0

    def seconds_per_token(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """By completion, in order."""
        return np.array([1.0 / (c.stats.tokens_per_second or np.inf) for c in self.completions])


@dataclass(frozen=True, slots=True)
class Comparison:
    """All arms, the order in which they ran, and the rate of transformers' own generate (None if not measured)."""

    arms: dict[str, Arm]
    order: tuple[tuple[str, ...], ...]
    transformers_rate: float | None
    transformers_reason: str | None

    @property
    def baseline(self) -> str:
        """What speed-ups over plain decoding are measured against: the faster of our loop and transformers'."""
        faster = self.transformers_rate is not None and self.transformers_rate > self.arms["ar"].rate
        return "transformers" if faster else "ar"

    def speedups(self) -> dict[str, float | None]:
        """Ratios of tokens per second over the whole run."""
        ar = self.arms["ar"].rate
        base = self.transformers_rate if self.baseline == "transformers" else ar
        rates = {name: self.arms[name].rate for name in ARMS}
        return {
            "nsd_over_ar": _over(rates["nsd"], base),
            "nsd_over_sd": _over(rates["nsd"], rates["sd"]),
            "sd_over_ar": _over(rates["sd"], base),
            "ar_over_transformers": _over(ar, self.transformers_rate),
        }

    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """95% bootstrap intervals of the paired ratios over completions; None for fewer than five completions."""
        per_token = {name: arm.seconds_per_token() for name, arm in self.arms.items()}
        return {
            "nsd_over_ar": _interval(per_token["ar"], per_token["nsd"]),
            "nsd_over_sd": _interval(per_token["sd"], per_token["nsd"]),
            "sd_over_ar": _interval(per_token["ar"], per_token["sd"]),
        }

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "arms": [
                {
                    "name": name,
                    "stats": arm.stats.as_json(),
                    "completions": [c.as_json() for c in arm.completions],
                }
                for name, arm in self.arms.items()
            ],
            "speedup": self.speedups(),
            "speedup_interval_95": self.intervals(),
            "baseline": self.baseline,
            "transformers_tokens_per_second": self.transformers_rate,
            "transformers_reason": self.transformers_reason,
            "order": [list(names) for names in self.order],
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

    on_block(arm, prompt number, event) is called as events come.
    """
    exact = {k: v for k, v in settings.items() if k not in _RULE_SETTINGS}
    runs = {
        "ar": (Pair(pair.target, None), {**exact, "rule": "sd", "k": None}),
        "sd": (pair, {**exact, "rule": "sd"}),
        "nsd": (pair, {"rule": "nsd", **settings}),
    }
    for arm_pair, arm_settings in runs.values():
        arm_pair.generate(prompts[0], chat=chat, **{**arm_settings, "max_new_tokens": _WARM_UP_TOKENS})
    arms = {name: Arm(name) for name in ARMS}
    order: list[tuple[str, ...]] = []
    clock = _TransformersClock(pair, settings) if with_transformers else None
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            turn = (repeat * len(prompts) + number) % len(ARMS)
            order.append((*ARMS[turn:], *ARMS[:turn]) if len(prompts) * repeats > 1 else ARMS)
            for name in order[-1]:
                arm_pair, arm_settings = runs[name]
                run = arm_pair.run([prompt], chat=chat, **{**arm_settings, "seed": settings.get("seed", 0) + repeat})
                for block in run:
                    if on_block is not None:
                        on_block(name, number, block)
                arms[name].completions += run.completions()
            if clock is not None:
                clock.measure(arms["ar"].completions[-1])
    rate, reason = (None, "not asked for") if clock is None else clock.result()
    return Comparison(arms, tuple(order), rate, reason)


_RULE_SETTINGS = ("rule", "theta", "ties", "max_deviation", "agreement", "policy", "rule_numbers")


class _TransformersClock:
    """Times transformers' own generate on what the plain arm just did: same prompt, same temperature, same length."""

    def __init__(self, pair: Pair, settings: dict[str, Any]) -> None:
        self._model = getattr(pair.target, "model", None)
        self._seconds = 0.0
        self._tokens = 0

    def measure(self, done: Completion) -> None:
        """One completion."""
        if self._model is None:
            return
        import torch

        sampling, count = done.request.sampling, len(done.token_ids)
        sampled = sampling.temperature > 0
        options = (
            {"do_sample": True, "temperature": sampling.temperature, "top_k": 0} if sampled else {"do_sample": False}
        )
        ids = torch.tensor([done.request.prompt], device=self._model.device)
        if not self._tokens:
            self._model.generate(ids, max_new_tokens=2, min_new_tokens=2, **options)
        started = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(ids, max_new_tokens=count, min_new_tokens=count, **options)
        self._seconds += perf_counter() - started
        self._tokens += out.shape[1] - ids.shape[1]

    def result(self) -> tuple[float | None, str | None]:
        """Tokens per second, or None with the reason."""
        if self._model is None:
            return None, "the target is not a transformers model"
        return self._tokens / self._seconds, None


def _over(rate: float, base: float | None) -> float | None:
    return rate / base if base else None


def _interval(
    slow: np.ndarray[Any, np.dtype[np.float64]], fast: np.ndarray[Any, np.dtype[np.float64]]
) -> tuple[float, float] | None:
    if len(slow) < 5:
        return None
    picks = np.random.default_rng(0).integers(len(slow), size=(_RESAMPLES, len(slow)))
    low, high = np.quantile(slow[picks].mean(1) / fast[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)
