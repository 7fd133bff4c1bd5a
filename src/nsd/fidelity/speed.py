"""Tokens per target call and wall time, from acceptance by position and the costs of drafting and verifying.

Costs are in units of one autoregressive target step. An autoregressive drafter pays `draft` per proposal, a parallel
one `draft` per block; `verify` is one target pass over K + 1 positions (1 where the pass is bound by memory).

This is a model: it takes acceptance as given. A relaxed rule changes the text and with it later acceptance, so nothing
here is monotone in theta by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nsd.errors import ConfigError

_BISECTIONS = 60
_LARGEST_K = 256
_TIE = 1e-12


@dataclass(frozen=True, slots=True)
class Speed:
    """The wall-time model of one setting.

    tau tokens per target call; cost of one block; speedup over autoregressive decoding; the drafting cost, per proposal
    or per block, and the constant acceptance at which the speed-up is 1; best_k the block length with the largest
    speed-up at this constant acceptance. None where there is no such value; `reasons` says why, by name.
    """

    tau: float
    k: int
    cost: float
    speedup: float
    break_even_draft: float | None
    break_even_acceptance: float | None
    best_k: int | None
    reasons: dict[str, str] = field(default_factory=dict, hash=False)


def tau(acceptance: Sequence[float]) -> float:
    """1 + a_1 + a_1 a_2 + ...: a_i the acceptance of the i-th proposal given that all before it were accepted."""
    total, reached = 1.0, 1.0
    for a in acceptance:
        reached *= a
        total += reached
    return total


def speedup(
    acceptance: float | Sequence[float], k: int | None, draft: float, verify: float = 1.0, parallel: bool = False
) -> Speed:
    """The model for one acceptance at all positions (with k) or one per position (k their number, or fewer)."""
    by_position = _by_position(acceptance, k)
    k = len(by_position)
    _require("draft", draft, draft >= 0, "a number >= 0")
    _require("verify", verify, verify > 0, "a number > 0")
    cost = _cost(k, draft, verify, parallel)
    tokens = tau(by_position)
    constant = float(acceptance) if isinstance(acceptance, float | int) else None
    break_even_draft = _break_even_draft(k, tokens - verify, parallel)
    break_even_acceptance = _break_even_acceptance(k, cost)
    best_k = _best_k(constant, draft, verify, parallel)
    found = {"break_even_draft": break_even_draft, "break_even_acceptance": break_even_acceptance, "best_k": best_k}
    return Speed(
        tau=tokens,
        k=k,
        cost=cost,
        speedup=tokens / cost,
        break_even_draft=None if isinstance(break_even_draft, str) else break_even_draft,
        break_even_acceptance=None if isinstance(break_even_acceptance, str) else break_even_acceptance,
        best_k=None if isinstance(best_k, str) else best_k,
        reasons={name: value for name, value in found.items() if isinstance(value, str)},
    )


def _by_position(acceptance: float | Sequence[float], k: int | None) -> list[float]:
    if k is not None:
        _require("k", k, k >= 0, "an integer >= 0")
    if isinstance(acceptance, float | int):
        if k is None:
            raise ConfigError("one acceptance for all positions needs k; try -k 7")
        by_position = [float(acceptance)] * k
    else:
        by_position = list(acceptance)[:k]
        if k is not None and k > len(by_position):
            raise ConfigError(f"k is {k} but acceptance has {len(by_position)} positions; give one per position")
    for a in by_position:
        _require("acceptance", a, 0 <= a <= 1, "numbers in [0, 1]")
    return by_position


def _cost(k: int, draft: float, verify: float, parallel: bool) -> float:
    """Cost of one block; a block without proposals is a plain step and drafts nothing."""
    return (draft if parallel and k else k * draft) + verify


def _break_even_draft(k: int, room: float, parallel: bool) -> float | str:
    """The drafting cost at which the speed-up is 1, or why there is none; room is tau less the cost of verifying."""
    if not k:
        return "a block without proposals drafts nothing"
    if room < 0:
        return "verifying alone costs more than the tokens are worth, even if drafting is free"
    return room if parallel else room / k


def _break_even_acceptance(k: int, cost: float) -> float | str:
    """The constant acceptance at which the speed-up is 1, or why there is none; tau is 1 at acceptance 0."""
    if not k:
        return "a block without proposals accepts nothing"
    if cost < 1:
        return "a block costs less than one plain step, so the speed-up is above 1 at every acceptance"
    if cost > k + 1:
        return f"a block costs more than the {k + 1} tokens that it can give"
    return _root(lambda a: tau([a] * k) - cost)


def _best_k(a: float | None, draft: float, verify: float, parallel: bool) -> int | str:
    """The shortest block with the largest speed-up, or why there is none."""
    if a is None:
        return "acceptance differs by position"
    speeds = [tau([a] * k) / _cost(k, draft, verify, parallel) for k in range(_LARGEST_K + 1)]
    best = next(k for k, speed in enumerate(speeds) if speed >= max(speeds) * (1 - _TIE))
    if best and (parallel or draft == 0):
        return "still rising: a longer block costs no more in this model"
    return best if best < _LARGEST_K else f"still rising at {_LARGEST_K}"


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises on [0, 1], from <= 0 to >= 0, reaches 0."""
    low, high = 0.0, 1.0
    if rising(low) >= 0:
        return low
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high


def _require(name: str, got: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {got}, wanted {wanted}; see nsd theory speedup --help")
