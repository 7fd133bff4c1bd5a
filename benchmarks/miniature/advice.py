"""The rule of thumb for users: up to which threshold NSD kept the score, with the figures that say so.

A single pair's interval misses one time in twenty, and a report has dozens of pairs. So every interval is widened until
all of them hold jointly, and a pair counts as harmed only where its own still lies below 0; what NSD costs on average
is judged by the mean over pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from benchmarks.miniature.cells import DEFAULT_THETA, THETAS
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
)
from benchmarks.miniature.family import MATCHED, MISMATCHED, tops
from benchmarks.miniature.numbers import Book
from nsd.bench.document import markdown_table
from nsd.bench.stats import Estimate

WORDS = {MATCHED: "has the target's own habits", MISMATCHED: "has other habits"}
SAME = f"the same pairs at {DEFAULT_THETA:g}"
HEAD = (
    "drafter",
    "theta",
    "pairs",
    "mean change, points",
    SAME,
    "worst pair (joint interval)",
    "calls saved",
    "ES content",
)


@dataclass(frozen=True, slots=True)
class Step:
    """All pairs of a variant at one threshold, and those of them that were measured at the default one.

    wider: makes single intervals hold jointly over the whole rule.
    """

    theta: float
    changes: Sequence[Change]
    at_default: Sequence[Change]
    wider: float

    @property
    def mean(self) -> Estimate:
        """Mean change of score over the pairs."""
        return mean_change(self.changes)

    @property
    def cheap(self) -> bool:
        """Surely less than MARGIN lost on average, and no pair harmed."""
        return self.mean.low is not None and self.mean.low > -MARGIN and not self.harmed

    @property
    def dear(self) -> bool:
        """Surely more than MARGIN lost on average, or a pair harmed."""
        return self.harmed > 0 or (self.mean.high is not None and self.mean.high < -MARGIN)

    @property
    def harmed(self) -> int:
        """Pairs whose score is surely lower."""
        return sum(change.sign(self.wider) == "lowered" for change in self.changes)

    def cells(self, variant: str) -> list[str]:
        """Its row of the table."""
        same = points(mean_change(self.at_default)) if len(self.at_default) == len(self.changes) else "-"
        worst = min(self.changes, key=lambda change: change.score.value or 0.0)
        saved = 100 * float(np.mean([change.saved for change in self.changes]))
        es = [change.relaxed.value("ES", "tested", "content") or 0.0 for change in self.changes]
        return [
            variant, f"{self.theta:g}", str(len(self.changes)), points(self.mean), same,
            f"{points(stretched(worst.score, self.wider))} ({', '.join(worst.pair)})", f"{saved:.0f}%",
            f"{float(np.mean(es)):.4f}",
        ]  # fmt: skip


def rule_of_thumb(book: Book) -> str:
    """The section."""
    measured = {variant: _measured(book, variant) for variant in WORDS}
    changes = [change for thetas in measured.values() for found in thetas.values() for change in found]
    wider = joint(len(changes))
    every = {
        variant: [Step(theta, found, _at_default(thetas, found), wider) for theta, found in thetas.items()]
        for variant, thetas in measured.items()
    }
    said = [f"- **A drafter that {words}**: {_advice(every[variant])}" for variant, words in WORDS.items()]
    said += _under(book)
    es = _limit(changes, wider)
    if es is not None:
        said.append(f"- **Watch ES where answers are decided**: {es}")
    head = (
        "A rule of thumb for users, computed from the cells below of each shape's most accurate target. A threshold is "
        f"called cheap if the mean over its pairs surely loses less than {100 * MARGIN:.0f} point (95% interval) and "
        "no pair is shown to be lowered, by however little; pairs are judged by intervals that hold jointly with 95% "
        "over the whole table. That none is shown to be lowered is no proof that none is: the column has the worst. "
        "Thresholds rest on different pairs; beside each mean stands that of the same pairs at the default."
    )
    rows = [step.cells(variant) for variant, steps in every.items() for step in steps]
    parts = ["### Rule of thumb", head, "\n".join(said)]
    return "\n\n".join([*parts, markdown_table(HEAD, rows)] if rows else parts)


def _measured(book: Book, variant: str) -> dict[float, list[Change]]:
    """Changes by the thresholds at which pairs of a variant were measured, lowest first."""
    best = tops(book.targets)
    pairs: list[Pair] = [pair for pair in book.pairs if pair[2].endswith(f":{variant}") and pair[0] in best]
    found = {theta: [change_of(book, pair, theta) for pair in pairs] for theta in sorted(THETAS)}
    there = {theta: [change for change in changes if change is not None] for theta, changes in found.items()}
    return {theta: changes for theta, changes in there.items() if changes}


def _under(book: Book) -> list[str]:
    """What lower levels show, which the rule leaves out: nobody serves a model that is not yet trained."""
    best = tops(book.targets)
    changes = [c for pair in book.pairs if pair[0] not in best and (c := change_of(book, pair)) is not None]
    if not changes:
        return []
    return [
        f"- **A target that is still weak**: {points(mean_change(changes))} points at theta {DEFAULT_THETA:g} (mean "
        f"over {_pairs(len(changes))} of lower levels). The weaker a target, the more its tail spoils, which NSD cuts "
        "as top-p does; these pairs are left out of the table."
    ]


def _at_default(thetas: Mapping[float, Sequence[Change]], changes: Sequence[Change]) -> list[Change]:
    """The changes of the same pairs at the default threshold."""
    pairs = {change.pair for change in changes}
    return [change for change in thetas.get(DEFAULT_THETA, ()) if change.pair in pairs]


def _advice(steps: Sequence[Step]) -> str:
    """The highest cheap threshold, and those at which a pair is lowered."""
    if not steps:
        return f"{UNKNOWN}; no pair was measured."
    cheap = _highest(steps, lambda step: step.cheap)
    if cheap is not None:
        first = f"theta up to {cheap.theta:g} is cheap (there: {_pairs(len(cheap.changes))})"
    else:
        first = "no measured theta is cheap" if steps[0].dear else f"whether any theta is cheap {UNKNOWN}"
    harmful = [f"{step.theta:g} in {step.harmed} of {len(step.changes)}" for step in steps if step.harmed]
    if not harmful:
        return f"{first}; no pair is shown to be lowered at any measured theta (up to {steps[-1].theta:g})."
    return f"{first}; the score is lowered at theta {', at '.join(harmful)} pairs."


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def _highest(steps: Sequence[Step], good: Callable[[Step], bool]) -> Step | None:
    """The highest threshold up to which all are good."""
    return next(reversed(list(takewhile(good, steps))), None)


def _limit(changes: Sequence[Change], wider: float) -> str | None:
    """Mean ES at content tokens of cells that keep their score, and of those that lose."""
    by_sign: dict[str, list[float]] = {}
    for change in changes:
        es, sign = change.relaxed.value("ES", "tested", "content"), change.sign(wider)
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
