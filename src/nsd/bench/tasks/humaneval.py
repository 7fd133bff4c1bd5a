"""HumanEval: 164 Python functions to complete from signature and docstring.

A row has `task_id`, `prompt`, `entry_point`, `test` (defines check(candidate)) and `canonical_solution`. As a chat,
the prompt stands in a fence after one line of request; as a completion (`humaneval-completion`, for base models), it
stands alone and the text continues it. pass@1 counts an answer whose check runs to its end.

Source: data and check openai/human-eval (MIT); chat prompt z-lab/dflash dflash/benchmark.py; extraction
nsd.bench.code.
"""

from __future__ import annotations

from typing import Any

from nsd.bench import sandbox
from nsd.bench.code import find_completion, find_program, grade_code
from nsd.bench.task import HubSource, Problem, Row, Score, Task

# Source: z-lab/dflash dflash/benchmark.py (DATASETS, humaneval)
REQUEST = "Write a solution to the following problem and make sure that it passes the tests:\n```python\n{prompt}\n```"


class HumanEval(Task):
    """All 164 problems, zero-shot; `chat=False` gives the bare prompt to continue."""

    title, metric, size = "HumanEval", "pass@1", 164
    source = (
        "prompt: z-lab/dflash benchmark; program: last fence that defines the entry point; tests: openai/human-eval"
    )
    files = ("humaneval.jsonl", "HumanEval.jsonl")
    hub = HubSource("openai/openai_humaneval", None, "test", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544")

    def __init__(self, chat: bool = True) -> None:
        self.chat = chat
        self.name = "humaneval" if chat else "humaneval-completion"

    @property
    def options(self) -> dict[str, Any]:
        """Whether the prompt is a request or a text to continue."""
        return {"chat": self.chat}

    def problem(self, index: int, row: Row) -> Problem:
        """The reference keeps what `score` runs: prompt, entry point and check."""
        prompt = row["prompt"]
        reference = {"prompt": prompt, "entry_point": row["entry_point"], "test": row["test"]}
        asked = REQUEST.format(prompt=prompt) if self.chat else prompt
        return Problem(row["task_id"], asked, self.chat, reference)

    def score(self, problem: Problem, text: str) -> Score:
        """All asserts of check pass."""
        prompt, entry, test = (problem.reference[key] for key in ("prompt", "entry_point", "test"))
        chat = problem.chat
        found = find_program(text, entry, prompt, test) if chat else find_completion(text, entry, prompt)
        return grade_code(found, f"{test}\ncheck({entry})\n")

    def ready(self) -> None:
        """A program must be able to run."""
        sandbox.isolation()
