"""AIME 2025: 30 problems (papers I and II) whose answers are whole numbers from 0 to 999.

A row has `problem` (or `question`) and `answer`, as text or number; leading zeros and a degree sign do not count. The
problems belong to the Mathematical Association of America and come with no copy of this software: give them as
aime25.jsonl, as the two papers aime2025-I.jsonl and aime2025-II.jsonl, or let the datasets library fetch them.

Source: data math-ai/aime25 on the Hub (problem, answer, id), or opencompass/AIME2025 (a file for each paper; question,
answer); prompt and extraction as for MATH-500 (deepseek-ai/DeepSpec asks all three
alike).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from nsd.bench.grade import grade_number
from nsd.bench.judge import require_math_verify
from nsd.bench.task import HubSource, Problem, Row, Score, Task
from nsd.bench.tasks.maths import ask

PARTS = ("aime2025-I.jsonl", "aime2025-II.jsonl")


class Aime25(Task):
    """Both papers, zero-shot."""

    name, title, metric, size = "aime25", "AIME 2025", "accuracy", 30
    source = "prompt: deepseek-ai/DeepSpec; answer: last \\boxed, else marked, else last number"
    files = ("aime25.jsonl", "aime2025.jsonl")
    hub = HubSource("math-ai/aime25", None, "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b")

    def available(self, data_dir: Path | None) -> bool:
        """One file, or both papers."""
        return super().available(data_dir) or (data_dir is not None and self._in_parts(data_dir))

    def origin(self, data_dir: Path | None) -> dict[str, Any]:
        """Both papers, each with its SHA-256, where they are given apart."""
        if data_dir is None or not self._in_parts(data_dir):
            return super().origin(data_dir)
        digests = [hashlib.sha256((data_dir / name).read_bytes()).hexdigest() for name in PARTS]
        return {"prompt_and_scoring": self.source, "file": ", ".join(PARTS), "sha256": ", ".join(digests)}

    def _local(self, data_dir: Path) -> list[tuple[str, Row]]:
        if not self._in_parts(data_dir):
            return super()._local(data_dir)
        return [row for name in PARTS for row in self._rows(data_dir / name)]

    def _sample(self, data_dir: Path | None) -> bool:
        return not (data_dir is not None and self._in_parts(data_dir)) and super()._sample(data_dir)

    def _in_parts(self, data_dir: Path) -> bool:
        whole = any((data_dir / name).is_file() for name in self._names())
        return not whole and all((data_dir / name).is_file() for name in PARTS)

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
