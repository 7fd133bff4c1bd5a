"""The decision for a single request on a CPU, by standard speculation or NSD: few tensors, plain numbers.

What `verify` gives for one request in a batch, to the last bit, at a fraction of the operations: the accept test reads
scalars, a pass over the vocabulary is made only for tokens that fail the ratio test and for tested rows, and what is
decided from a handful of numbers is decided in Python.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsd.errors import NonFiniteTarget
from nsd.laws import excess_masses, mass_above, row_sum, threshold
from nsd.laws.draw import draw_one
from nsd.laws.excess import excess
from nsd.laws.nucleus import FLOORS
from nsd.rules import NSD, SD, Rule
from nsd.verification.types import Accounting, Branch, Caps, Columns, Draft, Final, Uniforms, Verdict

_KNOWN = ("p_x", "q_x", "mass", "rank", "R", "ES", "eps", "lam")
_NAMES = (*_KNOWN, *(f.name for f in fields(Columns) if f.name not in (*_KNOWN, "member")))


@dataclass(slots=True)
class _Position:
    """One drafted token: what `Columns` says of it, as numbers."""

    p_x: float
    q_x: float
    u: float
    by_ratio: bool
    valid: bool
    mass: float = math.nan
    rank: float = math.nan
    single: bool = False
    member: bool = False
    R: float = math.nan
    ES: float = math.nan
    eps: float = math.nan
    lam: float = math.nan

    def stands(self, capped: bool) -> bool:
        """u q < p, or in the set and the cap leaves room; never without a target probability or a law."""
        if not self.valid or self.by_ratio:
            return self.valid
        if not capped:
            return self.single
        room = self.lam == 1.0 or self.u * self.q_x < self.p_x + self.lam * (self.q_x - self.p_x)
        return self.member and room and self.p_x > 0


def takes(draft: Draft, p: Tensor, rules: Sequence[Rule]) -> bool:
    """Whether this path is for that batch: one request on a CPU under SD, or NSD in the mass form."""
    if len(rules) != 1 or p.device.type != "cpu":
        return False
    rule = rules[0]
    return type(rule) is SD or (type(rule) is NSD and rule.ties == "all")


def verify_one(
    draft: Draft, p: Tensor, rule: Rule, uniforms: Uniforms, accounting: Accounting, caps: Caps | None
) -> Verdict:
    """Verify one request: as `verify`, which calls it, without a trace. caps has the rule's own cap in it."""
    theta = float(rule.theta) if isinstance(rule, NSD) else None
    capped = caps is not None and theta is not None
    block = _positions(draft, p, uniforms)
    reached = block[: _reach(block, p, theta)]
    if capped and caps is not None:
        _account(reached, draft, p, theta)
        _spend(reached, caps)
    accepted = next((t for t, x in enumerate(reached) if not x.stands(capped)), len(reached))
    if not math.isfinite(p[accepted, 0]):
        raise NonFiniteTarget(0, accepted)
    if accounting is Accounting.FULL:
        tested = block[: accepted + 1]
        if not capped:
            _account([x for x in tested if x.valid], draft, p, theta)
        _rank(tested, p, accepted)
    kept = [Branch.RATIO if x.by_ratio else Branch.RESCUED for x in block[:accepted]]
    final, guard, invalid = _final(block, draft, p, uniforms, accepted)
    return Verdict(
        accepted=torch.tensor([accepted]),
        branch=torch.tensor([*kept, Branch.REJECTED, *[Branch.UNTESTED] * len(block)][: len(block)], dtype=torch.long),
        final=final,
        columns=_columns(block),
        guard=torch.tensor([guard]),
        invalid=torch.tensor([invalid]),
    )


def _positions(draft: Draft, p: Tensor, uniforms: Uniforms) -> list[_Position]:
    """The scalars of every drafted token, and the standard test on them."""
    law, q = p.numpy(force=True), None if draft.q is None else draft.q.numpy(force=True)
    block = []
    for t, (x, u) in enumerate(zip(draft.tokens.tolist(), uniforms.accept.tolist(), strict=False)):
        p_x, q_x = float(law[t, x]), 1.0 if q is None else float(q[t, x])
        valid = q is None or math.isfinite(q[t, 0])
        block.append(_Position(p_x, q_x, u, p_x > 0 and u * q_x < p_x, valid))
    return block


def _reach(block: list[_Position], p: Tensor, theta: float | None) -> int:
    """How many tokens can be tested: up to the first that fails both tests, the cap apart."""
    for t, x in enumerate(block):
        if not x.by_ratio and theta is not None:
            _weigh(x, p[t : t + 1], theta)
        if not x.valid or not (x.by_ratio or x.single):
            return t + 1
    return len(block)


def _weigh(x: _Position, p: Tensor, theta: float) -> None:
    """Mass above the token in its row p [1, V], and membership by it."""
    x.mass = mass_above(p, p.new_tensor([x.p_x])).item()
    x.single = x.p_x > 0 and theta > 0 and (x.mass < theta or theta >= 1)


def _account(tested: list[_Position], draft: Draft, p: Tensor, theta: float | None) -> None:
    """R, ES and membership of the first so many tokens, as if no cap acted."""
    if draft.q is None:
        for t, x in enumerate(tested):
            x.R = 1.0 - x.p_x
            if theta is not None and math.isnan(x.mass):
                _weigh(x, p[t : t + 1], theta)
            x.member, x.ES = x.single, x.R if x.single else 0.0
    elif tested:
        p, q = p[: len(tested)], draft.q[: len(tested)]
        rejected = row_sum(excess(p, q)).tolist()
        edges, inside = _sets(p, q, theta or 0.0)
        for x, R, edge, ES in zip(tested, rejected, edges, inside, strict=True):
            x.R, x.ES, x.member = R, ES, edge <= x.p_x and x.p_x > 0
    for x in tested:
        x.eps, x.lam = x.ES, 1.0


def _sets(p: Tensor, q: Tensor, theta: float) -> tuple[list[float], list[float]]:
    """Edge of each row's nucleus and ES inside it: p, q [n, V] -> n and n numbers."""
    if theta <= 0:
        return [math.inf] * len(p), [0.0] * len(p)
    if theta >= 1:
        edge = threshold(p, theta)
        return edge.tolist(), excess_masses(p, q, edge)[1].tolist()
    found = [_set(law, drafted, theta) for law, drafted in zip(p.numpy(force=True), q.numpy(force=True), strict=True)]
    return [edge for edge, _ in found], [ES for _, ES in found]


def _set(p: npt.NDArray[Any], q: npt.NDArray[Any], theta: float) -> tuple[float, float]:
    """The same for one row [V] and 0 < theta < 1, from the few ids above a floor."""
    for floor in FLOORS:
        at = np.flatnonzero(p > floor)
        likely = p[at]
        ordered = -np.sort(-likely)
        last = int(np.searchsorted(ordered.cumsum(dtype=np.float64), theta))
        if last < len(ordered):
            inside = likely >= ordered[last]
            over = np.maximum(q[at[inside]] - likely[inside], 0)
            return float(ordered[last]), float(over.cumsum(dtype=np.float64)[-1])
    row, drafted = torch.from_numpy(p[None]), torch.from_numpy(q[None])
    edge = threshold(row, theta)
    return edge.item(), excess_masses(row, drafted, edge)[1].item()


def _spend(reached: list[_Position], caps: Caps) -> None:
    """eps and lam as `spend` has them, and who may be forced at all.

    Under a limit membership must hold both ways it is computed, as in a batch.
    """
    floor, before, product = float(caps.floor[0]), 1.0, 1.0
    for x, cap in zip(reached, caps.cap.tolist(), strict=False):
        both = x.member and (x.by_ratio or x.single)
        x.member = both if cap < 1 or floor > 0 else x.member if x.by_ratio else x.single
        es = 0.0 if math.isnan(x.ES) else x.ES
        wanted = min(es, cap)
        product *= 1.0 - wanted
        kept = max(product, floor)
        within = product >= floor
        x.eps = wanted if within else min(1.0 - (kept / before if before > 0 else 0.0), wanted)
        x.lam = 1.0 if within and es <= cap else x.eps / max(es, sys.float_info.min)
        before = kept


def _rank(tested: list[_Position], p: Tensor, accepted: int) -> None:
    """The rank by p of what failed the ratio test, or was rejected for its law."""
    rows = p.numpy(force=True)
    for t, x in enumerate(tested):
        if t == accepted or not x.by_ratio:
            x.rank = 1.0 + np.count_nonzero(rows[t] > x.p_x)


def _final(
    block: list[_Position], draft: Draft, p: Tensor, uniforms: Uniforms, accepted: int
) -> tuple[Final, bool, bool]:
    """The replacement after the first rejection, or the bonus; whether the guard or an invalid draft made it p's."""
    law = p[accepted].numpy(force=True)
    bonus = accepted == len(block)
    u = float((uniforms.target if bonus else uniforms.residual)[accepted])
    token = -1 if bonus else draw_one(_left(law, draft, accepted), u)
    failed = token < 0 and not bonus
    if token < 0:
        token = draw_one(law, u)
    invalid = failed and not block[accepted].valid
    unknown = torch.full((1,), math.nan, dtype=torch.float64)
    final = Final(
        token=torch.tensor([token]),
        bonus=torch.tensor([bonus]),
        p_x=torch.tensor([float(law[token])], dtype=torch.float64),
        mass=unknown,
        weight=unknown,
        below=unknown,
    )
    return final, failed and not invalid, invalid


def _left(law: npt.NDArray[Any], draft: Draft, place: int) -> npt.NDArray[Any]:
    """(p-q)+ at a rejected token, before normalisation."""
    if draft.q is not None:
        over: npt.NDArray[Any] = np.subtract(law, draft.q[place].numpy(force=True))
        np.maximum(over, 0, out=over)
        return over
    left = law.copy()
    left[int(draft.tokens[place])] = 0.0
    return left


def _columns(block: list[_Position]) -> Columns:
    table = np.full((len(_NAMES), len(block)), math.nan)
    for t, x in enumerate(block):
        table[: len(_KNOWN), t] = x.p_x, x.q_x, x.mass, x.rank, x.R, x.ES, x.eps, x.lam
    member = torch.tensor([x.member for x in block], dtype=torch.bool)
    return Columns(member=member, **dict(zip(_NAMES, torch.from_numpy(table).unbind(), strict=True)))
