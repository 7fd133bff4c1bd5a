"""Baselines that are exact speculation for another law pi: the token-specific cascade and mentored decoding.

Accept iff u < pi(x)/q(x), replace from (pi-q)+; the emitted law is pi, so TV(emitted, p) = TV(pi, p). A pi must give
nothing to ids with p = 0, since no rule keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nsd.laws import row_sum
from nsd.rules.base import Evidence, Need, Number, Recovery, Rule, asked, at_ids

_STEPS = 60


class Surrogate(Rule):
    """Exact speculation for `surrogate(p, q)` in the place of p."""

    recovery = Recovery.SURROGATE

    @property
    def needs(self) -> Need:
        """Whole rows, from which pi is made."""
        return Need.ROWS

    def acceptance(self, e: Evidence) -> Tensor:
        """min(1, pi/q)."""
        pi = at_ids(self.surrogate(asked(e.p), asked(e.q)), e.x)
        return (pi.double() / e.q_x.double()).nan_to_num(nan=0.0).clamp_max(1.0)

    def decide(self, e: Evidence, u: Tensor) -> Tensor:
        """u q(x) < pi(x); pi is 0 where the target forbids x."""
        pi = at_ids(self.surrogate(asked(e.p), asked(e.q)), e.x)
        return (e.p_x > 0) & (u * e.q_x.double() < pi.double())

    def emitted(self, p: Tensor, q: Tensor) -> Tensor:
        """pi itself: min(pi, q) + (pi-q)+."""
        return self.surrogate(p.double(), q.double())


@dataclass(frozen=True)
class TokenCascade(Surrogate):
    """Token-specific speculative cascade, third form: take q on the set A near the target's mode, p elsewhere.

    A = {x: p(x) >= (1-alpha) max p}; pi = q 1_A + p q(outside A). alpha in [0, 1). Lossy; it keeps a token on the
    target's plausibility alone, as NSD does, but has no p/q branch inside A. On failure (pi-q)+.
    """

    alpha: Number = 0.5

    name = "cascade"
    formula = "u < pi/q, pi = q 1_A + p q(outside A)"
    source = "Narasimhan et al., arXiv 2405.19261, token-specific rule V3"
    ranges: ClassVar = {"alpha": ("a number in [0, 1)", lambda v: 0 <= v < 1)}

    def surrogate(self, p: Tensor, q: Tensor) -> Tensor:
        """q on A, and q's mass outside A spread as p."""
        alpha = torch.as_tensor(self.alpha, dtype=torch.float64, device=p.device).reshape(-1, 1)
        inside = p.double() >= (1.0 - alpha) * p.amax(-1, keepdim=True).double()
        outside_mass = row_sum(torch.where(inside, 0.0, q)).unsqueeze(-1)
        return torch.where(inside, q, 0.0) + p * outside_mass


@dataclass(frozen=True)
class Mentored(Surrogate):
    """Mentored decoding: exact speculation for pi = clip(q, b p, a p), the closest law to q within a of p.

    a >= 1 (1 = exact; inf = all of q): no token is emitted with more than a p(x); b <= 1 follows from sum pi = 1.
    Lossy; among laws with the same KL(p || pi) it accepts most. On failure (pi-q)+.
    """

    a: Number = 2.0

    name = "mentored"
    formula = "u < pi/q, pi = clip(q, b p, a p)"
    source = "vivien000/mentored_decoding; here the upper factor a is given and b is solved for"
    widens_ratio = True
    ranges: ClassVar = {"a": ("a number >= 1", lambda v: v >= 1)}

    def surrogate(self, p: Tensor, q: Tensor) -> Tensor:
        """clip(q, b p, a p), b found from above: the mass M(b) = sum max(upper, b p) is convex and M(1) >= 1.

        Each step solves M = 1 with the ids that b p raises held fixed, so b falls until they no longer change; a row
        that is there stays there, whatever the rows beside it still need.
        """
        a = torch.as_tensor(self.a, dtype=torch.float64, device=p.device).reshape(-1, 1)
        p, q = p.double(), q.double()
        upper = torch.minimum(q, torch.where(p > 0, a * p, 0.0))
        b = torch.ones_like(p[:, :1])
        for _ in range(_STEPS):
            raised = upper < b * p
            fixed = row_sum(torch.where(raised, 0.0, upper)).unsqueeze(-1)
            share = row_sum(torch.where(raised, p, 0.0)).unsqueeze(-1)
            lower = torch.where(share > 0, ((1.0 - fixed) / share).clamp_min(0), b)
            if bool((lower >= b).all()):
                break
            b = torch.minimum(b, lower)
        return torch.maximum(upper, b * p)
