"""Two streams: the product on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

SCHEMA_VERSION = 1

out = Console(highlight=False, soft_wrap=True)
"""The product: text, tables, JSON."""

talk = Console(stderr=True, highlight=False)
"""Notes, cards, progress, errors."""


def note(message: str) -> None:
    """One line of talk."""
    talk.print(message, style="dim", markup=False, soft_wrap=True)


def emit_json(kind: str, values: dict[str, Any]) -> None:
    """One JSON document on stdout, with the schema's version and what kind of document it is."""
    document = {"schema_version": SCHEMA_VERSION, "kind": kind, **values}
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()
