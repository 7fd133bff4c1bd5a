"""What a verification rule is: what it looks at, when it accepts, what replaces a rejected token.

A rule is a frozen dataclass. Its numbers may be floats (one setting) or float64 columns [N] (one value per drafted
token), so that requests with different settings are decided by the same tensor operations; `batched` builds columns.

p is the target's law, q the law the draft was really drawn from, x the drafted token, u uniform in [0, 1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, Flag, auto
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.laws import argmax, entropy, one_hot, residual, row_sum

Number = Any
"""A rule's number: a float, or a column [N]. Any: both obey the same arithmetic, and formulas read plainly."""


AnyRule = TypeVar("AnyRule", bound="Rule")


class Need(Flag):
    """Evidence beyond p(x) and q(x) that a rule asks for."""

    NOTHING = 0
    MASS_ABOVE = auto()
    MASS_BEFORE = auto()
    RANK = auto()
    MAX_P = auto()
    ARGMAX = auto()
    ENTROPY_P = auto()
    TARGET_DRAW = auto()
    ROWS = auto()


class Recovery(Enum):
    """The law of the token emitted after a rejection."""

    RESIDUAL = "residual"
    SURROGATE = "surrogate"
    TARGET = "target"
    ARGMAX = "argmax"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Columns [N], one entry per drafted token; None where nobody asked.

    mass is the mass above x (or before x, for prefix membership); rank counts the ids strictly more probable than x,
    plus one; target_draw is the draw from p that plain decoding makes at this position; member and lam are
    set membership and the cap's coefficient where the whole set was needed anyway;
    p and q are the rows [N, V]. `evidence_of_all` puts every id in the place of x: columns become [N, V] or [N, 1].
    """

    x: Tensor
    p_x: Tensor
    q_x: Tensor
    mass: Tensor | None = None
    rank: Tensor | None = None
    max_p: Tensor | None = None
    argmax: Tensor | None = None
    entropy_p: Tensor | None = None
    target_draw: Tensor | None = None
    member: Tensor | None = None
    lam: Tensor | None = None
    p: Tensor | None = None
    q: Tensor | None = None


def asked(column: Tensor | None) -> Tensor:
    """A piece of evidence that the rule declared in `needs`."""
    assert column is not None, "a rule may only read the evidence that it declares in `needs`"
    return column


def ratio(e: Evidence) -> Tensor:
    """r = min(1, p(x)/q(x)), the acceptance probability of standard speculation; 0 where p(x) = 0."""
    return (e.p_x.double() / e.q_x.double()).nan_to_num(nan=0.0).clamp_max(1.0)


def passes_ratio(e: Evidence, u: Tensor) -> Tensor:
    """The standard test u q(x) < p(x), strict and without a division: [N] bool."""
    return (u * e.q_x.double() < e.p_x.double()) & (e.p_x > 0)


def at_ids(rows: Tensor, x: Tensor) -> Tensor:
    """rows [N, V] read at x [N] -> [N], or at x [N, V] -> [N, V]."""
    return rows.gather(-1, x) if x.dim() == 2 else rows.gather(-1, x.unsqueeze(-1)).squeeze(-1)


class Rule(ABC):
    """One verification rule; subclasses are frozen dataclasses whose fields are the rule's numbers.

    Adding a rule means adding a subclass in a file of this package; listing, options and documentation follow.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    ranges: ClassVar[dict[str, tuple[str, Callable[[Any], bool]]]] = {}
    """Per number: what is wanted, in words, and the test for it."""
    lossless: ClassVar[bool] = False
    widens_ratio: ClassVar[bool] = False
    """Acceptance is never below min(1, p/q): tokens that pass the ratio test need no further evidence."""
    needs_q: ClassVar[bool] = True
    untempered: ClassVar[bool] = False
    """Decides on the target's law at temperature 1 while the request itself is at temperature 0."""
    recovery: ClassVar[Recovery] = Recovery.RESIDUAL

    def __post_init__(self) -> None:
        for name, (wanted, holds) in self.ranges.items():
            value = getattr(self, name)
            if value is None or isinstance(value, Tensor):
                continue
            if not holds(value):
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{name} is {value}, wanted {wanted}; try {flag} with such a value")

    @property
    def needs(self) -> Need:
        """The evidence this rule reads besides p(x) and q(x)."""
        return Need.NOTHING

    @property
    def max_deviation(self) -> Number:
        """The cap on the one-step deviation, None where the rule has none."""
        return None

    @abstractmethod
    def acceptance(self, e: Evidence) -> Tensor:
        """a(x), the probability over u that x is accepted: [N] float64."""

    def decide(self, e: Evidence, u: Tensor) -> Tensor:
        """Whether x is accepted at uniform u: [N] bool; never where p(x) = 0."""
        return (e.p_x > 0) & (u < self.acceptance(e))

    def acceptance_of_all(self, p: Tensor, q: Tensor) -> Tensor:
        """a(x) for every id at once, in float64: p [N, V], q [N, V] -> [N, V]."""
        per_row = _with(self, lambda column: column.unsqueeze(-1))
        return per_row.acceptance(evidence_of_all(p, q, self.needs)).where(p > 0, 0.0)

    def surrogate(self, p: Tensor, q: Tensor) -> Tensor:
        """The law whose exact speculation this rule is, where it is built on one: [N, V]."""
        raise ConfigError(f"rule {self.name} has no surrogate law")

    def aimed(self, p: Tensor) -> Tensor:
        """The law that deviations are measured against: p, or the argmax for a rule that looks beyond temperature 0."""
        return one_hot(argmax(p), p) if self.untempered else p

    def recovered(self, p: Tensor, q: Tensor) -> Tensor:
        """The law of the token emitted after a rejection: [N, V]; p where the residual has no mass."""
        if self.recovery is Recovery.TARGET:
            return p
        if self.recovery is Recovery.ARGMAX:
            return one_hot(argmax(p), p)
        left = residual(self.surrogate(p, q) if self.recovery is Recovery.SURROGATE else p, q)
        mass = row_sum(left).unsqueeze(-1)
        return torch.where(mass > 0, left / mass, p)

    def emitted(self, p: Tensor, q: Tensor) -> Tensor:
        """The exact law of the token emitted at a tested position, in float64: p [N, V], q [N, V] -> [N, V]."""
        p, q = p.double(), q.double()
        accepted = q * self.acceptance_of_all(p, q)
        failed = (1.0 - accepted.sum(-1, keepdim=True)).clamp_min(0)
        return accepted + failed * self.recovered(p, q)

    def at(self, rows: Tensor) -> Self:
        """The same rule for some of the drafted tokens: index [n] -> rule with columns [n]."""
        return _with(self, lambda column: column[rows])

    def settings(self) -> dict[str, Any]:
        """The rule's numbers by name."""
        return {f.name: getattr(self, f.name) for f in _fields(self)}


def evidence_of_all(p: Tensor, q: Tensor, needs: Need) -> Evidence:
    """Evidence for the given needs with every id in the place of x, in float64: the reference for that of one token.

    Masses and ranks order the whole vocabulary; nothing else does.
    """
    p, q = p.double(), q.double()
    columns: dict[str, Tensor] = {}
    if needs & (Need.MASS_ABOVE | Need.MASS_BEFORE | Need.RANK):
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        running = torch.cat([torch.zeros_like(p[:, :1]), ordered.cumsum(-1)], -1)
        strictly_more = torch.searchsorted(-ordered, -p)
        columns["rank"] = strictly_more + 1
        if Need.MASS_BEFORE in needs:
            columns["mass"] = torch.zeros_like(p).scatter_(-1, order, running[:, :-1])
        else:
            columns["mass"] = running.gather(-1, strictly_more)
    if Need.MAX_P in needs:
        columns["max_p"] = p.amax(-1, keepdim=True)
    if Need.ARGMAX in needs:
        columns["argmax"] = argmax(p).unsqueeze(-1)
    if Need.ENTROPY_P in needs:
        columns["entropy_p"] = entropy(p).unsqueeze(-1)
    if Need.ROWS in needs:
        columns |= {"p": p, "q": q}
    ids = torch.arange(p.shape[-1], device=p.device).expand_as(p)
    return Evidence(x=ids, p_x=p, q_x=q, **columns)


def batched(rules: Sequence[Rule], repeats: Sequence[int], device: torch.device | None = None) -> Rule:
    """One rule of the common class whose numbers are columns: rule i stands for repeats[i] drafted tokens."""
    first = rules[0]
    columns: dict[str, Tensor] = {}
    for f in _fields(first):
        values = [getattr(rule, f.name) for rule in rules]
        if all(value == values[0] for value in values):
            continue
        flat = [float(v) for v, n in zip(values, repeats, strict=True) for _ in range(n)]
        columns[f.name] = torch.tensor(flat, dtype=torch.float64, device=device)
    return replace(first, **columns) if columns else first  # type: ignore[type-var]  # every Rule is a dataclass


def group_key(rule: Rule) -> tuple[Any, ...]:
    """Rules with one key differ in numbers only and can be `batched`."""
    choices = (v if v is None or isinstance(v, str | bool) else float for v in rule.settings().values())
    return (type(rule), *choices)


def _fields(rule: Rule) -> tuple[Any, ...]:
    return fields(rule)  # type: ignore[arg-type]  # every Rule is a dataclass


def _with(rule: AnyRule, change: Callable[[Tensor], Tensor]) -> AnyRule:
    columns = {f.name: change(v) for f in _fields(rule) if isinstance(v := getattr(rule, f.name), Tensor)}
    return replace(rule, **columns) if columns else rule  # type: ignore[type-var]  # every Rule is a dataclass
