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

CHUNK = 256
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
            z = functional.linear(narrow[rows], head).float() * scale
            law, want = torch.softmax(z, -1), p[index[rows]].float()
            least = torch.minimum(law, want)
            kept += float(least.sum())
            mass = want.sum(-1, keepdim=True)
            if mix.cross_entropy:
                normaliser = torch.logsumexp(z, -1, keepdim=True)
                loss += mix.cross_entropy * float((mass * normaliser).sum() - (want * z).sum())
            loss += mix.total_variation * float(len(law) - least.sum())
            below = law * (law < want)
            slope = mix.cross_entropy * (mass * law - want)
            slope -= mix.total_variation * (below - law * below.sum(-1, keepdim=True))
            gain_gradient += float((slope * z).sum())
            gradient[rows] = ((slope * scale).to(head.dtype) @ head).float()
        ctx.save_for_backward(gradient / count, log_gain.new_tensor(gain_gradient / count))
        return states.new_tensor(loss / count), states.new_tensor(kept / count)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Scale what the forward pass made."""
        states, gain = ctx.saved_tensors
        return states * gradients[0], gain * gradients[0], None, None, None, None, None


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
