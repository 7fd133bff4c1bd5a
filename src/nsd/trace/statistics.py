"""Shares and means with intervals. Tokens of one text depend on each other; the intervals treat them as if not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value over n observations with its 95% interval; value None with the reason where there is none.

    paper is the figure that the paper reports for it, None where it is not comparable, with why.
    """

    value: float | None
    n: int
    low: float | None = None
    high: float | None = None
    reason: str | None = None
    paper: float | None = None
    not_compared: str | None = None


def share(hits: Sequence[bool], reason: str) -> Estimate:
    """Share of hits with Wilson's interval; reason stands where nothing was observed."""
    if not hits:
        return Estimate(None, 0, reason=reason)
    from scipy.stats import binomtest

    interval = binomtest(sum(hits), len(hits)).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(sum(hits) / len(hits), len(hits), float(interval.low), float(interval.high))


def mean(values: Sequence[float], reason: str) -> Estimate:
    """Mean with Student's interval, which needs two observations."""
    if not values:
        return Estimate(None, 0, reason=reason)
    middle = fmean(values)
    if len(values) < 2:
        return Estimate(middle, 1)
    from scipy.stats import t

    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return Estimate(middle, len(values), middle - half, middle + half)
