"""The family: which targets are trained, which drafters for each, and where their folders lie.

A name such as "qwen3-3m-high" is a target at one level of annealing; "eagle3:matched" a drafter of it. Folders of a run
lie under its own directory; the shipped ones under `checkpoints/`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEVELS: dict[str, float] = {"low": 0.5, "middle": 0.75, "high": 0.9}
"""Accuracy on mini-math at temperature 1 that anneals aim at; a checkpoint is called by the nearest level."""

SHIPPED = Path(__file__).with_name("checkpoints")
MATCHED, MISMATCHED = "matched", "mismatched"


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How drafts are made: the tables' name, K in proposals, whether the native baseline is sample-and-match.

    built_in: the matched drafter is part of the target's own folder, trained jointly with it; the mismatched one alone
    is made by `nsd train`. kind: what `nsd train` calls it, where it trains one.
    """

    title: str
    k: int
    native_match: bool = False
    built_in: bool = False
    kind: str = ""


MECHANISMS: dict[str, Mechanism] = {
    "draft-model": Mechanism("separate model", 6),
    "eagle3": Mechanism("EAGLE-3", 7, kind="eagle3"),
    "dspark": Mechanism("DSpark", 7, kind="dspark"),
    "dflash": Mechanism("DFlash", 15, native_match=True, kind="dflash"),
    "mtp": Mechanism("MTP", 2, built_in=True, kind="mtp"),
    "nemotron": Mechanism("linear self-speculation", 15, native_match=True, built_in=True, kind="nemotron"),
}


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """One trained shape: its drafting mechanisms, and its anneals as (stable step it starts from, its length)."""

    shape: str
    mechanisms: tuple[str, ...]
    anneals: tuple[tuple[int, int], ...]


TARGETS: dict[str, TargetPlan] = {
    "qwen3-3m": TargetPlan(
        "qwen3-3m", ("draft-model", "eagle3", "dspark", "dflash"), ((250, 60), (450, 100), (700, 150))
    ),
    "nemotron-3m": TargetPlan("nemotron-3m", ("nemotron",), ((750, 120), (900, 150), (1500, 200))),
    "qwen35-3m": TargetPlan("qwen35-3m", ("mtp",), ((350, 80), (600, 120), (1000, 150))),
    "qwen3-7m": TargetPlan("qwen3-7m", ("draft-model", "eagle3", "dspark"), ((220, 60), (350, 100), (600, 120))),
}
"""The first is the one that every analysis is made on."""


def levels(accuracy: Mapping[str, float]) -> dict[str, str]:
    """Checkpoints by the level that each is nearest to, lowest first; where several are, the nearest of them.

    A checkpoint far from every level is used all the same; reports state what it reached.
    """
    found: dict[str, str] = {}
    for level, wanted in LEVELS.items():
        near = [name for name, reached in accuracy.items() if nearest(reached) == level]
        if near:
            found[level] = min(near, key=lambda name: abs(accuracy[name] - wanted))
    return found


def nearest(accuracy: float) -> str:
    """The level nearest to an accuracy; the higher of two."""
    return min(reversed(LEVELS), key=lambda level: abs(LEVELS[level] - accuracy))


def by_level(targets: Iterable[str]) -> list[str]:
    """Targets in the order in which shapes first appear, those of a shape from its lowest level to its highest."""
    names = list(dict.fromkeys(targets))
    shapes = list(dict.fromkeys(_shape_and_level(name)[0] for name in names))
    return sorted(names, key=lambda name: (shapes.index(_shape_and_level(name)[0]), _shape_and_level(name)[1]))


def tops(targets: Iterable[str]) -> list[str]:
    """The most accurate target of each shape; names end in -level."""
    return list({_shape_and_level(name)[0]: name for name in by_level(targets)}.values())


def _shape_and_level(name: str) -> tuple[str, int]:
    shape, _, level = name.rpartition("-")
    return (shape, list(LEVELS).index(level)) if level in LEVELS else (name, 0)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Folders by name: targets, and drafters as "target/mechanism:variant"; facts about each that reports quote."""

    targets: Mapping[str, str]
    drafters: Mapping[str, str]
    facts: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """manifest.json of a run or of the shipped set; paths in it are relative to its folder."""
        raw = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return cls(
            {name: str(folder / path) for name, path in raw["targets"].items()},
            {name: str(folder / path) for name, path in raw["drafters"].items()},
            raw.get("facts", {}),
        )

    def write(self, folder: Path) -> None:
        """Store it with paths relative to the folder."""
        inside = {
            "targets": {name: _relative(path, folder) for name, path in self.targets.items()},
            "drafters": {name: _relative(path, folder) for name, path in self.drafters.items()},
            "facts": dict(self.facts),
        }
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(inside, indent=2, ensure_ascii=False) + "\n"
        (folder / "manifest.json").write_text(text, encoding="utf-8")

    def of(self, target: str) -> list[str]:
        """The drafters of a target, as "mechanism:variant"."""
        return [name.partition("/")[2] for name in self.drafters if name.partition("/")[0] == target]


def mechanism_of(drafter: str) -> Mechanism:
    """What a drafter "mechanism:variant" is."""
    return MECHANISMS[drafter.partition(":")[0]]


def _relative(path: str, folder: Path) -> str:
    return os.path.relpath(path, folder)  # pathlib learns to walk up with Python 3.12
