"""The paper's claims, each with our figure, and one of three verdicts: holds, does not hold, cannot be told.

A verdict needs an interval on one side of its line; where the pairs disagree, the sentence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.miniature.cells import AR, DEFAULT_THETA, Cell, match, nsd, sd
from benchmarks.miniature.changes import MARGIN, UNKNOWN, Change, change_of, joint, mean_change, points, stretched
from benchmarks.miniature.family import mechanism_of, tops
from benchmarks.miniature.numbers import Book, Measured, estimate, paired
from nsd.bench.stats import Estimate, Totals

HOLDS, FAILS, OPEN = "holds", "does not hold", UNKNOWN

Two = tuple[Measured, Measured]  # NSD, SD


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says, our figures over all pairs, the verdict, and the paper's own figure."""

    paper: str
    ours: str
    verdict: str
    figure: str = "-"


def claims(book: Book) -> list[Claim]:
    """Every claim that the measured cells speak to."""
    changes = [change for pair in book.pairs if (change := change_of(book, pair)) is not None]
    pairs = [(change.relaxed, change.base) for change in changes]
    nsds, sds = [n for n, _ in pairs], [s for _, s in pairs]
    best = tops(book.targets)
    finished = [change for change in changes if change.pair[0] in best]
    found = [
        _exact(book),
        _over_pairs(
            Said("NSD's accepted length is above SD's", "5.41 to 6.69 (Qwen3-8B), 4.98 to 11.82 (Nemotron-8B)"),
            pairs, lambda m: m.tau, 0.0, "tokens",
        ),
        _over_pairs(
            Said("NSD needs fewer verification calls a token than SD", "0.1600 to 0.0835"),
            pairs, lambda m: m.calls, 0.0, "calls a token", falls=True,
        ),
        *([_kept_on_average(finished), _kept_everywhere(changes), _wins(finished)] if finished else []),
        _over_pairs(
            Said("so it does for MTP at K = 2: a longer accepted length", "Table 6"),
            [pair for pair in pairs if (pair[0].cell.drafter or "").startswith("mtp")], lambda m: m.tau, 0.0, "tokens",
        ),
        _over_pairs(
            Said("NSD accepts more than native standard speculation (sample-and-match)", "4.98 to 11.82 (Nemotron-8B)"),
            [pair for pair in (_against_match(book, n) for n in nsds) if pair], lambda m: m.tau, 0.0, "tokens",
        ),
        _share(
            Said("tokens that SD rejects lie in the 0.95 nucleus", "0.526"),
            sds, "rejected_in_95", "rejected", 0.526,
        ),
        _share(
            Said("tokens that SD rejects are among the target's top ten", "0.815"),
            sds, "rejected_top10", "rejected", 0.815,
        ),
        _share(
            Said("rescued tokens are among the target's top five", "0.941"), nsds, "rescued_top5", "rescued", 0.941
        ),
        _share(
            Said("at rescued tokens the target's entropy is above the drafter's", "0.703"),
            nsds, "rescued_entropy_p_higher", "rescued", 0.703,
        ),
        _thresholds(book),
        _lengths(book),
    ]  # fmt: skip
    return [claim for claim in found if claim is not None]


@dataclass(frozen=True, slots=True)
class Said:
    """A claim of the paper and its figure."""

    claim: str
    figure: str


def _against_match(book: Book, relaxed: Measured) -> Two | None:
    """NSD beside the native baseline of its mechanism, None where there is none."""
    cell = relaxed.cell
    native = book.get(Cell(cell.target, cell.task, cell.drafter, match(cell.arm.k)))
    return None if native is None else (relaxed, native)


def _kept_on_average(changes: Sequence[Change]) -> Claim:
    """The mean difference of scores, which is what the paper states: of finished models, not of lower levels."""
    mean = mean_change(changes)
    claim = f"NSD keeps the task's score on average (here: loses less than {100 * MARGIN:.0f} point, mean over pairs)"
    ours = f"mean difference over {len(changes)} pairs of the most accurate targets: {points(mean)} points"
    return Claim(claim, ours, verdict_of([mean], -MARGIN), "+0.40 points on average")


def _kept_everywhere(changes: Sequence[Change]) -> Claim:
    """Every single pair, by intervals that hold jointly."""
    found = [(change.relaxed, stretched(change.score, joint(len(changes)))) for change in changes]
    ours = f"difference in accuracy, intervals that hold jointly: {_spread(found, -MARGIN)}"
    claim = f"(no claim of the paper) NSD loses less than {100 * MARGIN:.0f} point in every single pair"
    return Claim(claim, ours, verdict_of([e for _, e in found], -MARGIN), "below SD in 14 of 30 comparisons")


def _wins(changes: Sequence[Change]) -> Claim:
    """How often the score is above SD's."""
    values = [change.difference for change in changes]
    above, equal = sum(v > 0 for v in values), sum(v == 0 for v in values)
    mean = 100 * sum(values) / len(values)
    of = f"{len(changes)} pairs of the most accurate targets"
    ours = f"above SD in {above} of {of}, equal in {equal}; mean difference {mean:+.2f} points"
    half = abs(above - (len(changes) - equal) / 2) <= (len(changes) - equal) ** 0.5
    verdict = OPEN if len(changes) < 6 else HOLDS if half else FAILS
    claim = "NSD's score is above SD's about as often as below it (within two standard errors of a coin)"
    return Claim(claim, ours, verdict, "above in 15 of 30, equal in 1, +0.40 points on average")


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
    said: Said, pairs: Sequence[Two], what: Callable[[Measured], Totals], line: float, unit: str, falls: bool = False
) -> Claim | None:
    if not pairs:
        return None
    found = [(n, paired(n, s, what)) for n, s in pairs]
    ours = f"difference in {unit}: {_spread(found, line)}"
    return Claim(said.claim, ours, verdict_of([e for _, e in found], line, falls), said.figure)


def _spread(found: Sequence[tuple[Measured, Estimate]], line: float | None = None, digits: int = 3) -> str:
    """Figures of several pairs in short: one by one if they are few, else the ends and how many are sure."""
    if len(found) <= 2:
        return "; ".join(f"{_name(m)} {_span(e, digits)}" for m, e in found)
    ordered = sorted(found, key=lambda one: one[1].value or 0.0)
    text = " to ".join(f"{_span(e, digits)} ({_name(m).rstrip(':')})" for m, e in (ordered[0], ordered[-1]))
    if line is None:
        return f"{len(found)} pairs, {text}"
    above = sum(e.low is not None and e.low > line for _, e in found)
    below = sum(e.high is not None and e.high < line for _, e in found)
    return f"{len(found)} pairs, {text}; surely above {line:g} in {above}, surely below in {below}"


def _share(said: Said, measured: Sequence[Measured], above: str, below: str, value: float) -> Claim | None:
    """A share that the paper states: ours holds if it is within a tenth of 1 of it in every pair."""
    counted = [m for m in measured if m.value(above, below) is not None]
    if not counted:
        return None
    found = [estimate(m.share(above, below)) for m in counted]
    spans = [(e.low, e.high) for e in found if e.low is not None and e.high is not None]
    near = [low <= value + 0.1 and high >= value - 0.1 for low, high in spans]
    verdict = OPEN if len(near) < len(found) or any(near) != all(near) else HOLDS if all(near) else FAILS
    ours = "share: " + _spread(list(zip(counted, found, strict=True)))
    return Claim(said.claim, ours, verdict, said.figure)


def _exact(book: Book) -> Claim | None:
    """SD's accuracy and its texts' information against plain decoding.

    Pairs of one target share its plain answers, so that their misses come together: they are judged jointly, by
    intervals wide enough that all of them hold 0 with 95% (Bonferroni).
    """
    scores, texts = list[tuple[Measured, Estimate]](), list[tuple[Measured, Estimate]]()
    for target, task, drafter in book.pairs:
        one = book.get(Cell(target, task, drafter, sd(mechanism_of(drafter).k)))
        plain = book.get(Cell(target, task, None, AR))
        if one is not None and plain is not None:
            scores.append((one, paired(one, plain, lambda m: m.accuracy)))
            texts.append((one, paired(one, plain, lambda m: m.nll)))
    if not scores:
        return None
    found = [e for _, e in (*scores, *texts)]
    missed = sum(not _holds_zero(stretched(e, joint(len(found)))) for e in found)
    single = sum(not _holds_zero(e) for e in found)
    counted = f"0 lies outside {single} of {len(found)} intervals, and outside {missed} that hold jointly with 95%"
    ours = f"SD - AR in accuracy: {_spread(scores)}; in nats a text: {_spread(texts, digits=2)}; {counted}"
    return Claim("SD's law is the target's own (theory)", ours, FAILS if missed else HOLDS, "exact")


def _holds_zero(e: Estimate) -> bool:
    """Whether 0 lies in the interval."""
    return e.low is not None and e.high is not None and e.low <= 0 <= e.high


def _thresholds(book: Book) -> Claim | None:
    """A higher theta accepts more."""
    steps = list[tuple[Measured, Estimate]]()
    for target, task, drafter in book.pairs:
        k = mechanism_of(drafter).k
        low, high = (book.get(Cell(target, task, drafter, nsd(k, theta))) for theta in (0.5, DEFAULT_THETA))
        if low is not None and high is not None:
            steps.append((high, paired(high, low, lambda m: m.tau)))
    if not steps:
        return None
    claim = "a higher threshold accepts more: tau at 0.95 is above tau at 0.5"
    figure = "speed-up falls from 5.16 to 4.86 from theta 0.95 to 0.85 (Nemotron-14B, GSM8K)"
    return Claim(claim, _spread(steps, 0.0, 2), verdict_of([e for _, e in steps], 0.0), figure)


def _lengths(book: Book) -> Claim | None:
    """More proposals a block commit more tokens a call."""
    found = list[tuple[Measured, Estimate]]()
    for target, task, drafter in book.pairs:
        k = mechanism_of(drafter).k
        long = book.get(Cell(target, task, drafter, nsd(k)))
        short = book.get(Cell(target, task, drafter, nsd(max(k // 2, 1))))
        if long is not None and short is not None and k > 1:
            found.append((long, paired(long, short, lambda m: m.tau)))
    if not found:
        return None
    claim = "a longer block has a higher accepted length: tau(K) is above tau(K/2)"
    figure = "from K = 8 to 32 at every threshold; gains shrink or turn on MBPP"
    return Claim(claim, _spread(found, 0.0, 2), verdict_of([e for _, e in found], 0.0), figure)


def _name(m: Measured) -> str:
    return f"{m.cell.target}, {m.cell.task}, {m.cell.drafter}:"


def _span(e: Estimate, digits: int = 3) -> str:
    if e.low is None or e.high is None or e.value is None:
        return "-" if e.value is None else f"{e.value:.{digits}f}"
    return f"{e.value:.{digits}f} [{e.low:.{digits}f}, {e.high:.{digits}f}]"
