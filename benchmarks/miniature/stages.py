"""The stages of a run, each of which leaves files behind and is passed over where they are there.

targets     one stable phase a shape with its anneals; separate draft models
heads       heads and blocks by `nsd train`, for the most accurate target of each shape; matched and mismatched
cells       rows of every cell of the matrix, in the order of worth
report      docs/results/miniature.md
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.miniature.cells import Cell
from benchmarks.miniature.evaluate import Work, answer, read_rows
from benchmarks.miniature.family import (
    MATCHED,
    MECHANISMS,
    MISMATCHED,
    SHIPPED,
    TARGETS,
    Manifest,
    levels,
    tops,
)
from benchmarks.miniature.matrix import MAIN, TASKS, Wanted, matrix
from benchmarks.miniature.numbers import Book, Measured
from benchmarks.miniature.pool import Eta, Job, run_jobs, tell
from benchmarks.miniature.report import About, report
from benchmarks.miniature.training import (
    VALIDATION,
    anneals,
    drafter_in,
    head_folder,
    train_draft_model,
    train_heads,
    train_target,
)
from nsd.api import Pair, load
from nsd.drafters.nemotron import ADAPTER
from nsd.errors import ConfigError

SHIP_BYTES = 20_000_000
"""What all shipped checkpoints together may take."""

STEP_SECONDS = {"qwen3-3m": 1.05, "qwen3-7m": 2.3, "nemotron-3m": 1.6, "qwen35-3m": 2.1, "draft-02m": 0.2}
"""A training step of each shape on one quiet core."""

HEAD_SECONDS = 150.0
PROBLEM_SECONDS = 0.08
"""A head with its share of text; a problem of a cell. Both are put right by what is measured."""

Watch = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much: problems of a main cell and of the others, tasks, a factor on training steps, shapes, processes."""

    count: int = 4096
    tasks: tuple[str, ...] = TASKS
    steps: float = 1.0
    shapes: tuple[str, ...] = tuple(TARGETS)
    others: int | None = None
    workers: int = 1

    def of(self, wanted: Wanted) -> int:
        """Problems of a cell."""
        return self.count if wanted.group in MAIN or self.others is None else min(self.others, self.count)


def target_jobs(folder: Path, scale: Scale) -> list[Job]:
    """Shapes and draft models, the longest first."""
    jobs = []
    for name in scale.shapes:
        plan = TARGETS[name]
        steps = max(start for start, _ in plan.anneals) + sum(length for _, length in plan.anneals)
        seconds = steps * scale.steps * STEP_SECONDS[name]
        jobs.append(Job(name, "targets", seconds, train_target, (name, folder / name, scale.steps, tell)))
    if any("draft-model" in TARGETS[name].mechanisms for name in scale.shapes):
        for variant in (MATCHED, MISMATCHED):
            args = (variant, folder / f"draft-{variant}", scale.steps, tell)
            seconds = 750 * scale.steps * STEP_SECONDS["draft-02m"]
            jobs.append(Job(f"draft model, {variant}", "targets", seconds, train_draft_model, args))
    return sorted(jobs, key=lambda job: -job.seconds)


def found_targets(folder: Path, scale: Scale) -> dict[str, str]:
    """Folders by target name, as they lie in the folder."""
    return {f"{name}-{level}": path for name in scale.shapes for level, path in levels(anneals(folder / name)).items()}


def head_jobs(targets: dict[str, str], scale: Scale) -> list[Job]:
    """What `nsd train` makes for the most accurate target of each shape: one job a target and variant."""
    jobs = []
    for name in tops(targets):
        for variant in (MATCHED, MISMATCHED):
            kinds = _kinds(name, variant)
            if kinds:
                args = (Path(targets[name]), kinds, variant, scale.steps, tell)
                seconds = HEAD_SECONDS * scale.steps * len(kinds)
                jobs.append(Job(f"heads of {name}, {variant}", "heads", seconds, train_heads, args))
    return jobs


def _kinds(target: str, variant: str) -> tuple[str, ...]:
    """What is trained for a target: all kinds that there are, but no matched one of what is built in."""
    made = [MECHANISMS[mechanism] for mechanism in TARGETS[target.rpartition("-")[0]].mechanisms]
    return tuple(m.kind for m in made if m.kind and not (m.built_in and variant == MATCHED))


def drafters_of(targets: dict[str, str], folder: Path) -> dict[str, str]:
    """Folders by "target/mechanism:variant"."""
    found: dict[str, str] = {}
    for name, path in targets.items():
        for mechanism in TARGETS[name.rpartition("-")[0]].mechanisms:
            for variant in (MATCHED, MISMATCHED):
                made = _drafter(mechanism, variant, Path(path), folder)
                if made is not None and any(made.glob("*.safetensors")):
                    found[f"{name}/{mechanism}:{variant}"] = str(made)
    return found


def _drafter(mechanism: str, variant: str, target: Path, folder: Path) -> Path | None:
    kind = MECHANISMS[mechanism].kind
    if mechanism == "draft-model":
        return folder / f"draft-{variant}" / "final"
    if MECHANISMS[mechanism].built_in and variant == MATCHED:
        return target
    return drafter_in(head_folder(target, kind, variant)) if kind else None


def all_stages(folder: Path, scale: Scale, minutes: float | None) -> Manifest:
    """Train what is missing, then measure, for so many minutes at most -> the manifest, stored."""
    training = target_jobs(folder, scale)
    tops_of = [f"{name}-high" for name in scale.shapes]
    heads = head_jobs(dict.fromkeys(tops_of, "."), scale)
    expected = _planned(training, heads) | {"cells": 60.0 * (minutes or 130.0) * scale.workers}
    eta = Eta(expected, scale.workers)
    tell(f"about {eta.left() / 60:.0f} min for all stages with {scale.workers} processes")
    run_jobs(training, eta)
    targets = found_targets(folder, scale)
    heads = head_jobs(targets, scale)
    run_jobs(heads, eta)
    drafters = drafters_of(targets, folder)
    manifest = Manifest(targets, drafters, facts_of(targets, drafters))
    manifest.write(folder)
    measure(manifest, folder, scale, False, minutes, tell, eta)
    return manifest


def _planned(*stages: list[Job]) -> dict[str, float]:
    return {jobs[0].stage: sum(job.seconds for job in jobs) for jobs in stages if jobs}


def measure(
    manifest: Manifest, folder: Path, scale: Scale, quick: bool, minutes: float | None, watch: Watch,
    eta: Eta | None = None,
) -> None:  # fmt: skip
    """Rows of all cells, in their order, until all are there or the minutes are spent."""
    missing = [
        (wanted, have)
        for wanted in matrix(manifest, scale.tasks, quick)
        if (have := len(read_rows(_rows(folder, wanted.cell)))) < scale.of(wanted)
    ]
    jobs = [
        Job(
            wanted.cell.key, "cells", PROBLEM_SECONDS * (scale.of(wanted) - have), measure_cell,
            (manifest, wanted.cell, scale.of(wanted), _rows(folder, wanted.cell)),
        )
        for wanted, have in missing
    ]  # fmt: skip
    eta = eta or Eta({}, scale.workers)
    eta.plan("cells", sum(job.seconds for job in jobs) + eta.spent.get("cells", (0.0, 0.0))[0])
    watch(f"{len(jobs)} cells to measure, about {eta.left() / 60:.0f} min")
    left = run_jobs(jobs, eta, None if minutes is None else time.monotonic() + 60 * minutes, watch)
    if left:
        watch(f"{left} cells left after {minutes:g} minutes; the same command goes on")


def _rows(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.key}.jsonl"


def measure_cell(manifest: Manifest, cell: Cell, count: int, path: Path) -> None:
    """Rows of one cell, and its description beside them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(cell.as_json(), indent=1) + "\n", encoding="utf-8")
    answer(Work(cell, _pair(manifest, cell), count, path))


_LOADED: dict[tuple[str, str | None], Pair] = {}


def _pair(manifest: Manifest, cell: Cell) -> Pair:
    """The loaded pair of a cell; the last one of a process is kept."""
    model = manifest.targets[cell.target]
    drafter = None if cell.drafter is None else manifest.drafters[f"{cell.target}/{cell.drafter}"]
    if (model, drafter) not in _LOADED:
        _LOADED.clear()
        _LOADED[model, drafter] = load(model, drafter, dtype="float32")
    return _LOADED[model, drafter]


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
    order = {one.cell: number for number, one in enumerate(wanted)}
    measured = sorted((m for m in stored(folder) if m.cell in order), key=lambda m: order[m.cell])
    missing = len(wanted) - sum(bool(m.rows) for m in measured)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report(Book(measured), About(ran, manifest.facts, missing)), encoding="utf-8")


def facts_of(targets: dict[str, str], drafters: dict[str, str]) -> dict[str, Any]:
    """Parameters and training of every model, from its files."""
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for name, path in (targets | drafters).items():
        with safe_open(_weights(Path(path)), framework="pt") as file:
            shapes = [file.get_slice(key).get_shape() for key in file.keys()]  # noqa: SIM118 - it is no mapping
        count = sum(_product(shape) for shape in shapes)
        origin = Path(path) / "origin.json"
        told = json.loads(origin.read_text(encoding="utf-8")) if origin.is_file() else {}
        checked = Path(path) / "validation.json"
        said = f"{told['steps']} steps" if "steps" in told else _head_of(Path(path))
        if checked.is_file():
            accuracy = json.loads(checked.read_text(encoding="utf-8"))["accuracy"]
            said += f"; {100 * accuracy:.0f}% of {VALIDATION} validation problems"
        found[name] = {"parameters": f"{count:,}", "training": said}
        if checked.is_file():
            found[name]["accuracy"] = accuracy
    return found


def _head_of(folder: Path) -> str:
    """What a run of `nsd train` says of itself."""
    plan = folder.parent / "plan.json"
    if not plan.is_file():
        return "nsd train"
    raw = json.loads(plan.read_text(encoding="utf-8"))
    return f"nsd train, {sum(stage['steps'] for stage in raw['stages'])} steps, labels {raw.get('labels', 'target')}"


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def shipped() -> Manifest:
    """The checkpoints that come with the repository."""
    return Manifest.read(SHIPPED)


def ship(manifest: Manifest, target: str, place: Path = SHIPPED) -> int:
    """Copy one target with its drafters to where the shipped ones lie -> bytes. Raises ConfigError above SHIP_BYTES.

    Weights are stored in bfloat16, and a drafter's config names its target instead of the folder it was trained beside.
    """
    drafters = {name: path for name, path in manifest.drafters.items() if name.partition("/")[0] == target}
    if target not in manifest.targets:
        raise ConfigError(f"got target {target}, wanted one of {', '.join(manifest.targets)}; see manifest.json")
    copied: dict[str, str] = {}
    for name, path in {target: manifest.targets[target], **drafters}.items():
        folder = place / name.replace("/", "-").replace(":", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _store(Path(path), folder, target)
        copied[name] = str(folder)
    facts = {name: manifest.facts[name] for name in copied if name in manifest.facts}
    size = sum(file.stat().st_size for folder in copied.values() for file in Path(folder).iterdir())
    if size > SHIP_BYTES:
        raise ConfigError(f"{target} with its drafters has {size:,} bytes, wanted at most {SHIP_BYTES:,}; ship another")
    Manifest({target: copied.pop(target)}, copied, facts).write(place)
    return size


def _store(source: Path, folder: Path, target: str) -> None:
    """One checkpoint as it is shipped."""
    from safetensors.torch import load_file, save_file

    for file in source.glob("*.json"):
        shutil.copyfile(file, folder / file.name)
    _set(folder / "config.json", {"dtype": "bfloat16", "target": target})
    _set(folder / ADAPTER, {"base_model_name_or_path": target})
    weights = _weights(source)
    tensors = load_file(weights)
    halved = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in tensors.items()}
    save_file(halved, folder / weights.name, metadata={"format": "pt"})
    (folder / weights.name).chmod(0o644)


def _set(path: Path, values: dict[str, str]) -> None:
    """Change what a file of settings says; what it does not say is not added, and there may be no such file."""
    if path.is_file():
        told = json.loads(path.read_text(encoding="utf-8"))
        told |= {name: value for name, value in values.items() if name in told}
        path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _weights(folder: Path) -> Path:
    """The one file of weights in a folder of a run."""
    (path,) = folder.glob("*.safetensors")
    return path
