"""Intervals and tests for paired arms: bootstrap over problems, exact McNemar, unbiased pass@k.

Arms answer the same problems with the same seeds, so everything is paired. Problems are resampled, never single
answers: several seeds of one problem stay together. Resampling is seeded, so a report says the same each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
FEWEST = 5
"""Problems below which no interval is given."""
RESAMPLES = 2000

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95% interval and the n problems behind it; None with a reason where there is none."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        found = {"value": self.value, "low": self.low, "high": self.high, "n": self.n}
        return found if self.reason is None else {**found, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of one arm by problem, [n] each: what is counted above and below a fraction."""

    above: Array
    below: Array

    def resampled(self, picks: npt.NDArray[np.int64]) -> Array:
        """The fraction of totals in each resample, NaN where nothing was counted: picks [R, n] -> [R]."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Array = self.above[picks].sum(1) / self.below[picks].sum(1)
        return found

    @property
    def fraction(self) -> float:
        """sum(above) / sum(below)."""
        return float(self.above.sum() / self.below.sum())


@dataclass(frozen=True, slots=True)
class Spread:
    """A point value with its resamples [R], so that values of several tasks can be averaged before the quantiles."""

    value: float
    samples: Array
    n: int

    def estimate(self) -> Estimate:
        """The value with the 2.5% and 97.5% quantiles of its resamples."""
        if self.n < FEWEST:
            return Estimate(self.value, None, None, self.n, f"an interval needs {FEWEST} problems, here are {self.n}")
        low, high = np.nanquantile(self.samples, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Estimate(self.value, float(low), float(high), self.n)


@lru_cache(maxsize=2)  # one may take 65 MB
def picks_of(n: int, stratum: int = 0) -> npt.NDArray[np.int64]:
    """Which problems each resample takes, [R, n], read-only; the same for all arms of a stratum."""
    found: npt.NDArray[np.int64] = np.random.default_rng([stratum, n]).integers(n, size=(RESAMPLES, n))
    found.flags.writeable = False
    return found


def fraction(totals: Totals, stratum: int = 0) -> Spread:
    """sum(above) / sum(below): an accuracy, a rate, a tau."""
    n = len(totals.above)
    return Spread(totals.fraction, totals.resampled(picks_of(n, stratum)), n)


def ratio(fast: Totals, slow: Totals, stratum: int = 0) -> Spread:
    """Ratio of totals of two arms on the same problems: [sum a / sum s] / [sum a' / sum s']."""
    picks = picks_of(len(fast.above), stratum)
    with np.errstate(invalid="ignore", divide="ignore"):
        samples = fast.resampled(picks) / slow.resampled(picks)
    return Spread(fast.fraction / slow.fraction, np.where(np.isfinite(samples), samples, np.nan), len(fast.above))


def difference(one: Totals, other: Totals, stratum: int = 0) -> Spread:
    """Difference of two arms' fractions on the same problems."""
    picks = picks_of(len(one.above), stratum)
    return Spread(one.fraction - other.fraction, one.resampled(picks) - other.resampled(picks), len(one.above))


def mean_ratio(fast: Totals, slow: Totals, stratum: int = 0) -> Spread:
    """Mean over problems of each problem's own ratio of rates."""
    each = (fast.above / fast.below) / (slow.above / slow.below)
    return Spread(float(each.mean()), each[picks_of(len(each), stratum)].mean(1), len(each))


def average(spreads: Sequence[Spread]) -> Spread:
    """Unweighted mean of independent strata (tasks); n is all their problems."""
    samples: Array = np.mean([s.samples for s in spreads], axis=0)
    return Spread(float(np.mean([s.value for s in spreads])), samples, sum(s.n for s in spreads))


def shifted(spread: Spread, scale: float, offset: float) -> Spread:
    """scale value + offset."""
    return Spread(scale * spread.value + offset, scale * spread.samples + offset, spread.n)


def mcnemar(only_one: int, only_other: int) -> float:
    """Exact two-sided p of McNemar's test from the discordant pairs b and c.

    p = min(1, 2 sum_{i <= min(b, c)} C(b + c, i) / 2^(b + c)), and 1 without discordant pairs. Pairs of one problem
    under several seeds are treated as independent.
    """
    n = only_one + only_other
    tail = sum(comb(n, i) for i in range(min(only_one, only_other) + 1))
    return float(min(1.0, 2 * tail / 2**n))


def pass_at_k(answers: int, correct: int, k: int) -> float:
    """Unbiased pass@k of one problem with n answers of which c are right: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al., Evaluating Large Language Models Trained on Code, equation 1.
    """
    return 1.0 - comb(answers - correct, k) / comb(answers, k)
