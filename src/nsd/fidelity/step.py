"""Exact quantities of one verification step, for every rule whose emitted law has a closed form.

For "ratio or set" rules with S, R = sum (q-p)+, ES = sum over S of (q-p)+ and d = lam ES:

    acceptance = 1 - R + d      replacement = R - d      TV(emitted, p) = d
    emitted    = min(p, q) + lam [x in S] (q-p)+ + (R-d) (p-q)+ / R

Tokens of S with q > p are over-emitted, tokens with p > q under-emitted by the share d/R of their deficit, all others
keep p. The step is exact iff q <= p on S (or lam = 0). For fixed p and q, ES and acceptance never fall as S grows.

Two forms: `one_step`, a float64 reference for one position from the formulas above, and `one_step_rows`, batched
tensors through the rule's own functions, without a sort for the mass-form nucleus. Source: arXiv 2610.07822, A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nsd.errors import LawError, NoClosedForm
from nsd.laws import excess_masses_in, members_by_sort, one_hot, row_sum
from nsd.rules import NSD, RatioOrSet, Rule

Floats = npt.NDArray[np.float64]
Law = Sequence[float] | Floats | Tensor

SUM_TOLERANCE = 1e-6
"""How far the sum of one given law may be from 1."""
ROW_TOLERANCE = 1e-4
"""The same for rows: a float32 softmax over a large vocabulary is off by a few 1e-6."""
_ROUNDING = 1e-12
_NOTHING = 1e-14
"""An emitted probability below this share of p is what rounding leaves of 0."""


@dataclass(frozen=True, slots=True)
class OneStep:
    """One position. Probabilities and laws in float64, token ids ascending.

    R standard rejection probability; ES deviation without a cap (for a rule without a set: the deviation of its emitted
    law); deviation = lam ES spent; residual probability of a replacement; tv = TV(emitted, p) summed from the laws;
    kl_emitted = KL(emitted || p), kl_target = KL(p || emitted) in nats, None where infinite; over and under the ids
    emitted more and less often than p has them; nucleus the ids of S (None for a rule without a set). `reasons` says
    why a value is None, by name.
    """

    R: float
    ES: float
    acceptance: float
    residual: float
    lam: float
    deviation: float
    tv: float
    emitted: tuple[float, ...]
    kl_emitted: float | None
    kl_target: float | None
    over: tuple[int, ...]
    under: tuple[int, ...]
    nucleus: tuple[int, ...] | None
    exact: bool
    reasons: dict[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class OneStepRows:
    """The same for rows: [N] float64 columns, emitted [N, V] float64, over, under and nucleus [N, V] bool, exact [N].

    kl columns are inf where OneStep says None; nucleus is None for a rule without a set.
    """

    R: Tensor
    ES: Tensor
    acceptance: Tensor
    residual: Tensor
    lam: Tensor
    deviation: Tensor
    tv: Tensor
    emitted: Tensor
    kl_emitted: Tensor
    kl_target: Tensor
    over: Tensor
    under: Tensor
    nucleus: Tensor | None
    exact: Tensor


def check_law(values: Law, name: str) -> Floats:
    """A law as a float64 array [V]; LawError names what is wrong, with the sum found."""
    law = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
    if law.ndim != 1 or law.size == 0:
        raise LawError(f"{name} has shape {law.shape}, wanted one row of probabilities; try --{name} 0.5,0.3,0.2")
    if not np.isfinite(law).all():
        raise LawError(f"{name} has an entry that is not finite, wanted probabilities; correct --{name}")
    if law.min() < 0:
        where = int(law.argmin())
        raise LawError(
            f"{name} is negative at id {where} ({law[where]:g}; the law sums to {law.sum():.6g}), "
            f"wanted probabilities >= 0; correct --{name}"
        )
    if abs(law.sum() - 1.0) > SUM_TOLERANCE:
        raise LawError(f"{name} sums to {law.sum():.9g}, wanted 1; divide --{name} by its sum")
    return law


def one_step(p: Law, q: Law | int | None, rule: Rule) -> OneStep:
    """One position: p [V], and q [V], or the id of a point-mass draft, or None for a draft of unknown law.

    Raises LawError for a bad law, and NoClosedForm where the emitted law cannot be known: nothing is estimated instead.
    """
    p = check_law(p, "p")
    q = _draft_law(q, len(p))
    if len(p) != len(q):
        raise LawError(
            f"p has {len(p)} entries (sum {p.sum():.6g}) and q has {len(q)} (sum {q.sum():.6g}), "
            "wanted the same vocabulary; correct --p or --q"
        )
    if isinstance(rule, RatioOrSet):
        return _of_set_rule(p, q, rule)
    return _of_any_rule(p, q, rule)


def _draft_law(q: Law | int | None, vocab: int) -> Floats:
    if q is None:
        raise NoClosedForm(
            "the draft's law is unknown, so the emitted law has no closed form; "
            "give q, or the drafted id for the bound of a point mass"
        )
    if not isinstance(q, int):
        return check_law(q, "q")
    if not 0 <= q < vocab:
        raise LawError(f"the drafted id is {q}, wanted one of 0..{vocab - 1}; correct --point")
    point = np.zeros(vocab)
    point[q] = 1.0
    return point


def _of_set_rule(p: Floats, q: Floats, rule: RatioOrSet) -> OneStep:
    row = torch.from_numpy(p).unsqueeze(0)
    mask = members_by_sort(row, rule.theta, rule.ties) if isinstance(rule, NSD) else rule.whole_set(row)
    inside = mask[0].numpy()
    over, under = np.maximum(q - p, 0.0), np.maximum(p - q, 0.0)
    R, ES = float(over.sum()), float(over[inside].sum())
    cap = rule.max_deviation
    lam = 1.0 if cap is None or cap >= ES else float(cap) / ES
    spent = lam * ES
    scarce = under.sum()
    replaced = (R - spent) * under / scarce if scarce > 0 else np.zeros_like(p)
    emitted = np.minimum(p, q) + lam * np.where(inside, over, 0.0) + replaced
    kl_emitted, kl_target, reasons = _divergences(emitted, p)
    return OneStep(
        R=R,
        ES=ES,
        acceptance=1.0 - R + spent,
        residual=R - spent,
        lam=lam,
        deviation=spent,
        tv=float(np.abs(emitted - p).sum() / 2),
        emitted=tuple(emitted.tolist()),
        kl_emitted=kl_emitted,
        kl_target=kl_target,
        over=_ids((over > 0) & inside & (spent > 0)),
        under=_ids((under > 0) & (spent > 0)),
        nucleus=_ids(inside),
        exact=spent == 0.0,
        reasons=reasons,
    )


def _of_any_rule(p: Floats, q: Floats, rule: Rule) -> OneStep:
    rows, drafts = torch.from_numpy(p).unsqueeze(0), torch.from_numpy(q).unsqueeze(0)
    emitted = rule.emitted(rows, drafts)[0].numpy()
    accepted = float((q * rule.acceptance_of_all(rows, drafts)[0].numpy()).sum())
    tv = float(np.abs(emitted - p).sum() / 2)
    exact = rule.lossless or tv <= _ROUNDING
    deviation = 0.0 if exact else tv
    kl_emitted, kl_target, reasons = _divergences(emitted, p)
    return OneStep(
        R=float(np.maximum(q - p, 0.0).sum()),
        ES=deviation,
        acceptance=accepted,
        residual=1.0 - accepted,
        lam=1.0,
        deviation=deviation,
        tv=tv,
        emitted=tuple(emitted.tolist()),
        kl_emitted=kl_emitted,
        kl_target=kl_target,
        over=_ids((emitted > p + _ROUNDING) & (not exact)),
        under=_ids((emitted < p - _ROUNDING) & (not exact)),
        nucleus=None,
        exact=exact,
        reasons=reasons | {"nucleus": f"rule {rule.name} has no set"},
    )


def _ids(mask: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(np.flatnonzero(mask).tolist())


def _divergences(emitted: Floats, p: Floats) -> tuple[float | None, float | None, dict[str, str]]:
    """KL(emitted || p) and KL(p || emitted), with the reasons of those that are None."""
    found = {
        "kl_emitted": _divergence(emitted, p, "is emitted and has no target probability"),
        "kl_target": _divergence(p, emitted, "has target probability and is never emitted"),
    }
    values = [None if isinstance(value, str) else value for value in found.values()]
    return values[0], values[1], {name: value for name, value in found.items() if isinstance(value, str)}


def _divergence(a: Floats, b: Floats, lacking: str) -> float | str:
    """KL(a || b) in nats, never below 0 by rounding; where it is infinite, the first id that makes it so."""
    bare = (a > 0) & (b <= _NOTHING * a)
    if bare.any():
        return f"infinite: id {int(bare.argmax())} {lacking}"
    mine = a > 0
    return max(0.0, math.fsum(a[mine] * np.log(a[mine] / b[mine])))


def one_step_rows(p: Tensor, q: Tensor | None, rule: Rule, tokens: Tensor | None = None) -> OneStepRows:
    """Many positions: p [N, V], and q [N, V] or the ids tokens [N] of point-mass drafts.

    rule's numbers may be columns [N]. Sums are taken from the given tensors in float64, as verification does.
    """
    q = _draft_rows(p, q, tokens)
    _check_rows(p, "p")
    _check_rows(q, "q")
    if p.shape != q.shape:
        raise LawError(f"p has shape {tuple(p.shape)} and q {tuple(q.shape)}, wanted the same rows and vocabulary")
    emitted = rule.emitted(p, q)
    law = p.double()
    tv = row_sum((emitted - law).abs()) / 2
    if isinstance(rule, RatioOrSet):
        inside = rule.whole_set(p)
        R, ES = excess_masses_in(p, q, inside)
        lam = rule.coefficient(p, q)
        deviation = lam * ES
        spends = (deviation > 0).unsqueeze(-1)
        over, under = (q > p) & inside & spends, (p > q) & spends
        accepted = 1.0 - R + deviation
    else:
        inside = None
        accepted = row_sum(q.double() * rule.acceptance_of_all(p.double(), q.double()))
        R, _ = excess_masses_in(p, q, torch.zeros_like(p, dtype=torch.bool))
        deviation = torch.zeros_like(tv) if rule.lossless else torch.where(tv > _ROUNDING, tv, 0.0)
        ES, lam = deviation, torch.ones_like(tv)
        spends = (deviation > 0).unsqueeze(-1)
        over, under = (emitted > law + _ROUNDING) & spends, (emitted < law - _ROUNDING) & spends
    return OneStepRows(
        R=R,
        ES=ES,
        acceptance=accepted,
        residual=1.0 - accepted,
        lam=lam,
        deviation=deviation,
        tv=tv,
        emitted=emitted,
        kl_emitted=_row_divergence(emitted, law),
        kl_target=_row_divergence(law, emitted),
        over=over,
        under=under,
        nucleus=inside,
        exact=deviation == 0,
    )


def _draft_rows(p: Tensor, q: Tensor | None, tokens: Tensor | None) -> Tensor:
    if q is not None:
        return q
    if tokens is None:
        raise NoClosedForm("the draft's law is unknown; give q, or the drafted ids for the bound of point masses")
    return one_hot(tokens, p)


def _check_rows(law: Tensor, name: str) -> None:
    """LawError for the first bad row; one wait for the device."""
    total = row_sum(law)
    bad = ~((law >= 0).all(-1) & ((total - 1.0).abs() <= ROW_TOLERANCE))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise LawError(
            f"row {row} of {name} sums to {float(total[row]):.9g} with smallest entry {float(law[row].min()):g}, "
            "wanted probabilities that sum to 1; pass processed laws"
        )


def _row_divergence(a: Tensor, b: Tensor) -> Tensor:
    """KL(a || b) per row in nats, inf where b lacks mass that a has."""
    terms = torch.where(a > 0, a * (a.log() - b.log()), 0.0)
    lacking = ((a > 0) & (b <= _NOTHING * a)).any(-1)
    return torch.where(lacking, torch.inf, row_sum(terms).clamp_min(0))


def along_theta(p: Law, q: Law | int, thetas: Sequence[float], rule: NSD) -> list[OneStep]:
    """The step at each theta: ES, deviation and acceptance never fall from a theta to a larger one.

    This compares sets at one fixed p and q. It says nothing about accuracy or throughput, where theta changes the text.
    """
    return [one_step(p, q, replace(rule, theta=theta)) for theta in thetas]
