"""Training rows: a stream of batches that is a pure function of (mixture, seed, step), so that a run resumes exactly.

Rows are made in pools of several steps and sorted by length within a pool, so that little is padded.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nsd.miniature import maths, programs
from nsd.miniature.phrases import Style
from nsd.miniature.tokens import END, build

POOL = 4
"""Steps whose rows are made together."""

WIDTHS = 16
"""Batches are padded to a multiple: of few sizes of tensors memory is used again, of many it grows without end."""

RESULT_WEIGHT = 4.0
"""Weight of digits between = and what ends them, and of the final answer: a wrong one spoils the whole solution."""

IGNORED = 0.0


@dataclass(frozen=True, slots=True)
class Mixture:
    """Shares of rows by kind, and the style of their phrasing; drills are bare equations."""

    maths: float = 0.5
    code: float = 0.2
    drills: float = 0.3
    style: str = "house"
    rows: int = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """ids [B, L], padded with END on the right; weights [B, L - 1] of the predictions of ids[:, 1:]."""

    ids: Tensor
    weights: Tensor

    @property
    def tokens(self) -> int:
        """Positions that are fed, padding included."""
        return int(self.ids.numel())

    def parts(self, rows: int) -> Iterator[tuple[Batch, float]]:
        """The batch in parts of so many rows, each with its share of the weight; smaller parts stay in the cache."""
        whole = float(self.weights.sum())
        for ids, weights in zip(torch.split(self.ids, rows), torch.split(self.weights, rows), strict=True):
            if share := float(weights.sum()) / whole:
                yield Batch(ids, weights), share


@cache
def tokenizer() -> Tokenizer:
    """The one tokenizer of all models."""
    return build()


@cache
def _ids() -> tuple[int, frozenset[int], int]:
    """END, the digits, and the sign =."""
    vocabulary = tokenizer().get_vocab()
    digits = frozenset(i for piece, i in vocabulary.items() if piece.strip().isdigit())
    return vocabulary[END], digits, vocabulary[" ="]


def batch(mixture: Mixture, seed: int, step: int) -> Batch:
    """The rows of one step."""
    rows = _pool(mixture, seed, step // POOL)
    chosen = rows[step % POOL]
    width = -(-max(len(ids) for ids, _ in chosen) // WIDTHS) * WIDTHS
    end = _ids()[0]
    ids = torch.tensor([row + [end] * (width - len(row)) for row, _ in chosen])
    weights = torch.tensor([[*w, *[IGNORED] * (width - len(w))] for _, w in chosen])
    return Batch(ids, weights[:, 1:].contiguous())


_LAST: dict[tuple[Mixture, int, int], list[list[tuple[list[int], list[float]]]]] = {}


def _pool(mixture: Mixture, seed: int, number: int) -> list[list[tuple[list[int], list[float]]]]:
    """The rows of POOL steps, each a list of (ids, weight of each id as a prediction); the last pool is kept."""
    key = (mixture, seed, number)
    if key not in _LAST:
        _LAST.clear()
        _LAST[key] = _make(mixture, seed, number)
    return _LAST[key]


def _make(mixture: Mixture, seed: int, number: int) -> list[list[tuple[list[int], list[float]]]]:
    draw = random.Random(f"pool/{seed}/{number}")
    count = mixture.rows * POOL
    kinds = draw.choices(("maths", "code", "drills"), (mixture.maths, mixture.code, mixture.drills), k=count)
    unique, style = seed * 1_000_003 + number, Style(mixture.style)
    stories = itertools.islice(maths.problems("train", unique, style), kinds.count("maths"))
    functions = (c.sample for c in itertools.islice(programs.problems("train", unique, style), kinds.count("code")))
    rows = [row(s.prompt, s.solution) for s in (*stories, *functions)]
    rows += [row("", maths.drill(draw), drill=True) for _ in range(kinds.count("drills"))]
    rows.sort(key=lambda r: len(r[0]))
    pools = [rows[i * mixture.rows : (i + 1) * mixture.rows] for i in range(POOL)]
    draw.shuffle(pools)
    return pools


def row(prompt: str, solution: str, drill: bool = False) -> tuple[list[int], list[float]]:
    """Ids of a text with END, and the weights: 0 in the prompt, RESULT_WEIGHT on results, 1 else (0 in drills)."""
    end, digits, equals = _ids()
    asked = tokenizer().encode(prompt).ids if prompt else []
    told = [*tokenizer().encode(solution).ids, end]
    weights = [IGNORED] * len(asked) + [IGNORED if drill else 1.0] * len(told)
    result = False
    for place, token in enumerate(told, len(asked)):
        result = token == equals or (result and token in digits)
        if result and token in digits:
            weights[place] = RESULT_WEIGHT
    place = len(asked) + len(told) - 3  # before END and the final dot: the answer of a story
    while not drill and prompt.startswith("Q") and [*asked, *told][place] in digits:
        weights[place] = RESULT_WEIGHT
        place -= 1
    return [*asked, *told], weights


def save_tokenizer(folder: Path) -> None:
    """The tokenizer's files beside a checkpoint."""
    from nsd.miniature.tokens import save

    save(folder)
