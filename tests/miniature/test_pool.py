"""Two processes side by side: jobs overlap, errors surface, nothing outlives its parent, a killed run goes on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.miniature.evaluate import read_rows
from benchmarks.miniature.family import Manifest, levels, nearest
from benchmarks.miniature.pool import Eta, Job, run_jobs
from benchmarks.miniature.training import anneals
from tests.miniature.jobs import cells, fail, leave, meet
from tests.miniature.models import run, written

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def started(what, folder):
    command = [sys.executable, "-m", "tests.miniature.jobs", what, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL)


def wait_for(found, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found():
            return
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def test_two_jobs_run_at_once_and_time_left_is_said(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    jobs = [Job("a", "s", 1.0, meet, (a, b)), Job("b", "s", 1.0, meet, (b, a))]
    told = []
    assert run_jobs(jobs, Eta({"s": 2.0, "later": 100.0}, 2), watch=told.append) == 0
    assert len(told) == 2 and all("min left of all" in line for line in told)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_ends_the_run_and_is_raised(workers, tmp_path):
    jobs = [Job("bad", "s", 1.0, fail, ("no good",))]
    jobs += [Job(f"good {i}", "s", 1.0, leave, (tmp_path / f"f{i}", "x")) for i in range(9)]
    with pytest.raises(ValueError, match="no good"):
        run_jobs(jobs, Eta({}, workers), watch=lambda line: None)
    assert len(list(tmp_path.iterdir())) < 9


def test_time_left_follows_what_was_measured():
    eta = Eta({"a": 100.0, "b": 50.0}, 2)
    assert eta.left() == 75
    eta.done(Job("x", "a", 40.0, leave, ()), 80.0)  # this machine takes twice as long
    assert eta.left() == (60 * 2 + 50 * 2) / 2
    eta.done(Job("z", "a", 20.0, leave, ()), 0.1)  # it was there already
    assert eta.left() == (40 * 2 + 50 * 2) / 2
    eta.plan("b", 10.0)
    eta.done(Job("y", "b", 5.0, leave, ()), 5.0)
    assert eta.left() == (40 * 2 + 5 * 1) / 2


def test_workers_end_with_their_parent(tmp_path):
    parent = started("linger", tmp_path)
    places = [tmp_path / f"pid{i}" for i in range(2)]
    wait_for(lambda: all(place.exists() for place in places))
    numbers = [int(place.read_text()) for place in places]
    parent.kill()
    parent.wait()
    wait_for(lambda: not any(alive(number) for number in numbers), 60)


def alive(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_killed_run_in_two_processes_goes_on(tmp_path):
    for name, kill in (("killed", True), ("whole", False)):
        folder = tmp_path / name
        target, draft = (str(written(model, folder / model)) for model in ("tiny-qwen3", "tiny-draft"))
        Manifest({"tiny": target}, {"tiny/draft-model:matched": draft}, {}).write(folder)
        process = started("cells", folder)
        if kill:
            wait_for(lambda: any((tmp_path / "killed" / "cells").glob("*.jsonl")))
            process.kill()
            process.wait()
            time.sleep(2.5)  # its workers look for it every second
            assert not (folder / "whole.json").exists()
            process = started("cells", folder)
        assert process.wait(900) == 0
    for cell in cells():
        rows = [read_rows(tmp_path / name / "cells" / f"{cell.key}.jsonl") for name in ("killed", "whole")]
        assert len(rows[0]) == 12
        assert [row["text"] for row in rows[0]] == [row["text"] for row in rows[1]]


def test_a_checkpoint_takes_the_name_of_the_nearest_level():
    assert [nearest(x) for x in (0.1, 0.62, 0.63, 0.8, 0.83, 1.0)] == ["low", "low", "middle", "middle", "high", "high"]
    assert levels({"a": 0.47, "b": 0.55, "c": 0.78, "d": 0.89, "e": 0.97}) == {"low": "a", "middle": "c", "high": "d"}
    assert levels({"a": 0.95, "b": 0.97}) == {"high": "a"}
    assert list(levels({"a": 0.9, "b": 0.2})) == ["low", "high"]
    assert levels({}) == {}


def test_anneals_are_told_by_what_lies_in_a_folder(tmp_path):
    for name, text in (("anneal-7", '{"accuracy": 0.6, "problems": 4}'), ("anneal-30", '{"accuracy": 0.8}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
        (tmp_path / name / "validation.json").write_text(text)
    (tmp_path / "anneal-99").mkdir()  # not finished
    assert anneals(tmp_path) == {str(tmp_path / "anneal-30"): 0.8, str(tmp_path / "anneal-7"): 0.6}


def test_an_anneal_from_earlier_can_be_made_later(tiny, tmp_path):
    from benchmarks.miniature.pretrain import Branch

    early, late = Branch("anneal-3", 3, 3), Branch("anneal-5", 5, 3)
    made = {}
    for name, order in (("forward", (early, late)), ("back", (late, early))):
        for branch in order:
            run("tiny-qwen3", tmp_path / name, branch).finish()
        made[name] = [(tmp_path / name / b.name / "model.safetensors").read_bytes() for b in (early, late)]
    assert made["forward"] == made["back"]
