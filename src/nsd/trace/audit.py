"""Re-decides every recorded position and says whether the trace holds together.

It re-checks recorded decisions; it executes neither caches nor kernels, and it cannot see what was not recorded. The
decision code and the generator of uniforms are its own: nothing of laws, rules or verification is imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from nsd.trace.checks import check_block
from nsd.trace.claims import check_footer, check_header
from nsd.trace.redecide import KNOWN_RULES, PARTLY
from nsd.trace.schema import Trace
from nsd.trace.standing import Finding, Standing

SCHEMA = 1

SCOPE = (
    "re-checks recorded decisions; executes neither caches nor kernels",
    "the running hash detects corruption, not a forger",
    "sees no row that was not recorded: not that p and q are the models' laws, not that no cap peeked at a later row",
)
"""What a verdict does not say, printed with every verdict."""

COUNTED = ("blocks", "tested", "redecided", "not_redecided", "draws", "draws_unchecked", "deviation_unchecked")
"""What an audit counts, beside guards and rows of q that were not finite."""


@dataclass(frozen=True, slots=True)
class Audit:
    """findings, empty if the trace is clean; counts of what was looked at; notes on what could not be."""

    findings: tuple[Finding, ...]
    counts: dict[str, int]
    notes: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing contradicts anything."""
        return not self.findings

    @property
    def exit_code(self) -> int:
        """0 clean, 1 violated (an unreadable trace never gets here and is 2)."""
        return 0 if self.clean else 1

    def as_json(self) -> dict[str, Any]:
        """Plain values; schema is the version of this form."""
        return {
            "schema": SCHEMA,
            "verdict": "clean" if self.clean else "violated",
            "exit_code": self.exit_code,
            "counts": self.counts,
            "findings": [asdict(finding) | {"got": str(finding.got)} for finding in self.findings],
            "notes": list(self.notes),
            "scope": list(SCOPE),
        }


def audit(trace: Trace, unfinished: bool = False) -> Audit:
    """Audit a trace; unfinished allows one whose recording was interrupted, and then its whole blocks are audited."""
    standings = {info.request: Standing(trace.header, info) for info in trace.header.requests}
    findings = [*_whole(trace, unfinished), *check_header(trace.header)]
    for block in trace.blocks:
        standing = standings.get(block.request)
        if standing is None:
            findings.append(Finding(f"block {block.number}", "request", block.request, f"one of {list(standings)}"))
        else:
            findings.extend(check_block(standing, block))
    findings.extend(_steps(trace, unfinished))
    if trace.footer is not None:
        findings.extend(check_footer(trace, standings))
    counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0) | {"blocks": len(trace.blocks)})
    for standing in standings.values():
        counts.update(standing.counts)
    counts["guards"] = sum(block.guard for block in trace.blocks)
    counts["invalid"] = sum(block.invalid for block in trace.blocks)
    return Audit(tuple(findings), dict(counts), tuple(_notes(trace, counts)))


def _whole(trace: Trace, unfinished: bool) -> Iterator[Finding]:
    for line in trace.broken_lines:
        yield Finding(f"line {line}", "sha256", "another hash", "the running hash of the lines up to here")
    if trace.torn and not unfinished:
        yield Finding("end", "line", "a torn last line", "whole lines")
    if trace.footer is None and not unfinished:
        yield Finding("end", "footer", "none", "a footer; recording was interrupted or the end was cut off")


def _steps(trace: Trace, unfinished: bool) -> Iterator[Finding]:
    """Blocks that shared a step carry its size, its timing and its time; an interrupted last step may be partial."""
    steps: dict[float, list[Any]] = {}
    for block in trace.blocks:
        steps.setdefault(block.seconds_since_start, []).append(block)
    if unfinished and trace.footer is None:
        steps.popitem() if steps else None
    for blocks in steps.values():
        first = blocks[0]
        if any((b.timing, b.batch) != (first.timing, first.batch) for b in blocks) or first.batch != len(blocks):
            where = ", ".join(f"request {b.request} block {b.number}" for b in blocks)
            yield Finding(where, "batch", [b.batch for b in blocks], f"{len(blocks)}, and one timing for the step")


def _notes(trace: Trace, counts: Counter[str]) -> Iterator[str]:
    for rule in sorted({info.rule for info in trace.header.requests}):
        if rule not in KNOWN_RULES:
            yield f"rule {rule} is not known here: its decisions are not taken again"
        elif rule in PARTLY:
            yield f"rule {rule} is re-decided in part: {PARTLY[rule]}"
    if counts["not_redecided"]:
        yield f"{counts['not_redecided']} decisions are not settled by the recorded evidence"
    if counts["draws_unchecked"]:
        yield f"{counts['draws_unchecked']} draws were recorded without their masses"
    if counts["deviation_unchecked"]:
        yield f"{counts['deviation_unchecked']} positions were recorded without ES, so their allowance is not checked"
    if trace.footer is None:
        yield "the trace has no footer: totals and guarantee are not checked"
    elif not all(totals.fidelity for totals in trace.footer.requests):
        yield "no fidelity report for some requests: guarantee and ledger are not checked there"
