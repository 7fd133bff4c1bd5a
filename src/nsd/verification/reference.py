"""The whole method for one request, position by position, in plain Python floats. Read this first.

Nothing here is fast and nothing is shared with the fast path: `verify` is tested against it.

Words and symbols: p target law, q law the draft was drawn from, x drafted token, u uniform in [0, 1), theta nucleus
threshold; standard speculative decoding is theta = 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nsd.laws.nucleus import Ties
from nsd.verification.types import Branch

Law = Sequence[float]


def nucleus(p: Law, theta: float, ties: Ties = "all") -> set[int]:
    """The set S. "all": p(x) > 0 and less than theta lies strictly above p(x); "smallest": the shortest prefix."""
    if theta <= 0:
        return set()
    by_probability = sorted(range(len(p)), key=lambda i: (-p[i], i))
    inside: set[int] = set()
    before = 0.0
    for place, x in enumerate(by_probability):
        tied = place > 0 and p[x] == p[by_probability[place - 1]]
        joins = by_probability[place - 1] in inside if tied and ties == "all" else before < theta or theta >= 1
        if p[x] > 0 and joins:
            inside.add(x)
        before += p[x]
    return inside


def excess(p: Law, q: Law, inside: set[int]) -> tuple[float, float]:
    """R = sum (q-p)+, what standard speculation rejects, and ES, the part of it inside S."""
    over = [max(0.0, q[i] - p[i]) for i in range(len(p))]
    return sum(over), sum(over[i] for i in inside)


def drawn(law: Law, u: float) -> int:
    """The id at which the running mass first exceeds u times the total mass."""
    total = sum(law)
    running = 0.0
    for x, mass in enumerate(law):
        running += mass
        if running > u * total:
            return x
    return max(x for x, mass in enumerate(law) if mass > 0)


@dataclass
class Allowance:
    """Deviation that may still be spent: cap at one position, floor of the block's product of (1 - eps)."""

    cap: float = float("inf")
    floor: float = 0.0
    kept: float = 1.0
    exhausted: bool = False

    def spend(self, es: float) -> tuple[float, float]:
        """eps, the deviation spent at this position if it is tested, and lam = eps / ES (1 where all of ES is)."""
        wanted = min(es, self.cap)
        if not self.exhausted and self.kept * (1 - wanted) >= self.floor:
            self.kept *= 1 - wanted
            return wanted, 1.0 if es <= self.cap else wanted / es
        eps = min(wanted, 1 - self.floor / self.kept) if self.kept > 0 else wanted
        self.exhausted, self.kept = True, self.floor
        return eps, eps / es if es > 0 else 0.0


@dataclass
class Outcome:
    """What became of one block: per tested position branch, R, ES, eps, lam; then the token that ends it."""

    branch: list[Branch] = field(default_factory=list)
    R: list[float] = field(default_factory=list)
    ES: list[float] = field(default_factory=list)
    eps: list[float] = field(default_factory=list)
    lam: list[float] = field(default_factory=list)
    accepted: int = 0
    final: int = -1
    bonus: bool = False
    guard: bool = False


def decide(
    tokens: Sequence[int],
    p: Sequence[Law],
    q: Sequence[Law] | None,
    theta: float,
    accept_u: Sequence[float],
    residual_u: Sequence[float],
    target_u: Sequence[float],
    ties: Ties = "all",
    allowance: Allowance | None = None,
) -> Outcome:
    """Decide one block: tokens [K], p [K+1, V], q [K, V] or None for a point mass at each token, uniforms [K+1]."""
    allowance = allowance or Allowance()
    outcome = Outcome()
    for t, x in enumerate(tokens):
        p_t, u = p[t], accept_u[t]
        q_t = [float(i == x) for i in range(len(p_t))] if q is None else q[t]
        inside = nucleus(p_t, theta, ties)
        R, es = excess(p_t, q_t, inside)
        eps, lam = allowance.spend(es)

        by_ratio = p_t[x] > 0 and u * q_t[x] < p_t[x]
        rescued = x in inside and (lam == 1 or u * q_t[x] < p_t[x] + lam * (q_t[x] - p_t[x]))
        branch = Branch.RATIO if by_ratio else Branch.RESCUED if rescued else Branch.REJECTED

        outcome.branch.append(branch)
        outcome.R.append(R)
        outcome.ES.append(es)
        outcome.eps.append(eps)
        outcome.lam.append(lam)
        if branch is Branch.REJECTED:
            residual = [max(0.0, p_t[i] - q_t[i]) for i in range(len(p_t))]
            outcome.guard = sum(residual) <= 0
            outcome.final = drawn(p_t if outcome.guard else residual, residual_u[t])
            return outcome
        outcome.accepted += 1
    outcome.bonus = True
    outcome.final = drawn(p[len(tokens)], target_u[len(tokens)])
    return outcome
