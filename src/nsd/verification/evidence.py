"""Gathers the evidence that rules ask for, for all drafted tokens or for a chosen few."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nsd.laws import (
    argmax,
    draw,
    entropy,
    excess_masses,
    excess_masses_in,
    mass_above,
    mass_before,
    one_hot,
    point_excess_masses,
    row_sum,
)
from nsd.laws.rows import greater, take
from nsd.rules import NSD, Evidence, Need, RatioOrSet, Recovery, Rule
from nsd.verification.types import Draft


@dataclass(frozen=True, slots=True)
class Tested:
    """Drafted tokens with their laws: x [n], rows of p [n, V] through an index, q [n, V] or None for a point mass.

    p [M, V] is kept whole and read at row [n], so that nothing is copied before a rule asks for it.
    """

    x: Tensor
    p: Tensor
    row: Tensor
    q: Tensor | None
    q_row: Tensor
    p_x: Tensor
    q_x: Tensor
    target_u: Tensor

    @classmethod
    def of(cls, draft: Draft, p: Tensor, row: Tensor, target_u: Tensor) -> Tested:
        """All drafted tokens of a batch: p [M, V], row [N], target_u [M]."""
        x = draft.tokens
        every = torch.arange(len(x), device=x.device)
        q_x = torch.ones_like(p[:1, 0]).expand(len(x)) if draft.q is None else draft.q[every, x]
        return cls(x, p, row, draft.q, every, p[row, x], q_x, target_u)

    def at(self, index: Tensor) -> Tested:
        """Some of them: index [n], ascending."""
        if len(index) == len(self.x):
            return self
        return Tested(
            self.x[index],
            self.p,
            self.row[index],
            self.q,
            self.q_row[index],
            self.p_x[index],
            self.q_x[index],
            self.target_u,
        )

    def p_rows(self) -> Tensor:
        """Target laws [n, V]."""
        return take(self.p, self.row)

    def q_rows(self) -> Tensor:
        """Draft laws [n, V]; a point mass is written out."""
        return one_hot(self.x, self.p[:1].expand(len(self.x), -1)) if self.q is None else take(self.q, self.q_row)


def gather(tested: Tested, needs: Need) -> Evidence:
    """Evidence columns [n] for the given needs."""
    wants_rows = needs & ~(Need.NOTHING | Need.TARGET_DRAW)
    p = tested.p_rows() if wants_rows or Need.TARGET_DRAW in needs else None
    columns: dict[str, Tensor] = {}
    if p is not None:
        if Need.MASS_BEFORE in needs:
            columns["mass"] = mass_before(p, tested.x)
        elif Need.MASS_ABOVE in needs:
            columns["mass"] = mass_above(p, tested.p_x)
        if Need.RANK in needs:
            columns["rank"] = greater(p, tested.p_x.unsqueeze(-1)).sum(-1, dtype=torch.float64).long() + 1
        if Need.MAX_P in needs:
            columns["max_p"] = p.amax(-1)
        if Need.ARGMAX in needs:
            columns["argmax"] = argmax(p)
        if Need.ENTROPY_P in needs:
            columns["entropy_p"] = entropy(p)
        if Need.TARGET_DRAW in needs:
            columns["target_draw"] = draw(p, tested.target_u[tested.row])
        if Need.ROWS in needs:
            columns |= {"p": p, "q": tested.q_rows()}
    return Evidence(x=tested.x, p_x=tested.p_x, q_x=tested.q_x, **columns)


def excess_of(tested: Tested, rule: Rule) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Exact mass, membership, R and ES at the given positions, without a sort for the mass form: [n] each.

    Membership comes from the same edge as ES. mass is NaN where membership did not need it. For a rule without a set
    the place of ES is taken by the deviation of its emitted law: 0 for exact rules.
    """
    unknown = torch.full_like(tested.p_x, torch.nan, dtype=torch.float64)
    nowhere = torch.zeros_like(tested.p_x, dtype=torch.bool)
    if not isinstance(rule, RatioOrSet):
        return (unknown, nowhere, *_deviation_of(tested, rule))
    if tested.q is None:
        e = gather(tested, rule.needs)
        member = rule.contains(e)
        return (unknown if e.mass is None else e.mass, member, *point_excess_masses(tested.p_x, member))
    p = tested.p_rows()
    if isinstance(rule, NSD) and rule.ties == "smallest":
        inside = rule.whole_set(p)
        member = inside.gather(-1, tested.x.unsqueeze(-1)).squeeze(-1)
        return (unknown, member, *excess_masses_in(p, tested.q_rows(), inside))
    edge = rule.edge(p)
    member = (tested.p_x >= edge) & (tested.p_x > 0)
    return (unknown, member, *excess_masses(p, tested.q_rows(), edge))


def _deviation_of(tested: Tested, rule: Rule) -> tuple[Tensor, Tensor]:
    """R, and TV(emitted, p) from the rule's own law, for rules without a set: [n], [n].

    A rule that widens the ratio and replaces from the residual deviates by its extra acceptance, sum q (a - r).
    """
    wider = rule.lossless or (rule.widens_ratio and rule.recovery is Recovery.RESIDUAL)
    if wider and tested.q is None:
        kept = tested.p_x.double() if rule.lossless else rule.acceptance(gather(tested, rule.needs))
        extra = torch.where(tested.p_x > 0, kept - tested.p_x.double(), 0.0)
        return 1.0 - tested.p_x.double(), extra
    p, q = tested.p_rows(), tested.q_rows()
    aimed = rule.aimed(p)
    R, _ = excess_masses(aimed, q, torch.full_like(tested.p_x, torch.inf))
    if rule.lossless:
        return R, torch.zeros_like(R)
    if wider:
        # q r = min(p, q), and a = r wherever q <= p.
        return R, row_sum((q.double() * rule.acceptance_of_all(p, q) - torch.minimum(p, q).double()).clamp_min_(0))
    return R, row_sum((rule.emitted(p, q) - aimed.double()).abs()) / 2
