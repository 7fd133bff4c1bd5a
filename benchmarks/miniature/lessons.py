"""What a run teaches, sentence by sentence, each from cells that it names; a sentence without its cells is left out."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.miniature.cells import AR, AR_TOP_P, CAPS, THETAS, Arm, Cell, nsd, sd
from benchmarks.miniature.family import mechanism_of
from benchmarks.miniature.numbers import Book, Measured, paired
from nsd.bench.stats import Estimate

Pair = tuple[str, str, str]


def lessons(book: Book) -> str:
    """The section, empty where no pair was measured."""
    found = [sentence for pair in book.pairs for sentence in _of_pair(book, pair)]
    return "\n".join(["## What it teaches", "", *(f"- {sentence}" for sentence in found)]) if found else ""


def _of_pair(book: Book, pair: Pair) -> Iterable[str]:
    k = mechanism_of(pair[2]).k
    base, relaxed = (book.get(Cell(*pair, arm)) for arm in (sd(k), nsd(k)))
    if base is None or relaxed is None:
        return
    change = paired(relaxed, base, lambda m: m.accuracy)
    name = ", ".join(pair)
    saved = 1 - relaxed.calls.fraction / base.calls.fraction
    yield (
        f"**{name}**: NSD at 0.95 {_verb(change)} the score against SD ({_points(change)} points) and saves "
        f"{100 * saved:.1f}% of the verification calls a token."
    )
    plain, cut = (book.get(Cell(pair[0], pair[1], None, arm)) for arm in (AR, AR_TOP_P))
    if plain is not None and cut is not None:
        tail = paired(cut, plain, lambda m: m.accuracy)
        yield f"{name}: the target's own tail costs {_points(tail)} points (plain decoding, top-p 0.95 less 1)."
    content, phrasing = (relaxed.value("ES", "tested", kind) for kind in ("content", "phrasing"))
    if content is not None and phrasing is not None:
        yield f"{name}: mean ES is {content:.4f} at content tokens and {phrasing:.4f} at phrasing tokens."
    yield from _savings(book, pair, "threshold", (nsd(k, theta) for theta in THETAS), base)
    yield from _savings(book, pair, "cap", (nsd(k, cap=cap) for cap in CAPS), base)


def _savings(book: Book, pair: Pair, what: str, arms: Iterable[Arm], base: Measured) -> Iterable[str]:
    """The setting with the fewest calls among those that surely lose no more than a point."""
    cells = [m for m in (book.get(Cell(*pair, arm)) for arm in arms) if m is not None]
    kept = [m for m in cells if _surely_kept(paired(m, base, lambda one: one.accuracy))]
    if len(cells) < 2:
        return
    if not kept:
        yield f"{', '.join(pair)}: at this number of problems no {what} is sure to lose less than a point."
        return
    best = min(kept, key=lambda m: m.calls.fraction)
    yield (
        f"{', '.join(pair)}: of the {what}s that surely lose less than a point, {best.cell.arm.speaks} needs the "
        f"fewest calls, {best.calls.fraction:.4f} a token (SD {base.calls.fraction:.4f})."
    )


def _surely_kept(change: Estimate) -> bool:
    return change.low is not None and change.low > -0.01


def _verb(change: Estimate) -> str:
    if change.low is not None and change.low > 0:
        return "raises"
    if change.high is not None and change.high < 0:
        return "lowers"
    return "does not measurably change"


def _points(change: Estimate) -> str:
    if change.value is None or change.low is None or change.high is None:
        return "-"
    return f"{100 * change.value:+.1f} [{100 * change.low:.1f}, {100 * change.high:.1f}]"
