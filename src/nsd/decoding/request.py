"""One request: what to continue, by which rule, from which law, how far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nsd.errors import ConfigError, PromptError
from nsd.fidelity.budget import Policy
from nsd.laws import MAX_SEED, Sampling
from nsd.rules import RatioOrSet, Rule

Logprobs = Literal["processed", "raw"]


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt (token ids) with its settings.

    k proposals per block (0 = plain decoding); max_new_tokens >= 1; stop strings end the text before them; seed and key
    name the stream of uniforms, so a request decodes alike in every batch; agreement in (0, 1) is a whole-sequence
    budget spent by policy; logprobs None, "processed" (log p, the law that verification used) or "raw"; until is asked
    after every token whether these output ids are complete.
    """

    prompt: tuple[int, ...]
    rule: Rule
    sampling: Sampling
    k: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    seed: int = 0
    key: int = 0
    ignore_eos: bool = False
    logprobs: Logprobs | None = None
    agreement: float | None = None
    policy: Policy = "front"
    until: Callable[[Sequence[int]], bool] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise PromptError("the prompt is empty, wanted at least one token; try nsd generate 'Once upon a time'")
        if self.k < 0:
            raise ConfigError(f"k is {self.k}, wanted an integer >= 0 (0 = plain decoding); try -k 4")
        if self.max_new_tokens < 1:
            raise ConfigError(
                f"max_new_tokens is {self.max_new_tokens}, wanted an integer >= 1; try --max-new-tokens 64"
            )
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed is {self.seed}, wanted an integer in [0, 2^64); try --seed 0")
        if any(not text for text in self.stop):
            raise ConfigError("a stop string is empty, wanted at least one character; drop it or give --stop text")
        if self.rule.untempered and self.sampling.temperature != 0:
            got = f"{self.sampling.temperature:g}"
            raise ConfigError(
                f"rule {self.rule.name} got temperature {got}, wanted 0; try --temperature 0 or --rule nsd"
            )
        if self.agreement is not None and not 0 < self.agreement < 1:
            raise ConfigError(f"agreement is {self.agreement}, wanted a number in (0, 1); try --agreement 0.95")
        if self.agreement is not None and not (self.rule.lossless or isinstance(self.rule, RatioOrSet)):
            raise ConfigError(
                f"rule {self.rule.name} cannot keep an agreement, wanted nsd or another rule that can be capped"
            )
