"""A run's plan: everything that decides its outcome, fixed and stored before training begins."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nsd.errors import ConfigError
from nsd.train.schedule import CROSS_ENTROPY, Schedule, Stage

PLAN = "plan.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """The stored plan. shards of rows x positions; held_out_digest names the held-out prompts by hash.

    prompts_digest and excluded_digests are sha256 of files given (None, empty: none), init_digest that of the weights
    the run starts from. kind names the mechanism; layers are the drafter's; block (proposals), rank (of the Markov
    head) and width (of a separate model) belong to some kinds and are 0 elsewhere. warm_up_share is the share of time
    with cross-entropy alone; one_turn ends a chat with its first answer. labels: what is learned at each place, the
    target's law or the text's next token; anchors: blocks of a text that one step trains.
    """

    target: str
    dtype: str
    seed: int
    taps: tuple[int, ...]
    temperatures: tuple[float, ...]
    rows: int
    positions: int
    shards: int
    sampled_share: float
    draft_vocab: int
    batch: int
    peak: float
    stages: tuple[Stage, ...]
    held_out_digest: str
    prompts_digest: str | None = None
    excluded_digests: tuple[str, ...] = ()
    budget_minutes: float | None = None
    layers: int = 1
    warm_up_share: float = CROSS_ENTROPY
    init: str | None = None
    init_digest: str | None = None
    kind: str = "eagle3"
    block: int = 0
    rank: int = 0
    width: int = 0
    one_turn: bool = False
    labels: str = "target"
    anchors: int = 64

    @property
    def schedule(self) -> Schedule:
        """The training schedule."""
        return Schedule(self.stages, self.peak, self.warm_up_share)

    def save(self, folder: Path) -> None:
        """Store it; a plan is never overwritten by another one. Raises ConfigError if one is there."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        path = folder / PLAN
        if path.is_file() and load(folder) != self:
            raise ConfigError(f"{path} holds another plan, wanted an empty folder; give --out a new one")
        path.write_text(text, encoding="utf-8")


def load(folder: Path) -> Plan | None:
    """The plan of a run that was begun here, None if there is none. Raises ConfigError for an unreadable one."""
    path = folder / PLAN
    if not path.is_file():
        return None
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["stages"] = tuple(Stage(**stage) for stage in values["stages"])
        for name in ("taps", "temperatures", "excluded_digests"):
            values[name] = tuple(values[name])
        return Plan(**values)
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise ConfigError(f"{path} is unreadable ({problem}), wanted a run's plan; give --out a new folder") from None
