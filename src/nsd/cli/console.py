"""Two streams: the product on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from rich.console import Console

SCHEMA_VERSION = 1

SECONDS_BETWEEN_LINES = 15
"""How often progress is told where lines cannot be rewritten."""


class ClosedPipe(Exception):
    """The reader of stdout has enough; click would swallow a BrokenPipeError on its way to the exit code."""


class _Pipe(Console):
    """A console that leaves a closed pipe to the caller."""

    def on_broken_pipe(self) -> NoReturn:
        raise ClosedPipe


out = _Pipe(highlight=False, soft_wrap=True)
"""The product: text, tables, JSON."""

talk = Console(stderr=True, highlight=False)
"""Notes, cards, progress, errors."""


def write(text: str, console: Console = out) -> None:
    """Text as it is, at once."""
    try:
        console.file.write(text)
        console.file.flush()
    except BrokenPipeError:
        raise ClosedPipe from None


def note(message: str) -> None:
    """One line of talk."""
    talk.print(message, style="dim", markup=False, soft_wrap=True)


def emit_json(kind: str, values: dict[str, Any]) -> None:
    """One JSON document on stdout, with the schema's version and what kind of document it is.

    An infinite number is the string "inf", as in traces.
    """
    document = {"schema_version": SCHEMA_VERSION, "kind": kind, **_finite(values)}
    write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """The same with every infinity as text; JSON has no number for it."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value
