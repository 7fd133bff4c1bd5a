"""What a run teaches, in sentences, each with the figures of the cells that it rests on.

A question that the measured cells do not answer is answered with "cannot be told".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.miniature.advice import rule_of_thumb
from benchmarks.miniature.cells import AR, AR_TOP_P, CAPS, DEFAULT_THETA, THETAS, Arm, Cell, fadings, nsd, sd
from benchmarks.miniature.changes import MARGIN, UNKNOWN, Change, change_of, joint, points
from benchmarks.miniature.family import MATCHED, MISMATCHED, mechanism_of
from benchmarks.miniature.numbers import Book, Measured, gain, paired
from nsd.bench.stats import Estimate

FEWEST_CELLS = 8
"""Cells below which no correlation is given."""


def lessons(book: Book) -> str:
    """The section, empty where no pair was measured."""
    changes = [found for pair in book.pairs if (found := change_of(book, pair)) is not None]
    if not changes:
        return ""
    parts = ["## What it teaches", rule_of_thumb(book), *_kept(changes), _tail(book, changes), _habits(changes)]
    parts += [_where(book), _opposite(changes), _equal_calls(book)]
    return "\n\n".join(part for part in parts if part)


def _kept(changes: Sequence[Change]) -> list[str]:
    """Which pairs keep their score at the default threshold, which gain, which lose."""
    said = []
    for sign, words in (
        ("kept", f"keeps the score (surely less than {100 * MARGIN:.0f} point lost)"),
        ("raised", "raises the score"),
        ("lowered", "lowers the score"),
        (UNKNOWN, "may do either; the intervals are too wide"),
    ):
        mine = [change for change in changes if change.sign() == sign]
        listed = "".join(f"\n  - {change}" for change in mine)
        said.append(f"- NSD at {DEFAULT_THETA:g} **{words}** in {len(mine)} of {len(changes)} pairs.{listed}")
    return ["### When it keeps the score, when it helps, when it costs", "\n".join(said)]


def _tail(book: Book, changes: Sequence[Change]) -> str:
    """Whether NSD helps where cutting the target's tail helps."""
    said = []
    for target, task in dict.fromkeys(change.pair[:2] for change in changes):
        plain, cut = (book.get(Cell(target, task, None, arm)) for arm in (AR, AR_TOP_P))
        if plain is None or cut is None:
            continue
        mine = [change for change in changes if change.pair[:2] == (target, task)]
        signs = ", ".join(f"{sum(c.sign() == s for c in mine)} {s}" for s in dict.fromkeys(c.sign() for c in mine))
        said.append(
            f"- {target}, {task}: cutting the tail (plain decoding, top-p 0.95 less 1) changes the score by "
            f"{points(paired(cut, plain, lambda m: m.accuracy))} points; NSD against SD: {signs}."
        )
    head = (
        "NSD moves mass into the nucleus, as top-p does; where a target's own tail spoils answers, that may outweigh "
        "what the drafter's habits cost."
    )
    return "\n".join([head, "", *said]) if said else f"Whether NSD helps by cutting a harmful tail: {UNKNOWN}."


def _habits(changes: Sequence[Change]) -> str:
    """Matched against mismatched drafters of one mechanism."""
    by_pair = {change.pair: change for change in changes}
    said = []
    for (target, task, drafter), one in by_pair.items():
        mechanism, _, variant = drafter.partition(":")
        other = by_pair.get((target, task, f"{mechanism}:{MISMATCHED}"))
        if variant != MATCHED or other is None or one.score.value is None or other.score.value is None:
            continue
        less = 100 * (other.score.value - one.score.value)
        said.append(
            f"- {target}, {task}, {mechanism}: matched {points(one.score)}, mismatched {points(other.score)} points; "
            f"other habits change it by {less:+.1f} more."
        )
    if not said:
        return f"What a drafter with other habits costs: {UNKNOWN} (no mechanism was measured in both variants)."
    return "\n".join(["What a drafter of other habits costs, NSD against SD:", "", *said])


def _where(book: Book) -> str:
    """Deviation at content and at phrasing tokens, and which of them goes with the loss."""
    found: dict[str, list[float]] = {"content": [], "phrasing": [], "loss": []}
    for cell, m in book.cells.items():
        if cell.arm.theta is None or cell.drafter is None or cell.seed:
            continue
        base = book.get(Cell(cell.target, cell.task, cell.drafter, sd(cell.arm.k)))
        es = [m.value("ES", "tested", kind) for kind in ("content", "phrasing")]
        if base is None or es[0] is None or es[1] is None:
            continue
        for name, value in zip(found, (es[0], es[1], -float(gain(m, base).mean())), strict=True):
            found[name].append(value)
    n = len(found["loss"])
    head = "### Where the deviation falls"
    if n < FEWEST_CELLS:
        return f"{head}\n\nWhether ES at content or at phrasing tokens foretells the loss: {UNKNOWN} from {n} cells."
    means = {name: float(np.mean(found[name])) for name in ("content", "phrasing")}
    both = {name: correlation(found[name], found["loss"]) for name in means}
    text = "; ".join(
        f"with ES at {name} tokens {r:.2f} [{low:.2f}, {high:.2f}]" for name, (r, low, high) in both.items()
    )
    better = max(both, key=lambda name: both[name][0])
    sure = both[better][1] > 0
    verdict = f"ES at {better} tokens goes with the loss" if sure else f"which of them foretells the loss {UNKNOWN}"
    return (
        f"{head}\n\nMean ES is {means['content']:.4f} at content tokens (digits, operators) and "
        f"{means['phrasing']:.4f} at phrasing tokens, over {n} cells of NSD. Correlation of the loss of score against "
        f"SD over these cells: {text}. So {verdict}."
    )


ALIKE = 1.1
"""Two deviations within this factor count as nearly the same."""


def _opposite(changes: Sequence[Change]) -> str:
    """Two drafters of one target and task, nearly the same ES at content tokens, one surely gains, one surely loses.

    Judged by intervals that hold jointly; empty where there are none.
    """
    wider = joint(len(changes))
    known = [(change, es) for change in changes if (es := change.relaxed.value("ES", "tested", "content"))]
    found = [
        (max(gain_es, loss_es) / min(gain_es, loss_es), gain, gain_es, loss, loss_es)
        for gain, gain_es in known
        for loss, loss_es in known
        if gain.pair[:2] == loss.pair[:2] and gain.sign(wider) == "raised" and loss.sign(wider) == "lowered"
    ]
    near = min(found, key=lambda each: each[0], default=None)
    if near is None or near[0] > ALIKE:
        return ""
    _, gain, gain_es, loss, loss_es = near
    return (
        "ES says how far the law moves, not in which direction. Two drafters of one target and task with nearly the "
        f"same ES at content tokens: {gain}, ES {gain_es:.4f}; {loss}, ES {loss_es:.4f}."
    )


def correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Pearson's r with Fisher's 95% interval; (0, -1, 1) where a side does not vary."""
    if len(x) < 4 or np.std(x) == 0 or np.std(y) == 0:
        return 0.0, -1.0, 1.0
    r = float(np.corrcoef(x, y)[0, 1])
    z, wide = math.atanh(max(min(r, 0.999999), -0.999999)), 1.96 / math.sqrt(len(x) - 3)
    return r, math.tanh(z - wide), math.tanh(z + wide)


def _equal_calls(book: Book) -> str:
    """Cap and fading threshold against plain thresholds at the same calls a token."""
    lines, gains = list[str](), dict[str, list[Estimate]]({"cap": [], "fading threshold": []})
    for pair in book.pairs:
        k = mechanism_of(pair[2]).k
        plain = [m for m in (book.get(Cell(*pair, arm)) for arm in (sd(k), *(nsd(k, t) for t in THETAS))) if m]
        kinds: list[tuple[str, Iterable[Arm]]] = [
            ("cap", (nsd(k, cap=cap) for cap in CAPS)),
            ("fading threshold", fadings(k)),
        ]
        for kind, arms in kinds:
            for m in (book.get(Cell(*pair, arm)) for arm in arms):
                gain = None if m is None else at_equal_calls(m, plain)
                if m is None or gain is None:
                    continue
                gains[kind].append(gain)
                calls = f"{m.calls.fraction:.4f} calls a token"
                lines.append(
                    f"- {', '.join(pair)}, {m.cell.arm.speaks} ({calls}): {points(gain)} points (n {gain.n:,})."
                )
    head = "### A cap, or a threshold that falls with the target's confidence"
    if not lines:
        return f"{head}\n\nWhether either buys accuracy back at the same calls a token: {UNKNOWN}; no such cell."
    verdicts = " ".join(f"The {kind}: {_bought(mine)}." for kind, mine in gains.items())
    return "\n".join([
        head, "",
        "Score less that of a plain threshold with the same calls a token (interpolated between the two measured "
        f"thresholds around it, SD counted as 0). {verdicts}", "", *lines,
    ])  # fmt: skip


def _bought(gains: Sequence[Estimate]) -> str:
    more = sum(e.low is not None and e.low > 0 for e in gains)
    less = sum(e.high is not None and e.high < 0 for e in gains)
    if not gains or (not more and not less):
        return f"{UNKNOWN} ({len(gains)} settings, none surely better or worse)"
    return f"surely better in {more} of {len(gains)} settings, surely worse in {less}"


def at_equal_calls(m: Measured, plain: Sequence[Measured]) -> Estimate | None:
    """Accuracy of m less that of the mix of two plain cells that has its calls a token; None outside their range.

    Rows are paired; the weights are taken as fixed, so the interval is that of the accuracies.
    """
    calls = m.calls.fraction
    ordered = sorted(plain, key=lambda one: one.calls.fraction)
    for low, high in pairwise(ordered):
        below, above = low.calls.fraction, high.calls.fraction
        if below <= calls <= above and below < above:
            w = (calls - below) / (above - below)
            n = min(len(one.rows) for one in (m, low, high))
            a, b, c = (one.column("correct")[:n] for one in (m, low, high))
            each = a - (1 - w) * b - w * c
            wide = 1.96 * float(each.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
            mean = float(each.mean())
            return Estimate(mean, mean - wide, mean + wide, n)
    return None
