"""The table of all rules, read off the rules themselves: for listings, and for docs/rules.md.

Retention of a proposal (when x stays) and generation after failure (what is emitted when it does not) are columns of
their own: rules that agree in one differ in the other, and the entries are not interchangeable.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from nsd.rules.base import Need, Recovery, Rule
from nsd.rules.ratio_or_set import RatioOrSet

REGENERATE = """python -c "from nsd.rules.table import page; print(page(), end='')" > docs/rules.md"""

_EVIDENCE = {
    Need.MASS_ABOVE: "mass above x",
    Need.MASS_BEFORE: "mass before x",
    Need.RANK: "rank of x",
    Need.MAX_P: "max p",
    Need.ARGMAX: "argmax p",
    Need.ENTROPY_P: "H(p)",
    Need.TARGET_DRAW: "the draw of plain decoding",
    Need.ROWS: "whole rows of p and q",
}
_AFTER_FAILURE = {
    Recovery.RESIDUAL: "drawn from the residual (p-q)+ / R",
    Recovery.SURROGATE: "drawn from (pi-q)+, normalised",
    Recovery.TARGET: "drawn from p",
    Recovery.ARGMAX: "argmax p",
}
_LAW = {
    Recovery.RESIDUAL: "q a + (1 - sum q a) (p-q)+ / R; TV = the extra accepted mass",
    Recovery.SURROGATE: "pi",
    Recovery.TARGET: "q a + (1 - sum q a) p",
    Recovery.ARGMAX: "q a, and the rest on argmax p",
}


@dataclass(frozen=True, slots=True)
class NumberRow:
    """One number of a rule: its default (None = off) and what is allowed, in words."""

    name: str
    default: Any
    wanted: str

    def __str__(self) -> str:
        return f"{self.name} = {'none' if self.default is None else self.default}: {self.wanted}"


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule as a listing shows it.

    formula says when x is accepted; evidence what is read for that besides p(x), and q(x) where needs_q; keeps_ratio
    whether whatever passes u q < p is kept; after_failure the law of the token in place of a rejected one; law the
    emitted law, a the acceptance probability; capped whether max_deviation or a budget can bound its deviation.
    """

    name: str
    summary: str
    formula: str
    numbers: tuple[NumberRow, ...]
    lossless: bool
    needs_q: bool
    keeps_ratio: bool
    evidence: tuple[str, ...]
    after_failure: str
    law: str
    capped: bool
    source: str


def rows() -> list[RuleRow]:
    """Every rule of the catalogue, in its order."""
    from nsd.rules import RULES  # the catalogue imports this module while it is being made

    return [_row(kind) for kind in RULES.values()]


def _row(kind: type[Rule]) -> RuleRow:
    needs = kind().needs
    return RuleRow(
        name=kind.name,
        summary=(inspect.getdoc(kind) or "").splitlines()[0],
        formula=kind.formula,
        numbers=tuple(
            NumberRow(f.name, f.default, kind.ranges[f.name][0])
            for f in fields(kind)  # type: ignore[arg-type]  # every Rule is a dataclass
        ),
        lossless=kind.lossless,
        needs_q=kind.needs_q,
        keeps_ratio=kind.widens_ratio,
        evidence=tuple(words for need, words in _EVIDENCE.items() if need in needs),
        after_failure="the draw of plain decoding" if Need.TARGET_DRAW in needs else _AFTER_FAILURE[kind.recovery],
        law="p" if kind.lossless else _LAW[kind.recovery],
        capped=kind.lossless or issubclass(kind, RatioOrSet),
        source=kind.source,
    )


def page() -> str:
    """docs/rules.md."""
    found = rows()
    return "\n\n".join(
        [
            "# Rules",
            f"<!-- Made from the rules themselves. To make it anew: {REGENERATE} -->",
            _INTRODUCTION,
            "## Retention of a proposal",
            _table(
                (
                    "rule",
                    "x is accepted iff",
                    "numbers: default, range",
                    "lossless",
                    "needs q",
                    "keeps u < p/q",
                    "reads",
                ),
                (
                    (
                        f"`{r.name}`",
                        f"`{r.formula}`",
                        "<br>".join(str(n) for n in r.numbers) or "none",
                        _yes(r.lossless),
                        _yes(r.needs_q),
                        _yes(r.keeps_ratio),
                        ", ".join(r.evidence) or "nothing more",
                    )
                    for r in found
                ),
            ),
            "## Generation after failure",
            _table(
                ("rule", "emitted in place of a rejected x", "emitted law at a tested position", "can be capped"),
                ((f"`{r.name}`", r.after_failure, r.law, _yes(r.capped)) for r in found),
            ),
            _AFTER_TABLES,
            "## What each is, and where it comes from",
            "\n".join(f"- `{r.name}`: {r.summary} Source: {r.source}." for r in found),
            _FORMS_AND_TREES,
        ]
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def _table(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


_INTRODUCTION = """\
p is the target's law, q the law the proposal x was really drawn from, u uniform in [0, 1), r = min(1, p(x)/q(x)),
R = sum (q-p)+, S the rule's set, pi a surrogate law, a(x) the probability that x is accepted. p and q are processed:
after temperature, truncation, penalties and masks. No rule ever accepts a token with p(x) = 0.

What decides whether a proposal stays and what is generated after a failure are separate choices. The two tables keep
them apart; an entry of one rule cannot be put in the place of another's, and rules that look alike in one table may
have nothing in common in the other. A bonus token is drawn from p under every rule."""

_AFTER_TABLES = """\
A capped rule stays within `max_deviation` of p at every position, because the set may only add what the cap leaves room
for: a(x) = r + lam 1[x in S] (1 - r), lam = min(1, max_deviation/ES), TV = min(ES, max_deviation). A lossless rule has
nothing to cap. For the other rules a cap is refused.

Where q is a point mass (lookup, greedy drafting), R = 1 - p(x), and keeping x against the ratio test moves the position
by 1 - p(x)."""

_FORMS_AND_TREES = """\
## The two forms of the nucleus

`nsd` takes `ties`. The mass form (`all`, the default) asks how much mass lies strictly above p(x); the prefix form
(`smallest`) walks the ids by probability, then by id, and stops as soon as theta is reached. They differ only where
probabilities are equal at the rim. Take 20 tokens of probability 0.05 and theta = 0.95: nothing lies above any of them,
so the mass form has all 20; the first 19 already hold 0.95, so the prefix form has 19. theta = 0 is the empty set in
both (standard speculation), and theta = 1 is every token with p(x) > 0.

## Chains only

A draft is a chain: one proposal per position. Trees of siblings are left out on purpose. Exact speculation over
siblings subtracts each rejected sibling's law from p before it looks at the next; testing nucleus membership at every
sibling accepts on top of that, so a later sibling adds mass that an earlier one has already emitted in excess. The
identity TV = ES is lost: over 2,000 random laws with three siblings the deviation exceeded ES by 0.07 to 0.10 on
average, depending on how the laws are drawn, and by more than 0.3 at worst. What a tree would gain is acceptance; what
it would lose is the one number that says what that costs.
"""
