"""What is trained, job by job: targets with their anneals, separate draft models, heads and blocks by `nsd train`.

A matched drafter learns the target's law along answers that the target wrote. A mismatched one learns text of the same
tasks whose phrasings are preferred in another order: the text itself, since the target's law along it would teach the
target's own habits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from benchmarks.miniature.cells import AR
from benchmarks.miniature.evaluate import group
from benchmarks.miniature.family import MATCHED, MISMATCHED, TARGETS
from benchmarks.miniature.pretrain import Branch, Plan, Run
from benchmarks.miniature.rows import Mixture
from nsd.api import load
from nsd.bench.task import Problem, find_task
from nsd.drafters.nemotron import LORA_FOLDER
from nsd.miniature import maths, programs
from nsd.miniature.phrases import Style
from nsd.miniature.splits import Sample
from nsd.targets.load import load_target
from nsd.train.export import FLOAT
from nsd.train.guard import Guard
from nsd.train.prompts import set_aside
from nsd.train.run import Options, Watcher
from nsd.train.run import train as nsd_train
from nsd.train.writing import HELD_OUT as HELD_OUT_TEXT
from nsd.train.writing import TRAINING

VALIDATION = 256
VALIDATION_SEED = 77
"""Problems of the held-out side under another seed than the task's: levels are told by them."""

DRAFT_STEPS = (600, 150)
"""Stable and decaying steps of a separate draft model."""

STYLE = {MATCHED: "house", MISMATCHED: "reversed"}
"""What a drafter's text is written in; targets write in the house style."""

PROMPTS = 4000
HELD_OUT = 8
"""Prompts of each task that `nsd train` measures its drafter on."""

TEXT_TOKENS, POSITIONS = 200_000, 144
"""Positions of text that heads learn from, and those of one text, which few texts are longer than."""

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How `nsd train` makes one kind: steps, texts a step, proposals of a block, blocks of a text in one step; layers
    (0 = as usual); shares of time for depths 1, 2, ...; highest learning rate; share of cross-entropy alone."""

    steps: int
    batch: int = 8
    block: int = 7
    anchors: int = 12
    layers: int = 0
    depth_shares: tuple[float, ...] = (0.3, 0.2, 0.5)
    peak: float = 1.5e-3
    warm_up_share: float = 0.35


RECIPES: dict[str, Recipe] = {
    "eagle3": Recipe(600, depth_shares=(0.3, 0.2, 0.0, 0.0, 0.0, 0.5)),
    "dspark": Recipe(700),
    "dflash": Recipe(650, block=15, peak=4e-3, warm_up_share=0.6),
    "mtp": Recipe(500, depth_shares=(0.5, 0.5)),
    "nemotron": Recipe(400, block=15, anchors=64, peak=3e-3),
}
"""About two and a half minutes of one core each; K of a kind is `family.MECHANISMS`' at most."""


def train_target(name: str, folder: Path, steps: float, watch: Watch) -> None:
    """One shape: all its anneals, each with its accuracy beside it. steps is a factor on all numbers of steps."""
    for start, length in TARGETS[name].anneals:
        first, anneal = (max(int(count * steps), 2) for count in (start, length))
        branch = Branch(f"anneal-{first}", first, anneal)
        out = Run(Plan(TARGETS[name].shape, (branch,)), folder, watch).finish()[0]
        watch(f"{name} after {first + anneal} steps: {100 * validated(out):.1f}% of mini-math at temperature 1")


def anneals(folder: Path) -> dict[str, float]:
    """Accuracy of all finished anneals in a shape's folder, by their own folders."""
    done = sorted(path.parent for path in folder.glob("anneal-*/model.safetensors"))
    return {str(path): validated(path) for path in done}


def validated(folder: Path) -> float:
    """Accuracy on mini-math at temperature 1 on problems of another seed than the task's, stored beside the weights."""
    path = folder / "validation.json"
    if path.is_file():
        return float(json.loads(path.read_text(encoding="utf-8"))["accuracy"])
    pair = load(str(folder), None)
    samples = islice(maths.problems("test", VALIDATION_SEED), VALIDATION)
    problems = [Problem(f"v{i}", s.prompt, False, s.answer) for i, s in enumerate(samples)]
    rows = group(pair, find_task("mini-math"), problems, 0, AR, 0)
    accuracy = sum(bool(row["correct"]) for row in rows) / len(rows)
    path.write_text(json.dumps({"accuracy": accuracy, "problems": len(rows)}) + "\n", encoding="utf-8")
    return accuracy


def train_draft_model(variant: str, folder: Path, steps: float, watch: Watch) -> None:
    """The separate small model, on text in the variant's style, without drills."""
    mixture = replace(Mixture(0.7, 0.3, 0.0, STYLE[variant]))
    start, anneal = (max(int(count * steps), 2) for count in DRAFT_STEPS)
    Run(Plan("draft-02m", (Branch("final", start, anneal),), mixture), folder, watch).finish()


def head_folder(target: Path, kind: str, variant: str) -> Path:
    """Where `nsd train` leaves its run: beside the target."""
    return target.parent / f"{target.name}-{kind}-{variant}"


def drafter_in(run: Path) -> Path | None:
    """The folder of the drafter that a run has made, None if it has not ended."""
    made = [path for name in (FLOAT, LORA_FOLDER) for path in (run / name).glob("*.safetensors")]
    return made[0].parent if made else None


def train_heads(target: Path, kinds: Sequence[str], variant: str, steps: float, watch: Watch) -> None:
    """`nsd train` for each kind; the text that one of them has written serves all, and is removed in the end."""
    runs = [head_folder(target, kind, variant) for kind in kinds]
    missing = [run for run in runs if drafter_in(run) is None]
    if not missing:
        return
    writer = next((run for run in runs if run not in missing and (run / TRAINING).is_dir()), missing[0])
    prompts = target.parent / f"{target.name}-{variant}-prompts.jsonl"
    if not prompts.is_file():
        write_prompts(prompts, variant)
    for kind, run in zip(kinds, runs, strict=True):
        if drafter_in(run) is not None:
            continue
        watch(f"nsd train --kind {kind}, {variant}, for {target}")
        given = options(target, kind, run, prompts, variant, steps)
        made = replace(given, text=None if run == writer else writer)
        loaded = load_target(str(target), dtype="float32", device="cpu", engine="transformers")
        nsd_train(made, loaded, Told(f"{target.parent.name} {kind}, {variant}", watch))
    for run in runs:
        for part in (TRAINING, HELD_OUT_TEXT):
            shutil.rmtree(run / part, ignore_errors=True)


def options(target: Path, kind: str, run: Path, prompts: Path, variant: str, steps: float) -> Options:
    """What `nsd train` is asked for."""
    recipe = RECIPES[kind]
    return Options(
        model=str(target), out=run, prompts=prompts, kind=kind, dtype="float32", device="cpu", temperatures=(1.0,),
        labels="target" if variant == MATCHED else "text", one_turn=True, positions=POSITIONS,
        text_tokens=max(int(TEXT_TOKENS * steps), 4000), steps=max(int(recipe.steps * steps), 6), batch=recipe.batch,
        block=recipe.block, anchors=recipe.anchors, layers=recipe.layers,
        depth_shares=recipe.depth_shares, peak=recipe.peak, warm_up_share=recipe.warm_up_share,
    )  # fmt: skip


class Told(Watcher):
    """Passes on what a user wants to know of a head's training."""

    def __init__(self, name: str, watch: Watch) -> None:
        self.name, self.watch = name, watch

    def note(self, line: str) -> None:
        """What is planned, gone on with and written."""
        if line.startswith(("plan", "going on", "resumed", "written")):
            self.watch(f"{self.name}: {line}")


def write_prompts(path: Path, variant: str) -> None:
    """Prompts of the training side of both tasks; for a mismatched drafter with answers in the other style."""
    style = Style(STYLE[variant])
    stories = list(islice(maths.problems("train", 11, style), PROMPTS))
    functions = [c.sample for c in islice(programs.problems("train", 11, style), PROMPTS)]
    rows = [
        {"prompt": s.prompt} | ({"response": s.solution} if variant == MISMATCHED else {})
        for s in (*_apart(stories), *_apart(functions))
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    part.replace(path)


def _apart(samples: list[Sample]) -> list[Sample]:
    """Texts that `nsd train` takes: few are held out by it, and no other shares thirteen words in a row with those.

    The tasks have few templates, so that with many held out there would be nothing left.
    """
    own, held = set_aside([sample.prompt for sample in samples])
    kept = set(held.prompts[:HELD_OUT])
    guard, wanted = Guard(kept), set(own)
    return [
        s
        for s in samples
        if s.prompt in kept or (s.prompt in wanted and guard.overlap(f"{s.prompt}\n{s.solution}") is None)
    ]
