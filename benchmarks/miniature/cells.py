"""What is measured: a cell is one target on one task with one drafter under one way of decoding and one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.miniature.fading import FadingNSD
from nsd.rules import Rule, make_rule

THETAS = (0.5, 0.8, 0.9, 0.95, 0.99)
CAPS = (0.02, 0.05, 0.1, 0.2)
FADINGS = (2.0, 4.0, 8.0, 16.0)
DEFAULT_THETA = 0.95
BATCH = 128


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of decoding. k 0 is plain decoding; numbers are the rule's own; speaks is how tables name it."""

    speaks: str
    rule: str = "sd"
    numbers: tuple[tuple[str, float], ...] = ()
    k: int = 0
    temperature: float = 1.0
    top_p: float = 1.0

    def made(self) -> Rule:
        """The rule."""
        if self.rule == FadingNSD.name:
            given = dict(self.numbers)
            return FadingNSD(given["theta"], given["power"])
        return make_rule(self.rule, **dict(self.numbers))

    @property
    def theta(self) -> float | None:
        """The nucleus threshold of an NSD arm without a cap, else None."""
        given = dict(self.numbers)
        return given.get("theta") if self.rule == "nsd" and set(given) == {"theta"} else None


AR = Arm("AR")
AR_COLD = Arm("AR, temperature 0", temperature=0.0)
AR_TOP_P = Arm("AR, top-p .95", top_p=0.95)


def sd(k: int) -> Arm:
    """Standard speculative decoding."""
    return Arm("SD", "sd", k=k)


def nsd(k: int, theta: float = DEFAULT_THETA, cap: float | None = None) -> Arm:
    """NSD, with a cap on the deviation of one step or without."""
    numbers: tuple[tuple[str, float], ...] = (("theta", theta),)
    if cap is not None:
        numbers += (("max_deviation", cap),)
    return Arm(f"NSD {theta:g}" + ("" if cap is None else f", cap {cap:g}"), "nsd", numbers, k)


def fadings(k: int) -> tuple[Arm, ...]:
    """NSD whose threshold falls with the target's confidence, from early to late."""
    return tuple(
        Arm(f"NSD, fading {power:g}", FadingNSD.name, (("theta", DEFAULT_THETA), ("power", power)), k)
        for power in FADINGS
    )


def relaxed(k: int) -> tuple[Arm, ...]:
    """The relaxed baselines with their default numbers, and typical acceptance at two strengths."""
    names = ("lenience", "lossy-epsilon", "ensemble", "typical", "relaxed-topk", "topk", "floor", "relative")
    return tuple(Arm(name, name, k=k) for name in (*names, "cascade", "mentored"))


def match(k: int) -> Arm:
    """Sample-and-match, the native standard speculation of two mechanisms."""
    return Arm("SD, sample-and-match", "sample-and-match", k=k)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement. target and drafter are names of the manifest; drafter None is plain decoding."""

    target: str
    task: str
    drafter: str | None
    arm: Arm
    seed: int = 0

    @property
    def key(self) -> str:
        """A file name that says what it is, and a digest that says all of it."""
        whole = hashlib.sha256(json.dumps(self.as_json(), sort_keys=True).encode()).hexdigest()[:10]
        said = f"{self.target}_{self.task}_{self.drafter or 'plain'}_{self.arm.speaks}_k{self.arm.k}_s{self.seed}"
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in said) + f"_{whole}"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Cell:
        """The cell that `as_json` wrote."""
        arm = {**raw["arm"], "numbers": tuple((str(n), float(v)) for n, v in raw["arm"]["numbers"])}
        return cls(raw["target"], raw["task"], raw["drafter"], Arm(**arm), raw["seed"])
