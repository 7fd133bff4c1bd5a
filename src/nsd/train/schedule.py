"""What a run does at each step, fixed before it begins: depths, losses, learning rate, order of rows.

Shares are shares of time. A step that unrolls three depths takes longer than one that unrolls one, so shares are turned
into steps by the seconds that each kind took in a probe, once; a resumed run reads the steps, never the clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nsd.errors import ConfigError
from nsd.train.losses import Mix

SHARES = {1: 0.30, 2: 0.20, 3: 0.50}
"""Depths unrolled in training, and the share of time for each, in order."""

COSTS = {1: 1.0, 2: 1.5, 3: 2.05}
"""Typical time of a step of so many depths; each one more costs about half a step."""

WARM_UP, CROSS_ENTROPY = 0.02, 0.35
"""Shares of the run: learning rate rising; cross-entropy alone. Total variation rules the rest."""

LATER = Mix(cross_entropy=0.1, total_variation=1.0)


@dataclass(frozen=True, slots=True)
class Stage:
    """steps of `depths` unrolled depths; cost of one step relative to the others."""

    depths: int
    steps: int
    cost: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """The whole run: peak learning rate, and the share of time with cross-entropy alone."""

    stages: tuple[Stage, ...]
    peak: float
    cross_entropy: float = CROSS_ENTROPY

    @property
    def steps(self) -> int:
        """All steps."""
        return sum(stage.steps for stage in self.stages)

    def depths(self, step: int) -> int:
        """Depths unrolled at a step."""
        for stage in self.stages:
            if step < stage.steps:
                return stage.depths
            step -= stage.steps
        raise ConfigError(f"step {step} is past the end of the run")

    def progress(self, step: int) -> float:
        """Share of the run's time that is spent before a step."""
        total, done = sum(stage.steps * stage.cost for stage in self.stages), 0.0
        for stage in self.stages:
            done += min(step, stage.steps) * stage.cost
            step = max(step - stage.steps, 0)
        return done / total

    def rate(self, step: int) -> float:
        """Learning rate: a short rise, then a straight line to nearly nothing."""
        done = self.progress(step)
        return self.peak * min((done + 1e-4) / WARM_UP, 1.0) * max(1.0 - done, 0.01)

    def mix(self, step: int) -> Mix:
        """Losses at a step."""
        return Mix(1.0, 0.0) if self.progress(step) < self.cross_entropy else LATER


def depth_shares(values: Sequence[float]) -> dict[int, float]:
    """Shares of time for depths 1, 2, ... as given, scaled to a sum of 1; depths without a share are left out.

    Raises ConfigError for shares that are negative, not finite or all zero.
    """
    total = sum(values)
    if not values or min(values) < 0 or not 0 < total < float("inf"):
        listed = ",".join(f"{value:g}" for value in values)
        raise ConfigError(f"--depth-shares got '{listed}', wanted shares of at least 0, one above; try 0.3,0.2,0.5")
    return {depth: value / total for depth, value in enumerate(values, 1) if value}


def stages(seconds: float, costs: Mapping[int, float], shares: Mapping[int, float] = SHARES) -> tuple[Stage, ...]:
    """Steps for a number of seconds, by the measured seconds of a step of each number of depths."""
    return tuple(Stage(d, max(round(seconds * share / costs[d]), 1), costs[d]) for d, share in shares.items())


def stages_of(steps: int, shares: Mapping[int, float] = SHARES) -> tuple[Stage, ...]:
    """A given number of steps, shared out by typical costs; the first stage takes what rounding leaves."""
    costs = {d: COSTS.get(d, 1 + 0.525 * (d - 1)) for d in shares}
    unit = steps / sum(share / costs[d] for d, share in shares.items())
    counts = {d: max(round(unit * share / costs[d]), 1) for d, share in shares.items()}
    first, *others = counts
    counts[first] = max(steps - sum(counts[d] for d in others), 0)
    return tuple(Stage(d, count, costs[d]) for d, count in counts.items())


def order(rows: int, size: int, seed: int, step: int) -> list[int]:
    """The rows of a step's batch: every epoch is a fresh shuffle, cut into batches, the remainder left out."""
    each = max(rows // size, 1)
    epoch, place = divmod(step, each)
    shuffled = list(range(rows))
    random.Random(f"{seed}/epoch/{epoch}").shuffle(shuffled)
    return shuffled[place * size : (place + 1) * size]
