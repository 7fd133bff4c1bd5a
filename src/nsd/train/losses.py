"""Losses between the target's law p and the drafter's q, fused with the head: no row of logits outlives its chunk.

    cross-entropy       - sum p log q            d / dz = m q - p            m = sum of p over the draft vocabulary
    total variation     1 - sum min(p, q)        d / dz = q (g - sum q g)    g = -1 where q < p

1 - TV is the probability that standard speculation accepts a draft, so the second is what decoding pays for. Its
gradient is zero for ids that q does not know yet; the first has none of that trouble, and comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

CHUNK = 128
"""Rows of logits alive at a time."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Weights of the two losses."""

    cross_entropy: float
    total_variation: float


class HeadLoss(torch.autograd.Function):
    """Mean loss of states behind a frozen head; the gradient is made in the forward pass, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, log_gain: Tensor, head: Tensor, p: Tensor, index: Tensor, cold: Tensor, mix: Mix
    ) -> tuple[Tensor, Tensor]:
        """states [N, H] normed, head [n, H], p [M, n] with rows `index` [N], cold [N] = 1 / T -> loss, mean 1 - TV."""
        gain, count = float(log_gain.exp()), max(len(states), 1)
        gradient, gain_gradient = torch.zeros_like(states), 0.0
        loss, kept = 0.0, 0.0
        narrow = states.to(head.dtype)
        for first in range(0, len(states), CHUNK):
            rows = slice(first, first + CHUNK)
            scale = gain * cold[rows, None]
            z = functional.linear(narrow[rows], head).float().mul_(scale)
            law, want = torch.softmax(z, -1), p[index[rows]].float()
            mass, least = want.sum(-1, keepdim=True), float(torch.minimum(law, want).sum())
            kept += least
            loss += mix.total_variation * (len(law) - least)
            if mix.cross_entropy:
                seen = float(torch.dot(want.flatten(), z.flatten()))
                loss += mix.cross_entropy * (float((mass * torch.logsumexp(z, -1, keepdim=True)).sum()) - seen)
            slope = _slope(law, want, mass, mix)
            gain_gradient += float(torch.dot(slope.flatten(), z.flatten()))
            gradient[rows] = (slope.mul_(scale).to(head.dtype) @ head).float()
        ctx.save_for_backward(gradient / count, log_gain.new_tensor(gain_gradient / count))
        return states.new_tensor(loss / count), states.new_tensor(kept / count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Scale what the forward pass made."""
        states, gain = ctx.saved_tensors
        return states * gradients[0], gain * gradients[0], None, None, None, None, None


def head_loss(
    states: Tensor, log_gain: Tensor, head: Tensor, p: Tensor, index: Tensor, cold: Tensor, mix: Mix
) -> tuple[Tensor, float]:
    """Mean loss of normed states [N, H], with gradients for them and the gain, and mean 1 - TV; see `HeadLoss`."""
    loss: Tensor
    loss, kept = HeadLoss.apply(states, log_gain, head, p, index, cold, mix)  # type: ignore[no-untyped-call]  # torch's
    return loss, float(kept.detach())


def _slope(law: Tensor, want: Tensor, mass: Tensor, mix: Mix) -> Tensor:
    """d loss / dz of a chunk, from q, p and the sum of p; law is overwritten."""
    if not mix.total_variation:
        return law.mul_(mix.cross_entropy * mass).sub_(want, alpha=mix.cross_entropy)
    below = torch.where(law < want, law, 0.0)
    total = below.sum(-1, keepdim=True)
    law.mul_(mix.cross_entropy * mass + mix.total_variation * total)
    return law.sub_(below, alpha=mix.total_variation).sub_(want, alpha=mix.cross_entropy)


def target_law(states: Tensor, head: Tensor, lse: Tensor, cold: Tensor) -> Tensor:
    """p over the draft vocabulary from stored final states [N, H] and log-sum-exp of logits / T [N]: [N, n] bfloat16.

    The mass that lies outside the draft vocabulary is missing from the rows, as it is from any draft.
    """
    p = torch.empty(len(states), len(head), dtype=torch.bfloat16)
    for first in range(0, len(states), CHUNK):
        rows = slice(first, first + CHUNK)
        z = functional.linear(states[rows].to(head.dtype), head).float() * cold[rows, None]
        p[rows] = (z - lse[rows, None]).exp_()
    return p
