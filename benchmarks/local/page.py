"""The page of a measurement, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.local.goals import Outcome, default_ks, lost, outcomes
from benchmarks.local.rows import PARTS, Row
from benchmarks.local.samples import Store
from nsd.bench.stats import Estimate

MAIN = "local"
"""The page that shows every goal; others show those that they measured."""


def write(
    folder: Path, rows: Sequence[Row], refused: Mapping[str, str], store: Store, quick: bool, name: str = MAIN
) -> list[Path]:
    """Write NAME.md, NAME.json and, where there is a curve to draw, NAME.svg -> the files."""
    from benchmarks.local.curve import draw

    folder.mkdir(parents=True, exist_ok=True)
    found = [one for one in outcomes(rows, store) if name == MAIN or one.value is not None]
    picture = draw(rows, folder / f"{name}.svg")
    skipped = {cell: why for session in store.sessions for cell, why in session["skipped"].items()}
    skipped = {cell: why for cell, why in skipped.items() if cell not in {row.cell.name for row in rows}}
    page = folder / f"{name}.md"
    page.write_text(markdown(name, rows, found, {**skipped, **refused}, store, quick, picture), encoding="utf-8")
    raw: dict[str, Any] = {
        "sessions": store.sessions,
        "quick": quick,
        "goals": [{**asdict(one), "verdict": one.verdict} for one in found],
        "rows": [row.as_json() for row in rows],
        "absent": {**skipped, **refused},
        "default_k": [{"dtype": dtype, "k": k, "tokens_per_second": rates} for dtype, k, rates in default_ks(rows)],
    }
    document = folder / f"{name}.json"
    document.write_text(json.dumps(raw, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [page, document, *([picture] if picture else [])]


def markdown(
    name: str,
    rows: Sequence[Row],
    found: Sequence[Outcome],
    absent: Mapping[str, str],
    store: Store,
    quick: bool,
    picture: Path | None,
) -> str:
    """The whole page."""
    parts = [f"# smollm2-135m on this machine: {name}", *_head(store, quick)]
    if found:
        parts += ["## Goals", _goal_table(found), *_arithmetic(found)]
    parts += lost(rows)
    parts += ["## Speed", _SPEED, _speed_table(rows), "## What it costs", _COST, _cost_table(rows)]
    if picture:
        parts += ["## Sharper drafts, greedy drafts, the cap", f"![tokens/s against mean deviation]({picture.name})"]
    best_k = [f"| {dtype} | {k} | {rates} |" for dtype, k, rates in default_ks(rows)]
    if best_k:
        parts += ["## K by format", _K, "\n".join(["| target | fastest K | tokens/s by K |", "|---|---|---|", *best_k])]
    if absent:
        parts += ["## Not in the tables", "\n".join(f"- {name}: {why}" for name, why in sorted(absent.items()))]
    return "\n\n".join(part for part in parts if part) + "\n"


_SPEED = (
    "tokens/s count the prefill (in brackets: 95% paired bootstrap over prompts), decode tokens/s do not; ms are "
    "medians a block; decision is everything from logits to verdict, accounting included. Peers have no blocks of ours."
)
_COST = (
    "ES: mean deviation from the target's law at a tested position, in total variation; spent: what a cap left of it. "
    "log p and entropy: nats a token under the law of the arm's own weights at its temperature (peers: the bfloat16 "
    "weights). In brackets the difference from plain decoding of the same weights on the same prompts, with its 95% "
    "paired bootstrap interval. SD's tau stands on the same drafts."
)
_K = "NSD's decode tokens/s, geometric mean over temperatures. The choice is DEFAULT_KS in src/nsd/drafters/shipped.py."


def _head(store: Store, quick: bool) -> list[str]:
    """When, where, with what."""
    lines = ["| session | date | machine | threads | load before | versions | revision | command |", "|" + "---|" * 8]
    for number, s in enumerate(store.sessions):
        versions = ", ".join(f"{name} {version}" for name, version in s["versions"].items())
        hardware = f"{s['hardware']['cpu']}, {s['hardware']['cores']} cores"
        cells = (number, s["created"], hardware, s["hardware"]["threads"], f"{s['load']:.1f}", versions)
        command = f"`{' '.join(s['command'])}`"
        lines.append("| " + " | ".join(map(str, (*cells, (s["revision"] or "none")[:12], command))) + " |")
    fixed = store.sessions[-1]["fixed"] if store.sessions else {}
    settings = ", ".join(f"{name} {value}" for name, value in fixed.items())
    said = [f"Batch 1, chat template, arms interleaved prompt by prompt; {settings}.", "\n".join(lines)]
    return (
        ["**A quick run: it shows that everything works, none of its figures is one to quote.**", *said]
        if quick
        else said
    )


def _goal_table(found: Sequence[Outcome]) -> str:
    lines = ["| goal | T | wanted | measured | | arms |", "|---|---|---|---|---|---|"]
    for one in found:
        sign, scale, unit = ("<=", 100.0, "%") if one.at_most else (">=", 1.0, "")
        digits = 1 if one.at_most else 2
        value = "-" if one.value is None else f"{scale * one.value:.{digits}f}{unit}"
        if one.low is not None and one.high is not None:
            value += f" [{one.low:.2f}, {one.high:.2f}]"
        wanted = f"{sign} {scale * one.wanted:g}{unit}"
        verdict = f"**{one.verdict}**" if one.verdict == "missed" else one.verdict
        lines.append(
            f"| {one.figure} | {one.temperature:g} | {wanted} | {value} | {verdict} | {' / '.join(one.cells) or '-'} |"
        )
    return "\n".join(lines)


def _arithmetic(found: Sequence[Outcome]) -> list[str]:
    """What lies behind the missed goals."""
    missed = [one for one in found if one.verdict == "missed" and one.note]
    if not missed:
        return []
    return ["### Why", "\n".join(f"- {one.figure}, T={one.temperature:g}: {one.note}." for one in missed)]


def _speed_table(rows: Sequence[Row]) -> str:
    head = ["arm", "prompts", "tokens", "tokens/s", "decode tokens/s", "tau", "SD's tau", *(f"{p} ms" for p in PARTS)]
    lines = ["| " + " | ".join([*head, "decision share", "kept by depth"]) + " |", "|" + "---|" * (len(head) + 2)]
    for row in rows:
        decode = "-" if row.decode_rate is None else f"{row.decode_rate.value:.1f}"
        ms = ["-"] * len(PARTS) if row.ms is None else [f"{row.ms[part]:.2f}" for part in PARTS]
        share = "-" if row.decision_share is None else f"{100 * row.decision_share:.1f}%"
        kept = " ".join(f"{x:.2f}" for x in row.kept_by_depth) or "-"
        tau = _span(row.tau, 2) if not row.cell.plain else "1"
        cells = (row.cell.name, row.prompts, row.tokens, _span(row.rate, 1), decode, tau, _number(row.sd_tau, 2))
        lines.append("| " + " | ".join(map(str, (*cells, *ms, share, kept))) + " |")
    return "\n".join(lines)


def _cost_table(rows: Sequence[Row]) -> str:
    names = ("log p", "entropy", "distinct-1", "distinct-2", "distinct-3", "length")
    lines = ["| " + " | ".join(["arm", "ES", "spent", *names]) + " |", "|" + "---|" * (len(names) + 3)]
    for row in rows:
        values = (row.log_p, row.entropy, *row.distinct, row.length)
        cells = []
        for name, value in zip(names, values, strict=True):
            digits = 1 if name == "length" else 2
            delta = "" if _is_base(row) or name not in row.delta else f" ({_signed(row.delta[name], digits)})"
            cells.append(f"{_number(value.value, digits)}{delta}")
        mark = " (estimated)" if row.ES_is not in (None, "exact") else ""
        cost = f"{_number(row.ES, 3)}{mark} | {_number(row.spent, 3)}"
        lines.append(f"| {row.cell.name} | {cost} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_base(row: Row) -> bool:
    return row.cell == row.cell.baseline()


def _span(found: Estimate, digits: int) -> str:
    if found.low is None or found.high is None:
        return _number(found.value, digits)
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _signed(found: Estimate, digits: int) -> str:
    if found.low is None or found.high is None:
        return "-" if found.value is None else f"{found.value:+.{digits}f}"
    return f"{found.value:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
