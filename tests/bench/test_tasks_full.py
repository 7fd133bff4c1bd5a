"""The whole data files: their sizes, and references that score as right by our own rules."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsd.bench.task import Task, find_task

FOLDER = os.environ.get("NSD_DATA_DIR")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="NSD_DATA_DIR is not set; it names the folder of the benchmarks' JSONL files"
)
SIZES = {"gsm8k": 1319, "math500": 500, "humaneval": 164, "mbpp": 257, "mbpp-bare": 257}


def rows(task: Task) -> list[dict[str, Any]]:
    path = Path(str(FOLDER)) / task.files[0]
    return [row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if task.keep(row)]


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    problems = find_task(name).load(Path(str(FOLDER)))
    assert len(problems) == len({p.id for p in problems}) == SIZES[name]
    assert all(p.prompt and p.reference for p in problems)


@pytest.mark.parametrize(("name", "field"), [("gsm8k", "answer"), ("math500", "solution")])
def test_the_written_solutions_are_right(name: str, field: str) -> None:
    task = find_task(name)
    problems = task.load(Path(str(FOLDER)))
    wrong = [p.id for p, row in zip(problems, rows(task), strict=True) if not task.score(p, row[field]).correct]
    assert wrong == []


def test_no_answer_of_math500_passes_for_the_next_one_unless_it_is_equal() -> None:
    task = find_task("math500")
    problems = task.load(Path(str(FOLDER)))
    pairs = pairwise(problems)
    equal = [(a.reference, b.reference) for a, b in pairs if task.score(a, rf"\boxed{{{b.reference}}}").correct]
    assert equal == [("5", "x=5"), ("7", "7"), ("3", "3")]


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_the_reference_programs_pass(name: str) -> None:
    task = find_task(name)
    problems = task.load(Path(str(FOLDER)))
    programs = [row["code"] if "code" in row else row["prompt"] + row["canonical_solution"] for row in rows(task)]
    failed = []
    for problem, program in zip(problems, programs, strict=True):
        score = task.score(problem, f"Here it is.\n```python\n{program}\n```\nUse it well.")
        failed += [] if score.correct else [(problem.id, score.detail)]
    assert failed == []
