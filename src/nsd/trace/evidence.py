"""Recorded laws taken apart again: what a position's numbers must be, given its whole p and q. Plain float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from nsd.events import Law, Tested

TOLERANCE = 1e-4
"""Between a float64 sum here and the decoder's sums over float32 rows."""


def mismatches(rule: str, numbers: Mapping[str, Any], t: Tested) -> Iterator[tuple[str, Any, str]]:
    """(field, got, wanted) wherever a recorded number contradicts the recorded laws."""
    for name, law in (("p_law", t.p_law), ("q_law", t.q_law)):
        if law is not None:
            total = sum(mass for _, mass in law.top) + law.rest
            falling = all(a[1] >= b[1] for a, b in zip(law.top, law.top[1:], strict=False))
            if not falling or law.rest < -TOLERANCE or abs(total - 1) > TOLERANCE:
                yield name, total, "probabilities falling from the first, 1 in all"
    if t.p_law is not None:
        yield from _differences(t, _of_p(t.p_law, t))
    if t.q_law is not None:
        yield from _differences(t, _of_q(t.q_law, t))
    if t.p_law is not None and t.q_law is not None and _whole(t.p_law) and _whole(t.q_law):
        yield from _differences(t, _of_both(rule, numbers, dict(t.p_law.top), dict(t.q_law.top)))


def _differences(t: Tested, wanted: Mapping[str, float | None]) -> Iterator[tuple[str, Any, str]]:
    for name, value in wanted.items():
        got = getattr(t, name)
        if got is not None and value is not None and not abs(got - value) <= TOLERANCE:
            yield name, got, f"{value:.9g}, from the recorded laws"


def _whole(law: Law) -> bool:
    return abs(law.rest) <= TOLERANCE


def _entropy(law: Law) -> float:
    return -sum(mass * math.log(mass) for _, mass in law.top if mass > 0)


def _below(law: Law, token: int) -> float:
    return math.fsum(mass for id_, mass in law.top if id_ < token)


def _of_p(law: Law, t: Tested) -> dict[str, float | None]:
    found = dict(law.top).get(t.token, 0.0 if _whole(law) else None)
    if found is None:
        return {}
    above = [mass for _, mass in law.top if mass > found]
    whole = _whole(law)
    ties_before = sum(mass for id_, mass in law.top if mass == found and id_ < t.token)
    mass = math.fsum(above)
    if t.mass is not None and abs(t.mass - mass - ties_before) <= TOLERANCE:
        mass += ties_before
    return {
        "p": found,
        "rank": float(len(above) + 1),
        "mass": mass,
        "entropy_p": _entropy(law) if whole else None,
        "p_below": _below(law, t.token) if whole else None,
    }


def _of_q(law: Law, t: Tested) -> dict[str, float | None]:
    whole = _whole(law)
    return {
        "q": dict(law.top).get(t.token, 0.0 if whole else None),
        "entropy_q": _entropy(law) if whole else None,
        "q_below": _below(law, t.token) if whole else None,
    }


def _of_both(
    rule: str, numbers: Mapping[str, Any], p: Mapping[int, float], q: Mapping[int, float]
) -> dict[str, float | None]:
    over = {token: mass - p.get(token, 0.0) for token, mass in q.items() if mass > p.get(token, 0.0)}
    inside = chosen(rule, numbers, p)
    es = None if inside is None else math.fsum(mass for token, mass in over.items() if token in inside)
    return {"R": math.fsum(over.values()), "ES": es}


def chosen(rule: str, numbers: Mapping[str, Any], p: Mapping[int, float]) -> frozenset[int] | None:
    """The set S of a ratio-or-set rule from a whole law; None for other rules and where S ends within rounding."""
    order = sorted((token for token in p if p[token] > 0), key=lambda token: (-p[token], token))
    top = p[order[0]]
    if rule == "topk":
        return frozenset(x for x in order if sum(p[y] > p[x] for y in order) < float(numbers["k"]))
    if rule in ("floor", "relative"):
        edge = float(numbers["c"]) if rule == "floor" else float(numbers["rho"]) * top
        return frozenset(x for x in order if p[x] >= edge)
    if rule != "nsd":
        return None
    theta = float(numbers["theta"])
    if theta <= 0 or theta >= 1:
        return frozenset(order if theta >= 1 else ())
    kept: list[int] = []
    before = 0.0
    for x in order:
        if abs(before - theta) <= TOLERANCE:
            return None
        if before > theta:
            break
        kept.append(x)
        before += p[x]
    if numbers.get("ties", "all") == "all":
        kept = [x for x in order if p[x] >= p[kept[-1]]]
    return frozenset(kept)
