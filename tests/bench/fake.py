"""A fake engine, tasks without data, and plans over them: decoding whose every number is known and takes no time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsd.bench.arms import Arm, arms_of
from nsd.bench.bundle import RunWriter, StoredRun, read_run
from nsd.bench.engine import Answer
from nsd.bench.metrics import Counters
from nsd.bench.runner import Plan, run
from nsd.bench.task import Problem, Score, Task
from nsd.events import Block, Committed, Drawn, FinishReason, Origin, Tested, Timing

SESSION = {"versions": {"python": "3"}, "revision": "abc", "hardware": {"cpu": "one", "threads": 1}, "command": ["nsd"]}


class FakeTask(Task):
    """Problems whose answer is right if the text says so."""

    title, metric, size, max_new_tokens, source = "Fake", "accuracy", 0, 16, "made up"

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # a class variable of real tasks

    def problem(self, index: int, row: Mapping[str, Any]) -> Problem:
        return Problem(f"{self.name}/{index}", f"question {index}", True, index)

    def score(self, problem: Problem, text: str) -> Score:
        return Score(text.endswith("right"), text.split()[-1], "says so")

    def problems(self, count: int) -> list[Problem]:
        return [self.problem(index, {}) for index in range(count)]


def blocks_of(rng: random.Random, k: int, capable: float, speed: float) -> list[Block]:
    """Events of one made-up answer: block 0 is the prefill; with k > 0 some drafts are kept by ratio or by the set."""
    first = Committed(0, Origin.TARGET, "")
    events = [_block(0, 0, (), (), None, (first,), rng, speed)]
    position = 1
    for number in range(1, rng.randint(2, 5)):
        tested, kept = [], []
        for place in range(k):
            R, ES = rng.uniform(0, 0.6), rng.uniform(0, 0.3)
            origin = rng.choices((Origin.RATIO, Origin.RESCUED, Origin.REJECTED), (capable, capable / 3, 0.4))[0]
            values = {"R": R, "ES": min(R, ES), "eps": min(R, ES), "lam": 1.0}
            rank = None if origin is Origin.RATIO else rng.choice((1, 2, 4, 8, 40, 700))
            tested.append(Tested(position + place, 1, origin, rng.random(), 0.5, 0.5, rank=rank, **values))
            if origin is Origin.REJECTED:
                break
            kept.append(Committed(1, origin, ""))
        end = Origin.TARGET if k == 0 else Origin.BONUS if len(kept) == k else Origin.RECOVERED
        committed = (*kept, Committed(2, end, ""))
        drawn = Drawn(position + len(kept), 2, end, rng.random(), 0.5)
        events.append(_block(number, position, (1,) * k, tuple(tested), drawn, committed, rng, speed))
        position += len(committed)
    return events


def _block(
    number: int,
    position: int,
    drafted: tuple[int, ...],
    tested: tuple[Tested, ...],
    drawn: Drawn | None,
    committed: tuple[Committed, ...],
    rng: random.Random,
    speed: float,
) -> Block:
    laps = [rng.uniform(0.001, 0.02) / speed for _ in range(4)]
    return Block(
        request=0,
        number=number,
        position=position,
        drafted=drafted,
        tested=tested,
        drawn=drawn,
        committed=committed,
        rejected_text="",
        guard=False,
        invalid=False,
        finish_reason=FinishReason.EOS if number else None,
        timing=Timing(*laps),
        batch=1,
        seconds_since_start=sum(laps),
    )


class FakeEngine:
    """Answers from the seed of the request alone; counts calls, and keeps the events of each answer by its text."""

    def __init__(self, version: str = "1") -> None:
        self.version, self.asked = version, 0
        self.events: dict[str, list[Block]] = {}

    def proposals(self, k: int | None, block_length: int | None = None) -> int:
        return block_length - 1 if block_length is not None else 3 if k is None else k

    def unit(self, k: int) -> int:
        return k + 1

    def kinds(self) -> tuple[str, ...]:
        return ("ar", "sd", "nsd")

    def facts(self) -> dict[str, Any]:
        names = {"target": "fake-target", "drafter": "fake-drafter", "draft_law": "sampled", "k_unit": "proposals + 1"}
        told = {"dtype": "float64", "device": "cpu", "drafting_mode": "sampled", "gate": "off", "mask_id": 7}
        return {"engine": "fake", **names, **told, "target_hash": {"weights": self.version}, "drafter_hash": {}}

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        self.asked += 1
        theta = settings.get("theta", 0.0)
        k = settings.get("k", 0)
        rng = random.Random(f"{settings['seed']}/{theta}/{k}/{settings['rule']}")
        blocks = blocks_of(rng, k, 0.5 + theta, 1 + k / 4 + theta)
        spent = sum(t.eps or 0.0 for b in blocks for t in b.tested)
        relaxed = settings["rule"] == "nsd"
        fidelity = {
            "guarantee": None if relaxed else 1.0,
            "ES_is": "exact" if k else None,
            "ledger": {"Q": 1 - min(spent, 1) / 2, "sum_eps": spent, "max_eps": 0.3},
            "weight": 0.5 if relaxed else 1.0,
        }
        verdict = "right" if rng.random() < 0.7 else "wrong"
        text = f"{problem.id} {settings['seed']} {settings['rule']} {theta} {k} {verdict}"
        self.events[text] = blocks
        tokens = sum(len(b.committed) for b in blocks)
        return Answer(text, tokens, "eos", Counters.of(blocks, fidelity), fidelity)


def grid(thetas: tuple[float, ...] = (0.85, 0.95), ks: tuple[int, ...] = (2, 4)) -> tuple[Arm, ...]:
    engine = FakeEngine()
    return arms_of(("ar", "sd", "nsd"), engine.proposals, engine.unit, {"rule": "nsd"}, thetas, ks)


def plan(count: int = 8, seeds: tuple[int, ...] = (0,), arms: tuple[Arm, ...] | None = None, **more: Any) -> Plan:
    tasks = [FakeTask("maths"), FakeTask("code")]
    settings = {"temperature": 1.0, "top_p": 1.0}
    return Plan([(t, t.problems(count)) for t in tasks], arms or grid(), seeds, settings, **more)


def finished(root: Path, name: str = "whole", engine: FakeEngine | None = None, **more: Any) -> StoredRun:
    """A complete run of the fake engine, read back."""
    engine = engine or FakeEngine()
    wanted = plan(**more)
    with RunWriter(root, name, wanted.config(engine.facts()), SESSION) as bundle:
        assert run(wanted, engine, bundle).complete
    return read_run(root / name)
