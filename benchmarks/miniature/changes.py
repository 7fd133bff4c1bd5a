"""What NSD changes for a pair: the difference of scores against SD, paired by problem, and the calls that it saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from benchmarks.miniature.cells import DEFAULT_THETA, Cell, nsd, sd
from benchmarks.miniature.family import mechanism_of
from benchmarks.miniature.numbers import Book, Measured, gain, paired
from nsd.bench import stats
from nsd.bench.stats import Estimate

Pair = tuple[str, str, str]

MARGIN = 0.01
"""Loss of accuracy that still counts as kept: one point."""

UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True)
class Change:
    """NSD at a threshold against SD, for a pair: the difference of scores, and the share of calls that is saved.

    base, relaxed: the two cells. score: the difference of their accuracies, with its interval.
    """

    pair: Pair
    base: Measured
    relaxed: Measured
    score: Estimate

    def __str__(self) -> str:
        saved = f"{100 * self.saved:.0f}% of calls saved"
        return f"{', '.join(self.pair)}: {points(self.score)} points, {saved} (n {self.n:,})"

    @property
    def n(self) -> int:
        """Problems that both cells have."""
        return min(len(self.base.rows), len(self.relaxed.rows))

    @property
    def difference(self) -> float:
        """The difference of accuracies over the problems that both have."""
        return self.score.value or 0.0

    @property
    def saved(self) -> float:
        """Share of SD's verification calls a token that NSD does without."""
        return 1 - self.relaxed.calls.fraction / self.base.calls.fraction

    def sign(self, wider: float = 1.0) -> str:
        """raised, lowered, kept (surely less than MARGIN lost) or UNKNOWN, by the interval made so much wider."""
        e = stretched(self.score, wider)
        if e.low is None or e.high is None:
            return UNKNOWN
        return "raised" if e.low > 0 else "lowered" if e.high < 0 else "kept" if e.low > -MARGIN else UNKNOWN


def change_of(book: Book, pair: Pair, theta: float = DEFAULT_THETA) -> Change | None:
    """The change of a pair at a threshold, None where a cell is missing."""
    k = mechanism_of(pair[2]).k
    base, relaxed = (book.get(Cell(*pair, arm)) for arm in (sd(k), nsd(k, theta)))
    if base is None or relaxed is None:
        return None
    return Change(pair, base, relaxed, paired(relaxed, base, lambda m: m.accuracy))


def mean_change(changes: Sequence[Change]) -> Estimate:
    """Mean over pairs of the difference of scores, with a 95% interval over problems.

    Every pair weighs the same and brings all its problems. Pairs of a task have problems in common, so what they add
    to the error is summed problem by problem before it is squared; tasks are independent. No interval below FEWEST
    problems.
    """
    errors: dict[str, stats.Array] = {}
    for change in changes:
        n, each = change.n, gain(change.relaxed, change.base)
        mine = errors.setdefault(change.pair[1], np.zeros(max(c.n for c in changes)))
        mine[:n] += (each - each.mean()) / (n * len(changes))
    mean = float(np.mean([change.difference for change in changes]))
    fewest = min(change.n for change in changes)
    if fewest < stats.FEWEST:
        return Estimate(mean, None, None, fewest)
    wide = NormalDist().inv_cdf(0.975) * math.sqrt(sum(float((e**2).sum()) for e in errors.values()))
    return Estimate(mean, mean - wide, mean + wide, fewest)


def joint(count: int) -> float:
    """How much wider than a single one each of `count` intervals has to be to hold jointly with 95% (Bonferroni)."""
    normal = NormalDist()
    return normal.inv_cdf(1 - 0.025 / max(count, 1)) / normal.inv_cdf(0.975)


def stretched(e: Estimate, wider: float) -> Estimate:
    """The interval, wider by a factor about its value."""
    if e.value is None or e.low is None or e.high is None:
        return e
    return Estimate(e.value, e.value - wider * (e.value - e.low), e.value + wider * (e.high - e.value), e.n)


def points(change: Estimate) -> str:
    """A difference of scores in points, with its interval."""
    if change.value is None:
        return "-"
    if change.low is None or change.high is None:
        return f"{100 * change.value:+.1f}"
    return f"{100 * change.value:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
