"""Deterministic baselines that look at the target alone: typical acceptance and relaxed top-k with a margin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nsd.laws import argmax, is_member, members
from nsd.rules.base import Evidence, Need, Number, Recovery, Rule, asked
from nsd.rules.ratio_or_set import kth_largest


@dataclass(frozen=True)
class Typical(Rule):
    """Accept iff p(x) > min(epsilon, delta exp(-H(p))), H the target's entropy in nats.

    epsilon in (0, 1] (0.09), delta > 0 (0.3). Lossy, ignores q and u. On failure a draw from p.
    """

    epsilon: Number = 0.09
    delta: Number = 0.3

    name = "typical"
    formula = "p(x) > min(epsilon, delta exp(-H(p)))"
    source = "FasterDecoding/Medusa medusa/model/utils.py; vLLM's former typical_acceptance_sampler.py"
    needs_q = False
    recovery = Recovery.TARGET
    ranges: ClassVar = {
        "epsilon": ("a number in (0, 1]", lambda v: 0 < v <= 1),
        "delta": ("a number > 0", lambda v: v > 0),
    }

    @property
    def needs(self) -> Need:
        """The target's entropy."""
        return Need.ENTROPY_P

    def acceptance(self, e: Evidence) -> Tensor:
        """1 above the entropy-dependent floor, else 0."""
        floor = (self.delta * torch.exp(-asked(e.entropy_p))).clamp_max(1.0)
        epsilon = torch.as_tensor(self.epsilon, dtype=torch.float64, device=floor.device)
        return (e.p_x.double() > torch.minimum(floor, epsilon)).to(torch.float64)


@dataclass(frozen=True)
class ColdNucleus(Rule):
    """At temperature 0, also keep drafts inside the nucleus of the target's law before it was made cold.

    theta in [0, 1] (0.95); for requests at temperature 0 only, where NSD itself is greedy decoding. Lossy against
    greedy decoding: a kept draft other than the argmax deviates by 1. On failure, and as bonus, the argmax.
    """

    theta: Number = 0.95

    name = "cold-nucleus"
    formula = "x = argmax p or x in nucleus(p at temperature 1, theta)"
    source = "NSD at temperature 0 with an untempered nucleus; off unless asked for by name"
    needs_q = False
    untempered = True
    recovery = Recovery.ARGMAX
    ranges: ClassVar = {"theta": ("a number in [0, 1]", lambda v: 0 <= v <= 1)}

    @property
    def needs(self) -> Need:
        """The mass above x, and the argmax."""
        return Need.MASS_ABOVE | Need.ARGMAX

    def acceptance(self, e: Evidence) -> Tensor:
        """1 at the argmax and inside the nucleus, else 0."""
        inside = is_member(e.p_x, asked(e.mass), self.theta)
        return (inside | (e.x == asked(e.argmax))).to(torch.float64)

    def acceptance_of_all(self, p: Tensor, q: Tensor) -> Tensor:
        """The nucleus as a mask, with the argmax: no order of the vocabulary is needed."""
        inside = members(p, self.theta)
        return inside.scatter_(-1, argmax(p).unsqueeze(-1), True).to(torch.float64)


@dataclass(frozen=True)
class RelaxedTopK(Rule):
    """Accept iff x is among the k most probable tokens and within delta of the mode: p(x) >= max p - delta.

    k >= 1 (10), delta in [0, 1] (0.6). Lossy, ignores q and u. On failure the argmax.
    """

    k: Number = 10
    delta: Number = 0.6

    name = "relaxed-topk"
    formula = "rank_p(x) <= k and p(x) >= max p - delta"
    source = "NVIDIA/TensorRT-LLM _torch/speculative/mtp.py, relaxed acceptance"
    needs_q = False
    recovery = Recovery.ARGMAX
    ranges: ClassVar = {
        "k": ("an integer >= 1", lambda v: v >= 1 and v % 1 == 0),
        "delta": ("a number in [0, 1]", lambda v: 0 <= v <= 1),
    }

    @property
    def needs(self) -> Need:
        """Rank of x and the largest probability."""
        return Need.RANK | Need.MAX_P

    def acceptance(self, e: Evidence) -> Tensor:
        """1 inside the relaxed set, else 0."""
        near = e.p_x.double() >= asked(e.max_p).double() - self.delta
        relaxed: Tensor = near & (asked(e.rank) <= self.k)
        return relaxed.to(torch.float64)

    def acceptance_of_all(self, p: Tensor, q: Tensor) -> Tensor:
        """The relaxed set as a mask, from the k-th largest probability instead of ranks."""
        delta = torch.as_tensor(self.delta, dtype=torch.float64, device=p.device).reshape(-1, 1)
        near = p.double() >= p.amax(-1, keepdim=True).double() - delta
        return (near & (p >= kth_largest(p, self.k).unsqueeze(-1))).to(torch.float64)
