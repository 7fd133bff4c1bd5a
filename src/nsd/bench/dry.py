"""What a benchmark would take, without loading a weight: models, prompts, arms, memory, time. `nsd bench --dry-run`.

Memory comes from shapes (`nsd.bench.footprint`). Time is arithmetic over stated assumptions, printed beside it: a pass
reads every weight once at a share of the memory's speed, answers have a usual length, blocks a usual tau.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nsd.bench.arms import DEFAULT_THETA, Arm, arms_of
from nsd.bench.footprint import Footprint, Part, drafter_part, footprint, target_part
from nsd.bench.runner import DEFAULT_MAX_NEW_TOKENS, fingerprint
from nsd.bench.task import Task, TaskDataError, find_tasks
from nsd.drafters.load import kind_of
from nsd.errors import ConfigError, ModelError

BANDWIDTH = 1344.0
"""GB/s of an NVIDIA RTX PRO 5000, the card nearest to what the paper names. Source: NVIDIA's data sheet."""
SHARE = 0.6
"""Of the bandwidth that a pass is assumed to reach."""
USUAL_TOKENS = {"gsm8k": 300, "math500": 700, "humaneval": 300, "mbpp": 200, "aime25": 2000, "livecodebench": 1200}
"""Assumed length of an answer; other tasks: half of their limit."""
USUAL_TAU = {"ar": 1.0, "sd": 4.0, "match": 3.0, "nsd": 6.0}
"""Assumed tokens per target pass, at most K + 1."""
LETTERS_PER_TOKEN = 3.0
NO_WEIGHTS = ("none", "ngram", "layer-skip")
NGRAM_K = 4


@dataclass(frozen=True, slots=True)
class Source:
    """A config.json and where it was found."""

    name: str
    config: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answer: models, tasks (name -> problems, answers, hash, origin), arms, memory, seconds, assumptions."""

    target: Source
    drafter: Source | None
    drafter_name: str
    tasks: Mapping[str, Mapping[str, Any]]
    arms: tuple[Arm, ...]
    memory: Footprint
    copies: int
    positions: int
    usual_s: float
    longest_s: float
    assumed: Mapping[str, Any]

    @property
    def answers(self) -> int:
        """How many answers will be decoded."""
        return len(self.arms) * sum(int(task["answers"]) for task in self.tasks.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "target": {"name": self.target.name, "config": self.target.where},
            "drafter": {
                "name": self.drafter_name,
                "config": None if self.drafter is None else self.drafter.where,
            },
            "tasks": {name: dict(task) for name, task in self.tasks.items()},
            "arms": [arm.as_json() for arm in self.arms],
            "answers": self.answers,
            "positions": self.positions,
            "memory_bytes": self.memory.as_json(),
            "copies_of_the_model": self.copies,
            "seconds": {"usual": self.usual_s, "at_most": self.longest_s},
            "assumed": dict(self.assumed),
        }

    def lines(self) -> list[str]:
        """The same for people."""
        m, gib = self.memory, 2**30
        parts = f"target {m.target / gib:.2f}, drafter {m.drafter / gib:.2f}, caches {m.cache / gib:.2f}"
        found = [
            f"target   {self.target.name}: config {self.target.where}",
            f"drafter  {self.drafter_name}: "
            + ("no weights of its own" if self.drafter is None else f"config {self.drafter.where}"),
            f"arms     {', '.join(arm.name for arm in self.arms)}",
        ]
        found += [
            f"task     {name}: {task['problems']} problems, {task['answers']} answers an arm, at most "
            f"{task['max_new_tokens']} tokens; {task['data']}"
            for name, task in self.tasks.items()
        ]
        found += [
            f"memory   {m.total / gib:.2f} GiB ({parts}) at {self.positions} positions"
            + (f", times {self.copies} engines" if self.copies > 1 else "")
            + f"; beside it {m.laws / gib:.2f} GiB for the laws of a block, and the framework's own",
            f"time     about {_hours(self.usual_s)}, at most {_hours(self.longest_s)} ({self.answers} answers), if "
            + ", ".join(f"{name} {value}" for name, value in self.assumed.items()),
        ]
        return found


def dry_run(request: Mapping[str, Any], shapes: Path | None = None, bandwidth: float | None = None) -> DryRun:
    """Resolve a request of `nsd bench`. shapes holds config.json files as owner--name.json for models not at hand.

    bandwidth of the memory in GB/s; without one that of the GPU here, else that of the paper's card.
    """
    data = None if request["data_dir"] is None else Path(request["data_dir"])
    target = source_of(request["model"], shapes)
    drafter_name, drafter = drafter_source(request["drafter"], target, shapes)
    rank = _lora_rank(target) if drafter is not None and drafter.config is target.config else 0
    dtype = request["where"]["dtype"]
    part = _part_of(drafter_name, drafter, target, rank, dtype)
    kind = None if drafter is None else kind_of(drafter.config)
    arms = _arms(request, part, drafter_name if kind is None else kind.name)
    tasks, letters = _tasks(request, data)
    k = max(arm.k for arm in arms)
    longest = max(int(task["max_new_tokens"]) for task in tasks.values())
    positions = round(letters / LETTERS_PER_TOKEN) + longest + 1
    memory = footprint(target.config, None if drafter is None else drafter.config, dtype, positions, k, rank)
    speed = 1e9 * SHARE * (bandwidth or _gpu_bandwidth() or BANDWIDTH)
    seconds = [
        sum(_seconds(arm, task, bound, memory, target_part(target.config), part, speed) for task in tasks.values())
        for bound in (False, True)
        for arm in arms
    ]
    usual, most = sum(seconds[: len(arms)]), sum(seconds[len(arms) :])
    assumed = {
        "GB/s": f"{bandwidth or _gpu_bandwidth() or BANDWIDTH:g}",
        "of it reached": SHARE,
        "tokens an answer": {name: task["usual_tokens"] for name, task in tasks.items()},
        "tau": USUAL_TAU,
    }
    copies = len({arm.k for arm in arms}) if request["where"]["engine"] == "vllm" else 1
    return DryRun(target, drafter, drafter_name, tasks, arms, memory, copies, positions, usual, most, assumed)


def source_of(name: str, shapes: Path | None) -> Source:
    """The config of a model: built in, a folder, the hub or its cache; else from the folder of shapes."""
    from nsd.drafters import shipped
    from nsd.drafters.load import read_config
    from nsd.nn.checkpoint import read_json
    from nsd.targets import smollm2

    if name in (smollm2.NAME, shipped.NAME):
        folder = smollm2.smollm2_folder() if name == smollm2.NAME else shipped.FOLDER
        return Source(name, read_json(folder / "config.json", "a config"), "built in")
    if name == "toy":
        raise ConfigError("model toy is a table without weights, wanted a model to measure; try smollm2-135m")
    try:
        return Source(name, read_config(name), "of the folder" if Path(name).is_dir() else "from the hub")
    except (ModelError, ConfigError):
        path = None if shapes is None else shapes / f"{name.replace('/', '--')}.json"
        if path is None or not path.is_file():
            raise
    known = read_json(path, "the shapes of a model")
    return Source(name, known, f"not at hand; shapes as stated in {path.name} ({known.get('source', 'no source')})")


def drafter_source(name: str, target: Source, shapes: Path | None) -> tuple[str, Source | None]:
    """What a drafter's name means beside a target, with its config if it has weights of its own."""
    from nsd.drafters import shipped
    from nsd.drafters.load import FALLBACK, KINDS, SHIPPED

    inside = next((kind.name for kind in KINDS if kind.in_target and kind.recognise(target.config)), None)
    if name == "auto":
        name = SHIPPED.get(target.name) or inside or FALLBACK
    if name in NO_WEIGHTS:
        return name, None
    if name == inside or name == target.name:
        return str(inside), target
    if name in SHIPPED.values():
        return name, source_of(shipped.NAME, shapes)
    return name, source_of(name, shapes)


def _lora_rank(target: Source) -> int:
    """The rank of the low-rank part beside a Nemotron checkpoint, 0 without."""
    from nsd.drafters.nemotron import LORA_FOLDER

    path = Path(target.name) / LORA_FOLDER / "adapter_config.json"
    told: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else target.config.get(LORA_FOLDER)
    return int((told or {}).get("r", 0))


def shipped_k(dtype: str) -> int:
    """Proposals per block that the shipped drafter takes by default beside a target of this format."""
    from nsd.drafters import shipped

    return shipped.DEFAULT_KS.get("bfloat16" if dtype == "auto" else dtype, shipped.OTHER_K)


def _part_of(name: str, drafter: Source | None, target: Source, rank: int, dtype: str) -> Part:
    from nsd.drafters import shipped

    if drafter is not None:
        found = drafter_part(drafter.config, target.config, rank)
        return replace(found, k=shipped_k(dtype)) if name == shipped.NAME else found
    return Part({}, 0, k=0 if name == "none" else NGRAM_K)


def _arms(request: Mapping[str, Any], part: Part, drafter: str) -> tuple[Arm, ...]:
    from nsd.bench.arms import NATIVE_MATCH

    def proposals(k: int | None, block: int | None) -> int:
        return block - part.unit if block is not None else part.k if k is None else k

    usual = ["ar", "sd", *(["match"] if drafter in NATIVE_MATCH else []), "nsd"] if part.k else ["ar"]
    rule = request["rule"]
    kinds = [kind for kind in request["arms"] or usual if rule["rule"] != "sd" or kind != "nsd"]
    thetas = request["theta"] or ([DEFAULT_THETA] if rule["rule"] == "nsd" else [])
    unit = part.unit
    return arms_of(kinds, proposals, lambda k: k + unit, rule, thetas, request["k"], request["block_length"])


def _tasks(request: Mapping[str, Any], data: Path | None) -> tuple[dict[str, dict[str, Any]], int]:
    """Facts of every task, and the letters of the longest prompt."""
    found, letters = {}, 0
    limit, (_, shards) = request["limit"], request["shard"]
    for task in find_tasks(request["tasks"], data):
        most = request["max_new_tokens"] or task.max_new_tokens or DEFAULT_MAX_NEW_TOKENS
        try:
            problems = task.load(data, limit)
            count, told = len(problems), f"prompts sha256 {fingerprint(problems)['sha256'][:16]}"
            letters = max(letters, *(len(problem.prompt) for problem in problems))
        except TaskDataError as problem:
            count, told = min(limit or task.size, task.size), f"prompts not at hand ({str(problem).split(',')[0]})"
            letters = max(letters, 2400)
        found[task.name] = {
            "problems": count,
            "answers": -(-count // shards) * request["seeds"],
            "max_new_tokens": most,
            "usual_tokens": _usual(task, most),
            "data": told,
        }
    return found, letters


def _usual(task: Task, most: int) -> int:
    return min(most, USUAL_TOKENS.get(task.name.split("-")[0], most // 2))


def _seconds(
    arm: Arm, task: Mapping[str, Any], bound: bool, memory: Footprint, target: Part, drafter: Part, speed: float
) -> float:
    """Of all answers of an arm to a task; bound: every answer as long as it may be, and nothing ever accepted."""
    size = memory.target / max(target.numbers, 1)
    target_bytes = memory.target - size * target.looked_up
    drafted = memory.drafter - size * drafter.looked_up
    itself = drafter.unit == 1 and drafter.per_position == 0 and drafter.k > 0
    passes = 1 if drafter.unit or itself else arm.k
    block = target_bytes + (0 if arm.k == 0 else target_bytes if itself else drafted * passes)
    tau = 1.0 if bound else min(arm.k + 1.0, USUAL_TAU[arm.kind])
    tokens = task["max_new_tokens"] if bound else task["usual_tokens"]
    return float(task["answers"] * tokens * block / speed / tau)


def _gpu_bandwidth() -> float | None:
    """GB/s of the GPU here, from its clock and the width of its bus; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    card = torch.cuda.get_device_properties(0)
    clock, width = getattr(card, "memory_clock_rate", 0), getattr(card, "memory_bus_width", 0)
    return 2 * clock * width / 8e6 or None


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def checked(request: Mapping[str, Any], memory: Footprint, copies: int) -> Sequence[str]:
    """What stands in the way here: too little memory on the GPU that would be used."""
    import torch

    if request["where"]["device"] == "cpu" or not torch.cuda.is_available():
        return []
    have = torch.cuda.get_device_properties(0).total_memory
    wanted = memory.total * copies + memory.laws
    return [f"the GPU has {have / 2**30:.1f} GiB, wanted {wanted / 2**30:.1f}"] if wanted > have else []
