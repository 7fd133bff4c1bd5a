"""Ratio OR set: accept what passes the standard test, or lies in a set of plausible tokens. NSD is one member.

a(x) = r + lam 1[x in S] (1 - r) with r = min(1, p/q); a rejected token is replaced from the untouched residual
(p-q)+ / R. For every S and every lam that depends on neither x nor u,

    TV(emitted, p) = lam ES = the extra accepted mass,   ES = sum over S of (q-p)+.

lam = 1 without a cap. With max_deviation = eps, lam = min(1, eps/ES): the deviation is min(ES, eps), exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from nsd.laws import Ties, excess_masses_in, is_member, members, threshold
from nsd.rules.base import Evidence, Need, Number, Rule, asked, ratio

_CAP = ("a number >= 0 (0 = exact, none = no cap)", lambda v: v >= 0)


class RatioOrSet(Rule):
    """Accept iff u q(x) < p(x), or x is in the set S and the cap leaves room."""

    widens_ratio: ClassVar[bool] = True

    @abstractmethod
    def contains(self, e: Evidence) -> Tensor:
        """Membership of x in S from its evidence: [N] bool; never where p(x) = 0."""

    def in_set(self, e: Evidence) -> Tensor:
        """Membership of x: as found with the whole set where that was made (the cap), else from the evidence."""
        return self.contains(e) if e.member is None else e.member

    @abstractmethod
    def edge(self, p: Tensor) -> Tensor:
        """The smallest probability in S, without a sort: p [N, V] -> [N]; S = {p >= edge}, inf where S is empty."""

    def whole_set(self, p: Tensor) -> Tensor:
        """S as a mask: p [N, V] -> [N, V] bool."""
        return (p >= self.edge(p).unsqueeze(-1)) & (p > 0)

    def acceptance(self, e: Evidence) -> Tensor:
        """a(x) = r + lam 1[x in S] (1 - r)."""
        r = ratio(e)
        lam = 1.0 if e.lam is None else e.lam
        return torch.where(self.in_set(e), r + lam * (1.0 - r), r)

    def decide(self, e: Evidence, u: Tensor) -> Tensor:
        """p(x) > 0 and (u q < p, or x in S and (lam = 1 or u q < p + lam (q-p))).

        lam = 1 is taken without the product, which rounding (or u next to 1) would break.
        """
        p_x, q_x = e.p_x.double(), e.q_x.double()
        drawn = u * q_x
        forced = self.in_set(e)
        if e.lam is not None:
            forced = forced & ((e.lam == 1.0) | (drawn < p_x + e.lam * (q_x - p_x)))
        return (p_x > 0) & ((drawn < p_x) | forced)

    def acceptance_of_all(self, p: Tensor, q: Tensor) -> Tensor:
        """a(x) for every id at once, lam from the rows themselves."""
        r = ratio(Evidence(x=torch.arange(p.shape[-1], device=p.device).expand_as(p), p_x=p, q_x=q))
        inside = self.whole_set(p)
        return torch.where(inside, r + self.coefficient(p, q).unsqueeze(-1) * (1.0 - r), r).where(p > 0, 0.0)

    def coefficient(self, p: Tensor, q: Tensor) -> Tensor:
        """lam of each row: 1 without a cap or where ES <= eps, else eps/ES. [N] float64."""
        _, es = excess_masses_in(p, q, self.whole_set(p))
        if self.max_deviation is None:
            return torch.ones_like(es)
        return torch.where(es <= self.max_deviation, 1.0, self.max_deviation / es)


@dataclass(frozen=True)
class NSD(RatioOrSet):
    """Nucleus speculative decoding: the standard test OR membership in the target's nucleus at theta.

    theta in [0, 1] (0.95; 0 = exact standard speculation, 1 = everything with p(x) > 0); ties "all" (mass form) or
    "smallest" (the shortest prefix); max_deviation >= 0 caps the one-step deviation. Lossy: the emitted law deviates by
    ES = sum over S of (q-p)+. On failure the residual (p-q)+ / R, never truncated to S.
    """

    theta: Number = 0.95
    ties: Ties = "all"
    max_deviation: Number = None

    name = "nsd"
    formula = "u < p/q or x in nucleus(p, theta)"
    source = "arXiv 2610.07822, section 3 and appendix B"
    ranges: ClassVar = {
        "theta": ("a number in [0, 1]", lambda v: 0 <= v <= 1),
        "ties": ("'all' or 'smallest'", lambda v: v in ("all", "smallest")),
        "max_deviation": _CAP,
    }

    @property
    def needs(self) -> Need:
        """The mass that decides membership."""
        return Need.MASS_ABOVE if self.ties == "all" else Need.MASS_BEFORE

    def contains(self, e: Evidence) -> Tensor:
        """Nucleus membership from the mass above (or before) x."""
        return is_member(e.p_x, asked(e.mass), self.theta)

    def edge(self, p: Tensor) -> Tensor:
        """Smallest probability in the mass-form nucleus."""
        return threshold(p, self.theta)

    def whole_set(self, p: Tensor) -> Tensor:
        """The nucleus as a mask, in the chosen form."""
        return members(p, self.theta, self.ties)


@dataclass(frozen=True)
class TopKSet(RatioOrSet):
    """The standard test OR rank: x is among the k most probable tokens (ties in).

    k >= 0 (0 = exact). Lossy by the excess inside the top k. On failure the residual.
    """

    k: Number = 10
    max_deviation: Number = None

    name = "topk"
    formula = "u < p/q or rank_p(x) <= k"
    source = "rank acceptance of lossy speculation, with the residual kept; shared notes, lemma 1.0"
    ranges: ClassVar = {"k": ("an integer >= 0", lambda v: v >= 0 and v % 1 == 0), "max_deviation": _CAP}

    @property
    def needs(self) -> Need:
        """The rank of x."""
        return Need.RANK

    def contains(self, e: Evidence) -> Tensor:
        """rank(x) <= k."""
        near: Tensor = asked(e.rank) <= self.k
        return near & (e.p_x > 0)

    def edge(self, p: Tensor) -> Tensor:
        """The k-th largest probability."""
        return kth_largest(p, self.k)


@dataclass(frozen=True)
class FloorSet(RatioOrSet):
    """The standard test OR an absolute floor: p(x) >= c.

    c in (0, 1]. Lossy by the excess of tokens above the floor. On failure the residual.
    """

    c: Number = 0.1
    max_deviation: Number = None

    name = "floor"
    formula = "u < p/q or p(x) >= c"
    source = "plain probability threshold, as SGLang's threshold_single, with the residual kept"
    ranges: ClassVar = {"c": ("a number in (0, 1]", lambda v: 0 < v <= 1), "max_deviation": _CAP}

    def contains(self, e: Evidence) -> Tensor:
        """p(x) >= c."""
        high: Tensor = e.p_x.double() >= self.c
        return high

    def edge(self, p: Tensor) -> Tensor:
        """c itself, rounded up to the law's precision so that membership agrees."""
        return _not_below(torch.as_tensor(self.c, dtype=torch.float64, device=p.device).expand(p.shape[0]), p.dtype)


@dataclass(frozen=True)
class RelativeSet(RatioOrSet):
    """The standard test OR closeness to the mode: p(x) >= rho max p.

    rho in (0, 1] (1 = only the mode). Lossy by the excess of tokens near the mode. On failure the residual.
    """

    rho: Number = 0.3
    max_deviation: Number = None

    name = "relative"
    formula = "u < p/q or p(x) >= rho max p"
    source = "ratio-to-mode acceptance of vLLM pull requests 21506 and 22238, with the residual kept"
    ranges: ClassVar = {"rho": ("a number in (0, 1]", lambda v: 0 < v <= 1), "max_deviation": _CAP}

    @property
    def needs(self) -> Need:
        """The largest probability."""
        return Need.MAX_P

    def contains(self, e: Evidence) -> Tensor:
        """p(x) >= rho max p."""
        near: Tensor = e.p_x.double() >= self.rho * asked(e.max_p).double()
        return near & (e.p_x > 0)

    def edge(self, p: Tensor) -> Tensor:
        """rho max p, rounded up to the law's precision."""
        return _not_below(self.rho * p.amax(-1).double(), p.dtype)


def kth_largest(p: Tensor, k: Number) -> Tensor:
    """The k-th largest probability, but above 0: p [N, V], k a number or [N] -> [N]; inf where k = 0."""
    if not len(p):
        return p.new_zeros(0)
    k = torch.as_tensor(k, device=p.device).long().expand(p.shape[0])
    widest = min(max(int(k.max()), 1), p.shape[-1])
    top = p.topk(widest, -1).values
    kth = top.gather(-1, (k - 1).clamp(0, widest - 1).unsqueeze(-1)).squeeze(-1)
    above_zero = torch.nextafter(torch.zeros_like(kth), torch.ones_like(kth))
    return torch.where(k > 0, torch.maximum(kth, above_zero), torch.inf)


def _not_below(limit: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest number of dtype that is not below a float64 limit."""
    rounded = limit.to(dtype)
    return torch.where(rounded.double() < limit, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded)
