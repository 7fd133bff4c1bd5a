"""MBPP, sanitized: 257 short tasks (the test split, task ids 11 to 510), each with three or more asserts.

A row has `task_id`, `prompt`, `code`, `test_imports`, `test_list`. The request alone does not name the function, so a
program that is right in all but its name fails: `mbpp` shows the tests (the score means something), `mbpp-bare` does
not (the drafters' own harnesses, which measure speed alone). Which of the two a run used is in its options.

Source: data google-research/google-research mbpp/sanitized-mbpp.json (CC BY 4.0), split by task id as its README
says; bare prompt z-lab/dflash dflash/benchmark.py; tests after the request as in the paper that introduced MBPP
(arXiv 2108.07732).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from nsd.bench import sandbox
from nsd.bench.code import find_program, grade_code, parse
from nsd.bench.task import HubSource, Problem, Row, Score, Task

FIRST, LAST = 11, 510  # task ids of the test split


def called(code: str, tests: Sequence[str]) -> str:
    """The function under test: of those that the reference defines, the first that the asserts call."""
    trees = [tree for text in (code, *tests) if (tree := parse(text)) is not None]
    defined = [node.name for node in trees[0].body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for tree in trees[1:]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                return node.func.id
    return defined[-1]


class Mbpp(Task):
    """The sanitized test split, zero-shot, with the tests in the prompt or without."""

    title, metric, size = "MBPP", "pass@1", 257
    source = "prompt: z-lab/dflash benchmark, tests added unless bare; program: last fence with the tested function"
    files = ("mbpp_sanitized.jsonl", "mbpp.jsonl")
    hub = HubSource("google-research-datasets/mbpp", "sanitized", "test", "4bb6404fdc6cacfda99d4ac4205087b89d32030c")

    def __init__(self, show_tests: bool = True) -> None:
        self.show_tests = show_tests
        self.name = "mbpp" if show_tests else "mbpp-bare"

    @property
    def options(self) -> dict[str, Any]:
        """Whether the prompt shows the tests."""
        return {"show_tests": self.show_tests}

    def keep(self, row: Row) -> bool:
        """The file holds all splits."""
        return FIRST <= int(row["task_id"]) <= LAST

    def problem(self, index: int, row: Row) -> Problem:
        """The reference keeps the tests with their imports and the name they call."""
        tests = list(row["test_list"])
        shown = "\n".join(tests)
        asked = f"{row['prompt']}\nYour code should pass these tests:\n```python\n{shown}\n```"
        reference = {"tests": [*row["test_imports"], *tests], "entry_point": called(row["code"], tests)}
        return Problem(f"mbpp/{row['task_id']}", asked if self.show_tests else row["prompt"], True, reference)

    def score(self, problem: Problem, text: str) -> Score:
        """All asserts pass."""
        tests = "\n".join(problem.reference["tests"]) + "\n"
        return grade_code(find_program(text, problem.reference["entry_point"], tests=tests), tests)

    def ready(self) -> None:
        """A program must be able to run."""
        sandbox.isolation()
