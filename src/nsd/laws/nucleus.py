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
from torch.nn.functional import pad

from nsd.laws.rows import descending, entries, greater, mass_where, take

Ties = Literal["all", "smallest"]
Column = Tensor | float

_EXACT = torch.float64
FLOORS = 2.0**-14, 2.0**-20
"""Few ids exceed the first, which is enough for a peaked law; the second leaves little of a flat one out."""


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

    S = {p >= threshold}. Where the ids above a small floor hold theta between them, only those are ordered, a few
    hundred of a large vocabulary; for a flatter law, only those around the place where the mass reaches theta.
    """
    if isinstance(theta, Tensor):
        return _threshold_by_kind(p, theta.to(torch.float64).expand(len(p)))
    if theta <= 0 or not len(p):
        return torch.full_like(p[:, 0], torch.inf)
    return _smallest_positive(p) if theta >= 1 else _threshold_between(p, p.new_full((len(p),), theta, dtype=_EXACT))


def _threshold_by_kind(p: Tensor, theta: Tensor) -> Tensor:
    """The same for a theta per row: nothing, everything and what lies between are found apart."""
    smallest = torch.full_like(p[:, 0], torch.inf)
    for rows, found in (
        ((theta >= 1).nonzero().squeeze(-1), lambda p, _: _smallest_positive(p)),
        (((theta > 0) & (theta < 1)).nonzero().squeeze(-1), _threshold_between),
    ):
        if len(rows):
            smallest[rows] = found(take(p, rows), theta[rows])
    return smallest


def _smallest_positive(p: Tensor) -> Tensor:
    return torch.where(p > 0, p, torch.inf).amin(-1)


def _threshold_between(p: Tensor, theta: Tensor) -> Tensor:
    """Threshold for 0 < theta < 1 from the ids above a floor that holds theta, else from all: [n, V], [n] -> [n]."""
    smallest, short = torch.full_like(p[:, 0], torch.inf), torch.arange(len(p), device=p.device)
    for floor in FLOORS:
        rows = take(p, short)
        row, column = entries(rows, floor)
        smallest[short], held = _smallest_inside(len(rows), row, rows[row, column], theta[short])
        short = short[held < theta[short]]
        if not len(short):
            return smallest
    smallest[short] = _threshold_by_piles(take(p, short), theta[short])
    return smallest


def _threshold_by_piles(p: Tensor, theta: Tensor) -> Tensor:
    """Threshold of any law for 0 < theta < 1: [n, V], [n] -> [n].

    The mass is piled up by exponent and leading bits, in order of size; the pile in which it reaches theta is ordered.
    """
    double = p.dtype == torch.float64
    bits = p.view(torch.int64 if double else torch.int32)
    pile = (bits >> (49 if double else 20)).clamp_(0, (8 if double else 1) * 1024 - 1).long()
    piles = torch.zeros(len(p), (8 if double else 1) * 1024, dtype=torch.float64, device=p.device)
    piles.scatter_add_(-1, pile, p.double())
    above = pad(piles.flip(-1).cumsum(-1), (1, -1)).flip(-1)
    crossing = ((piles > 0) & (above < theta.unsqueeze(-1))).to(torch.uint8).argmax(-1, keepdim=True)
    row, column = (pile == crossing).nonzero(as_tuple=True)
    return _smallest_inside(len(p), row, p[row, column], theta, above.gather(-1, crossing).squeeze(-1))[0]


def _smallest_inside(
    n: int, row: Tensor, value: Tensor, theta: Tensor, above: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Smallest member among given entries, and the mass down to the last: row, value [m], theta, above [n] -> [n], [n].

    row is ascending; above is the mass over all entries of a row. The entries are moved to the left and ordered.
    """
    above = torch.zeros_like(theta) if above is None else above
    counts = torch.bincount(row, minlength=n)
    slot = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    found = value.new_zeros(n, max(int(counts.max()), 1))
    found[row, slot] = value
    ordered = descending(found)
    running = torch.cat([above.unsqueeze(-1), ordered.double()], -1).cumsum(-1)
    inside = is_member(ordered, running[:, :-1], theta.unsqueeze(-1))
    return torch.where(inside, ordered, torch.inf).amin(-1), running[:, -1]


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
