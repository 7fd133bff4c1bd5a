"""A report as one HTML page that loads nothing: style inside, figures inline, every text escaped."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsd.bench.document import Card, Picture, Report, Section, Table


def page(report: Report) -> str:
    """The whole page."""
    parts = {
        "title": escape(report.title),
        "lead": escape(report.lead),
        "cards": "".join(_cards(name, cards) for name, cards in report.cards.items()),
        "contents": "".join(f'<a href="#{_anchor(s)}">{escape(s.title)}</a>' for s in report.sections),
        "sections": "".join(_section(s) for s in report.sections),
    }
    template = files("nsd.bench").joinpath("report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _cards(name: str, cards: Sequence[Card]) -> str:
    inner = "".join(
        f"<div><dt>{escape(c.label)}</dt><dd>{escape(c.value)}<small>{escape(c.small)}</small></dd></div>"
        for c in cards
    )
    return f'<dl class="cards" aria-label="{escape(name)}">{inner}</dl>'


def _anchor(section: Section) -> str:
    return re.sub(r"\W+", "-", section.title.lower()).strip("-")


def _section(section: Section) -> str:
    from nsd.bench.document import Table

    inner, figures = [], []
    for part in section.parts:
        if isinstance(part, str):
            inner.append(f"<p>{escape(part)}</p>")
        elif isinstance(part, Table):
            inner.append(_table(part))
        else:
            figures.append(_figure(part))
    pictures = f'<div class="figures">{"".join(figures)}</div>' if figures else ""
    anchor = _anchor(section)
    head = f'<h2 id="{anchor}">{escape(section.title)}</h2>'
    return f'<section aria-labelledby="{anchor}">{head}{pictures}{"".join(inner)}</section>'


def _figure(picture: Picture) -> str:
    return f"<figure><figcaption>{escape(picture.caption)}</figcaption>{picture.svg}</figure>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.head)
    body = "".join(
        f'<tr{_overall(row[0])}><th scope="row">{escape(row[0])}</th>{"".join(_cell(cell) for cell in row[1:])}</tr>'
        for row in table.rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(table.head) else ""
    facts = "" if top else ' class="facts"'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}"><table{facts}>'
        f"<caption>{escape(table.caption)}</caption>"
        f"{top}<tbody>{body}</tbody></table></div>"
    )


def _overall(name: str) -> str:
    return ' class="overall"' if name == "overall" else ""


def _cell(text: str) -> str:
    """A cell; an interval stands on a line of its own."""
    value, opening, rest = text.partition(" [") if " [" in text else text.partition(" (n = ")
    words = len(text) > 40 and not opening
    if not opening or not re.match(r"[+−-]?[\d.]+x?$", value):
        return f"<td{' class=words' if words else ''}>{escape(text)}</td>"
    return f"<td><b>{escape(value)}</b><small>{escape(opening.strip() + rest)}</small></td>"
