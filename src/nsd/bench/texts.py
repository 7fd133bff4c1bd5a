"""Numbers as a report writes them: a speed-up never without its interval and the number of prompts behind it."""

from __future__ import annotations

from nsd.bench.results import Quality, Row, estimate
from nsd.bench.stats import Estimate, Spread

NONE = "–"


def speed_text(spread: Spread | None) -> str:
    """A speed-up with its interval and sample size, or why it has no interval."""
    found = estimate(spread)
    if found.value is None:
        return NONE
    return f"{found.value:.2f}x {span(found, 2)}"


def span(found: Estimate, digits: int, scale: float = 1.0) -> str:
    """The interval in brackets and the number of problems, or that they are too few."""
    if found.low is None or found.high is None:
        return f"(n = {found.n}, too few for an interval)"
    return f"[{scale * found.low:.{digits}f}, {scale * found.high:.{digits}f}] (n = {found.n})"


def score_text(spread: Spread) -> str:
    """A share in percent."""
    return f"{100 * spread.value:.2f}"


def number(value: float | None, digits: int) -> str:
    """A number with so many digits, a dash if there is none."""
    return NONE if value is None else f"{value:.{digits}f}"


def tau_text(row: Row) -> str:
    """A row's tau."""
    return number(None if row.tau is None else row.tau.value, 2)


def points_text(quality: Quality | None) -> str:
    """A difference of scores in points with its interval and McNemar's p."""
    if quality is None:
        return NONE
    found = estimate(quality.difference)
    span = "" if found.low is None or found.high is None else f" [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"
    p = "" if quality.p is None else f", p = {quality.p:.3g}"
    return f"{100 * quality.difference.value:+.2f}{span}{p}"


def own_text(own: Spread | float | None, digits: int, unit: str) -> str:
    """One's own figure beside one of the paper's, empty without one."""
    if own is None:
        return ""
    if isinstance(own, Spread):
        return f"{own.value:.{digits}f}{unit} {span(own.estimate(), digits)}"
    return f"{own:.{digits}f}{unit}"
