"""The cap at work: which share of each position's excess may be spent.

eps_t = min(ES_t, cap_t) as long as the block's product of (1 - eps) stays above its floor; the position that would
cross the floor spends what is left, later ones nothing. lam_t = eps_t / ES_t. eps_t depends on rows up to t and on the
past only, never on the drafted token or its uniform: that is what makes the sequence guarantee hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsd.verification.layout import Layout
from nsd.verification.types import Caps


def spend(es: Tensor, caps: Caps, layout: Layout) -> tuple[Tensor, Tensor]:
    """Deviation and coefficient of every position if it is tested: ES [N] -> eps [N], lam [N] in float64.

    lam is exactly 1 wherever the whole excess may be spent.
    """
    wanted = torch.minimum(es, caps.cap)
    unbounded = layout.padded(1.0 - wanted, 1.0).cumprod(-1)
    kept = torch.maximum(unbounded, caps.floor.unsqueeze(-1))
    before = torch.cat([torch.ones_like(kept[:, :1]), kept[:, :-1]], -1)
    left = layout.flat(1.0 - torch.where(before > 0, kept / before, 0.0))
    within = layout.flat(unbounded >= caps.floor.unsqueeze(-1))
    eps = torch.where(within, wanted, torch.minimum(left, wanted))
    full = within & (es <= caps.cap)
    return eps, torch.where(full, 1.0, eps / es.clamp_min(torch.finfo(torch.float64).tiny))
