"""The training loop: one optimiser step at a time, each a function of the run's plan, the weights and the step number.

That is what makes resuming exact: a checkpoint holds weights, optimiser and step, and nothing else has a memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.errors import ModelError
from nsd.train.corpus import Batch, Corpus
from nsd.train.evaluate import Examiner, Figures
from nsd.train.losses import head_loss, text_law
from nsd.train.schedule import Schedule, order
from nsd.train.student import Ends, Student
from nsd.train.text import ASKED
from nsd.train.warm import CHECKPOINT

DEPTH_DECAY = 0.8
"""How much less a deeper position counts; drafts there are reached less often."""

LABELS = ("target", "text")
"""What is learned at each place of a text: the target's law there, or the token that stands there."""

LOG = "log.jsonl"
SAVE_EVERY, EXAMINE_EVERY = 100, 150
"""Steps between checkpoints, and between examinations."""


@dataclass(slots=True)
class Progress:
    """What a watcher is told after a step (figures only where the drafter was examined)."""

    step: int
    steps: int
    loss: float
    kept: float
    seconds_left: float
    figures: list[Figures] = field(default_factory=list)


class Trainer:
    """Weights, optimiser and step; rows per batch; labels as in LABELS."""

    def __init__(
        self, net: Student, ends: Ends, corpus: Corpus, schedule: Schedule, seed: int, rows: int = 8,
        labels: str = LABELS[0],
    ) -> None:  # fmt: skip
        self.net, self.ends, self.corpus, self.schedule, self.seed = net, ends, corpus, schedule, seed
        self.rows, self.step, self.labels = min(rows, len(corpus.rows)), 0, labels
        matrices = [net[name] for name in net.names if net[name].dim() > 1]
        others = [net[name] for name in net.names if net[name].dim() < 2]
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
            lr=schedule.peak,
            betas=(0.9, 0.95),
            eps=1e-8,
        )

    def advance(self) -> tuple[float, float]:
        """One step -> loss, and 1 - TV at depth 1 on its own batch."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.schedule.rate(self.step)
        batch = self.corpus.batch(order(len(self.corpus.rows), self.rows, self.seed, self.step))
        self.optimiser.zero_grad(set_to_none=True)
        loss, kept = self.loss(batch, self.schedule.depths(self.step))
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves backward unannotated
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        return float(loss.detach()), kept

    def loss(self, batch: Batch, depths: int) -> tuple[Tensor, float]:
        """Loss over a batch at the present step's mix, and 1 - TV at depth 1."""
        cold = batch.cold[:, None].expand_as(batch.lse).flatten()
        if self.labels == "text":
            p = text_law(batch.tokens, self.ends.ids)
        else:
            p = self.ends.law(batch.final.flatten(0, 1), batch.lse.flatten(), cold)
        head, own, mix = self.net.lent(self.ends.head), self.net.map(), self.schedule.mix(self.step)
        total, first, weights = torch.zeros(()), 0.0, 0.0
        key = f"{self.seed}/chains/{self.step}"
        for depth, rows in enumerate(self.net.rows(batch, self.ends.embedding, depths, ASKED, key)):
            index, mine = rows.at + depth + 1, cold[rows.at]
            loss, kept = head_loss(rows.states, self.net.gain(), head, p, index, mine, mix, rows.read, own)
            aside = self.net.aside(rows, kept)
            weight = DEPTH_DECAY**depth
            total, weights = total + weight * (loss if aside is None else loss + aside), weights + weight
            first = float(kept.mean()) if depth == 0 and len(kept) else first
        return total / weights, first

    def save(self, folder: Path) -> None:
        """Write a checkpoint; a kill in the middle leaves the one before."""
        state = {"weights": self.net.tensors(), "optimiser": self.optimiser.state_dict(), "step": self.step}
        state |= {"ids": self.ends.ids}
        part = folder / f"{CHECKPOINT}.part"
        torch.save(state, part)
        part.replace(folder / CHECKPOINT)

    def resume(self, folder: Path) -> bool:
        """Go on from a checkpoint, if there is one. Raises ModelError for a damaged one."""
        path = folder / CHECKPOINT
        if not path.is_file():
            return False
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except Exception as problem:  # torch raises whatever its unpickler met
            raise ModelError(f"{path} is unreadable ({problem}); delete it to start over") from None
        self.net.load(state["weights"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]
        return True

    def run(self, folder: Path, examiner: Examiner | None, watch: Callable[[Progress], None]) -> None:
        """Train to the end of the schedule; log.jsonl gets a line for each examination."""
        started, begun = time.perf_counter(), self.schedule.progress(self.step)
        while self.step < self.schedule.steps:
            loss, kept = self.advance()
            last = self.step == self.schedule.steps
            done = self.schedule.progress(self.step)
            elapsed = time.perf_counter() - started
            progress = Progress(
                self.step, self.schedule.steps, loss, kept, elapsed * (1 - done) / max(done - begun, 1e-9)
            )
            if examiner is not None and (last or self.step % EXAMINE_EVERY == 0):
                progress.figures = examiner(self.net)
                self._log(folder, progress)
            watch(progress)
            if last or self.step % SAVE_EVERY == 0:
                self.save(folder)

    def _log(self, folder: Path, progress: Progress) -> None:
        """One line per examination; lines past a resumed step are dropped first."""
        path = folder / LOG
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        lines = [line for line in lines if json.loads(line)["step"] < progress.step]
        entry: dict[str, Any] = {"step": progress.step, "loss": progress.loss, "kept": progress.kept}
        entry |= {"figures": [asdict(figures) for figures in progress.figures]}
        path.write_text("\n".join([*lines, json.dumps(entry)]) + "\n", encoding="utf-8")
