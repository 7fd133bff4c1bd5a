"""What a report is made of: sections of paragraphs, tables and figures; as Markdown, and as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsd.bench.paper import figures as paper_figures
from nsd.bench.results import Results
from nsd.bench.stats import Spread

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Table:
    """A table: caption, headings, rows of texts; the first column names the row."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure: caption and SVG; Markdown names it only."""

    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class Card:
    """One number at the head of a page: what it is, the number, and what must stand beside it."""

    label: str
    value: str
    small: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands under it; level 2 or 3."""

    title: str
    parts: Sequence[str | Table | Picture]
    level: int = 2


@dataclass(frozen=True, slots=True)
class Report:
    """What is rendered: title, a line under it, sections, and the numbers behind all of it.

    cards, by model, stand at the head of the page and repeat what tables say.
    """

    title: str
    lead: str
    sections: Sequence[Section]
    results: Results
    with_paper: bool
    cards: Mapping[str, Sequence[Card]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All numbers, and the paper's beside them if asked for."""
        found: dict[str, Any] = {"schema": SCHEMA, **self.results.as_json()}
        if self.with_paper:
            found["paper"] = [
                {
                    "model": f.model,
                    "figure": f.what,
                    "paper": f.value,
                    "unit": f.unit,
                    "source": f.source,
                    "own": _plain_own(f.own(self.results)),
                }
                for f in paper_figures()
            ]
        return found

    def markdown(self) -> str:
        """The report as Markdown, without pictures."""
        lines = [f"# {self.title}", "", self.lead, ""]
        for section in self.sections:
            lines += [f"{'#' * section.level} {section.title}", ""]
            for part in section.parts:
                if isinstance(part, str):
                    lines += [part, ""]
                elif isinstance(part, Table):
                    lines += [f"**{part.caption}**", "", markdown_table(part.head, part.rows), ""]
                else:
                    lines += [f"Figure (report.html): {part.caption}", ""]
        return "\n".join(lines).rstrip() + "\n"


def _plain_own(own: Spread | float | None) -> Any:
    return own.estimate().as_json() if isinstance(own, Spread) else own


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, bars in its cells escaped."""
    clean = [[cell.replace("|", "\\|") for cell in row] for row in (head, ["---"] * len(head), *rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in clean)
