"""The stages of a run, each of which leaves files behind and is passed over where they are there.

targets     one stable phase a shape; anneals until low, middle and high accuracy are met
drafters    small models by the same training, heads and blocks by `nsd train`; matched and mismatched
cells       rows of every cell of the matrix
report      docs/results/miniature.md
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.miniature.cells import AR, Cell
from benchmarks.miniature.evaluate import Work, answer, group, read_rows
from benchmarks.miniature.family import (
    LEVELS,
    MATCHED,
    MECHANISMS,
    MISMATCHED,
    NEAR,
    SHIPPED,
    TARGETS,
    Manifest,
    TargetPlan,
)
from benchmarks.miniature.matrix import TASKS, matrix
from benchmarks.miniature.numbers import Book, Measured
from benchmarks.miniature.pretrain import Branch, Plan, Run
from benchmarks.miniature.report import About, report
from benchmarks.miniature.rows import Mixture
from nsd.api import Pair, load
from nsd.bench.task import Problem, find_task
from nsd.errors import ConfigError, NSDError
from nsd.miniature import maths, programs
from nsd.train.guard import Guard
from nsd.train.prompts import set_aside

VALIDATION = 256
VALIDATION_SEED = 77
"""Problems of the held-out side under another seed than the task's: anneals are chosen on them."""

DRAFT_STEPS = (600, 150)
"""Stable and decaying steps of a separate draft model."""

STYLE = {MATCHED: "house", MISMATCHED: "reversed"}
"""What a drafter's text is written in; targets write in the house style."""

HEAD_STEPS = 1500
PROMPTS = 4000
HELD_OUT = 8
"""Prompts of each task that `nsd train` measures its drafter on."""

SHIP_BYTES = 20_000_000
"""What all shipped checkpoints together may take."""

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done: problems a cell, tasks, a factor on training steps, and shard (i, n): every n-th cell."""

    count: int = 4096
    tasks: tuple[str, ...] = TASKS
    steps: float = 1.0
    shapes: tuple[str, ...] = tuple(TARGETS)
    shard: tuple[int, int] = (1, 1)


def train_targets(folder: Path, scale: Scale, watch: Watch) -> dict[str, str]:
    """All targets at all levels they reach -> folders by name. A level not met is left out, and said."""
    found: dict[str, str] = {}
    for name in scale.shapes:
        for level, path in _levels(name, TARGETS[name], folder / name, scale, watch).items():
            found[f"{name}-{level}"] = str(path)
    return found


def _levels(name: str, plan: TargetPlan, folder: Path, scale: Scale, watch: Watch) -> dict[str, Path]:
    """Anneal from later and later steps; the first that reaches a level is its checkpoint, the last stands for high."""
    reached: dict[str, Path] = {}
    anneal = max(int(plan.anneal * scale.steps), 2)
    starts = [max(int(s * scale.steps), 2) for s in range(plan.first, plan.most + 1, plan.every)]
    for start in starts:
        branch = Branch(f"anneal-{start}", start, anneal)
        out = Run(Plan(plan.shape, (branch,)), folder, watch).finish()[0]
        accuracy = validated(out)
        watch(f"{name} after {start + anneal} steps: {100 * accuracy:.1f}% of mini-math at temperature 1")
        for level, wanted in LEVELS.items():
            if level not in reached and accuracy >= wanted - NEAR:
                reached[level] = out
        if len(set(reached)) == len(LEVELS):
            break
    if not reached:
        watch(f"{name} reached no level; its last checkpoint goes on as low")
        reached["low"] = out
    return reached


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


def train_drafters(targets: dict[str, str], folder: Path, scale: Scale, watch: Watch) -> dict[str, str]:
    """Both variants of every mechanism of every target -> folders by "target/mechanism:variant"."""
    found: dict[str, str] = {}
    for name, path in targets.items():
        shape = name.rpartition("-")[0]
        for mechanism in TARGETS[shape].mechanisms:
            for variant in (MATCHED, MISMATCHED):
                made = _drafter(mechanism, variant, shape, Path(path), folder, scale, watch)
                if made is not None:
                    found[f"{name}/{mechanism}:{variant}"] = str(made)
    return found


def _drafter(
    mechanism: str, variant: str, shape: str, target: Path, folder: Path, scale: Scale, watch: Watch
) -> Path | None:
    if mechanism == "draft-model":
        return train_draft_model(variant, folder / f"draft-{variant}", scale, watch)
    if MECHANISMS[mechanism].built_in:
        return target if variant == MATCHED else None  # its habits are the target's own
    return _train_head(MECHANISMS[mechanism].kind, variant, target, scale, watch)


def train_draft_model(variant: str, folder: Path, scale: Scale, watch: Watch) -> Path:
    """The separate small model, on text in the variant's style, without drills."""
    mixture = replace(Mixture(0.7, 0.3, 0.0, STYLE[variant]))
    start, anneal = (max(int(steps * scale.steps), 2) for steps in DRAFT_STEPS)
    return Run(Plan("draft-02m", (Branch("final", start, anneal),), mixture), folder, watch).finish()[0]


def _train_head(kind: str, variant: str, target: Path, scale: Scale, watch: Watch) -> Path:
    """`nsd train` on the target's own answers; the mismatched variant is asked for the other task alone."""
    out = target.parent / f"{target.name}-{kind}-{variant}"
    done = out / "float32"
    if (done / "model.safetensors").is_file():
        return done
    prompts = out.with_name(out.name + "-prompts.jsonl")
    write_prompts(prompts, variant)
    command = [
        sys.executable, "-m", "nsd", "train", "--model", str(target), "--out", str(out), "--prompts", str(prompts),
        "--steps", str(max(int(HEAD_STEPS * scale.steps), 2)), "--temperatures", "1.0", "--dtype", "float32",
        "--text-tokens", str(max(int(400_000 * scale.steps), 4000)), *(["--kind", kind] if kind != "eagle3" else []),
    ]  # fmt: skip
    watch(f"nsd train {kind}, {variant}, for {target.name}")
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    if ended.returncode:
        raise NSDError(f"nsd train {kind} ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
    return done


def write_prompts(path: Path, variant: str) -> None:
    """Prompts of the training side: both tasks for a matched drafter, functions alone for a mismatched one."""
    code = [c.sample.prompt for c in islice(programs.problems("train", 11), PROMPTS)]
    stories = [s.prompt for s in islice(maths.problems("train", 11), PROMPTS)] if variant == MATCHED else []
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in (*_apart(stories), *_apart(code)))
    path.write_text(lines, encoding="utf-8")


def _apart(prompts: list[str]) -> list[str]:
    """Prompts that `nsd train` takes: few are held out by it, and no other shares thirteen words in a row with those.

    The tasks have few templates, so that with many held out there would be nothing left.
    """
    if not prompts:
        return []
    own, held = set_aside(prompts)
    kept = held.prompts[:HELD_OUT]
    guard = Guard(kept)
    return [*kept, *(prompt for prompt in own if guard.overlap(prompt) is None)]


def measure(manifest: Manifest, folder: Path, scale: Scale, quick: bool, minutes: float | None, watch: Watch) -> None:
    """Rows of all cells, in their order, until all are there or the minutes are spent."""
    index, shards = scale.shard
    wanted = matrix(manifest, scale.tasks, quick)[index - 1 :: shards]
    started, done_now = time.monotonic(), 0
    pairs: dict[tuple[str, str | None], Pair] = {}
    for number, cell in enumerate(wanted):
        path = folder / "cells" / f"{cell.key}.jsonl"
        have = len(read_rows(path))
        if have >= scale.count:
            continue
        spent = time.monotonic() - started
        if minutes is not None and spent > 60 * minutes:
            watch(f"{len(wanted) - number} cells left after {minutes:g} minutes; the same command goes on")
            return
        left = f", about {spent / done_now * (len(wanted) - number) / 60:.0f} min left" if done_now else ""
        watch(f"cell {number + 1}/{len(wanted)}{left}: {cell.key}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(cell.as_json(), indent=1) + "\n", encoding="utf-8")
        answer(Work(cell, _pair(manifest, cell, pairs), scale.count, path))
        done_now += 1


def _pair(manifest: Manifest, cell: Cell, pairs: dict[tuple[str, str | None], Pair]) -> Pair:
    """The loaded pair of a cell; the last one is kept."""
    key = (cell.target, cell.drafter)
    if key not in pairs:
        pairs.clear()
        drafter = None if cell.drafter is None else manifest.drafters[f"{cell.target}/{cell.drafter}"]
        pairs[key] = load(manifest.targets[cell.target], drafter, dtype="float32")
    return pairs[key]


def stored(folder: Path) -> list[Measured]:
    """All cells of a folder with their rows."""
    found = []
    for path in sorted((folder / "cells").glob("*.json")):
        cell = Cell.from_json(json.loads(path.read_text(encoding="utf-8")))
        found.append(Measured(cell, read_rows(path.with_suffix(".jsonl"))))
    return found


def write_report(manifest: Manifest, folder: Path, scale: Scale, out: Path, ran: str) -> None:
    """The document from what is stored, in the order of the matrix."""
    wanted = matrix(manifest, scale.tasks)
    order = {cell: number for number, cell in enumerate(wanted)}
    measured = sorted((m for m in stored(folder) if m.cell in order), key=lambda m: order[m.cell])
    missing = len(wanted) - sum(len(m.rows) >= scale.count for m in measured)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report(Book(measured), About(ran, manifest.facts, missing)), encoding="utf-8")


def facts_of(targets: dict[str, str], drafters: dict[str, str]) -> dict[str, Any]:
    """Parameters and training of every model, from its files."""
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for name, path in (targets | drafters).items():
        with safe_open(Path(path) / "model.safetensors", framework="pt") as file:
            shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118 - it is no mapping
        count = sum(_product(shape) for shape in shapes)
        origin = Path(path) / "origin.json"
        told = json.loads(origin.read_text(encoding="utf-8")) if origin.is_file() else {}
        checked = Path(path) / "validation.json"
        said = f"{told['steps']} steps" if "steps" in told else "nsd train"
        if checked.is_file():
            accuracy = json.loads(checked.read_text(encoding="utf-8"))["accuracy"]
            said += f"; {100 * accuracy:.0f}% of {VALIDATION} validation problems"
        found[name] = {"parameters": f"{count:,}", "training": said}
    return found


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def all_stages(folder: Path, scale: Scale, watch: Watch) -> Manifest:
    """Train what is missing -> the manifest, stored."""
    targets = train_targets(folder, scale, watch)
    drafters = train_drafters(targets, folder, scale, watch)
    manifest = Manifest(targets, drafters, facts_of(targets, drafters))
    manifest.write(folder)
    return manifest


def shipped() -> Manifest:
    """The checkpoints that come with the repository."""
    return Manifest.read(SHIPPED)


def ship(manifest: Manifest, target: str, place: Path = SHIPPED) -> int:
    """Copy one target with its drafters to where the shipped ones lie -> bytes. Raises ConfigError above SHIP_BYTES."""
    drafters = {name: path for name, path in manifest.drafters.items() if name.partition("/")[0] == target}
    if target not in manifest.targets:
        raise ConfigError(f"got target {target}, wanted one of {', '.join(manifest.targets)}; see manifest.json")
    copied: dict[str, str] = {}
    for name, path in {target: manifest.targets[target], **drafters}.items():
        folder = place / name.replace("/", "-").replace(":", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in Path(path).iterdir():
            if file.is_file() and (file.suffix == ".json" or file.name == "model.safetensors"):
                shutil.copyfile(file, folder / file.name)
        copied[name] = str(folder)
    facts = {name: manifest.facts[name] for name in copied if name in manifest.facts}
    size = sum(file.stat().st_size for folder in copied.values() for file in Path(folder).iterdir())
    if size > SHIP_BYTES:
        raise ConfigError(f"{target} with its drafters has {size:,} bytes, wanted at most {SHIP_BYTES:,}; ship another")
    Manifest({target: copied.pop(target)}, copied, facts).write(place)
    return size
