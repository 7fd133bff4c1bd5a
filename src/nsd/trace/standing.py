"""What an audit carries from block to block, and how it words a contradiction."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nsd.events import FinishReason, Origin
from nsd.trace.redecide import EXACT_RULES, SET_RULES
from nsd.trace.schema import Header, RequestInfo

FINE = 1e-9
"""Values that follow from recorded numbers by float64 arithmetic agree to this."""

_EXACT_AT = {
    "nsd": ("theta", 0.0),
    "topk": ("k", 0.0),
    "lenience": ("l", 1.0),
    "lossy-epsilon": ("epsilon", 0.0),
    "ensemble": ("w", 1.0),
}
"""The number at which a relaxed rule is exact speculation."""

ACCEPTED = (Origin.RATIO, Origin.RESCUED)


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction: where, which field, what stands there, what should."""

    place: str
    field: str
    got: Any
    wanted: str


@dataclass(slots=True)
class Standing:
    """What the audit knows of a request after the blocks so far; kept = prod(1 - eps), weight = prod min(1, p/pi)."""

    header: Header
    info: RequestInfo
    position: int = 0
    number: int = 0
    kept: float = 1.0
    spent: float = 0.0
    largest: float = 0.0
    sum_es: float = 0.0
    max_es: float = 0.0
    weight: float | None = 1.0
    finish: FinishReason | None = None
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def capped(self) -> bool:
        """Whether a cap or a budget limits the deviation."""
        return self.info.rule in SET_RULES and (self.info.cap is not None or self.info.agreement is not None)


def claims(place: str, *claims: tuple[str, Any, bool, Any]) -> Iterator[Finding]:
    """A finding for every claim (field, got, holds, wanted) that does not hold."""
    for name, got, holds, wanted in claims:
        if not holds:
            yield Finding(place, name, got, str(wanted))


def is_exact(info: RequestInfo) -> bool:
    """Whether the target's law is kept for every p and q: by rule, number, a cap of 0, temperature 0, or k = 0."""
    name, value = _EXACT_AT.get(info.rule, (None, None))
    neutral = name is not None and float(info.numbers.get(name, math.nan)) == value
    settled = info.k == 0 or info.cap == 0 or info.sampling.get("temperature") == 0
    return info.rule in EXACT_RULES or neutral or settled
