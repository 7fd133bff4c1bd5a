"""The shipped target with its drafters, end to end: standard speculation gives the target's own law.

Accuracy and the information of whole texts are compared with plain decoding, paired by problem. A difference of more
than 4.4 standard errors is an error; by chance that happens to one comparison in 100,000.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.miniature.cells import AR, nsd, sd
from benchmarks.miniature.evaluate import group, read_rows
from benchmarks.miniature.family import SHIPPED, mechanism_of
from benchmarks.miniature.stages import shipped
from nsd.api import load
from nsd.bench.task import find_task

PROBLEMS = 128
FEW = 4.4


def names():
    raw = json.loads((SHIPPED / "manifest.json").read_text())
    return [tuple(name.split("/")) for name in raw["drafters"]]


@pytest.fixture(scope="module")
def plain():
    """Rows of plain decoding, once a target and task."""
    made = {}

    def rows(target, task):
        if (target, task) not in made:
            pair = load(shipped().targets[target], None, dtype="float32")
            made[target, task] = group(pair, find_task(task), find_task(task).load(limit=PROBLEMS), 0, AR, 0)
        return made[target, task]

    return rows


def near(one, other, name):
    """Whether a paired mean difference is within FEW standard errors of 0."""
    difference = np.array([float(a[name]) - float(b[name]) for a, b in zip(one, other, strict=True)])
    return abs(difference.mean()) <= FEW * difference.std(ddof=1) / len(difference) ** 0.5 + 1e-12


@pytest.mark.parametrize(("target", "drafter"), names())
def test_sd_has_the_targets_law_and_nsd_takes_fewer_calls(target, drafter, plain):
    manifest = shipped()
    pair = load(manifest.targets[target], manifest.drafters[f"{target}/{drafter}"], dtype="float32")
    k, task = mechanism_of(drafter).k, find_task("mini-math")
    problems = task.load(limit=PROBLEMS)
    exact, relaxed = (group(pair, task, problems, 0, arm, 1) for arm in (sd(k), nsd(k)))
    base = plain(target, "mini-math")
    assert near(exact, base, "nll") and near(exact, base, "correct") and near(exact, base, "output_tokens")
    calls = [
        sum(r["blocks"] for r in rows) / sum(r["output_tokens"] - 1 for r in rows) for rows in (base, exact, relaxed)
    ]
    assert calls[0] == 1 and calls[2] < calls[1] < 0.9
    assert sum(r["rescued"] for r in exact) == 0 < sum(r["rescued"] for r in relaxed)


def test_the_shipped_set_is_small_and_whole():
    files = [path for path in SHIPPED.rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < 20_000_000
    manifest = shipped()
    for path in (*manifest.targets.values(), *manifest.drafters.values()):
        assert {"config.json", "model.safetensors"} <= {file.name for file in Path(path).iterdir()}
    variants = {name.rpartition(":")[2] for name in manifest.drafters}
    assert variants == {"matched", "mismatched"}


def test_a_killed_process_goes_on_with_the_same_command(tmp_path):
    """SIGKILL between two groups of a cell; the resumed process leaves what an undisturbed one leaves."""
    command = [sys.executable, "-m", "benchmarks.miniature", "--quick", "--tasks", "mini-math", "--count", "192"]
    command += ["--workers", "1", "--minutes", "0.001", "--work", str(tmp_path)]
    where = {"cwd": Path(__file__).parents[2], "env": {**os.environ, "PYTHONPATH": "src"}}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, **where)
    cell = wait_for(lambda: next((p for p in tmp_path.glob("cells/*AR*.jsonl") if len(read_rows(p)) == 128), None))
    process.kill()
    assert process.wait() < 0
    first = cell.read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, check=True, **where)
    assert "cells left after" in done.stdout and cell.read_bytes().startswith(first)
    pair, task = load(shipped().targets[names()[0][0]], None, dtype="float32"), find_task("mini-math")
    whole = group(pair, task, task.load(limit=192)[128:], 128, AR, 0)
    assert [row["text"] for row in read_rows(cell)[128:]] == [row["text"] for row in whole]
    assert [row["index"] for row in read_rows(cell)] == list(range(192))
    assert "## Table 1" in (tmp_path / "miniature.md").read_text()


def wait_for(found, seconds=300):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (value := found()) is not None:
            return value
        time.sleep(0.02)
    raise AssertionError(f"nothing within {seconds} s")
