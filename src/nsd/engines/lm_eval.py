"""A model class for lm-evaluation-harness: its tasks under plain decoding, standard speculation or NSD.

    python -m nsd.engines.lm_eval run --model nsd --model_args rule=nsd,theta=0.95 --tasks gsm8k --gen_kwargs ...

The harness finds models in a registry that is filled by imports, not by entry points; importing this module adds
"nsd" to it, and running it is the harness's own command with that done. Generative tasks go through the decoding loop;
log-likelihoods come from the target alone, so that multiple choice is the same under every rule.

Source: lm-eval 0.4.13 lm_eval/api/model.py (TemplateLM), lm_eval/api/registry.py, lm_eval/models/utils.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from nsd import api
from nsd.decoding import Completion, Request, Stats
from nsd.errors import ConfigError, ModelError
from nsd.laws import Sampling
from nsd.rules import SD, Rule, make_rule
from nsd.verification import Accounting

DEFAULT_MAX_GEN_TOKS = 256
PLAIN = "ar"

_SAMPLING = ("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_NOT_OURS = {"do_sample", "temperature", "until", "max_gen_toks", *_SAMPLING}
_HARMLESS = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True}


@register_model("nsd")
class NSDLM(TemplateLM):  # type: ignore[misc]  # the harness is untyped
    """A pair of this project behind the harness's interface.

    model and drafter are those of `nsd.load`; rule is "ar" (nothing is drafted) or a rule of `nsd list rules`, with
    theta and max_deviation where it has them; k proposals a block; requests of a batch are decoded together. A text
    depends on its place among the task's requests and on seed, not on batch_size.
    """

    def __init__(
        self,
        model: str = api.DEFAULT_MODEL,
        drafter: str = api.DEFAULT_DRAFTER,
        rule: str = "nsd",
        theta: float | None = None,
        max_deviation: float | None = None,
        k: int | None = None,
        seed: int = 0,
        batch_size: int | str = 1,
        max_gen_toks: int = DEFAULT_MAX_GEN_TOKS,
        dtype: str = "auto",
        device: str | None = None,
        threads: int | None = None,
        engine: str = "auto",
        pretrained: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.rule_name = rule
        self.rule: Rule = SD() if rule == PLAIN else make_rule(rule, theta=theta, max_deviation=max_deviation)
        self.batch = _batch_size(batch_size)
        source = model if pretrained is None else pretrained
        loaded = api.load(source, None, dtype=dtype, device=device or "auto", threads=threads, engine=engine)
        self.pair = loaded if rule == PLAIN else api.load(loaded.target, drafter)
        self.target = self.pair.target
        self.k = self.pair.proposals(None if rule == PLAIN else k)
        self.seed, self.max_gen_toks = seed, max_gen_toks
        self.tokenizer = getattr(self.target.tokenizer, "inner", None)
        self.stats = Stats()
        self.deviation = 0.0

    @property
    def eot_token_id(self) -> int:
        """The id that ends a text, which also stands before a text without a context."""
        own = getattr(self.target.tokenizer, "eos_token_id", None)
        ids = sorted(self.target.eos)
        if own is None and not ids:
            raise ModelError(f"{self.target.name} has no end-of-text id, wanted one to score texts without a context")
        return ids[0] if own is None else int(own)

    @property
    def prefix_token_id(self) -> int:
        """The id that stands before every text, if the tokenizer has one."""
        prefix = self.target.tokenizer.prefix
        return int(prefix[-1]) if prefix else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """Names the cache of requests."""
        return self.target.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids of a text, with the tokenizer's prefix unless it is there already or not wanted."""
        ids, prefix = self.target.tokenizer.encode(string), list(self.target.tokenizer.prefix)
        if add_special_tokens is False or ids[: len(prefix)] == prefix:
            return ids
        return [*prefix, *ids]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as the text that the model's template makes of it."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(f"{self.target.name} has no chat template, wanted one; drop --apply_chat_template")
        assert self.tokenizer is not None
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Texts up to the first of each request's stop strings; batched, the longest prompts first."""
        prepared = [self._request(key, *instance.args) for key, instance in enumerate(requests)]
        order = sorted(range(len(prepared)), key=lambda i: -len(prepared[i].prompt))
        texts = [""] * len(prepared)
        bar = tqdm(total=len(prepared), disable=disable_tqdm, desc=f"Generating ({self.rule_name})")
        for chosen in _chunks(order, self.batch):
            run = self.pair.decode([prepared[i] for i in chosen], Accounting.FULL)
            for _ in run:
                pass
            for i, completion in zip(chosen, run.completions(), strict=True):
                texts[i] = completion.text
                self._count(completion)
                self.cache_hook.add_partial("generate_until", requests[i].args, completion.text)
                bar.update()
        bar.close()
        return texts

    def _request(self, key: int, context: str, gen_kwargs: dict[str, Any]) -> Request:
        """One context with its settings; a context too long for the model loses its beginning."""
        settings = normalize_gen_kwargs(gen_kwargs, default_max_gen_toks=self.max_gen_toks)
        for name, value in settings.items():
            if name not in _NOT_OURS and value != _HARMLESS.get(name, value is None):
                known = ", ".join(sorted(_NOT_OURS))
                raise ConfigError(f"generation setting {name} is {value!r}, which is unknown here; known: {known}")
        length = int(settings["max_gen_toks"])
        prompt = self.tok_encode(context)
        if not prompt:
            prompt = [self.prefix_token_id]
        room = self.target.context - length
        if room < 1:
            limit = f"{self.target.name}'s context of {self.target.context}"
            raise ConfigError(f"max_gen_toks is {length}, wanted less than {limit}; try max_gen_toks=256")
        return Request(
            prompt=tuple(prompt[-room:]),
            rule=self.rule,
            sampling=Sampling(
                temperature=float(settings.get("temperature", 1.0)) if settings["do_sample"] else 0.0,
                **{name: settings[name] for name in _SAMPLING if settings.get(name) is not None},
            ),
            k=self.k,
            max_new_tokens=length,
            stop=tuple(stop for stop in settings["until"] if stop),
            seed=self.seed,
            key=key,
        )

    def _count(self, completion: Completion) -> None:
        self.stats = self.stats + completion.stats
        self.deviation += sum(t.eps for b in completion.blocks for t in b.tested if t.eps is not None)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside its results: the pair, the rule, and what decoding came to."""
        drafter = None if self.pair.drafter is None else self.pair.drafter.name
        return {
            "nsd": {
                "target": self.target.name,
                "dtype": self.target.dtype_name,
                "drafter": drafter,
                "rule": self.rule_name,
                "rule_numbers": self.rule.settings(),
                "k": self.k,
                "seed": self.seed,
                "stats": self.stats.as_json(),
                "sum_eps": self.deviation,
            }
        }

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(log p of the continuation, whether it is the greedy one) for every (text, context ids, continuation ids)."""
        found: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1]) - len(requests[i][2]))
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Scoring")
        for chosen in _chunks(order, self.batch):
            pairs = [self._fitted(requests[i][1], requests[i][2]) for i in chosen]
            for i, result in zip(chosen, self._scores(pairs), strict=True):
                found[i] = result
                if requests[i][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[i][0], result)
                bar.update()
        bar.close()
        return found

    def _fitted(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """The end of context + continuation that the model can read, all but its last id."""
        whole = [*context, *continuation][-self._window - 1 :]
        kept = min(len(continuation), len(whole) - 1)
        return whole[: len(whole) - kept], whole[len(whole) - kept :]

    @property
    def _window(self) -> int:
        """Ids that a pass may read: a prompt must leave room for one token."""
        return self.target.context - 1

    def _scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """One prefill over the contexts and one pass over the continuations of a ragged batch."""
        fed = [continuation[:-1] for _, continuation in pairs]
        session, first = self.target.open([context for context, _ in pairs], max(map(len, fed)))
        after = session.score(fed).logits if any(fed) else None
        results, start = [], 0
        for b, (_, continuation) in enumerate(pairs):
            rows = [first.logits[b : b + 1]]
            if after is not None:
                rows.append(after[start : start + len(fed[b])])
            start += len(fed[b])
            law = torch.log_softmax(torch.cat(rows)[: len(continuation)].float(), -1)
            ids = torch.tensor(continuation, dtype=torch.long, device=law.device)
            score = float(law.gather(-1, ids.unsqueeze(-1)).double().sum())
            results.append((score, bool((law.argmax(-1) == ids).all())))
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, in windows of the model's context."""
        totals = []
        for (text,) in (instance.args for instance in requests):
            ids = self.tok_encode(text, add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self._window, 1)
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            total = sum(score for score, _ in self._loglikelihood_tokens(pairs, disable_tqdm=disable_tqdm))
            totals.append(float(total))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), float(total))
        return totals


def _chunks(order: Sequence[int], size: int) -> Iterable[Sequence[int]]:
    return (order[start : start + size] for start in range(0, len(order), size))


def _batch_size(given: int | str) -> int:
    """The batch size as a number. Raises ConfigError for auto, which needs memory probes that are not made here."""
    try:
        size = int(given)
    except ValueError:
        size = 0
    if size < 1:
        raise ConfigError(f"batch_size is {given!r}, wanted an integer >= 1; try --batch_size 8")
    return size


def main() -> None:
    """The harness's own command line, with --model nsd in its registry."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
