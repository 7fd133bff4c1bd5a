"""Runs of a fake engine: complete, interleaved, and the same after twenty kills as without any."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nsd.bench.arms import Arm, arms_of, baseline, main_arm, rotated
from nsd.bench.bundle import PARTIAL, BenchError, Key, RunWriter, read_run
from nsd.bench.engine import Answer
from nsd.bench.report import report_of
from nsd.bench.runner import Progress, run, seed_of, session_facts
from nsd.bench.sandbox import isolation
from nsd.bench.task import Problem, find_task
from nsd.errors import ConfigError
from tests.bench.fake import SESSION, FakeEngine, finished, grid, plan


class SlowEngine(FakeEngine):
    """Takes a moment for each answer, so that a kill can fall into one."""

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        time.sleep(0.001)
        return super().answer(problem, settings, drafting)


def _work(root: Path) -> None:
    engine, wanted = SlowEngine(), plan(count=20)
    with RunWriter(root, "killed", wanted.config(engine.facts()), SESSION) as bundle:
        run(wanted, engine, bundle)


def _wait_for(path: Path, process: Any, more: int) -> None:
    """Until a file has so many more lines than now, or its writer has ended."""

    def lines() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    before = lines()
    while process.is_alive() and lines() < before + more:
        time.sleep(0.0005)


def timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what depends on how often the run was begun."""
    return {name: value for name, value in record.items() if name != "session"}


def test_twenty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """SIGKILL after random times, from before the first record on; then to the end; the same as an unbroken run."""
    rng, context = random.Random(7), multiprocessing.get_context("fork")
    kills, recorded = 0, 0
    while kills < 20:
        process = context.Process(target=_work, args=(tmp_path,))
        process.start()
        # However slow the machine: after so many more records, and a moment that falls anywhere between two.
        _wait_for(tmp_path / f"killed{PARTIAL}" / "records.jsonl", process, rng.choice((0, 0, 1, 2, 4, 7)))
        time.sleep(rng.uniform(0.0, 0.003))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            break
        kills += 1
        folder = tmp_path / f"killed{PARTIAL}"
        if (folder / "manifest.json").exists():
            stored = read_run(folder)
            assert len(stored.records) >= recorded
            recorded = len(stored.records)
            assert max(Counter(map(Key.of, stored.records)).values(), default=1) == 1
    assert kills == 20, "the run must be long enough for twenty kills"
    assert 0 < recorded < 20 * 2 * len(grid())
    _work(tmp_path)
    stored, whole = read_run(tmp_path / "killed"), finished(tmp_path, count=20)
    assert [timeless(r) for r in stored.records] == [timeless(r) for r in whole.records]
    assert len(stored.manifest["sessions"]) > 5


def test_every_arm_answers_every_problem_under_every_seed_once(tmp_path: Path) -> None:
    stored = finished(tmp_path, count=5, seeds=(0, 1, 2))
    wanted = {
        Key(arm.name, task, f"{task}/{index}", seed)
        for arm in grid()
        for task in ("maths", "code")
        for index in range(5)
        for seed in (0, 1, 2)
    }
    assert Counter(map(Key.of, stored.records)) == Counter(wanted)


def test_arms_are_interleaved_and_each_begins_equally_often(tmp_path: Path) -> None:
    arms = grid()
    stored = finished(tmp_path, count=len(arms))
    turns: dict[int, list[str]] = {}
    for record in stored.records:
        assert record["place"] == len(turns.setdefault(record["turn"], []))
        turns[record["turn"]].append(record["arm"])
    assert all(sorted(order) == sorted(arm.name for arm in arms) for order in turns.values())
    assert Counter(order[0] for order in turns.values()) == {arm.name: 2 for arm in arms}


def test_arms_share_the_seed_of_a_problem_and_problems_do_not(tmp_path: Path) -> None:
    seeds: dict[tuple[str, int], set[int]] = {}
    for record in finished(tmp_path, count=4, seeds=(0, 1)).records:
        seeds.setdefault((record["problem"], record["seed"]), set()).add(record["decode_seed"])
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds) == 16


def test_shards_are_disjoint_and_complete() -> None:
    whole = [(t.task.name, t.problem.id) for t in plan(count=7).turns()]
    parts = [(t.task.name, t.problem.id) for i in (1, 2, 3) for t in plan(count=7, shard=(i, 3)).turns()]
    assert sorted(parts) == sorted(whole)
    assert [seed_of(t) for t in plan(count=1).turns()] == [seed_of(t) for t in plan(count=3, shard=(1, 3)).turns()]


def test_a_warm_up_is_short_and_not_recorded(tmp_path: Path) -> None:
    engine = FakeEngine()
    stored = finished(tmp_path, engine=engine, count=2)
    assert engine.asked == len(stored.records) + len(grid())


def test_ctrl_c_leaves_a_valid_partial_run(tmp_path: Path) -> None:
    class Interrupted(FakeEngine):
        def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
            if self.asked == 30:
                raise KeyboardInterrupt
            return super().answer(problem, settings, drafting)

    engine, wanted = Interrupted(), plan()
    with RunWriter(tmp_path, "broken", wanted.config(engine.facts()), SESSION) as bundle:
        outcome = run(wanted, engine, bundle)
    assert not outcome.complete
    assert outcome.done == len(read_run(tmp_path / f"broken{PARTIAL}").records) == 30 - len(grid())
    other = FakeEngine()
    with RunWriter(tmp_path, "broken", wanted.config(other.facts()), SESSION) as bundle:
        assert run(wanted, other, bundle).complete


def test_a_trace_that_finds_no_room_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    """The trace is written first, so its answer has no record, and is decoded again once there is room."""

    def full(path: Path) -> None:
        path.write_text("half", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    class Traced(FakeEngine):
        def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
            save = full if self.asked == len(grid()) + 3 else Path.touch
            return replace(super().answer(problem, settings, drafting), save=save)

    engine, wanted = Traced(), plan(count=2)
    message = r"the disk is full at record 4 of run full.*the 3 before it are safe"
    with (
        RunWriter(tmp_path, "full", wanted.config(engine.facts()), SESSION) as bundle,
        pytest.raises(BenchError, match=message),
    ):
        run(wanted, engine, bundle)
    assert len(read_run(tmp_path / f"full{PARTIAL}").records) == 3
    other = FakeEngine()
    with RunWriter(tmp_path, "full", wanted.config(other.facts()), SESSION) as bundle:
        assert run(wanted, other, bundle).complete


def test_other_weights_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path, "one", plan().config(FakeEngine().facts()), SESSION):
        pass
    with pytest.raises(BenchError, match=r'engine.target_hash.weights: "1" then, "2" now'):
        RunWriter(tmp_path, "one", plan().config(FakeEngine("2").facts()), SESSION)


def test_other_prompts_do_not_go_on_with_a_run(tmp_path: Path) -> None:
    facts = FakeEngine().facts()
    with RunWriter(tmp_path, "one", plan(count=4).config(facts), SESSION):
        pass
    with pytest.raises(BenchError, match=r"problems.maths.count: 4 then, 5 now"):
        RunWriter(tmp_path, "one", plan(count=5).config(facts), SESSION)


def test_progress_counts_down_with_tau(tmp_path: Path) -> None:
    seen: list[Progress] = []
    engine, wanted = SlowEngine(), plan(count=4)
    with RunWriter(tmp_path, "one", wanted.config(engine.facts()), SESSION) as bundle:
        run(wanted, engine, bundle, seen.append)
    assert [p.done for p in seen] == list(range(1, 8 * len(grid()) + 1))
    assert seen[-1].seconds_left == 0 and seen[0].seconds_left > 0
    tau = seen[-1].tau
    assert tau["ar"] == 1.0 and tau["sd-k4"] is not None and tau["sd-k4"] > 1


def test_the_manifest_says_how_it_was_run(tmp_path: Path) -> None:
    config = finished(tmp_path).manifest["config"]
    assert config["sd_baseline"] == ["sd"] and config["tie_variant"] == ["all"] and config["order"] == "rotating"
    assert config["engine"]["gate"] == "off" and config["engine"]["mask_id"] == 7 and config["engine"]["k_unit"]
    assert config["speed"]["headline"] == "prefill in"
    facts = session_facts(["nsd", "bench"])
    assert set(facts) == {"versions", "revision", "hardware", "command"} and facts["hardware"]["threads"] >= 1


def test_the_manifest_says_where_rows_come_from_and_what_programs_are_kept_from(tmp_path: Path) -> None:
    """A file with its hash; a data set with its revision; nothing but this program; and the sandbox of code tasks."""
    folder = Path(__file__).parent / "fixtures"
    for name in ("gsm8k", "math500", "humaneval", "mbpp", "aime25", "livecodebench"):
        task = find_task(name)
        local, hub = task.origin(folder), task.origin(None)
        assert local["file"] == f"{name}_sample.jsonl"
        assert local["sha256"] == hashlib.sha256((folder / local["file"]).read_bytes()).hexdigest()
        assert task.hub is not None and hub["revision"] == task.hub.revision and len(hub["revision"]) == 40
        assert local["prompt_and_scoring"] == hub["prompt_and_scoring"] == task.source
    assert find_task("toy").origin(folder) == find_task("toy").origin(None)
    assert find_task("toy").origin(None)["data"].startswith("made here, seed ")
    assert session_facts(["nsd"], sandboxed=True)["sandbox"] == asdict(isolation())
    wanted = plan(origins={"maths": {"file": "maths.jsonl", "sha256": "ab" * 32}})
    with RunWriter(tmp_path, "told", wanted.config(FakeEngine().facts()), SESSION) as bundle:
        run(wanted, FakeEngine(), bundle)
    text = report_of([read_run(tmp_path / "told")]).markdown()
    assert "maths.jsonl abababab" in text and "no programs were run" in text
    session = {**SESSION, "sandbox": {"network": True, "pids": True, "files": False, "own_user": True}}
    with RunWriter(tmp_path, "boxed", wanted.config(FakeEngine().facts()), session) as bundle:
        run(wanted, FakeEngine(), bundle)
    assert "not kept from: writing outside" in report_of([read_run(tmp_path / "boxed")]).markdown()


def test_the_grid_has_an_exact_arm_for_each_k() -> None:
    arms = grid((0.85, 0.95), (4, 2))
    names = ["ar", "sd-k2", "nsd-theta0.85-k2", "nsd-theta0.95-k2", "sd-k4", "nsd-theta0.85-k4", "nsd-theta0.95-k4"]
    assert [arm.name for arm in arms] == names
    main = main_arm(arms)
    assert main is not None and main.name == "nsd-theta0.95-k4"
    assert [found.name for kind in ("ar", "sd") if (found := baseline(main, arms, kind))] == ["ar", "sd-k4"]
    assert [arm.block for arm in arms] == [0, 3, 3, 3, 5, 5, 5]
    assert {rotated(arms, turn)[0].name for turn in range(7)} == set(names)
    assert Arm.from_json(main.as_json()) == main


def test_blocks_count_in_the_mechanisms_own_unit() -> None:
    engine = FakeEngine()
    arms = arms_of(("sd", "match", "nsd"), engine.proposals, engine.unit, {"rule": "topk"}, (), (), (8, 32))
    assert [(arm.name, arm.k, arm.block) for arm in arms if arm.kind == "match"] == [
        ("match-k7", 7, 8),
        ("match-k31", 31, 32),
    ]
    assert arms[2].name == "topk-k7" and arms[2].settings == {"rule": "topk"}


@pytest.mark.parametrize(
    ("kinds", "thetas", "ks", "blocks", "message"),
    [
        (("ar", "best"), (), (), (), "got arms ar, best"),
        ((), (), (), (), "got arms none"),
        (("nsd",), (0.9, 0.9), (), (), "arm nsd-theta0.9-k3 is there twice"),
        (("nsd",), (), (2,), (8,), "got -k and --block-length"),
        (("ar", "sd"), (), (0,), (), "k is 0, wanted at least 1"),
    ],
)
def test_impossible_grids_are_refused(
    kinds: tuple[str, ...], thetas: tuple[float, ...], ks: tuple[int, ...], blocks: tuple[int, ...], message: str
) -> None:
    engine = FakeEngine()
    with pytest.raises(ConfigError, match=message):
        arms_of(kinds, engine.proposals, engine.unit, {"rule": "nsd"}, thetas, ks, blocks)


@pytest.mark.parametrize("wrong", [{"shard": (3, 2)}, {"seeds": ()}, {"seeds": (1, 1)}, {"max_new_tokens": 0}])
def test_impossible_plans_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="wanted"):
        plan(**wrong)
