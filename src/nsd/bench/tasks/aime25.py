"""AIME 2025: 30 problems (papers I and II) whose answers are whole numbers from 0 to 999.

A row has `problem` and `answer`, the answer as text or number; leading zeros do not count. The problems belong to the
Mathematical Association of America and come with no copy of this software: give them as aime25.jsonl, or let the
datasets library fetch them.

Source: data math-ai/aime25 on the Hub; prompt and extraction as for MATH-500 (deepseek-ai/DeepSpec asks all three
alike).
"""

from __future__ import annotations

from nsd.bench.grade import grade_number
from nsd.bench.judge import require_math_verify
from nsd.bench.task import HubSource, Problem, Row, Score, Task
from nsd.bench.tasks.maths import ask


class Aime25(Task):
    """Both papers, zero-shot."""

    name, title, metric, size = "aime25", "AIME 2025", "accuracy", 30
    source = "prompt: deepseek-ai/DeepSpec; answer: last \\boxed, else marked, else last number"
    files = ("aime25.jsonl", "aime2025.jsonl")
    hub = HubSource("math-ai/aime25", None, "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b")

    def problem(self, index: int, row: Row) -> Problem:
        """Files in circulation call the question `problem` or `question`."""
        question = row["question"] if "question" in row else row["problem"]
        return Problem(f"aime25/{index}", ask(question), True, str(row["answer"]))

    def score(self, problem: Problem, text: str) -> Score:
        """Exact equality of numbers."""
        return grade_number(problem.reference, text)

    def ready(self) -> None:
        """Formulas inside the box need math-verify."""
        require_math_verify()
