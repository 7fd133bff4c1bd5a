"""The whole data files: their sizes, and references that score as right by our own rules; a sample of them always."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsd.bench.code import find_program, grade_code
from nsd.bench.task import Task, find_task
from nsd.bench.tasks.mbpp import called

FOLDER = os.environ.get("NSD_DATA_DIR")
pytestmark = pytest.mark.skipif(
    not FOLDER, reason="NSD_DATA_DIR is not set; it names the folder of the benchmarks' JSONL files"
)
SIZES = {"gsm8k": 1319, "math500": 500, "humaneval": 164, "mbpp": 257, "mbpp-bare": 257}
SAMPLED = 17
"""Of so many programs one is run here; the others are run by the tests marked long."""
ANSWERS = (
    r"We get \boxed{%s}.", r"$$\boxed{%s}$$", r"So \[ x = \boxed{%s}. \]", "The final answer is $%s$.",
    "**Answer:** $%s$", "The answer is %s.", r"First \boxed{-7/13}, but no: \boxed{%s}",
)  # fmt: skip
"""How a chat model may end: each reference must count in every one of them."""
TALK = "Here it is.\n```python\n%s\n```\nUse it well:\n```python\nprint(%s)\n```\nOutput:\n```\n42\n```\n"
LONGER = [pytest.param(0, id="sample"), pytest.param(1, id="all", marks=pytest.mark.long)]


def rows(task: Task) -> list[dict[str, Any]]:
    return [row for row in lines(task.files[0]) if task.keep(row)]


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(str(FOLDER)) / name).read_text(encoding="utf-8").splitlines()]


def part(found: Sequence[Any], whole: int) -> Sequence[Any]:
    return found if whole else found[::SAMPLED]


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    problems = find_task(name).load(Path(str(FOLDER)))
    assert len(problems) == len({p.id for p in problems}) == SIZES[name]
    assert all(p.prompt and p.reference for p in problems)


@pytest.mark.parametrize("name", ["gsm8k", "math500"])
@pytest.mark.parametrize("text", ANSWERS)
def test_every_reference_answer_counts(name: str, text: str) -> None:
    task = find_task(name)
    problems = task.load(Path(str(FOLDER)))
    assert [p.reference for p in problems if not task.score(p, text % p.reference).correct] == []
    assert not any(task.score(p, r"I get \boxed{-7/13}.").correct for p in problems[:50])


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


@pytest.mark.parametrize("whole", LONGER)
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_the_reference_programs_pass(name: str, whole: int) -> None:
    task = find_task(name)
    problems = task.load(Path(str(FOLDER)))
    programs = [row["code"] if "code" in row else row["prompt"] + row["canonical_solution"] for row in rows(task)]
    failed = []
    for problem, program in part(list(zip(problems, programs, strict=True)), whole):
        score = task.score(problem, TALK % (program, problem.reference["entry_point"]))
        failed += [] if score.correct else [(problem.id, score.detail)]
    assert failed == []


@pytest.mark.parametrize("whole", LONGER)
def test_the_reference_completions_pass(whole: int) -> None:
    """As a base model would write them: after the prompt, and then something else."""
    task = find_task("humaneval-completion")
    problems = task.load(Path(str(FOLDER)))
    failed = []
    for problem, row in part(list(zip(problems, rows(task), strict=True)), whole):
        score = task.score(problem, row["canonical_solution"] + "\n\ndef another(x):\n    return (")
        failed += [] if score.correct else [(problem.id, score.detail)]
    assert failed == []


@pytest.mark.parametrize("whole", LONGER)
def test_the_reference_programs_of_the_whole_mbpp_pass(whole: int) -> None:
    """974 programs, not a task of ours (the sanitized split is), but the same way through extraction and sandbox."""
    failed = []
    for row in part(lines("mbpp_full.jsonl"), whole):
        tests = "\n".join([row["test_setup_code"], *row["test_list"], *row["challenge_test_list"]]) + "\n"
        entry = called(row["code"], row["test_list"])
        score = grade_code(find_program(TALK % (row["code"].replace("\r\n", "\n"), entry), entry, tests=tests), tests)
        failed += [] if score.correct else [(row["task_id"], score.detail)]
    assert failed == []
