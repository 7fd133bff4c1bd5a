"""Decisions taken again from recorded numbers, in float64 and in code of their own: nothing of the decoder is imported.

p, q the probabilities of the proposal x, u its uniform. An answer is True, False, or None where the recorded evidence
does not settle it (a rim within rounding, or a rule that looked at whole rows).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nsd.events import Drawn, Origin, Tested

RIM = 1e-6
"""Sums over float32 rows agree to this; nearer to a threshold than this, membership may fall either way."""

SET_RULES = frozenset({"nsd", "topk", "floor", "relative"})
EXACT_RULES = frozenset({"sd", "sample-and-match"})
TARGET_RECOVERY = frozenset({"sample-and-match", "typical"})
ARGMAX_RECOVERY = frozenset({"greedy", "relaxed-topk"})
SURROGATE_RECOVERY = frozenset({"cascade", "mentored"})
KNOWN_RULES = (
    SET_RULES
    | EXACT_RULES
    | TARGET_RECOVERY
    | ARGMAX_RECOVERY
    | SURROGATE_RECOVERY
    | frozenset({"lenience", "lossy-epsilon", "ensemble"})
)
PARTLY = {
    "relative": "needs the largest p: settled for ranks 1 and 2, bracketed by mass and rank beyond",
    "relaxed-topk": "needs the largest p: settled for ranks 1 and 2, bracketed by mass and rank beyond",
    "cascade": "needs the largest p and q's mass outside its set: settled inside the set and where even the plain "
    "test rejects",
    "typical": "settled from the recorded entropy, which itself cannot be re-derived",
}

Numbers = Mapping[str, Any]


def number(numbers: Numbers, name: str) -> float:
    """A rule's number as a float; the string "inf" is infinity."""
    return float(numbers[name])


def passes_ratio(t: Tested) -> bool:
    """u q < p and p > 0, strict."""
    return t.p > 0 and t.u * t.q < t.p


def largest_p(t: Tested) -> tuple[float, float]:
    """Bounds on max p from rank and mass above: exact for rank 1 and 2, since each id above x has more than p(x)."""
    if t.p_law is not None and t.p_law.top:
        return t.p_law.top[0][1], t.p_law.top[0][1]
    if t.rank == 1:
        return t.p, t.p
    if t.rank is None or t.mass is None:
        return t.p, 1.0
    return t.mass / (t.rank - 1) * (1 - RIM), (t.mass - (t.rank - 2) * t.p) * (1 + RIM)


def member(rule: str, numbers: Numbers, t: Tested) -> bool | None:
    """Whether x is in the rule's set S; False for rules without one."""
    if rule not in SET_RULES or t.p <= 0:
        return False
    if rule == "floor":
        return t.p >= number(numbers, "c")
    if rule == "topk":
        return None if t.rank is None else t.rank <= number(numbers, "k")
    if rule == "relative":
        low, high = largest_p(t)
        return _at_least(t.p, number(numbers, "rho") * low, number(numbers, "rho") * high)
    theta = number(numbers, "theta")
    if theta <= 0 or theta >= 1:
        return theta >= 1
    if t.mass is None or abs(t.mass - theta) <= RIM:
        return None
    return t.mass < theta


def _at_least(value: float, low: float, high: float) -> bool | None:
    if value >= high:
        return True
    return False if value < low else None


def accepts(
    rule: str, numbers: Numbers, t: Tested, lam: float, inside: bool | None, drawn: Drawn | None
) -> bool | None:
    """Whether x is accepted: lam the cap's coefficient, inside membership, drawn what ended the block."""
    if t.p <= 0:
        return False
    if rule in SET_RULES:
        return passes_ratio(t) or (inside and _forced(t, lam))
    if rule == "sample-and-match":
        return _matches(t, drawn)
    if rule == "greedy":
        return _is_argmax(t, drawn)
    decide = _DECISIONS.get(rule)
    return None if decide is None else decide(t, numbers)


def _forced(t: Tested, lam: float) -> bool | None:
    if lam == 1.0:
        return True
    over = t.u * t.q - (t.p + lam * (t.q - t.p))
    return None if abs(over) <= 1e-12 else over < 0


def _matches(t: Tested, drawn: Drawn | None) -> bool | None:
    """y, the draw of plain decoding, is what was emitted; it equals x or it does not."""
    if t.origin is Origin.REJECTED:
        return False if drawn is not None and drawn.token != t.token else None
    return None


def _is_argmax(t: Tested, drawn: Drawn | None) -> bool | None:
    """Rank 1, and no lower id with the same probability (then that id is the replacement)."""
    if t.rank is None or t.rank > 1:
        return None if t.rank is None else False
    tied = drawn is not None and drawn.origin is Origin.RECOVERED and drawn.p == t.p and drawn.token < t.token
    return not (t.origin is Origin.REJECTED and tied)


def _over(t: Tested) -> float:
    return t.p / t.q if t.q > 0 else math.inf


def _typical(t: Tested, n: Numbers) -> bool | None:
    if t.entropy_p is None:
        return None
    floor = min(number(n, "epsilon"), number(n, "delta") * math.exp(-t.entropy_p), 1.0)
    return None if abs(t.p - floor) <= 1e-12 else t.p > floor


def _relaxed(t: Tested, n: Numbers) -> bool | None:
    if t.rank is None or t.rank > number(n, "k"):
        return None if t.rank is None else False
    low, high = largest_p(t)
    return _at_least(t.p, low - number(n, "delta"), high - number(n, "delta"))


def _cascade(t: Tested, n: Numbers) -> bool | None:
    """On A pi >= q; off A pi = p q(outside A) <= p, so what fails the plain test fails here too."""
    low, high = largest_p(t)
    near = _at_least(t.p, (1 - number(n, "alpha")) * low, (1 - number(n, "alpha")) * high)
    if near:
        return True
    return False if near is False and t.u * t.q >= t.p * (1 + RIM) else None


def _mentored(t: Tested, n: Numbers) -> bool | None:
    """pi(x) = a p where q > a p; elsewhere pi >= q, which no u fails."""
    ceiling = t.p * number(n, "a")
    return t.q <= ceiling or t.u * t.q < ceiling


ACCEPTANCES: dict[str, Callable[[Tested, Numbers], float]] = {
    "lenience": lambda t, n: _over(t) / number(n, "l"),
    "lossy-epsilon": lambda t, n: min(_over(t), 1.0) + number(n, "epsilon"),
    "ensemble": lambda t, n: number(n, "w") * _over(t) + (1 - number(n, "w")),
}
"""a(x) before it is cut off at 1."""


def _by_acceptance(rule: str) -> Callable[[Tested, Numbers], bool]:
    return lambda t, n: passes_ratio(t) or t.u < min(ACCEPTANCES[rule](t, n), 1.0)


_DECISIONS: dict[str, Callable[[Tested, Numbers], bool | None]] = {
    "sd": lambda t, n: passes_ratio(t),
    **{rule: _by_acceptance(rule) for rule in ACCEPTANCES},
    "typical": _typical,
    "relaxed-topk": _relaxed,
    "cascade": _cascade,
    "mentored": _mentored,
}


def weight_factor(rule: str, numbers: Numbers, t: Tested, lam: float, inside: bool) -> float | None:
    """min(1, p(x)/pi(x)) of an accepted x, pi the emitted law; None for rules whose pi needs whole rows.

    Rules that replace from (p-q)+ emit x with q > p with probability q a(x), and any other x with at most p(x).
    """
    if rule in EXACT_RULES:
        return 1.0
    if rule in SET_RULES:
        return t.p / (t.p + lam * (t.q - t.p)) if inside and t.q > t.p else 1.0
    if rule not in ACCEPTANCES:
        return None
    return min(1.0, t.p / (t.q * min(ACCEPTANCES[rule](t, numbers), 1.0))) if t.q > t.p > 0 else 1.0


@dataclass(slots=True)
class Allowance:
    """What a block may still spend: eps_t = min(ES_t, cap_t) while prod (1 - eps) stays at or above floor.

    The position that would cross the floor spends what is left; later ones nothing.
    """

    floor: float
    wanted: float = 1.0
    kept: float = 1.0

    def spend(self, es: float, cap: float) -> tuple[float, float]:
        """eps and lam of the next tested position, from its ES and from what came before it alone."""
        want = min(es, cap)
        self.wanted *= 1 - want
        before, self.kept = self.kept, max(self.wanted, self.floor)
        if self.wanted >= self.floor:
            return want, 1.0 if es <= cap else want / es
        left = 1 - self.kept / before if before > 0 else 1.0
        eps = min(left, want)
        return eps, eps / max(es, sys.float_info.min)
