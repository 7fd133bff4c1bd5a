"""Prompt lookup: copy what followed the last occurrence of the newest tokens. A point mass, and no network at all.

The longest suffix of prompt + output, of max_n down to min_n tokens, that occurred before with something after it is
looked up; up to k of the tokens that followed its most recent occurrence are proposed. Without an occurrence nothing
is drafted. What is drafted, and how much, depends on committed tokens alone.

An index per request maps every n-gram to its most recent end; a committed token adds max_n - min_n + 1 entries, so a
step costs the committed tokens and k, never the length of the text.

Source: prompt lookup decoding as in huggingface/transformers generation/candidate_generator.py and vLLM
v1/spec_decode/ngram_proposer.py; the index is this project's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.errors import ConfigError
from nsd.targets.base import Target
from nsd.verification import Draft, DraftLaw

DEFAULT_K = 4
"""A copy holds for a few tokens or for many; most of the gain lies in the first few, and a target pass over five
positions costs little more than one over a single position while reading the weights is what takes the time."""

DEFAULT_MAX_N, DEFAULT_MIN_N = 4, 2
"""A single matching token says little about the next one, and a poor point mass inside the nucleus is kept at a cost of
1 - p(x); two matching tokens are the least that is looked up unless asked otherwise."""


class NGramIndex:
    """The ids of one request and, for each n-gram that has a continuation, where its most recent occurrence ends."""

    def __init__(self, max_n: int, min_n: int) -> None:
        self.ids: list[int] = []
        self._sizes = range(max_n, min_n - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}

    def extend(self, ids: Sequence[int]) -> None:
        """Append ids; the n-grams that ended before each of them now have a continuation."""
        for token in ids:
            end = len(self.ids)
            for n in self._sizes:
                if n <= end:
                    self._ends[tuple(self.ids[end - n : end])] = end
            self.ids.append(token)

    def following(self, k: int) -> list[int]:
        """Up to k ids that followed the most recent occurrence of the longest suffix that occurred before."""
        for n in self._sizes:
            end = self._ends.get(tuple(self.ids[-n:])) if n <= len(self.ids) else None
            if end is not None:
                return self.ids[end : end + k]
        return []


class NGramSession(DraftSession):
    """One index per request."""

    def __init__(self, indices: list[NGramIndex], prompt_lengths: list[int], device: torch.device) -> None:
        self._indices = indices
        self._prompt_lengths = prompt_lengths
        self._device = device

    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """Look up every request; u is not used."""
        found = []
        for ask, index, prompt in zip(asks, self._indices, self._prompt_lengths, strict=True):
            index.extend(ask.output[len(index.ids) - prompt :])
            found.append(index.following(ask.k))
        tokens = torch.tensor([t for ids in found for t in ids], dtype=torch.long, device=self._device)
        return Draft(tokens, tuple(len(ids) for ids in found), DraftLaw.POINT)

    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Nothing: the next request for proposals brings the committed tokens along."""

    def retain(self, requests: Sequence[int]) -> None:
        """Drop the indices of finished requests."""
        self._indices = [self._indices[b] for b in requests]
        self._prompt_lengths = [self._prompt_lengths[b] for b in requests]


class NGramDrafter(Drafter):
    """Prompt lookup with suffixes of max_n down to min_n tokens; k has no upper limit."""

    name = "ngram"
    law = DraftLaw.POINT

    def __init__(
        self,
        max_n: int = DEFAULT_MAX_N,
        min_n: int = DEFAULT_MIN_N,
        default_k: int = DEFAULT_K,
        device: torch.device | None = None,
    ) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(f"ngram sizes are {min_n} to {max_n}, wanted 1 <= min_n <= max_n; try min_n=2, max_n=4")
        self.max_n, self.min_n, self.default_k = max_n, min_n, default_k
        self._device = device or torch.device("cpu")

    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> NGramSession:
        """Index the prompts."""
        indices = []
        for prompt in prompts:
            index = NGramIndex(self.max_n, self.min_n)
            index.extend(prompt)
            indices.append(index)
        return NGramSession(indices, [len(prompt) for prompt in prompts], self._device)

    def describe(self) -> dict[str, object]:
        """The common facts and the suffix sizes."""
        return {**super().describe(), "max_n": self.max_n, "min_n": self.min_n}


def ngram_drafter(
    target: Target, max_n: int = DEFAULT_MAX_N, min_n: int = DEFAULT_MIN_N, default_k: int = DEFAULT_K
) -> NGramDrafter:
    """Prompt lookup whose drafts lie on the target's device."""
    return NGramDrafter(max_n, min_n, default_k, target.device)
