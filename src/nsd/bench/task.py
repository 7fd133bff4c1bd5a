"""What a benchmark task is: problems with a prompt and a reference, and a score for one answer.

A task is found by name (`find_task`), loads its problems from local JSONL or from a pinned revision of a public data
set, and scores text. It knows nothing of decoding; the loop that decodes knows nothing of prompts. All values are
plain JSON, so a problem can be written into a manifest as it stands.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from nsd.errors import ConfigError, NSDError

Row = Mapping[str, Any]  # one line of a data file, as its origin wrote it


class TaskDataError(NSDError):
    """The data of a task are missing, unreadable, or not the rows they should be."""


@dataclass(frozen=True)
class Problem:
    """One question: `prompt` is a user turn if `chat`, else text to continue; `reference` is what `score` needs."""

    id: str
    prompt: str
    chat: bool
    reference: Any  # plain JSON; its form is the task's own
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """The judgement of one answer: what was read out of the text (None if nothing) and why it counts or not."""

    correct: bool
    extracted: str | None
    detail: str


@dataclass(frozen=True)
class HubSource:
    """A public data set at one revision: `path` and `config` as the `datasets` library names them."""

    path: str
    config: str | None
    split: str
    revision: str  # full git hash, so that a run can be repeated
    file: str | None = (
        None  # one JSONL file of it, for sets whose own loader is a script (the library no longer runs those)
    )


class Task(ABC):
    """Problems and their scoring under one name; a subclass states the source of its prompt and of its rule."""

    name: str
    title: ClassVar[str]
    metric: ClassVar[str]  # "accuracy" or "pass@1"
    size: ClassVar[int]  # rows of the whole set; a whole file of another size is refused
    max_new_tokens: ClassVar[int] = 2048  # a suggestion; the run's own setting wins
    source: ClassVar[str]
    files: ClassVar[tuple[str, ...]] = ()  # names looked for in the data folder, in this order
    hub: ClassVar[HubSource | None] = None

    @property
    def options(self) -> dict[str, Any]:
        """What besides the name fixes the prompts; belongs in the manifest of a run."""
        return {}

    @abstractmethod
    def problem(self, index: int, row: Row) -> Problem:
        """One row of the data as a problem; a KeyError names a field that the row lacks."""

    @abstractmethod
    def score(self, problem: Problem, text: str) -> Score:
        """Judge the text that a model gave for a problem."""

    def keep(self, row: Row) -> bool:
        """Whether a row belongs to the evaluated split; files may hold others beside it."""
        return True

    def ready(self) -> None:  # noqa: B027 - most tasks need nothing
        """Raise now what scoring would raise later (a missing library, no sandbox), before anything is decoded."""

    def check_limit(self, limit: int | None) -> None:
        """Refuse a limit that leaves no problem."""
        if limit is not None and limit < 1:
            raise ConfigError(f"got limit {limit}, wanted at least 1 problem; leave it out to take all of {self.name}")

    def load(self, data_dir: Path | None = None, limit: int | None = None) -> list[Problem]:
        """The first `limit` problems (all if None), from `data_dir` if given, else from the pinned public revision."""
        self.check_limit(limit)
        rows = self._local(data_dir) if data_dir is not None else self._hub()
        kept = [(where, row) for where, row in rows if self.keep(row)]
        if self.size and len(kept) != self.size and not self._sample(data_dir):
            origin = self.origin(data_dir).get("file", "the data set")
            raise TaskDataError(
                f"{origin} gives {len(kept)} problems of {self.name}, wanted {self.size}; fetch it again, "
                f"or name the file {self._stem}_sample.jsonl to use a part on purpose"
            )
        return [self._read(index, where, row) for index, (where, row) in enumerate(kept[:limit])]

    def origin(self, data_dir: Path | None) -> dict[str, Any]:
        """Where the rows come from: a local file with its SHA-256, a public revision, or this program."""
        told: dict[str, Any] = {"prompt_and_scoring": self.source}
        if not self.files:
            return {
                **told,
                "data": ", ".join(["made here", *(f"{name} {value}" for name, value in self.options.items())]),
            }
        if data_dir is not None:
            path = self._find(data_dir)
            return {**told, "file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        if self.hub is None:
            return told
        return {**told, "data": self.hub.path, "split": self.hub.split, "revision": self.hub.revision}

    def available(self, data_dir: Path | None) -> bool:
        """Whether local data are given; tasks that make their own problems always say yes."""
        return data_dir is not None and any((data_dir / name).is_file() for name in self._names())

    def _names(self) -> tuple[str, ...]:
        return (*self.files, f"{self._stem}_sample.jsonl")

    @property
    def _stem(self) -> str:
        return self.name.split("-")[0]  # variants of a task share their data

    def _sample(self, data_dir: Path | None) -> bool:
        return data_dir is not None and self._find(data_dir).name.endswith("_sample.jsonl")

    def _find(self, data_dir: Path) -> Path:
        for name in self._names():
            if (data_dir / name).is_file():
                return data_dir / name
        raise TaskDataError(
            f"no data of {self.name} in {data_dir}, wanted {' or '.join(self.files)}; put it there, "
            f"or leave out --data-dir to fetch the pinned revision with: pip install datasets"
        )

    def _local(self, data_dir: Path) -> list[tuple[str, Row]]:
        return self._rows(self._find(data_dir))

    def _rows(self, path: Path) -> list[tuple[str, Row]]:
        """The rows of one JSONL file, each with its place."""
        rows: list[tuple[str, Row]] = []
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
            raise TaskDataError(f"{path} {what}, wanted one JSON object a line; fetch the file again") from error
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise TaskDataError(
                    f"{path} line {number} is not JSON ({error}), wanted one object a line; fetch the file again"
                ) from error
            if not isinstance(row, dict):
                raise TaskDataError(
                    f"{path} line {number} holds {type(row).__name__}, wanted a JSON object; fetch it again"
                )
            rows.append((f"{path} line {number}", row))
        return rows

    def _hub(self) -> list[tuple[str, Row]]:
        if self.hub is None:
            raise TaskDataError(
                f"{self.name} has no public revision pinned here, wanted a local file {' or '.join(self.files)}; "
                f"type: nsd bench --task {self.name} --data-dir FOLDER"
            )
        try:
            datasets = importlib.import_module("datasets")
        except ImportError as error:
            raise TaskDataError(
                f"{self.name} needs its data: neither --data-dir nor the datasets library is there; "
                f"type: pip install datasets, or --data-dir FOLDER with {' or '.join(self.files)}"
            ) from error
        hub = self.hub
        try:
            if hub.file is not None:
                address = f"hf://datasets/{hub.path}@{hub.revision}/{hub.file}"
                rows = datasets.load_dataset("json", data_files=address, split=hub.split)
            else:
                rows = datasets.load_dataset(hub.path, hub.config, split=hub.split, revision=hub.revision)
        except Exception as error:  # the library raises a dozen kinds, all meaning that no data came
            raise TaskDataError(
                f"could not fetch {hub.path} at {hub.revision[:12]} ({type(error).__name__}: {str(error)[:120]}), "
                f"wanted its {hub.split} split; type --data-dir FOLDER with {' or '.join(self.files)}"
            ) from error
        return [(f"{hub.path} row {number}", dict(row)) for number, row in enumerate(rows)]

    def _read(self, index: int, where: str, row: Row) -> Problem:
        try:
            return self.problem(index, row)
        except KeyError as error:
            raise TaskDataError(
                f"{where} has no field {error}, wanted the rows of {self.source_name}; fetch the file again"
            ) from error

    @property
    def source_name(self) -> str:
        """The data set in a few words, for messages."""
        return self.hub.path if self.hub is not None else self.title


# name -> "module:class" and options; nothing is imported before it is asked for
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "gsm8k": ("nsd.bench.tasks.gsm8k:Gsm8k", {}),
    "math500": ("nsd.bench.tasks.math500:Math500", {}),
    "humaneval": ("nsd.bench.tasks.humaneval:HumanEval", {"chat": True}),
    "humaneval-completion": ("nsd.bench.tasks.humaneval:HumanEval", {"chat": False}),
    "mbpp": ("nsd.bench.tasks.mbpp:Mbpp", {"show_tests": True}),
    "mbpp-bare": ("nsd.bench.tasks.mbpp:Mbpp", {"show_tests": False}),
    "aime25": ("nsd.bench.tasks.aime25:Aime25", {}),
    "livecodebench": ("nsd.bench.tasks.livecodebench:LiveCodeBench", {}),
    "mini-math": ("nsd.bench.tasks.mini_math:MiniMath", {}),
    "mini-code": ("nsd.bench.tasks.mini_code:MiniCode", {}),
    "toy": ("nsd.bench.tasks.toy:Toy", {}),
}

# suite -> tasks; aime25 joins the default suite only where its data are given
SUITES: dict[str, tuple[str, ...]] = {
    "default": ("gsm8k", "math500", "humaneval", "mbpp", "aime25"),
    "miniature": ("mini-math", "mini-code"),
    "toy": ("toy",),
}


def find_task(name: str) -> Task:
    """The task of this name."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, [*TASKS, *SUITES], n=1)
        hint = f"did you mean {near[0]}?" if near else "type one of them"
        raise ConfigError(f"got task {name!r}, wanted one of {', '.join(TASKS)}; {hint}")
    address, options = TASKS[name]
    module, _, attribute = address.partition(":")
    task: Task = getattr(importlib.import_module(module), attribute)(**options)
    return task


def find_tasks(names: Sequence[str], data_dir: Path | None = None) -> list[Task]:
    """The tasks of these names and suites, in this order, each once; a name may be several with commas."""
    wanted: dict[str, Task] = {}
    for name in (part.strip() for listed in names for part in listed.split(",")):
        for member in SUITES.get(name, (name,)):
            task = find_task(member)
            optional = name == "default" and member == "aime25" and not task.available(data_dir)
            if not optional:
                wanted.setdefault(member, task)
    return list(wanted.values())
