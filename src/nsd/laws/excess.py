"""The draft's excess mass: R = sum (q-p)+ over the vocabulary and ES = the part of it inside a set S.

R is the rejection probability of standard speculation; ES is the extra acceptance, and the one-step deviation in total
variation, of a rule that also accepts everything in S. A point-mass draft at x has R = 1 - p(x) and ES = 1 - p(x) if x
is in S, else 0; no row is needed for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsd.laws.rows import entries, row_sum, sum_by_row


def excess(p: Tensor, q: Tensor) -> Tensor:
    """(q-p)+ entry by entry: p [N, V], q [N, V] -> [N, V]."""
    return (q - p).clamp_min_(0)


def excess_masses(p: Tensor, q: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
    """R and ES for S = {p >= edge}: p [N, V], q [N, V], edge [N] (inf = empty set) -> R [N], ES [N] in float64."""
    over = excess(p, q)
    row, x = entries(p, edge.to(p))
    return row_sum(over), sum_by_row(row, over[row, x], len(p))


def excess_masses_in(p: Tensor, q: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """R and ES for S given as a mask [N, V] -> R [N], ES [N] in float64."""
    over = excess(p, q)
    return row_sum(over), row_sum(over * inside)


def point_excess_masses(p_x: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """R and ES of a point-mass draft: p_x [N], member [N] bool -> R [N], ES [N] in float64."""
    rejected = 1.0 - p_x.double()
    return rejected, torch.where(member, rejected, torch.zeros_like(rejected))


def residual(p: Tensor, q: Tensor) -> Tensor:
    """(p-q)+ before normalisation, the law of the replacement after a rejection: [N, V]."""
    return (p - q).clamp_min_(0)
