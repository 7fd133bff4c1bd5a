"""The audit of a footer: totals counted again, and what was promised and spent against the header and the blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from nsd.trace.checks import POLICIES
from nsd.trace.record import INTERRUPTED, add
from nsd.trace.redecide import SET_RULES
from nsd.trace.schema import Header, RequestInfo, RequestTotals, Trace
from nsd.trace.standing import FINE, Finding, Standing, is_exact

_NEED_A_REASON = ("guarantee", "weight", "expected_rescues", "mean_ES", "max_ES")


def check_header(header: Header) -> Iterator[Finding]:
    """Settings that contradict themselves."""
    numbers = [info.request for info in header.requests]
    if len(set(numbers)) != len(numbers):
        yield Finding("header", "requests", numbers, "every request once")
    if header.draft_law not in ("sampled", "point", "unknown"):
        yield Finding("header", "draft_law", header.draft_law, "sampled, point or unknown")
    for info in header.requests:
        place = f"header, request {info.request}"
        if info.agreement is not None and not 0 < info.agreement <= 1:
            yield Finding(place, "agreement", info.agreement, "a number in (0, 1]")
        if info.agreement is not None and info.policy not in POLICIES:
            yield Finding(place, "policy", info.policy, f"one of {', '.join(POLICIES)}")


def check_footer(trace: Trace, standings: Mapping[int, Standing]) -> Iterator[Finding]:
    """Totals and fidelity reports of all requests."""
    footer = trace.footer
    assert footer is not None, "a trace without footer is reported before"
    if footer.blocks != len(trace.blocks):
        yield Finding("footer", "blocks", footer.blocks, f"{len(trace.blocks)}, as many as there are")
    if not footer.seconds >= 0:
        yield Finding("footer", "seconds", footer.seconds, "seconds, not negative")
    if [t.request for t in footer.requests] != list(standings):
        yield Finding(
            "footer", "requests", [t.request for t in footer.requests], f"{list(standings)}, as in the header"
        )
        return
    own = {request: RequestTotals(request) for request in standings}
    for block in trace.blocks:
        if block.request in own:
            own[block.request] = add(own[block.request], block)
    for totals in footer.requests:
        yield from _totals(own[totals.request], totals)
        if totals.fidelity:
            yield from _fidelity(standings[totals.request], totals)


def _totals(own: RequestTotals, totals: RequestTotals) -> Iterator[Finding]:
    for name in (f.name for f in fields(RequestTotals) if f.name != "fidelity"):
        got, wanted = getattr(totals, name), getattr(own, name)
        wanted = INTERRUPTED if name == "finish_reason" and wanted is None else wanted
        if got != wanted:
            yield Finding(f"footer, request {totals.request}", name, got, f"{wanted}, counted over the blocks")


def promised(info: RequestInfo) -> tuple[float | None, float | None]:
    """The guarantee that the header's settings justify, and the cap on every step behind its windowed form."""
    if is_exact(info):
        return 1.0, 0.0
    if info.rule not in SET_RULES:
        return None, None
    epsilon = None if info.cap is None else min(info.cap, 1.0)
    by_cap = None if epsilon is None else (1 - epsilon) ** info.max_new_tokens
    known = [value for value in (by_cap, info.agreement) if value is not None]
    return max(known, default=None), epsilon


def _fidelity(s: Standing, totals: RequestTotals) -> Iterator[Finding]:
    place, report = f"footer, request {totals.request}", totals.fidelity
    ledger = _mapping(report.get("ledger"))
    reasons = _mapping(report.get("reasons"))
    tested = s.counts["tested"]
    wanted: dict[str, tuple[Any, float | None]] = {
        "ledger.Q": (ledger.get("Q"), s.kept),
        "ledger.sum_eps": (ledger.get("sum_eps"), s.spent),
        "ledger.max_eps": (ledger.get("max_eps"), s.largest),
        "expected_rescues": (report.get("expected_rescues"), s.spent),
        "mean_ES": (report.get("mean_ES"), s.sum_es / tested if tested else None),
        "max_ES": (report.get("max_ES"), s.max_es if tested else None),
        "tested": (report.get("tested"), float(tested)),
        "rescued": (report.get("rescued"), float(totals.rescued)),
    }
    for name, (got, value) in wanted.items():
        if got is not None and (value is None or not _near(got, value)):
            yield Finding(place, name, got, f"{value}, from the recorded positions")
    for name in _NEED_A_REASON:
        if name in report and report[name] is None and not reasons.get(name):
            yield Finding(place, name, None, "a value, or the reason why there is none")
    yield from _guarantee(s, totals, report, place)
    yield from _weight(s, totals, report, place)


def _guarantee(s: Standing, totals: RequestTotals, report: Mapping[str, Any], place: str) -> Iterator[Finding]:
    """Promised before decoding and unharmed since: no more than the settings justify, null after a guard."""
    got = report.get("guarantee")
    value, epsilon = promised(s.info)
    if got is None:
        if report.get("guarantee_window") is not None:
            yield Finding(place, "guarantee_window", report["guarantee_window"], "null, as the guarantee is")
        return
    if totals.guards or totals.invalid:
        yield Finding(
            place, "guarantee", got, f"null, {totals.guards} guards and {totals.invalid} rows of q not finite"
        )
    elif value is None or not _near(got, value):
        yield Finding(place, "guarantee", got, f"{value}, from rule, cap and budget of the header")
    elif s.kept < value * (1 - FINE) and not is_exact(s.info):
        yield Finding(place, "guarantee", got, f"at most prod (1 - eps) = {s.kept:.9g} of this path")
    windows = report.get("guarantee_window")
    if not isinstance(windows, dict):
        yield Finding(place, "guarantee_window", windows, "one value for each width")
        return
    for width, window in windows.items():
        best = value if epsilon is None or value is None else max(value, (1 - epsilon) ** int(width))
        if best is None or not _near(window, best):
            yield Finding(place, f"guarantee_window.{width}", window, f"{best}")


def _weight(s: Standing, totals: RequestTotals, report: Mapping[str, Any], place: str) -> Iterator[Finding]:
    got = report.get("weight")
    if got is None:
        return
    unknown = s.header.draft_law == "unknown" and not is_exact(s.info)
    if unknown or totals.guards or totals.invalid:
        yield Finding(place, "weight", got, "null, the emitted law is not known")
    elif s.weight is None or not _near(got, s.weight):
        yield Finding(place, "weight", got, f"{s.weight}, the product over accepted tokens")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _near(got: Any, wanted: float) -> bool:
    return isinstance(got, int | float) and abs(got - wanted) <= FINE * max(1.0, abs(wanted))
