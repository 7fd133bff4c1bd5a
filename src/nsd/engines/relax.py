"""Which drafted tokens an engine must keep although its own test may turn them down: one function for all engines.

The engine keeps its kernels, its residual and its bonus draw. It is only told, row by row, "this draft stands": the row
is *forced*. A row that is not forced goes through the engine's exact test with nothing changed, so theta = 0 is the
engine's own speculative decoding.

    forced(x) iff x in S_theta(p) and coin < lam,   lam = 1 without a cap, else min(1, eps / ES),

S the mass-form nucleus of p, the target's law as the engine samples from it (penalties, masks, temperature, top-k and
top-p applied). Then the emitted law is off p by lam ES in total variation (see `nsd.rules.ratio_or_set`).

Nothing here waits for the device, writes into what it was given, or depends on anything but the rows and the coin; the
ranks of a tensor-parallel group, which hold the same rows, decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nsd.laws import excess_masses, is_member, mass_above, point_excess_masses, row_sum, threshold

_BITS_OF_ONE = 0x3F800000


@dataclass(frozen=True)
class Decision:
    """What was decided about N drafted tokens.

    forced, member [N] bool; p_x, q_x [N] the laws' own probabilities of x (q_x = 1 for a point mass); es, lam [N]
    float64, es None where it was not asked for. es is exact if draft_probs were the law really drawn from, or if the
    draft really is a point mass; for a sampled draft whose law is missing it is an upper bound.
    """

    forced: Tensor
    member: Tensor
    p_x: Tensor
    q_x: Tensor
    es: Tensor | None
    lam: Tensor

    @property
    def spent(self) -> Tensor | None:
        """lam ES, the deviation of each row if it is tested: [N] float64."""
        return None if self.es is None else torch.where(self.es > 0, self.lam * self.es, 0.0)


def decide(
    probs: Tensor,
    drafted: Tensor,
    theta: Tensor,
    *,
    eps: Tensor | None = None,
    draft_probs: Tensor | None = None,
    coin: Tensor | None = None,
    account: bool = False,
) -> Decision:
    """Decide N rows: probs [N, V] = p, drafted [N] (negative = no token there), theta [N] (0 = leave to the engine).

    eps [N] caps the deviation of each row (inf = no cap) and wants coin [N] in [0, 1), independent of the engine's u.
    draft_probs [N, Vq] is the law that drafted was drawn from, None = point masses at drafted; Vq may be shorter than V
    (q = 0 beyond). account asks for ES where no cap needs it. probs is float32 or float64 and sums to one.
    """
    if eps is not None and coin is None:
        raise ValueError("a cap wants a coin, got none; pass coin = nsd.engines.coin.coins(key, position)")
    x = drafted.long().clamp(0, probs.shape[-1] - 1)
    valid = (drafted >= 0) & (drafted < probs.shape[-1])
    theta = torch.where(valid, theta.double(), 0.0)
    p_x = probs.gather(-1, x.unsqueeze(-1)).squeeze(-1)
    member = valid & is_member(p_x, mass_above(probs, p_x), theta)
    q_x = torch.ones_like(p_x) if draft_probs is None else _at(draft_probs, x)
    es = _excess(probs, p_x, member, theta, draft_probs) if account or eps is not None else None
    lam = torch.ones_like(theta)
    forced = member
    if eps is not None and es is not None and coin is not None:
        lam = torch.where(es <= eps, 1.0, eps.double() / es)
        forced = member & ((lam == 1.0) | (coin.double() < lam))
    return Decision(forced, member, p_x, q_x, es, lam)


def passes(decision: Decision, u: Tensor) -> Tensor:
    """Whether each row would have passed the exact test with its u, by p(x) > 0 and u q < p: [N] bool."""
    p_x, q_x = decision.p_x.double(), decision.q_x.double()
    return (p_x > 0) & (u.double() * q_x < p_x)


def _at(law: Tensor, x: Tensor) -> Tensor:
    inside = x < law.shape[-1]
    value = law.gather(-1, x.clamp(max=law.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
    return torch.where(inside, value, 0.0)


def _excess(p: Tensor, p_x: Tensor, member: Tensor, theta: Tensor, q: Tensor | None) -> Tensor:
    """ES of every row: [N] float64. A point mass at x needs no row."""
    if q is None:
        return point_excess_masses(p_x, member)[1]
    width = min(p.shape[-1], q.shape[-1])
    q = q[:, :width].to(p.dtype)
    if p.device.type == "cpu":
        return excess_masses(p[:, :width], q, threshold(p, theta))[1]
    inside = p[:, :width] >= edge_without_wait(p, theta).unsqueeze(-1)
    return row_sum((q - p[:, :width]).clamp_min_(0).mul_(inside))


def edge_without_wait(p: Tensor, theta: Tensor) -> Tensor:
    """`nsd.laws.threshold` by a search over the bits of a float32, with no result ever looked at by the host: [N].

    Membership is monotone in the probability, and the order of positive floats is the order of their bits; 31 halvings
    find the smallest member. It calls the very sum that decides about x, so both agree to the last bit.
    """
    low = torch.zeros_like(theta, dtype=torch.int32)
    high = torch.full_like(low, _BITS_OF_ONE + 1)
    for _ in range(31):
        middle = low + (high - low) // 2
        value = middle.view(torch.float32).to(p.dtype)
        inside = is_member(value, mass_above(p, value), theta)
        low, high = torch.where(inside, low, middle + 1), torch.where(inside, middle, high)
    return torch.where(high > _BITS_OF_ONE, torch.inf, high.view(torch.float32)).to(p.dtype)
