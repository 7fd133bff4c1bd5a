"""A target whose logits are a hash of the whole prefix: any slip in a cache changes them."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from nsd.targets.base import Scores, Target, TargetSession


@lru_cache(maxsize=200_000)
def prefix_logits(prefix: tuple[int, ...], vocab: int, salt: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([salt, vocab, *prefix]).normal(0.0, 1.0, vocab))


class PrefixModel(Target):
    """Float64 logits over `vocab` ids; refuses ids beyond it, as an embedding would."""

    def __init__(self, vocab: int = 5, context: int = 512, salt: int = 0, absent: torch.Tensor | None = None):
        self.name, self.vocab, self.context, self.salt, self.absent = "prefix", vocab, context, salt, absent
        self.hidden, self.layers, self.eos = 1, 1, frozenset()
        self.device, self.dtype, self.dtype_reason = torch.device("cpu"), torch.float64, "exact"
        self.default_temperature = 1.0

    def logits(self, prefix: Sequence[int]) -> torch.Tensor:
        assert all(0 <= token < self.vocab for token in prefix)
        return prefix_logits(tuple(prefix), self.vocab, self.salt)

    def open(self, prompts, room, taps=()):
        session = PrefixSession(self, [list(prompt) for prompt in prompts], room)
        return session, Scores(torch.stack([self.logits(prompt) for prompt in prompts]))


class PrefixSession(TargetSession):
    def __init__(self, model: PrefixModel, cached: list[list[int]], room: int):
        assert all(cached), "a prompt must have a token"
        assert max(len(ids) for ids in cached) + room <= model.context
        self.model, self.cached = model, cached
        self.full = [len(ids) + room for ids in cached]
        self.kept = [len(ids) for ids in cached]
        self.positions, self.calls = sum(self.kept), 1

    def score(self, inputs):
        assert len(inputs) == len(self.cached) and any(inputs)
        rows = []
        for b, ids in enumerate(inputs):
            for token in ids:
                self.cached[b].append(token)
                rows.append(self.model.logits(self.cached[b]))
            assert len(self.cached[b]) <= self.full[b]
        self.positions += len(rows)
        self.calls += 1
        return Scores(torch.stack(rows))

    def keep(self, counts):
        for b, count in enumerate(counts):
            assert 0 <= count <= len(self.cached[b]) - self.kept[b]
            del self.cached[b][self.kept[b] + count :]
            self.kept[b] = len(self.cached[b])

    def retain(self, requests):
        self.cached = [self.cached[b] for b in requests]
        self.kept = [self.kept[b] for b in requests]
        self.full = [self.full[b] for b in requests]
