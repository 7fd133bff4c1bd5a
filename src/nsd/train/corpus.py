"""Stored shards as one corpus: rows by number, the draft vocabulary by counts, the leakage guard's verdict applied."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.train.text import ANSWERED, ASKED

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows side by side: tokens [B, T + 1], taps [B, T, n, H], final [B, T, H], lse [B, T], kinds [B, T] of the token
    after each position, cold [B] = 1 / temperature."""

    tokens: Tensor
    taps: Tensor
    final: Tensor
    lse: Tensor
    kinds: Tensor
    cold: Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """One stored rectangle; states [T, B, n + 1, H] stay on the disk."""

    tokens: Array
    kinds: Array
    lse: Array
    temperatures: Array
    states: Array

    @classmethod
    def open(cls, meta: Path) -> Shard:
        """The shard beside its description."""
        shape = tuple(json.loads(meta.read_text(encoding="utf-8"))["shape"])
        stored = np.load(meta.with_suffix(".npz"))
        states = np.memmap(meta.with_suffix(".states"), np.uint16, "r", shape=shape)
        return cls(stored["tokens"], stored["kinds"], stored["lse"], stored["temperatures"], states)


class Corpus:
    """All rows of some shards. refused rows are left out."""

    def __init__(self, shards: Sequence[Shard], refused: frozenset[int] = frozenset()) -> None:
        self.shards = list(shards)
        everything = [(s, row) for s, shard in enumerate(self.shards) for row in range(shard.tokens.shape[1])]
        self.rows = [place for number, place in enumerate(everything) if number not in refused]
        self.refused = len(everything) - len(self.rows)

    @classmethod
    def open(cls, folder: Path, count: int | None = None, refused: frozenset[int] = frozenset()) -> Corpus:
        """The first `count` shards of a folder (None = all)."""
        metas = sorted(folder.glob("*.json"))
        if not metas or (count is not None and len(metas) < count):
            raise ConfigError(f"{folder} holds {len(metas)} shards, wanted {count or 'some'}; write the text first")
        return cls([Shard.open(meta) for meta in metas[:count]], refused)

    @property
    def positions(self) -> int:
        """Positions per row."""
        return int(self.shards[0].kinds.shape[0])

    def ids(self, number: int) -> list[int]:
        """Tokens of a row."""
        shard, row = self.rows[number]
        ids: list[int] = self.shards[shard].tokens[:, row].tolist()
        return ids

    def sampled_tokens(self) -> Array:
        """Every token that the target drew, in order of rows."""
        parts = [self.shards[s].tokens[1:, row][self.shards[s].kinds[:, row] >= ASKED] for s, row in self.rows]
        return np.concatenate(parts)

    def answered(self) -> int:
        """How many tokens are answers."""
        return sum(int((self.shards[s].kinds[:, row] == ANSWERED).sum()) for s, row in self.rows)

    def batch(self, numbers: Sequence[int]) -> Batch:
        """Rows by number."""
        places = [self.rows[number] for number in numbers]

        def gathered(name: str) -> Tensor:
            return torch.from_numpy(np.stack([getattr(self.shards[s], name)[:, row] for s, row in places]))

        states = gathered("states").view(torch.int16).view(torch.bfloat16)
        temperatures = [float(self.shards[s].temperatures[row]) for s, row in places]
        return Batch(
            tokens=gathered("tokens").long(),
            taps=states[:, :, :-1],
            final=states[:, :, -1],
            lse=gathered("lse"),
            kinds=gathered("kinds"),
            cold=1.0 / torch.tensor(temperatures),
        )


def chain_mask(kinds: Tensor, depth: int, wanted: int) -> Tensor:
    """Which rows [B, T] have a whole chain of sampled tokens: kinds of tokens t + 2 .. t + depth + 1 are >= wanted."""
    good = kinds >= wanted
    mask = torch.ones_like(good)
    for step in range(1, depth + 1):
        mask[:, :-step] &= good[:, step:]
        mask[:, -step:] = False
    return mask


def draft_vocabulary(tokens: Array, vocab: int, size: int, always: Sequence[int]) -> Tensor:
    """The `size` most frequent ids of training text, ascending; `always` are in, ties go to the lower id."""
    counts = np.bincount(tokens, minlength=vocab).astype(np.int64)
    counts[list(always)] += counts.max() + 1
    order = np.lexsort((np.arange(vocab), -counts))
    return torch.from_numpy(np.sort(order[: min(size, vocab)]))
