"""The books of a session: how much of each request is in the cache, and how much of that may still be rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from nsd.errors import ConfigError, PromptError


class Ledger:
    """Lengths per request, checked at every step; a mistake of the caller is an error here and not a wrong cache.

    lengths[b] positions are in the cache; the last pending[b] of them were fed since the last `keep`.
    """

    def __init__(self, batch: int) -> None:
        self.lengths = [0] * batch
        self.pending = [0] * batch
        self.positions = 0
        self.calls = 0

    def feed(self, inputs: Sequence[Sequence[int]], vocab: int) -> list[int]:
        """Book one pass over inputs[b], some of them empty -> how many each request feeds."""
        if len(inputs) != len(self.lengths):
            raise ConfigError(f"got inputs for {len(inputs)} requests, wanted {len(self.lengths)}")
        if not any(inputs):
            raise ConfigError("got a pass without any input, wanted a token of at least one request")
        for b, tokens in enumerate(inputs):
            if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
                wrong = next(t for t in tokens if not 0 <= t < vocab)
                raise PromptError(f"got token id {wrong} in request {b}, wanted 0..{vocab - 1}; check the tokenizer")
        counts = [len(x) for x in inputs]
        self.lengths = [length + n for length, n in zip(self.lengths, counts, strict=True)]
        self.pending = [p + n for p, n in zip(self.pending, counts, strict=True)]
        self.positions += sum(counts)
        self.calls += 1
        return counts

    def settle(self) -> None:
        """Nothing of what was fed can be rolled back any more."""
        self.pending = [0] * len(self.lengths)

    def keep(self, counts: Sequence[int]) -> None:
        """Of what each request fed since the last keep, keep the first counts[b]."""
        if len(counts) != len(self.pending) or any(not 0 <= c <= n for c, n in zip(counts, self.pending, strict=True)):
            raise ConfigError(f"got keep({list(counts)}) after inputs of lengths {self.pending}")
        self.lengths = [length - n + c for length, n, c in zip(self.lengths, self.pending, counts, strict=True)]
        self.settle()

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only."""
        batch = len(self.lengths)
        if any(not 0 <= b < batch for b in requests) or any(a >= b for a, b in pairwise(requests)):
            raise ConfigError(f"got retain({list(requests)}) in a batch of {batch}, wanted ascending indices below it")
        self.lengths = [self.lengths[b] for b in requests]
        self.pending = [self.pending[b] for b in requests]


def check_prompts(prompts: Sequence[Sequence[int]], context: int) -> None:
    """Refuse an empty batch, an empty prompt, and one that leaves no room in the context."""
    if not prompts:
        raise PromptError("got no prompts, wanted at least one")
    for b, prompt in enumerate(prompts):
        if not prompt:
            raise PromptError(f"got an empty prompt (request {b}), wanted at least one token; give some text")
        if len(prompt) >= context:
            raise PromptError(
                f"got a prompt of {len(prompt)} tokens (request {b}), wanted fewer than the context of {context}"
            )
