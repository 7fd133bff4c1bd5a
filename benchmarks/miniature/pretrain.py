"""Trains one model of the family: a stable phase, and anneals that branch off it (warm-up, stable, decay).

Every step is a function of the stored state and of its number, and states are stored whole, so that a run that was
killed goes on where it was. An anneal starts from the stable phase's state at its step and ends in a checkpoint that
`nsd.load` reads.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from benchmarks.miniature.optimiser import Optimiser, decay, stable
from benchmarks.miniature.rows import Batch, Mixture, batch, save_tokenizer, tokenizer
from benchmarks.miniature.shapes import SHAPES, config
from nsd.errors import ConfigError

EVERY = 50
"""Steps between stored states."""

PART = 32
"""Rows of one backward pass; gradients of a step add up."""

Watch = Callable[[str], None]


class Trainable(Protocol):
    """A model in training: its parameters, its loss on a batch, and the tensors of its checkpoint."""

    @property
    def module(self) -> nn.Module:
        """The parameters being trained."""

    def loss(self, rows: Batch, step: int) -> Tensor:
        """The scalar to minimise."""

    def tensors(self) -> dict[str, Tensor]:
        """What model.safetensors holds."""


@dataclass(frozen=True, slots=True)
class Branch:
    """An anneal: its name, the stable step it starts from, its length."""

    name: str
    start: int
    steps: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train: a shape by name, on which rows, with which seed, and which anneals to export."""

    shape: str
    branches: tuple[Branch, ...]
    mixture: Mixture = field(default_factory=Mixture)
    seed: int = 0


class Run:
    """One training run in a folder; `finish` does all that is not there yet."""

    def __init__(self, plan: Plan, folder: Path, watch: Watch) -> None:
        self.plan, self.folder, self.watch = plan, folder, watch
        self.shape = SHAPES[plan.shape]
        self.config = config(self.shape, tokenizer().get_vocab())
        folder.mkdir(parents=True, exist_ok=True)

    def finish(self) -> list[Path]:
        """Train every branch -> the folders of the exported checkpoints."""
        done = []
        for branch in sorted(self.plan.branches, key=lambda b: b.start):
            out = self.folder / branch.name
            if not (out / "model.safetensors").is_file():
                snapshot = self._stable_to(branch.start)
                self._anneal(branch, snapshot, out)
            done.append(out)
        return done

    def _stable_to(self, end: int) -> Path:
        """Advance the stable phase -> its state at this step."""
        snapshot, rolling = self.folder / f"stable-{end}.pt", self.folder / "stable.pt"
        if not snapshot.is_file():
            if rolling.is_file() and _step(rolling) > end:  # an anneal from earlier is wanted after all
                rolling = self.folder / f"stable-to-{end}.pt"
            self._advance(rolling, self._before(end), end, stable)
            part = snapshot.with_suffix(".part")
            shutil.copyfile(rolling, part)
            part.replace(snapshot)
        return snapshot

    def _before(self, end: int) -> Path | None:
        """The latest stored state of the stable phase up to a step, None if there is none."""
        steps = [int(path.stem.partition("-")[2]) for path in self.folder.glob("stable-[0-9]*.pt")]
        earlier = [step for step in steps if step <= end]
        return self.folder / f"stable-{max(earlier)}.pt" if earlier else None

    def _anneal(self, branch: Branch, snapshot: Path, out: Path) -> None:
        rolling = self.folder / f"{branch.name}.pt"
        end = branch.start + branch.steps

        def factor(step: int) -> float:
            return stable(step) * decay(step - branch.start, branch.steps)

        model = self._advance(rolling, snapshot, end, factor)
        export(model.tensors(), self.config, out, {"plan": self.plan.shape, "branch": branch.name, "steps": end})
        rolling.unlink()

    def _advance(self, rolling: Path, first: Path | None, end: int, factor: Callable[[int], float]) -> Trainable:
        """Steps up to `end` from the stored state, if any, else from `first`, else from nothing."""
        model = make(self.shape.layout, self.config, self.plan.seed)
        optimiser = Optimiser(model.module.named_parameters())
        source = rolling if rolling.is_file() else first
        step = 0
        if source is not None:
            state = torch.load(source, weights_only=True)
            model.module.load_state_dict(state["model"])
            optimiser.load(state["optimiser"])
            step = state["step"]
            if step > end:
                raise ConfigError(f"{source} is at step {step}, wanted at most {end}; give --work another folder")
        started, tokens, losses = time.monotonic(), 0, 0.0
        for now in range(step, end):
            rows = batch(self.plan.mixture, self.plan.seed, now)
            for part, share in rows.parts(PART):
                loss = model.loss(part, now) * share
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                losses += float(loss.detach())
            optimiser.step(factor(now))
            tokens += rows.tokens
            if (now + 1) % EVERY == 0 or now + 1 == end:
                _store(rolling, {"model": model.module.state_dict(), "optimiser": optimiser.state(), "step": now + 1})
                seconds = time.monotonic() - started
                left = (end - now - 1) * seconds / (now + 1 - step)
                since = (now % EVERY) + 1 if now - step >= EVERY else now + 1 - step
                self.watch(
                    f"{self.plan.shape} {rolling.stem} step {now + 1}/{end}: loss {losses / since:.3f}, "
                    f"{tokens / seconds:,.0f} tokens/s, {left / 60:.0f} min left"
                )
                losses = 0.0
        return model


def make(layout: str, shape: dict[str, Any], seed: int) -> Trainable:
    """A model in training of this layout."""
    from benchmarks.miniature import layouts

    made: Trainable = layouts.LAYOUTS[layout](shape, seed)
    return made


def export(tensors: dict[str, Tensor], shape: dict[str, Any], out: Path, origin: dict[str, Any]) -> None:
    """Write config.json, tokenizer and bfloat16 weights; these last, since their presence says that all is there."""
    save_tokenizer(out)
    (out / "config.json").write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    (out / "origin.json").write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    part = out / "model.part"
    save_file({n: t.to(torch.bfloat16).contiguous() for n, t in tensors.items()}, part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(out / "model.safetensors")


def _step(path: Path) -> int:
    """The step that a stored state was made at."""
    return int(torch.load(path, weights_only=True, mmap=True)["step"])


def _store(path: Path, state: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def branches(*listed: Sequence[Any]) -> tuple[Branch, ...]:
    """Branches from (name, start, steps)."""
    return tuple(Branch(str(name), int(start), int(steps)) for name, start, steps in listed)
