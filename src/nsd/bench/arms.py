"""Arms of a benchmark: plain decoding (AR), standard speculation (SD), and relaxed speculation (NSD or any rule).

SD is the p/q test; MATCH is sample-and-match, exact too, for mechanisms that verify so by nature. A grid makes one NSD
arm for each theta and K, and one SD arm for each K, so that every NSD arm has a baseline that drafts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nsd.errors import ConfigError

KINDS = ("ar", "sd", "match", "nsd")
TITLES = {"ar": "AR", "sd": "SD", "match": "SD, sample-and-match", "nsd": "NSD"}
DEFAULT_THETA = 0.95
NATIVE_MATCH = ("nemotron",)
"""Drafters whose own code verifies by sample-and-match. Source: NVlabs/Nemotron-Labs-Diffusion, linear drafting."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer: its name in records, its kind, and the settings in which it differs from other arms.

    k counts proposals, block the same in the mechanism's own unit; both 0 for AR.
    """

    name: str
    kind: str
    k: int = 0
    block: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def theta(self) -> float | None:
        """The nucleus threshold, None where the rule has none."""
        found = self.settings.get("theta")
        return None if found is None else float(found)

    @property
    def title(self) -> str:
        """The name as people read it."""
        if self.kind != "nsd":
            return TITLES[self.kind] + (f" K={self.k}" if self.k else "")
        rule = str(self.settings["rule"])
        theta = "" if self.theta is None else f" θ={self.theta:g}"
        return f"{rule.upper()}{theta} K={self.k}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "kind": self.kind, "k": self.k, "block": self.block, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Arm:
        """The arm that `as_json` wrote."""
        return cls(**raw)


def arms_of(
    kinds: Sequence[str],
    proposals: Callable[[int | None, int | None], int],
    unit: Callable[[int], int],
    rule: Mapping[str, Any],
    thetas: Sequence[float] = (),
    ks: Sequence[int] = (),
    blocks: Sequence[int] = (),
) -> tuple[Arm, ...]:
    """All arms of a grid, AR first.

    rule holds the NSD arms' settings but theta; proposals(k, block length) is what a mechanism drafts for either,
    unit(k) its own count. Without ks and blocks it is the mechanism's default.
    """
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ConfigError(
            f"got arms {', '.join(kinds) or 'none'}, wanted some of {', '.join(KINDS)}; try --arms ar,sd,nsd"
        )
    if ks and blocks:
        raise ConfigError("got -k and --block-length, wanted one of them; drop --block-length")
    wanted = [proposals(k, None) for k in ks] or [proposals(None, b) for b in blocks] or [proposals(None, None)]
    lengths = sorted(set(wanted))
    if 0 in lengths and set(kinds) != {"ar"}:
        raise ConfigError(
            "k is 0, wanted at least 1 where something is drafted; try -k 4, or --arms ar for plain decoding"
        )
    found = [Arm("ar", "ar")] if "ar" in kinds else []
    for k in lengths:
        if "sd" in kinds:
            found.append(Arm(f"sd-k{k}", "sd", k, unit(k), {"rule": "sd"}))
        if "match" in kinds:
            found.append(Arm(f"match-k{k}", "match", k, unit(k), {"rule": "sample-and-match"}))
        if "nsd" in kinds:
            found += [_relaxed(rule, theta, k, unit(k)) for theta in thetas or (None,)]
    return tuple(found) if len({a.name for a in found}) == len(found) else _twice(found)


def _relaxed(rule: Mapping[str, Any], theta: float | None, k: int, block: int) -> Arm:
    name = str(rule.get("rule", "nsd"))
    settings = {**rule, "rule": name, **({} if theta is None else {"theta": theta})}
    return Arm(f"{name}{'' if theta is None else f'-theta{theta:g}'}-k{k}", "nsd", k, block, settings)


def _twice(found: Sequence[Arm]) -> tuple[Arm, ...]:
    names = [arm.name for arm in found]
    double = next(name for name in names if names.count(name) > 1)
    raise ConfigError(
        f"arm {double} is there twice, wanted each once; give every --theta once, and no --rule sd beside arm sd"
    )


def baseline(arm: Arm, arms: Sequence[Arm], kind: str = "sd") -> Arm | None:
    """The arm that another is measured against: AR, or the exact one with the same K."""
    return next((a for a in arms if a.kind == kind and (kind == "ar" or a.k == arm.k)), None)


def main_arm(arms: Sequence[Arm]) -> Arm | None:
    """The NSD arm of the headline table: theta 0.95 if it is there, else the largest; of these the largest K."""
    relaxed = [arm for arm in arms if arm.kind == "nsd"]
    if not relaxed:
        return None
    return max(relaxed, key=lambda a: (a.theta == DEFAULT_THETA, a.theta or 0.0, a.k))


def rotated(arms: Sequence[Arm], turn: int) -> tuple[Arm, ...]:
    """The order in which arms answer the turn-th prompt: each begins equally often."""
    start = turn % len(arms)
    return (*arms[start:], *arms[:start])
