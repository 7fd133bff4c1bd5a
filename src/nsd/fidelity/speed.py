"""Tokens per target call and wall time, from acceptance by position and the costs of drafting and verifying.

Costs are in units of one autoregressive target step. An autoregressive drafter pays `draft` per proposal, a parallel
one `draft` per block; `verify` is one target pass over K + 1 positions (1 where the pass is bound by memory).

This is a model: it takes acceptance as given. A relaxed rule changes the text and with it later acceptance, so nothing
here is monotone in theta by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsd.errors import ConfigError

_BISECTIONS = 60
_LARGEST_K = 256


@dataclass(frozen=True, slots=True)
class Speed:
    """The wall-time model of one setting.

    tau tokens per target call; cost of one block; speedup over autoregressive decoding; the drafting cost, per proposal
    or per block, and the constant acceptance at which the speed-up is 1 (None: it cannot be reached); best_k the block
    length with the largest speed-up at this constant acceptance (None where acceptance differs by position).
    """

    tau: float
    k: int
    cost: float
    speedup: float
    break_even_draft: float | None
    break_even_acceptance: float | None
    best_k: int | None


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
    room = tokens - verify
    free = room if parallel else room / k if k else None
    constant = acceptance if isinstance(acceptance, float | int) else None
    return Speed(
        tau=tokens,
        k=k,
        cost=cost,
        speedup=tokens / cost,
        break_even_draft=free if free is not None and free >= 0 else None,
        break_even_acceptance=_root(lambda a: tau([a] * k) - cost),
        best_k=None if constant is None else _best_k(float(constant), draft, verify, parallel),
    )


def _by_position(acceptance: float | Sequence[float], k: int | None) -> list[float]:
    if isinstance(acceptance, float | int):
        if k is None:
            raise ConfigError("one acceptance for all positions needs k; try -k 7")
        _require("k", k, k >= 0, "an integer >= 0")
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


def _best_k(a: float, draft: float, verify: float, parallel: bool) -> int:
    return max(range(_LARGEST_K + 1), key=lambda k: tau([a] * k) / _cost(k, draft, verify, parallel))


def _root(rising: Callable[[float], float]) -> float | None:
    """Where a rising function on [0, 1] reaches 0, None if it does not."""
    if rising(1.0) < 0:
        return None
    low, high = 0.0, 1.0
    if rising(0.0) >= 0:
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return high


def _require(name: str, got: float, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {got}, wanted {wanted}; see nsd theory speedup --help")
