"""The rule of thumb for users: up to which threshold NSD kept the score, with the figures that say so.

A single pair's interval misses one time in twenty, and a report has dozens of pairs. So a pair counts as harmed only
where all intervals of the rule, widened to hold jointly, still leave it so; what NSD costs on average is judged by the
mean over pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.miniature.cells import THETAS
from benchmarks.miniature.changes import (
    MARGIN,
    UNKNOWN,
    Change,
    Pair,
    change_of,
    joint,
    mean_change,
    points,
    stretched,
    table,
)
from benchmarks.miniature.family import MATCHED, MISMATCHED
from benchmarks.miniature.numbers import Book
from nsd.bench.stats import Estimate

WORDS = {MATCHED: "learned from the target's own text", MISMATCHED: "learned from text of other habits"}
HEAD = ("drafter", "theta", "pairs", "mean change, points", "worst pair, jointly", "calls saved", "ES content")


@dataclass(frozen=True, slots=True)
class Step:
    """All pairs of a variant at one threshold; `wider` makes single intervals hold jointly over the whole rule."""

    theta: float
    changes: Sequence[Change]
    wider: float = 1.0

    @property
    def mean(self) -> Estimate:
        """Mean change of score over the pairs."""
        return mean_change(self.changes)

    @property
    def cheap(self) -> bool:
        """Surely less than MARGIN lost on average, and no pair harmed."""
        return (self.mean.low or 0.0) > -MARGIN and not self.harmed

    @property
    def harmed(self) -> int:
        """Pairs whose score is surely lower."""
        return sum(change.sign(self.wider) == "lowered" for change in self.changes)

    def cells(self, variant: str) -> list[str]:
        """Its row of the table."""
        worst = min(self.changes, key=lambda change: change.score.value or 0.0)
        saved = 100 * float(np.mean([change.saved for change in self.changes]))
        es = [change.relaxed.value("ES", "tested", "content") or 0.0 for change in self.changes]
        return [
            variant, f"{self.theta:g}", str(len(self.changes)), points(self.mean),
            f"{points(stretched(worst.score, self.wider))} ({', '.join(worst.pair)})", f"{saved:.0f}%",
            f"{float(np.mean(es)):.4f}",
        ]  # fmt: skip


def rule_of_thumb(book: Book) -> str:
    """The section."""
    every = {variant: _steps(book, variant) for variant in WORDS}
    wider = joint(sum(len(step.changes) for steps in every.values() for step in steps))
    every = {variant: [replace(step, wider=wider) for step in steps] for variant, steps in every.items()}
    said = [f"- **A drafter that {words}**: {_advice(every[variant])}" for variant, words in WORDS.items()]
    es = _limit([change for steps in every.values() for step in steps for change in step.changes])
    if es is not None:
        said.append(f"- **Watch ES where answers are decided**: {es}")
    head = (
        "A rule of thumb for users, computed from the cells below. A threshold is called cheap if the mean over its "
        f"pairs surely loses less than {100 * MARGIN:.0f} point and no pair is surely lowered; pairs are judged by "
        "intervals that hold jointly with 95% over the whole table."
    )
    rows = [step.cells(variant) for variant, steps in every.items() for step in steps]
    parts = ["### Rule of thumb", head, "\n".join(said)]
    return "\n\n".join([*parts, table(HEAD, rows)] if rows else parts)


def _steps(book: Book, variant: str) -> list[Step]:
    """The thresholds at which pairs of a variant were measured, lowest first."""
    pairs: list[Pair] = [pair for pair in book.pairs if pair[2].endswith(f":{variant}")]
    steps = []
    for theta in sorted(THETAS):
        changes = [change for pair in pairs if (change := change_of(book, pair, theta)) is not None]
        if changes:
            steps.append(Step(theta, changes))
    return steps


def _advice(steps: Sequence[Step]) -> str:
    """The highest cheap threshold, and the lowest that harms."""
    if not steps:
        return f"{UNKNOWN}; no pair was measured."
    cheap = _highest(steps, lambda step: step.cheap)
    harmful = next((step for step in steps if step.harmed), None)
    first = f"theta up to {cheap:g} is cheap" if cheap is not None else f"whether any theta is cheap {UNKNOWN}"
    if harmful is None:
        return f"{first}; no pair is surely lowered at any measured theta (up to {steps[-1].theta:g})."
    return f"{first}; from {harmful.theta:g} on it harms ({harmful.harmed} of {len(harmful.changes)} pairs lowered)."


def _highest(steps: Sequence[Step], good: Callable[[Step], bool]) -> float | None:
    """The highest threshold up to which all are good."""
    best = None
    for step in steps:
        if not good(step):
            break
        best = step.theta
    return best


def _limit(changes: Sequence[Change]) -> str | None:
    """Mean ES at content tokens of cells that keep their score, and of those that lose."""
    by_sign: dict[str, list[float]] = {}
    for change in changes:
        es, sign = change.relaxed.value("ES", "tested", "content"), change.sign()
        if es is not None:
            by_sign.setdefault("kept" if sign == "raised" else sign, []).append(es)
    kept, lost = by_sign.get("kept"), by_sign.get("lowered")
    if not kept or not lost:
        return None
    line = (
        f"cells that keep their score have mean ES {np.mean(kept):.4f} at content tokens (at most {max(kept):.4f}, "
        f"{len(kept)} cells), cells that lose {np.mean(lost):.4f} (at least {min(lost):.4f}, {len(lost)} cells)"
    )
    return f"{line}; {'the two do not overlap' if max(kept) < min(lost) else 'the two overlap, so it is a hint'}."
