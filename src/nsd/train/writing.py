"""Writing all shards: which prompts go where, how many processes, and what may be on the disk at most."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nsd.targets.base import Target
from nsd.train.chat import Frame, frame
from nsd.train.prompts import Given, HeldOut, fill
from nsd.train.stepper import Stepper, stepper
from nsd.train.text import Chats, PromptSource, ShardPlan, write_shard

SAMPLED_SHARE = 0.4
"""Share of user turns that the target samples itself, where its template allows."""

TRAINING, HELD_OUT = "text", "heldout"
"""Folders of shards."""


@dataclass(frozen=True, slots=True)
class Source:
    """What the target is asked: prompts of one's own, or the built-in templates beside turns it samples itself.

    responses: answers by their prompts, which the target reads instead of writing its own.
    """

    own: tuple[str, ...] = ()
    sampled_share: float = SAMPLED_SHARE
    responses: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, _row: int, chance: random.Random) -> str | Given | None:
        """The next user turn, None to have it sampled."""
        if self.own:
            return answered(chance.choice(self.own), self.responses)
        return None if chance.random() < self.sampled_share else fill(chance)


def answered(prompt: str, responses: Mapping[str, str]) -> str | Given:
    """The prompt, with its answer where that is given."""
    return Given(prompt, responses[prompt]) if prompt in responses else prompt


class Fixed:
    """Held-out prompts in order: row r begins with prompt r // repeats, and goes on with the next ones."""

    def __init__(self, prompts: Sequence[str], repeats: int, responses: Mapping[str, str]) -> None:
        self.prompts, self.repeats, self.turns = tuple(prompts), repeats, dict[int, int]()
        self.responses = responses

    def __call__(self, row: int, _chance: random.Random) -> str | Given:
        """The next prompt of this row."""
        turn = self.turns.get(row, 0)
        self.turns[row] = turn + 1
        return answered(self.prompts[(row // self.repeats + turn) % len(self.prompts)], self.responses)


@dataclass(slots=True)
class Writer:
    """Writes shards of one target into a folder; every shard by its own seed, so that any order gives the same text."""

    target: Target
    frame: Frame
    stepper: Stepper
    folder: Path

    @classmethod
    def open(cls, target: Target, taps: Sequence[int], folder: Path) -> Writer:
        """A writer for this target."""
        return cls(target, frame(target), stepper(target, taps), folder)

    def training(self, plan: ShardPlan, index: int, source: PromptSource) -> None:
        """Write training shard `index`, unless it is there."""
        self._write(self.folder / TRAINING, plan, index, source)

    def held_out(self, plan: ShardPlan, held_out: HeldOut, responses: Mapping[str, str]) -> None:
        """Write the one held-out shard, unless it is there."""
        self._write(self.folder / HELD_OUT, plan, 0, Fixed(held_out.prompts, len(plan.temperatures), responses))

    def _write(self, folder: Path, plan: ShardPlan, index: int, source: PromptSource) -> None:
        if (folder / f"{index:04d}.json").is_file():
            return
        chance = random.Random(f"{plan.seed}/{folder.name}/{index}")
        generator = torch.Generator().manual_seed(chance.randrange(2**62))
        tokenizer = self.target.tokenizer
        chats = Chats(self.frame, plan, tokenizer.encode, sorted(self.target.eos), source, chance)
        write_shard(folder, index, plan, self.stepper, chats, generator)


def write_all(
    writer: Writer,
    plan: ShardPlan,
    count: int,
    source: PromptSource,
    reopen: Reopen | None,
    workers: int,
    watch: Callable[[int, int, float], None],
) -> None:
    """Write training shards 0..count - 1; watch(done, count, seconds left) is called after each.

    With several workers every process loads the target itself (`reopen`) and computes with one thread.
    """
    missing = [i for i in range(count) if not (writer.folder / TRAINING / f"{i:04d}.json").is_file()]
    started = time.perf_counter()

    def told(number: int) -> None:
        spent = time.perf_counter() - started
        watch(count - len(missing) + number, count, spent / number * (len(missing) - number))

    if workers < 2 or reopen is None or len(missing) < 2:
        for number, index in enumerate(missing, 1):
            writer.training(plan, index, source)
            told(number)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _begin, (reopen, plan, source, writer.folder)) as pool:
        for number, _ in enumerate(as_completed([pool.submit(_one, index) for index in missing]), 1):
            told(number)


@dataclass(frozen=True, slots=True)
class Reopen:
    """How a process of its own gets the target: name, dtype, device."""

    model: str
    dtype: str
    device: str

    def __call__(self) -> Target:
        """Load it."""
        from nsd.targets.load import load_target

        return load_target(self.model, dtype=self.dtype, device=self.device, engine="transformers")


_job: tuple[Writer, ShardPlan, PromptSource] | None = None


def _begin(reopen: Reopen, plan: ShardPlan, source: PromptSource, folder: Path) -> None:
    """Set a worker process up."""
    global _job
    torch.set_num_threads(1)
    _job = Writer.open(reopen(), plan.taps, folder), plan, source


def _one(index: int) -> None:
    """One shard, in a worker process."""
    assert _job is not None
    writer, plan, source = _job
    writer.training(plan, index, source)
