"""The paper's claims, each with our figure, and one of three verdicts: holds, does not hold, cannot be told.

A verdict needs an interval on one side of its line; where the pairs disagree, the sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.miniature.cells import AR, DEFAULT_THETA, Cell, nsd, sd
from benchmarks.miniature.family import mechanism_of
from benchmarks.miniature.numbers import Book, Measured, estimate, paired
from nsd.bench.stats import Estimate

HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot be told"
MARGIN = 0.01
"""Loss of accuracy that still counts as kept: one point."""

Pair = tuple[Measured, Measured]  # NSD, SD


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says, our figures pair by pair, the verdict over all."""

    paper: str
    ours: str
    verdict: str


def claims(book: Book) -> list[Claim]:
    """Every claim that the measured cells speak to."""
    pairs = [(n, s) for n, s in (_both(book, *pair) for pair in book.pairs) if n is not None and s is not None]
    sds = [s for _, s in pairs]
    nsds = [n for n, _ in pairs]
    found = [
        _exact(book),
        _over_pairs("NSD's accepted length is above SD's in every pair", pairs, lambda m: m.tau, 0.0, "tokens"),
        _over_pairs(
            "NSD needs fewer verification calls a token than SD (paper: 0.0835 against 0.1600)",
            pairs, lambda m: m.calls, 0.0, "calls a token", falls=True,
        ),
        _over_pairs(
            "NSD keeps the task's score (paper: +0.40 points on average over SD; here: loses less than one point)",
            pairs, lambda m: m.accuracy, -MARGIN, "accuracy",
        ),
        _share("52.6% of the tokens that SD rejects lie in the 0.95 nucleus", sds, "rejected_in_95", "rejected", 0.526),
        _share(
            "81.5% of the tokens that SD rejects are among the target's top ten",
            sds, "rejected_top10", "rejected", 0.815,
        ),
        _share("94.1% of the rescued tokens are among the target's top five", nsds, "rescued_top5", "rescued", 0.941),
        _share(
            "at 70.3% of the rescued tokens the target's entropy is above the drafter's",
            nsds, "rescued_entropy_p_higher", "rescued", 0.703,
        ),
        _thresholds(book),
        _lengths(book),
    ]  # fmt: skip
    return [claim for claim in found if claim is not None]


def _both(book: Book, target: str, task: str, drafter: str) -> tuple[Measured | None, Measured | None]:
    k = mechanism_of(drafter).k
    return book.get(Cell(target, task, drafter, nsd(k))), book.get(Cell(target, task, drafter, sd(k)))


def verdict_of(estimates: Sequence[Estimate], line: float, falls: bool = False) -> str:
    """holds: all intervals beyond the line; does not hold: one wholly on the other side; else cannot be told."""
    sign = -1.0 if falls else 1.0
    spans = [sorted((sign * e.low, sign * e.high)) for e in estimates if e.low is not None and e.high is not None]
    if not spans or len(spans) < len(estimates):
        return OPEN
    if any(high < sign * line for _, high in spans):
        return FAILS
    return HOLDS if all(low > sign * line for low, _ in spans) else OPEN


def _over_pairs(
    paper: str, pairs: Sequence[Pair], what: Callable[[Measured], object], line: float, unit: str, falls: bool = False
) -> Claim | None:
    if not pairs:
        return None
    found = [paired(n, s, what) for n, s in pairs]  # type: ignore[arg-type]  # every `what` here gives Totals
    said = "; ".join(f"{_name(n)} {_span(e)}" for (n, _), e in zip(pairs, found, strict=True))
    return Claim(paper, f"NSD - SD in {unit}: {said}", verdict_of(found, line, falls))


def _share(paper: str, measured: Sequence[Measured], above: str, below: str, value: float) -> Claim | None:
    """A share that the paper states: ours holds if it is within a tenth of 1 of it in every pair."""
    counted = [m for m in measured if m.value(above, below) is not None]
    if not counted:
        return None
    found = [estimate(m.share(above, below)) for m in counted]
    spans = [(e.low, e.high) for e in found if e.low is not None and e.high is not None]
    near = [low <= value + 0.1 and high >= value - 0.1 for low, high in spans]
    verdict = OPEN if len(near) < len(found) or any(near) != all(near) else HOLDS if all(near) else FAILS
    return Claim(paper, "; ".join(f"{_name(m)} {_span(e)}" for m, e in zip(counted, found, strict=True)), verdict)


def _exact(book: Book) -> Claim | None:
    """SD's accuracy and its texts' information against plain decoding."""
    said = list[str]()
    found = list[Estimate]()
    for target, task, drafter in book.pairs:
        one = book.get(Cell(target, task, drafter, sd(mechanism_of(drafter).k)))
        plain = book.get(Cell(target, task, None, AR))
        if one is not None and plain is not None:
            parts = paired(one, plain, lambda m: m.accuracy), paired(one, plain, lambda m: m.nll)
            found += parts
            said.append(f"{_name(one)} accuracy {_span(parts[0])}, nats a text {_span(parts[1], 2)}")
    if not found:
        return None
    inside = [e.low is not None and e.high is not None and e.low <= 0 <= e.high for e in found]
    allowed = max(1, round(0.05 * len(found) + 2 * (0.05 * 0.95 * len(found)) ** 0.5))
    verdict = HOLDS if sum(not one for one in inside) <= allowed else FAILS
    missed = f"{sum(not one for one in inside)} of {len(found)} 95% intervals leave out 0 (at most {allowed} expected)"
    return Claim("SD's law is the target's own (theory)", f"SD - AR: {'; '.join(said)}; {missed}", verdict)


def _thresholds(book: Book) -> Claim | None:
    """A higher theta accepts more and deviates more."""
    steps, said = [], []
    for target, task, drafter in book.pairs:
        k = mechanism_of(drafter).k
        arms = [book.get(Cell(target, task, drafter, nsd(k, theta))) for theta in (0.5, DEFAULT_THETA)]
        low, high = arms
        if low is not None and high is not None:
            steps.append(paired(high, low, lambda m: m.tau))
            said.append(f"{_name(high)} {_span(steps[-1], 2)}")
    if not steps:
        return None
    text = "a higher threshold accepts more: tau at 0.95 is above tau at 0.5"
    return Claim(text, "tau(.95) - tau(.5): " + "; ".join(said), verdict_of(steps, 0.0))


def _lengths(book: Book) -> Claim | None:
    """More proposals a block commit more tokens a call."""
    found, said = [], []
    for target, task, drafter in book.pairs:
        k = mechanism_of(drafter).k
        long = book.get(Cell(target, task, drafter, nsd(k)))
        short = book.get(Cell(target, task, drafter, nsd(max(k // 2, 1))))
        if long is not None and short is not None and k > 1:
            found.append(paired(long, short, lambda m: m.tau))
            said.append(f"{_name(long)} {_span(found[-1], 2)}")
    if not found:
        return None
    text = "tau(K) - tau(K/2): " + "; ".join(said)
    return Claim("a longer block has a higher accepted length", text, verdict_of(found, 0.0))


def _name(m: Measured) -> str:
    return f"{m.cell.target}, {m.cell.task}, {m.cell.drafter}:"


def _span(e: Estimate, digits: int = 3) -> str:
    if e.low is None or e.high is None or e.value is None:
        return "-" if e.value is None else f"{e.value:.{digits}f}"
    return f"{e.value:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]"
