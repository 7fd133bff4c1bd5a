"""From a verdict in tensors to the events of a step in plain values. One transfer from the device per step."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from nsd.decoding.request import Request
from nsd.events import Drawn, Law, Origin, Tested
from nsd.fidelity.ledger import weight_factor_of
from nsd.laws import total_mass
from nsd.rules import Recovery, Rule
from nsd.verification import Branch, Columns, Draft, Final, Uniforms, Verdict

_ORIGINS = {Branch.RATIO: Origin.RATIO, Branch.RESCUED: Origin.RESCUED, Branch.REJECTED: Origin.REJECTED}
_COLUMNS = tuple(f.name for f in fields(Columns))
_FINAL = tuple(f.name for f in fields(Final))


@dataclass(frozen=True, slots=True)
class HostVerdict:
    """A verdict on the host: lists by request or by drafted token, in the layout of the draft."""

    drafted: list[int]
    starts: list[int]
    lengths: tuple[int, ...]
    accepted: list[int]
    branch: list[int]
    columns: dict[str, list[float]]
    final: dict[str, list[float]]
    accept_u: list[float]
    residual_u: list[float]
    target_u: list[float]
    guard: list[bool]
    invalid: list[bool]
    p_laws: list[Law] | None = None
    q_laws: list[Law] | None = None

    @classmethod
    def of(
        cls, draft: Draft, verdict: Verdict, uniforms: Uniforms, p: Tensor | None = None, top: int = 0
    ) -> HostVerdict:
        """Read everything at once; with top > 0 also the laws at drafted positions, p [M, V] cut to so many ids."""
        starts = [sum(draft.lengths[:b]) for b in range(len(draft.lengths))]
        return cls(
            drafted=draft.tokens.tolist(),
            starts=starts,
            lengths=draft.lengths,
            accepted=verdict.accepted.tolist(),
            branch=verdict.branch.tolist(),
            columns=_to_host(verdict.columns, _COLUMNS),
            final=_to_host(verdict.final, _FINAL),
            accept_u=uniforms.accept.tolist(),
            residual_u=uniforms.residual.tolist(),
            target_u=uniforms.target.tolist(),
            guard=verdict.guard.tolist(),
            invalid=verdict.invalid.tolist(),
            p_laws=None if p is None or not top else _top_laws(p[_drafted_rows(draft.lengths)], top),
            q_laws=None if draft.q is None or not top else _top_laws(draft.q, top),
        )

    def proposals(self, b: int) -> list[int]:
        """Drafted tokens of request b."""
        return self.drafted[self.starts[b] : self.starts[b] + self.lengths[b]]

    def tokens(self, b: int) -> list[int]:
        """What request b commits before any cut: accepted tokens, then the final one."""
        return [*self.proposals(b)[: self.accepted[b]], int(self.final["token"][b])]

    def origins(self, b: int) -> list[Origin]:
        """Where each of `tokens` came from."""
        branches = self.branch[self.starts[b] : self.starts[b] + self.accepted[b]]
        return [*(_ORIGINS[Branch(branch)] for branch in branches), self._final_origin(b)]

    def _final_origin(self, b: int) -> Origin:
        if self.lengths[b] == 0:
            return Origin.TARGET
        return Origin.BONUS if self.final["bonus"][b] else Origin.RECOVERED

    def tested(self, b: int, position: int, kept: int, request: Request) -> tuple[Tested, ...]:
        """Tested proposals of request b up to the cut after `kept` tokens; position is where its block starts."""
        last = min(self.accepted[b] + 1, self.lengths[b], kept)
        return tuple(self._one_tested(b, position, place, request) for place in range(last))

    def _one_tested(self, b: int, position: int, place: int, request: Request) -> Tested:
        at = self.starts[b] + place
        c = {name: _known(column[at]) for name, column in self.columns.items()}
        origin = _ORIGINS[Branch(self.branch[at])]
        member = None if c["lam"] is None else bool(c["member"])  # both were found with the whole set, or neither
        p, q = self.columns["p_x"][at], self.columns["q_x"][at]
        factor = None
        if origin is not Origin.REJECTED:
            factor = weight_factor_of(request.rule, p, q, c["lam"], member, request.sampling.temperature)
        return Tested(
            position=position + place,
            token=self.drafted[at],
            origin=origin,
            u=self.accept_u[at + b],
            p=p,
            q=q,
            mass=c["mass"],
            rank=None if c["rank"] is None else int(c["rank"]),
            R=c["R"],
            ES=c["ES"],
            eps=c["eps"],
            lam=c["lam"],
            member=member,
            weight_factor=factor,
            entropy_p=c["entropy_p"],
            entropy_q=c["entropy_q"],
            q_below=c["q_below"],
            q_mass=c["q_mass"],
            p_below=c["p_below"],
            p_law=None if self.p_laws is None else self.p_laws[at],
            q_law=None if self.q_laws is None else self.q_laws[at],
        )

    def drawn(self, b: int, position: int, rule: Rule) -> Drawn:
        """The final token of request b."""
        row = self.starts[b] + b + self.accepted[b]
        origin = self._final_origin(b)
        residual = origin is Origin.RECOVERED and rule.recovery is not Recovery.TARGET
        final = {name: _known(column[b]) for name, column in self.final.items()}
        return Drawn(
            position=position + self.accepted[b],
            token=int(self.final["token"][b]),
            origin=origin,
            u=(self.residual_u if residual else self.target_u)[row],
            p=self.final["p_x"][b],
            mass=final["mass"],
            weight=final["weight"],
            below=final["below"],
        )


def _to_host(columns: Columns | Final, names: tuple[str, ...]) -> dict[str, list[float]]:
    """Columns of one length as lists; from another device they come as one table, in one transfer."""
    found: list[Tensor] = [getattr(columns, name) for name in names]
    if found[0].device.type == "cpu":
        return {name: column.tolist() for name, column in zip(names, found, strict=True)}
    table = torch.stack([column.double() for column in found])
    return dict(zip(names, table.tolist(), strict=True))


def _top_laws(laws: Tensor, top: int) -> list[Law]:
    """Each law by its most probable ids: [n, V] -> n of them."""
    found = laws.double().topk(min(top, laws.shape[-1]), -1)
    rest = (total_mass(laws) - found.values.sum(-1)).clamp_min(0).tolist()
    pairs = zip(found.indices.tolist(), found.values.tolist(), rest, strict=True)
    return [Law(tuple(zip(ids, masses, strict=True)), left) for ids, masses, left in pairs]


def _drafted_rows(lengths: Seq[int]) -> list[int]:
    """Target rows that judge the drafted tokens: all but each request's last."""
    return [start + i for start, n in zip(_starts(lengths), lengths, strict=True) for i in range(n)]


def _starts(lengths: Seq[int]) -> list[int]:
    return [sum(lengths[:b]) + b for b in range(len(lengths))]


def kept_rows(lengths: Seq[int], accepted: Seq[int]) -> list[int]:
    """Target rows of the inputs that stay: the anchor and the accepted tokens of each request."""
    rows: list[int] = []
    start = 0
    for length, a in zip(lengths, accepted, strict=True):
        rows += range(start, start + a + 1)
        start += length + 1
    return rows


def _known(value: Any) -> Any:
    return None if math.isnan(value) else value
