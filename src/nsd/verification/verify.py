"""The one function that decides: drafted tokens, laws, rules and uniforms in, a verdict out.

Nothing is drawn inside; every uniform is an argument. The number of tensor operations does not grow with the batch
(rules of different kinds are decided kind by kind), and what a request gets does not depend on the requests beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from nsd.errors import NonFiniteTarget
from nsd.laws import argmax, draw, entropy, mass_below, one_hot, residual, row_sum, total_mass
from nsd.laws.rows import take
from nsd.rules import Evidence, Need, RatioOrSet, Recovery, Rule, batched, group_key, passes_ratio
from nsd.verification.allowance import spend
from nsd.verification.evidence import Tested, excess_of, gather
from nsd.verification.layout import Layout
from nsd.verification.one import takes, verify_one
from nsd.verification.types import Accounting, Branch, Caps, Columns, Draft, Final, Uniforms, Verdict


def verify(
    draft: Draft,
    p: Tensor,
    rules: Sequence[Rule],
    uniforms: Uniforms,
    accounting: Accounting = Accounting.RESCUES,
    caps: Caps | None = None,
    trace: bool = False,
) -> Verdict:
    """Verify a ragged batch.

    draft       tokens [N], lengths (B of them), q [N, V] or None
    p           processed target laws [M, V], M = N + B, request after request
    rules       one per request; a rule's max_deviation joins `caps`
    uniforms    [M] each, float64
    accounting  OFF and RESCUES compute nothing that the decision does not need; FULL has R and ES at tested positions,
                and the rank of what failed the ratio test
    caps        what each request may still spend on deviation; rules that are no ratio-or-set ignore it
    trace       also mass, rank, entropies and the masses below each draw, for a recorder

    Raises NonFiniteTarget if a row that was needed has no finite law.
    """
    layout = Layout.of(draft.lengths, p.device)
    caps = with_rule_caps(rules, caps, layout)
    if not trace and takes(draft, p, rules):
        return verify_one(draft, p, rules[0], uniforms, accounting, caps)
    return verify_batch(draft, p, rules, uniforms, accounting, caps, trace, layout)


def verify_batch(
    draft: Draft,
    p: Tensor,
    rules: Sequence[Rule],
    uniforms: Uniforms,
    accounting: Accounting,
    caps: Caps | None,
    trace: bool,
    layout: Layout,
) -> Verdict:
    """The path for every rule, batch and device; caps has the rules' own caps in it."""
    tested = Tested.of(draft, p, layout.row, uniforms.target)
    u = uniforms.accept[layout.row]
    valid = torch.ones_like(tested.x, dtype=torch.bool) if draft.q is None else draft.q[:, 0].isfinite()
    groups = _groups(tuple(rules), draft.lengths, p.device)
    columns = _blank_columns(tested)

    accept = torch.zeros_like(valid)
    for group in groups:
        accept[group.rows] = _decide(group, tested, u, caps, layout, columns)
    accept &= valid
    accepted = layout.padded(accept, False).long().cumprod(-1).sum(-1)
    _require_finite(p, layout, accepted)
    branch = _branches(groups, tested, u, accept, layout, accepted)

    if accounting is Accounting.FULL or trace:
        for group in groups:
            _account(group, tested, (branch != Branch.UNTESTED) & valid, columns, trace)
            _rank(group, tested, (branch == Branch.REJECTED) | (branch == Branch.RESCUED), columns)
    final, guard, invalid = _finish(draft, p, groups, uniforms, layout, accepted, valid, trace)
    return Verdict(accepted, branch, final, columns, guard, invalid)


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests under one kind of rule: the rule with columns [n], its requests, and their drafted tokens [n]."""

    rule: Rule
    requests: Tensor
    rows: Tensor


@lru_cache(maxsize=256)
def _groups(rules: tuple[Rule, ...], lengths: tuple[int, ...], device: torch.device) -> tuple[_Group, ...]:
    starts = Layout.of(lengths, device).starts
    members: dict[tuple[object, ...], list[int]] = {}
    for request, rule in enumerate(rules):
        members.setdefault(group_key(rule), []).append(request)
    groups = []
    for requests in members.values():
        rule = batched([rules[b] for b in requests], [lengths[b] for b in requests], device)
        rows = [i for b in requests for i in range(starts[b], starts[b] + lengths[b])]
        groups.append(
            _Group(rule, torch.tensor(requests, device=device), torch.tensor(rows, device=device, dtype=torch.long))
        )
    return tuple(groups)


def with_rule_caps(rules: Sequence[Rule], caps: Caps | None, layout: Layout) -> Caps | None:
    """Join the rules' own caps with the requests' allowances; None if nothing limits anything."""
    own = [1.0 if rule.max_deviation is None else float(rule.max_deviation) for rule in rules]
    if caps is None and all(rule.max_deviation is None for rule in rules):
        return None
    cap = torch.tensor(own, dtype=torch.float64, device=layout.owner.device)[layout.owner]
    if caps is None:
        return Caps(cap, torch.zeros_like(layout.length, dtype=torch.float64))
    return Caps(torch.minimum(cap, caps.cap), caps.floor)


def _blank_columns(tested: Tested) -> Columns:
    names = [f.name for f in fields(Columns) if f.name not in ("p_x", "q_x", "member")]
    blank = torch.full((len(names), len(tested.x)), torch.nan, dtype=torch.float64, device=tested.x.device)
    return Columns(
        p_x=tested.p_x.double(),
        q_x=tested.q_x.double(),
        member=torch.zeros_like(tested.x, dtype=torch.bool),
        **dict(zip(names, blank.unbind(), strict=True)),
    )


def _decide(
    group: _Group, everything: Tested, u: Tensor, caps: Caps | None, layout: Layout, columns: Columns
) -> Tensor:
    """Acceptance of the drafted tokens of one group: [n] bool.

    A rule that widens the ratio test looks only at tokens that failed it.
    """
    rule, rows = group.rule, group.rows
    tested, u = everything.at(rows), take(u, rows)
    if not rule.widens_ratio:
        return rule.decide(gather(tested, rule.needs), u)
    accept = passes_ratio(Evidence(tested.x, tested.p_x, tested.q_x), u)
    if rule.lossless:
        return accept
    failed = (~accept).nonzero().squeeze(-1)
    e = gather(tested.at(failed), rule.needs)
    if e.mass is not None:
        columns.mass[rows[failed]] = e.mass
    if caps is None or not isinstance(rule, RatioOrSet):
        accept[failed] = rule.at(failed).decide(e, u[failed])
        return accept
    inside = rule.at(failed).contains(e)
    columns.member[rows[failed]] = inside
    return _decide_capped(group, tested, u, accept, failed[~inside], caps, layout, columns)


def _decide_capped(
    group: _Group,
    tested: Tested,
    u: Tensor,
    passed: Tensor,
    outside: Tensor,
    caps: Caps,
    layout: Layout,
    columns: Columns,
) -> Tensor:
    """Acceptance under an allowance: [n] bool. R, ES, eps and lam are computed first, then applied.

    Only positions up to a block's first token that fails both tests (index `outside`) can be tested. Membership must
    hold both ways it is computed, by x's own mass and by the set's edge, so rounding at the rim cannot exceed the cap;
    a request without a limit keeps the first, so that its decisions do not depend on limits beside it.
    """
    limited = (caps.cap < 1) | (caps.floor > 0)[layout.owner]
    rule, rows = group.rule, group.rows
    dead = torch.zeros_like(columns.member)
    dead[rows[outside]] = True
    behind = layout.flat(layout.padded(dead, False).long().cumsum(-1)) - dead.long() > 0
    alive = (~behind[rows]).nonzero().squeeze(-1)
    mass, member, R, ES = excess_of(tested.at(alive), rule.at(alive))
    here = rows[alive]
    single = columns.member[here]
    member = torch.where(limited[here], member & (passed[alive] | single), torch.where(passed[alive], member, single))
    columns.member[here], columns.R[here], columns.ES[here] = member, R, ES
    columns.mass[here] = torch.where(mass.isnan(), columns.mass[here], mass)
    eps, lam = spend(torch.nan_to_num(columns.ES), caps, layout)
    columns.eps[here], columns.lam[here] = eps[here], lam[here]
    e = Evidence(x=tested.x, p_x=tested.p_x, q_x=tested.q_x, member=columns.member[rows], lam=lam[rows])
    return rule.decide(e, u)


def _branches(
    groups: tuple[_Group, ...], tested: Tested, u: Tensor, accept: Tensor, layout: Layout, accepted: Tensor
) -> Tensor:
    """What became of every drafted token: [N] Branch. Under a lossless rule nothing counts as rescued."""
    exact = torch.zeros_like(accept)
    by_ratio = passes_ratio(Evidence(tested.x, tested.p_x, tested.q_x), u)
    for group in groups:
        exact[group.rows] = group.rule.lossless
        if group.rule.untempered:
            # The law at temperature 0 is the argmax; only that token would have stood without the wider set.
            by_ratio[group.rows] = argmax(tested.at(group.rows).p_rows()) == tested.x[group.rows]
    by_ratio |= exact
    branch = torch.full_like(layout.place, int(Branch.REJECTED))
    branch[accept & by_ratio] = int(Branch.RATIO)
    branch[accept & ~by_ratio] = int(Branch.RESCUED)
    branch[layout.place > accepted[layout.owner]] = int(Branch.UNTESTED)
    return branch


def _account(group: _Group, everything: Tested, was_tested: Tensor, columns: Columns, trace: bool) -> None:
    """Fill in R, ES and membership where they are not known yet; for a trace also mass, rank and entropies."""
    tested_here = was_tested[group.rows]
    missing = (tested_here & columns.R[group.rows].isnan()).nonzero().squeeze(-1)
    rows = group.rows[missing]
    mass, columns.member[rows], columns.R[rows], ES = excess_of(everything.at(rows), group.rule.at(missing))
    columns.mass[rows] = torch.where(mass.isnan(), columns.mass[rows], mass)
    columns.ES[rows], columns.eps[rows], columns.lam[rows] = ES, ES, torch.ones_like(ES)
    if trace:
        rows = group.rows[tested_here]
        few = everything.at(rows)
        mass_kind = group.rule.needs & Need.MASS_BEFORE or Need.MASS_ABOVE
        e = gather(few, mass_kind | Need.RANK | Need.ENTROPY_P)
        assert e.mass is not None and e.rank is not None and e.entropy_p is not None
        columns.mass[rows], columns.rank[rows], columns.entropy_p[rows] = e.mass, e.rank.double(), e.entropy_p
        q = few.q_rows()
        columns.entropy_q[rows], columns.q_below[rows] = entropy(q), mass_below(q, few.x)
        columns.q_mass[rows] = total_mass(q)
        if Need.TARGET_DRAW in group.rule.needs:
            columns.p_below[rows] = mass_below(few.p_rows(), few.x)


def _rank(group: _Group, everything: Tested, failed_ratio: Tensor, columns: Columns) -> None:
    """Fill in the rank by p of the few tokens that failed the ratio test, where it is not known yet."""
    rows = group.rows[failed_ratio[group.rows] & columns.rank[group.rows].isnan()]
    if len(rows):
        e = gather(everything.at(rows), Need.RANK)
        assert e.rank is not None
        columns.rank[rows] = e.rank.double()


def _require_finite(p: Tensor, layout: Layout, accepted: Tensor) -> None:
    """A row without a finite law accepts nothing, so it is the last row of its request: look there."""
    broken = (~p[layout.first + accepted, 0].isfinite()).nonzero().squeeze(-1).tolist()
    if broken:
        request = broken[0]
        raise NonFiniteTarget(request, int(accepted[request]))


def _finish(
    draft: Draft,
    p: Tensor,
    groups: tuple[_Group, ...],
    uniforms: Uniforms,
    layout: Layout,
    accepted: Tensor,
    valid: Tensor,
    trace: bool,
) -> tuple[Final, Tensor, Tensor]:
    """The replacement after the first rejection, or the bonus: final token, guard [B], invalid [B]."""
    row = layout.first + accepted
    bonus = accepted == layout.length
    p_row = p[row]
    from_target = bonus.clone()
    law = p_row
    failed = torch.zeros_like(bonus)
    invalid = torch.zeros_like(bonus)
    rejected = (~bonus).nonzero().squeeze(-1)
    token = (layout.start + accepted)[rejected]
    invalid[rejected] = ~valid[token]
    for group in groups:
        if group.rule.recovery is Recovery.TARGET:
            from_target[group.requests] = True
    if len(rejected):
        left = _recovery_laws(draft, take(p_row, rejected), groups, rejected, token, len(bonus))
        total = row_sum(left)
        failed[rejected] = ~(total.isfinite() & (total > 0))
        law = left if len(rejected) == len(bonus) else p_row.index_copy(0, rejected, left)
        law[failed] = p_row[failed]
    for group in groups:
        if group.rule.untempered:
            law = law.index_copy(0, group.requests, one_hot(argmax(p_row[group.requests]), p_row[group.requests]))
    u = torch.where(from_target, uniforms.target[row], uniforms.residual[row])
    final = draw(law, u)
    at = final.unsqueeze(-1)
    unknown = torch.full_like(u, torch.nan)
    return (
        Final(
            token=final,
            bonus=bonus,
            p_x=p_row.gather(-1, at).squeeze(-1).double(),
            mass=total_mass(law) if trace else unknown,
            weight=law.gather(-1, at).squeeze(-1).double() if trace else unknown,
            below=mass_below(law, final) if trace else unknown,
        ),
        failed & ~invalid,
        invalid,
    )


def _recovery_laws(
    draft: Draft, p: Tensor, groups: tuple[_Group, ...], requests: Tensor, token: Tensor, batch: int
) -> Tensor:
    """Unnormalised laws of the replacements of the requests that rejected a token: p [n, V] -> [n, V]."""
    if draft.q is None:
        left = p.scatter(-1, draft.tokens[token].unsqueeze(-1), 0.0)
    else:
        left = residual(p, draft.q[token])
    for group in groups:
        if group.rule.recovery is Recovery.RESIDUAL:
            continue
        mine = torch.zeros(batch, dtype=torch.bool, device=p.device)
        mine[group.requests] = True
        few = mine[requests].nonzero().squeeze(-1)
        if group.rule.recovery is Recovery.TARGET:
            left[few] = p[few]
        elif group.rule.recovery is Recovery.ARGMAX:
            left[few] = one_hot(argmax(p[few]), p[few])
        else:
            at = token[few]
            q = one_hot(draft.tokens[at], p[few]) if draft.q is None else draft.q[at]
            rule = group.rule.at(torch.searchsorted(group.rows, at))
            left[few] = residual(rule.surrogate(p[few], q), q).to(left)
    return left
