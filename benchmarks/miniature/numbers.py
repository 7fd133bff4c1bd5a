"""From rows to numbers: everything in a report is a sum over the rows of a cell, or a paired difference of two cells.

Problems are resampled, never tokens; cells of a task share their problems, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.miniature.cells import Cell
from benchmarks.miniature.evaluate import SUMS
from nsd.bench import stats
from nsd.bench.stats import Estimate, Totals

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """A cell with its rows, in the order of the problems."""

    cell: Cell
    rows: Sequence[Row]

    def column(self, name: str) -> stats.Array:
        """One value a row: [n]."""
        return np.array([float(row[name]) for row in self.rows])

    def kind(self, kind: str, name: str) -> stats.Array:
        """One of SUMS a row, over content or phrasing tokens ("all" for both): [n]."""
        place = SUMS.index(name)
        kinds = ("content", "phrasing") if kind == "all" else (kind,)
        return np.array([sum(row[k][place] for k in kinds) for row in self.rows])

    @property
    def accuracy(self) -> Totals:
        """Right answers among answers."""
        return Totals(self.column("correct"), np.ones(len(self.rows)))

    @property
    def calls(self) -> Totals:
        """Verification passes a token after the first; plain decoding has 1."""
        return Totals(self.column("blocks"), self._later_tokens)

    @property
    def tau(self) -> Totals:
        """Tokens after the first a block."""
        return Totals(self._later_tokens, self.column("blocks"))

    @property
    def nll(self) -> Totals:
        """-log p of whole texts under the target at temperature 1, in nats."""
        return Totals(self.column("nll"), np.ones(len(self.rows)))

    @property
    def speed(self) -> Totals:
        """Tokens a second of wall time, batch of many."""
        return Totals(self.column("output_tokens"), self.column("seconds"))

    def share(self, above: str, below: str, kind: str = "all") -> Totals:
        """A ratio of two of SUMS."""
        return Totals(self.kind(kind, above), self.kind(kind, below))

    def value(self, above: str, below: str, kind: str = "all") -> float | None:
        """The same as a number; None where nothing was counted."""
        totals = self.share(above, below, kind)
        return totals.fraction if totals.below.sum() else None

    @cached_property
    def _later_tokens(self) -> stats.Array:
        return self.column("output_tokens") - self.column("prefill_tokens_out")


def estimate(totals: Totals) -> Estimate:
    """A fraction with its bootstrap interval."""
    return stats.fraction(totals).estimate()


def paired(one: Measured, other: Measured, what: Callable[[Measured], Totals]) -> Estimate:
    """Difference of a quantity of two cells over the problems that both have."""
    n = min(len(one.rows), len(other.rows))
    first, second = (what(Measured(m.cell, m.rows[:n])) for m in (one, other))
    return stats.difference(first, second).estimate()


def gain(one: Measured, other: Measured) -> stats.Array:
    """By problem that both cells have, the answer of one less that of the other: [n] of -1, 0, 1."""
    n = min(len(one.rows), len(other.rows))
    return one.column("correct")[:n] - other.column("correct")[:n]


def mcnemar(one: Measured, other: Measured) -> float:
    """Exact McNemar p of two cells' answers."""
    each = gain(one, other)
    return stats.mcnemar(int((each > 0).sum()), int((each < 0).sum()))


class Book:
    """All measured cells, looked up by what they are."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.cells = {m.cell: m for m in measured if m.rows}

    def get(self, cell: Cell) -> Measured | None:
        """The cell, None if it was not measured."""
        return self.cells.get(cell)

    @property
    def targets(self) -> list[str]:
        """Targets in the order of measuring."""
        return list(dict.fromkeys(cell.target for cell in self.cells))

    @property
    def pairs(self) -> list[tuple[str, str, str]]:
        """(target, task, drafter) with at least one cell."""
        return list(dict.fromkeys((c.target, c.task, c.drafter) for c in self.cells if c.drafter is not None))

    def tasks(self, target: str) -> list[str]:
        """Tasks of a target."""
        return list(dict.fromkeys(cell.task for cell in self.cells if cell.target == target))
