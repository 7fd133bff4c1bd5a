"""docs/trace.md carries the schema as it is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from nsd.trace.document import MEANING, renewed

PAGE = Path(__file__).parents[2] / "docs" / "trace.md"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == renewed(text), "run python -m nsd.trace.document docs/trace.md"


def test_every_field_is_described() -> None:
    for kind, meaning in MEANING.items():
        assert [f.name for f in fields(kind)] == list(meaning), kind.__name__
