"""`nsd list rules|drafters|models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer
from rich.table import Table

from nsd.cli import options as o
from nsd.cli.console import emit_json, out

app = typer.Typer(no_args_is_help=True)


@app.command()
def rules(json_output: o.Json = False) -> None:
    """Verification rules with their capabilities."""
    from nsd.rules.table import rows

    found = rows()
    if json_output:
        emit_json("rules", {"rules": [asdict(row) for row in found]})
        return
    width = max(len(row.name) for row in found) + 2
    for row in found:
        facts = {
            "lossless": row.lossless,
            "keeps u < p/q": row.keeps_ratio,
            "needs q": row.needs_q,
            "capped": row.capped,
        }
        lines = [
            row.formula,
            "  ".join(f"{name}: {_word(value)}" for name, value in facts.items()),
            f"after failure: {row.after_failure}",
            *(str(number) for number in row.numbers),
        ]
        out.print(f"{row.name:<{width}}{lines[0]}", markup=False)
        for line in lines[1:]:
            out.print(" " * width + line, markup=False)


@app.command()
def drafters(json_output: o.Json = False) -> None:
    """Proposal mechanisms by name, and the kinds of folder that are recognised."""
    from nsd.drafters.load import DRAFTERS, FALLBACK, KINDS

    named = [{"name": entry.name, "doc": entry.doc, "as": "name"} for entry in DRAFTERS.values()]
    named.append({"name": "auto", "doc": f"what the target's own folder holds, else {FALLBACK}", "as": "name"})
    folders = [{"name": kind.name, "doc": kind.doc, "as": "folder or hub name"} for kind in KINDS]
    _show("drafters", [*named, *folders], json_output)


@app.command()
def models(json_output: o.Json = False) -> None:
    """Models with a name of their own; any hub name or local folder works too."""
    from nsd.targets.load import MODELS

    found = [{"name": name, "doc": entry.doc} for name, entry in MODELS.items()]
    _show("models", found, json_output)


def _show(kind: str, found: list[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        emit_json(kind, {kind: found})
    else:
        _table(found)


def _table(found: list[dict[str, Any]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in found[0]:
        table.add_column(heading.replace("_", " "), overflow="fold")
    for row in found:
        table.add_row(*(str(value) for value in row.values()))
    out.print(table)


def _word(holds: bool) -> str:
    return "yes" if holds else "no"
