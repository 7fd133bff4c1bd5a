"""Losses between the target's law p and the drafter's q, fused with the head: no row of logits outlives its chunk.

    cross-entropy       - sum p log q            d / dz = m q - p            m = sum of p over the draft vocabulary
    total variation     1 - sum min(p, q)        d / dz = q (g - sum q g)    g = -1 where q < p

1 - TV is the probability that standard speculation accepts a draft, so the second is what decoding pays for. Its
gradient is zero for ids that q does not know yet; the first has none of that trouble, and comes first. Beside the
target's frozen head there may be a map of the drafter's own (a Markov head, the whole head of a separate model).
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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What laws are compared with: p [M, n], whose rows `index` [N] belong to the states; cold [N] = 1 / T."""

    p: Tensor
    index: Tensor
    cold: Tensor


class HeadLoss(torch.autograd.Function):
    """Mean loss of states behind a frozen head and a map that learns; gradients are made in the forward pass.

    They are made chunk by chunk, so that no row of logits outlives its chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, log_gain: Tensor, read: Tensor, own: Tensor, head: Tensor, wanted: Wanted, mix: Mix
    ) -> tuple[Tensor, Tensor]:
        """states [N, H] normed, head [n, H], read [N, r] and own [n, r] -> mean loss, 1 - TV of each row [N].

        r is 0 without a map, H is 0 without a head.
        """
        gain, count, p = float(log_gain.exp()), max(len(states), 1), wanted.p
        gradient, read_gradient, own_gradient = torch.zeros_like(states), torch.zeros_like(read), torch.zeros_like(own)
        gain_gradient, loss, kept = 0.0, 0.0, states.new_zeros(len(states))
        narrow, narrow_read, narrow_own = (part.to(head.dtype) for part in (states, read, own))
        for first in range(0, len(states), CHUNK):
            rows = slice(first, first + CHUNK)
            scale = gain * wanted.cold[rows, None]
            z = _logits(narrow[rows], head, narrow_read[rows], narrow_own).mul_(scale)
            law, want = torch.softmax(z, -1), p[wanted.index[rows]].float()
            mass, least = want.sum(-1, keepdim=True), torch.minimum(law, want).sum(-1)
            kept[rows] = least
            loss += mix.total_variation * (len(law) - float(least.sum()))
            if mix.cross_entropy:
                seen = float(torch.dot(want.flatten(), z.flatten()))
                loss += mix.cross_entropy * (float((mass * torch.logsumexp(z, -1, keepdim=True)).sum()) - seen)
            slope = _slope(law, want, mass, mix)
            gain_gradient += float(torch.dot(slope.flatten(), z.flatten()))
            slope = slope.mul_(scale).to(head.dtype)
            gradient[rows] = (slope @ head).float()
            if own.shape[1]:
                read_gradient[rows] = (slope @ narrow_own).float()
                own_gradient += (slope.T @ narrow_read[rows]).float()
        ctx.save_for_backward(
            gradient / count, log_gain.new_tensor(gain_gradient / count), read_gradient / count, own_gradient / count
        )
        ctx.mark_non_differentiable(kept)
        return states.new_tensor(loss / count), kept

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Scale what the forward pass made."""
        states, gain, read, own = (part * gradients[0] for part in ctx.saved_tensors)
        return states, gain, read, own, None, None, None


def head_loss(
    states: Tensor,
    log_gain: Tensor,
    head: Tensor,
    p: Tensor,
    index: Tensor,
    cold: Tensor,
    mix: Mix,
    read: Tensor | None = None,
    own: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean loss of normed states [N, H], with gradients for them, the gain, read and own; 1 - TV of each row [N].

    See `HeadLoss`.
    """
    if read is None or own is None:
        read, own = states.new_zeros(len(states), 0), states.new_zeros(len(head), 0)
    wanted = Wanted(p, index, cold)
    loss: Tensor
    loss, kept = HeadLoss.apply(states, log_gain, read, own, head, wanted, mix)  # type: ignore[no-untyped-call]  # torch's
    return loss, kept


def logits(states: Tensor, head: Tensor, read: Tensor | None, own: Tensor | None) -> Tensor:
    """Logits [N, n] in float32 without gain or temperature, as the loss makes them; without gradients."""
    if read is None or own is None:
        return functional.linear(states.to(head.dtype), head).float()
    return _logits(states.to(head.dtype), head, read.to(head.dtype), own.to(head.dtype))


def _logits(states: Tensor, head: Tensor, read: Tensor, own: Tensor) -> Tensor:
    """Head and map, either of which may have no columns."""
    if not head.shape[1]:
        return functional.linear(read, own).float()
    z = functional.linear(states, head).float()
    return z + functional.linear(read, own).float() if own.shape[1] else z


def _slope(law: Tensor, want: Tensor, mass: Tensor, mix: Mix) -> Tensor:
    """d loss / dz of a chunk, from q, p and the sum of p; law is overwritten."""
    if not mix.total_variation:
        return law.mul_(mix.cross_entropy * mass).sub_(want, alpha=mix.cross_entropy)
    below = want.sub(law).gt_(0).mul_(law)  # law where it is below; torch.where is slower on a CPU
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


def text_law(tokens: Tensor, ids: Tensor) -> Tensor:
    """One at the text's next token: tokens [B, T + 1] -> [B T, n] bfloat16 over the draft vocabulary ids [n].

    A token outside the draft vocabulary has a row of zeros, as it has no mass in `target_law`.
    """
    following = tokens[:, 1:].flatten()
    place = torch.searchsorted(ids, following).clamp(max=len(ids) - 1)
    known = ids[place] == following
    law = torch.zeros(len(following), len(ids), dtype=torch.bfloat16)
    law[known, place[known]] = 1.0
    return law
