"""Runs a benchmark: every arm answers every problem under every seed, interleaved, each answer recorded at once.

Arms answer a prompt one after the other in an order that rotates from prompt to prompt, so that no arm always runs on a
machine that another has warmed. The plan is a pure function of the configuration: a run that was killed goes on where
it was, and what it lacks is exactly what has no record.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from nsd.bench.arms import Arm, rotated
from nsd.bench.bundle import Key, RunWriter
from nsd.bench.engine import Answer, Engine
from nsd.bench.metrics import Counters
from nsd.bench.task import Problem, Task
from nsd.errors import ConfigError

WARM_UP_TOKENS = 8
DEFAULT_MAX_NEW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt under one seed: its number, and the order in which the arms answer it."""

    number: int
    task: Task
    problem: Problem
    seed: int
    order: tuple[Arm, ...]

    def key(self, arm: Arm) -> Key:
        """The key of an arm's record."""
        return Key(arm.name, self.task.name, self.problem.id, self.seed)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be answered: problems by task, by which arms, under which seeds, with which common settings.

    max_new_tokens None takes each task's own limit; shard (i, n) takes every n-th prompt from the i-th, counted from 1.
    origins says of each task where its rows are from.
    """

    problems: Sequence[tuple[Task, Sequence[Problem]]]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS
    shard: tuple[int, int] = (1, 1)
    origins: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index, count = self.shard
        if not 1 <= index <= count:
            raise ConfigError(f"shard is {index}/{count}, wanted 1 <= i <= n; try --shard 1/4")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds are {list(self.seeds)}, wanted at least one and each once; try --seeds 5")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise ConfigError(
                f"max_new_tokens is {self.max_new_tokens}, wanted an integer >= 1; try --max-new-tokens 256"
            )

    def turns(self) -> Iterator[Turn]:
        """All prompts in order: seed by seed, and within a seed the tasks one after the other."""
        index, count = self.shard
        number = 0
        for seed in self.seeds:
            for task, problems in self.problems:
                for problem in problems[index - 1 :: count]:
                    yield Turn(number, task, problem, seed, rotated(self.arms, number))
                    number += 1

    def limit(self, task: Task) -> int:
        """New tokens that an answer of a task may have."""
        return task.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens

    def config(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """All that decides what is recorded; a run goes on only under the same."""
        return {
            "engine": dict(facts),
            "arms": [arm.as_json() for arm in self.arms],
            "sd_baseline": sorted({str(a.settings["rule"]) for a in self.arms if a.kind in ("sd", "match")}),
            "tie_variant": sorted({str(a.settings.get("ties", "all")) for a in self.arms if a.kind == "nsd"}),
            "tasks": {task.name: {**task.options, "max_new_tokens": self.limit(task)} for task, _ in self.problems},
            "problems": {task.name: fingerprint(problems) for task, problems in self.problems},
            "origins": dict(self.origins),
            "seeds": list(self.seeds),
            "shard": list(self.shard),
            "settings": dict(self.settings),
            "speed": {"headline": "prefill in", "beside": "decode only", "statistic": "ratio of totals"},
            "order": "rotating",
            "warm_up_tokens": WARM_UP_TOKENS,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: records done of all, seconds left by the pace so far, tau by arm so far."""

    done: int
    total: int
    seconds_left: float
    tau: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: records done of all; interrupted by Ctrl-C or complete."""

    done: int
    total: int

    @property
    def complete(self) -> bool:
        """Whether every answer is recorded."""
        return self.done == self.total


def run(plan: Plan, engine: Engine, bundle: RunWriter, watch: Callable[[Progress], None] | None = None) -> Outcome:
    """Answer what has no record yet. Ctrl-C ends it with what is recorded; the answer it broke off is not.

    Finishes the bundle when every answer is recorded.
    """
    turns = list(plan.turns())
    total = len(turns) * len(plan.arms)
    session = len(bundle.manifest["sessions"]) - 1
    clock = _Clock(plan.arms, total, bundle.done.values())
    try:
        _warm_up(plan, engine, turns, bundle)
        for turn in turns:
            for place, arm in enumerate(turn.order):
                if turn.key(arm) in bundle.done:
                    continue
                started = monotonic()
                answer = engine.answer(turn.problem, settings_of(plan, turn, arm), drafting=arm.k > 0)
                record = record_of(turn, place, arm, answer, session)
                _keep_trace(bundle, turn, arm, answer)
                bundle.append(record)
                clock.add(arm.name, monotonic() - started, answer.counters)
                if watch is not None:
                    watch(clock.progress())
    except KeyboardInterrupt:
        return Outcome(len(bundle.done), total)
    if len(bundle.done) == total:
        bundle.finish()
    return Outcome(len(bundle.done), total)


def settings_of(plan: Plan, turn: Turn, arm: Arm) -> dict[str, Any]:
    """The settings of one answer. Its seed is of the problem and the run's seed, the same for all arms."""
    own = {**arm.settings, **({"k": arm.k} if arm.k else {"rule": "sd"})}
    return {**plan.settings, **own, "max_new_tokens": plan.limit(turn.task), "seed": seed_of(turn)}


def seed_of(turn: Turn) -> int:
    """64 bits from the run's seed, the task and the problem, so that problems do not share their chance."""
    name = f"{turn.seed}/{turn.task.name}/{turn.problem.id}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def record_of(turn: Turn, place: int, arm: Arm, answer: Answer, session: int) -> dict[str, Any]:
    """One line of the run: key, order, answer, score, counters, fidelity."""
    score = turn.task.score(turn.problem, answer.text)
    return {
        **turn.key(arm)._asdict(),
        "turn": turn.number,
        "place": place,
        "session": session,
        "decode_seed": seed_of(turn),
        "text": answer.text,
        "tokens": answer.tokens,
        "finish_reason": answer.finish_reason,
        "correct": score.correct,
        "extracted": score.extracted,
        "detail": score.detail,
        "counters": answer.counters.as_json(),
        "fidelity": _without_infinity(dict(answer.fidelity)),
    }


def trace_name(key: Key) -> str:
    """Where the trace of an answer lies in a run's folder."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).hexdigest()[:16]
    return f"traces/{digest}.jsonl"


def fingerprint(problems: Sequence[Problem]) -> dict[str, Any]:
    """How many problems there are, and the SHA-256 of their ids, prompts and references."""
    digest = hashlib.sha256()
    for p in problems:
        digest.update(repr((p.id, p.prompt, p.chat, p.reference)).encode())
    return {"count": len(problems), "sha256": digest.hexdigest()}


def session_facts(command: Sequence[str], sandboxed: bool = False) -> dict[str, Any]:
    """Where and how this process runs: versions, source revision, machine, command; what the sandbox keeps apart."""
    import torch

    from nsd.trace.record import surroundings

    cards = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    hardware = {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory_gb(),
        "load": _load(),
        "gpus": cards,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    told = surroundings()
    found = {"versions": told["versions"], "revision": told["revision"], "hardware": hardware, "command": list(command)}
    if sandboxed:
        from nsd.bench.sandbox import isolation

        found["sandbox"] = asdict(isolation())
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "not named"


def _load() -> float | None:
    """Processes that wanted a core in the minute before, on average: what else runs here."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _without_infinity(value: Any) -> Any:
    """The same with every number that JSON lacks as text."""
    if isinstance(value, dict):
        return {str(key): _without_infinity(inner) for key, inner in value.items()}
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value


def _warm_up(plan: Plan, engine: Engine, turns: Sequence[Turn], bundle: RunWriter) -> None:
    """Each arm answers a few tokens of the first prompt that is still to do; nothing of it is counted."""
    left = [turn for turn in turns if any(turn.key(arm) not in bundle.done for arm in turn.order)]
    for arm in plan.arms if left else ():
        settings = {**settings_of(plan, left[0], arm), "max_new_tokens": WARM_UP_TOKENS}
        engine.answer(left[0].problem, settings, drafting=arm.k > 0)


def _keep_trace(bundle: RunWriter, turn: Turn, arm: Arm, answer: Answer) -> None:
    """Write a trace before its record, so that a record's trace is always whole; one left by a kill is replaced."""
    if answer.save is None:
        return
    path = bundle.folder / trace_name(turn.key(arm))
    try:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        answer.save(path)
    except OSError as error:
        raise bundle.unwritable(error) from error


class _Clock:
    """Mean seconds, answers and counters by arm, from which the rest is estimated."""

    def __init__(self, arms: Sequence[Arm], total: int, done: Iterable[Mapping[str, Any]]) -> None:
        self._total = total
        self._seconds = {arm.name: 0.0 for arm in arms}
        self._timed = {arm.name: 0 for arm in arms}
        self._answers = {arm.name: 0 for arm in arms}
        self._counters = {arm.name: Counters() for arm in arms}
        for record in done:
            self._count(record["arm"], Counters.from_json(record["counters"]))

    def add(self, arm: str, seconds: float, counters: Counters) -> None:
        """Count one answer of this process."""
        self._seconds[arm] += seconds
        self._timed[arm] += 1
        self._count(arm, counters)

    def _count(self, arm: str, counters: Counters) -> None:
        self._answers[arm] += 1
        self._counters[arm] += counters

    def progress(self) -> Progress:
        """Seconds left: for each arm its mean so far (that of all arms, where it has none) times what it has to do."""
        each = self._total // len(self._answers)
        mean = sum(self._seconds.values()) / max(sum(self._timed.values()), 1)
        left = 0.0
        for arm, answers in self._answers.items():
            own = self._seconds[arm] / self._timed[arm] if self._timed[arm] else mean
            left += (each - answers) * own
        taus = {arm: counters.stats.tau for arm, counters in self._counters.items()}
        return Progress(sum(self._answers.values()), self._total, left, taus)
