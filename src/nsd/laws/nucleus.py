"""The target's nucleus S at threshold theta, without sorting the vocabulary.

Two conventions, equal wherever no two probabilities tie:

- mass form ("all"): x is in S iff p(x) > 0 and the mass strictly above p(x) is below theta. All ties are in.
- prefix form ("smallest"): walk the ids by probability descending, then id ascending; S is the shortest prefix whose
  mass reaches theta. Of tied ids only the lower ones may be in. This is the paper's equation; the mass form is the
  convention of its code (appendix B).

theta = 0 is the empty set (standard speculation, exact); theta >= 1 is every id with p(x) > 0, decided without a sum.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from nsd.laws.rows import greater, mass_where

Ties = Literal["all", "smallest"]
Column = Tensor | float

_FIRST_FLOOR = 2.0**-11
_FLOOR_STEP = 2.0**-6


def mass_above(p: Tensor, p_x: Tensor) -> Tensor:
    """Mass of the ids strictly more probable than x: p [N, V], p_x [N] -> [N] float64."""
    return mass_where(p, greater(p, p_x.to(p).unsqueeze(-1)))


def mass_before(p: Tensor, x: Tensor) -> Tensor:
    """Mass of the ids before x in (probability descending, id ascending) order: p [N, V], x [N] -> [N] float64."""
    p_x = p.gather(-1, x.unsqueeze(-1))
    lower_ties = ((p == p_x) & (torch.arange(p.shape[-1], device=p.device) < x.unsqueeze(-1))).sum(-1)
    return mass_above(p, p_x.squeeze(-1)) + lower_ties * p_x.squeeze(-1).double()


def is_member(p_x: Tensor, mass: Tensor, theta: Column) -> Tensor:
    """Membership of x from its own probability and the mass before it: [N] bool.

    mass is `mass_above` for the mass form and `mass_before` for the prefix form.
    """
    theta = torch.as_tensor(theta, dtype=torch.float64, device=p_x.device)
    return (p_x > 0) & (theta > 0) & ((mass < theta) | (theta >= 1))


def threshold(p: Tensor, theta: Column) -> Tensor:
    """The smallest probability inside the mass-form nucleus: p [N, V] -> [N] in p's dtype; inf where S is empty.

    S = {p >= threshold}. Only ids above a falling floor are gathered and ordered, a few hundred of a large vocabulary;
    the floor falls only for rows whose gathered mass stays below theta.
    """
    theta = torch.as_tensor(theta, dtype=torch.float64, device=p.device).expand(p.shape[0])
    smallest = torch.full_like(p[:, 0], torch.inf)
    pending = torch.arange(p.shape[0], device=p.device)
    floor = _FIRST_FLOOR
    while len(pending):
        found, gathered_all = _threshold_above(p[pending], theta[pending], floor)
        smallest[pending] = found
        pending = pending[~gathered_all]
        floor = floor * _FLOOR_STEP if floor > torch.finfo(p.dtype).tiny else 0.0
    return smallest


def _threshold_above(p: Tensor, theta: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Threshold among the ids with p > floor, and whether lower ids could change it: [n, V], [n] -> [n], [n]."""
    row, column = (p > floor).nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=p.shape[0])
    width = max(int(counts.max()), 1)
    slot = torch.arange(len(row), device=p.device) - (counts.cumsum(0) - counts)[row]
    candidates = p.new_zeros(p.shape[0], width)
    candidates[row, slot] = p[row, column]
    ordered = candidates.sort(-1, descending=True).values
    running = ordered.cumsum(-1, dtype=torch.float64)
    inside = is_member(ordered, running - ordered, theta.unsqueeze(-1))
    smallest = torch.where(inside, ordered, torch.inf).amin(-1)
    settled = (theta == 0) | ((running[:, -1] >= theta) & (theta < 1)) | torch.full_like(inside[:, 0], floor == 0.0)
    return smallest, settled


def members(p: Tensor, theta: Column, ties: Ties = "all") -> Tensor:
    """The whole nucleus as a mask: p [N, V] -> [N, V] bool. The prefix form orders each row; the mass form does not."""
    if ties == "smallest":
        return members_by_sort(p, theta, ties)
    return (p >= threshold(p, theta).unsqueeze(-1)) & (p > 0)


def members_by_sort(p: Tensor, theta: Column, ties: Ties = "all") -> Tensor:
    """Reference for `members`: order every row in float64, probability descending then id ascending. [N, V] bool."""
    law = p.double()
    ordered, order = law.sort(dim=-1, descending=True, stable=True)
    before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(-1)[:, :-1]], -1)
    limit = torch.as_tensor(theta, dtype=torch.float64, device=p.device).reshape(-1, 1)
    inside = is_member(ordered, before, limit)
    mask = torch.zeros_like(inside).scatter_(-1, order, inside)
    if ties == "all":
        edge = torch.where(mask, law, torch.inf).amin(-1, keepdim=True)
        mask = (law >= edge) & (law > 0)
    return mask
