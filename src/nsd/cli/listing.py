"""`nsd list rules|drafters|models`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer
from rich.table import Table

from nsd.cli import options as o
from nsd.cli.console import emit_json, out

app = typer.Typer(no_args_is_help=True)

_RULE_COLUMNS = ("name", "formula", "numbers", "lossless", "after_failure", "capped")


@app.command()
def rules(json_output: o.Json = False) -> None:
    """Verification rules with their capabilities."""
    from nsd.rules.table import rows

    found = [asdict(row) for row in rows()]
    if json_output:
        emit_json("rules", {"rules": found})
        return
    shown = [{name: row[name] for name in _RULE_COLUMNS} for row in found]
    for row in shown:
        row["numbers"] = "\n".join(f"{n['name']} = {n['default']}: {n['wanted']}" for n in row["numbers"]) or "-"
    _table(shown)


@app.command()
def drafters(json_output: o.Json = False) -> None:
    """Proposal mechanisms by name, and the kinds of folder that are recognised."""
    from nsd.drafters.load import DRAFTERS, KINDS

    named = [{"name": entry.name, "doc": entry.doc, "as": "name"} for entry in DRAFTERS.values()]
    folders = [{"name": kind.name, "doc": kind.doc, "as": "folder or hub name"} for kind in KINDS]
    _show("drafters", [*named, *folders], json_output)


@app.command()
def models(json_output: o.Json = False) -> None:
    """Models with a name of their own; any hub name or local folder works too."""
    from nsd.targets.load import MODELS

    found = [{"name": name, "doc": str(getattr(entry, "doc", entry))} for name, entry in MODELS.items()]
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
        table.add_row(*("yes" if v is True else "no" if v is False else str(v) for v in row.values()))
    out.print(table)
