"""MATH-500: 500 competition problems whose answers are pieces of mathematics.

A row has `problem`, `answer` (LaTeX), `subject`, `level`, `unique_id`. The last non-empty \\boxed counts, else what
stands after "answer is", else the last formula between dollar signs, else the last number. Compared as normalised
text, as exact numbers, then by math-verify.

Source: data openai/prm800k prm800k/math_splits/test.jsonl (MIT); prompt z-lab/dflash dflash/benchmark.py; comparison
huggingface/Math-Verify, as lm-evaluation-harness minerva_math500 reports beside its own.
"""

from __future__ import annotations

from nsd.bench.grade import grade_maths
from nsd.bench.judge import require_math_verify
from nsd.bench.task import HubSource, Problem, Row, Score, Task
from nsd.bench.tasks.maths import ask


class Math500(Task):
    """All 500 problems, zero-shot."""

    name, title, metric, size = "math500", "MATH-500", "accuracy", 500
    source = "prompt: z-lab/dflash benchmark; answer: last \\boxed; equality: math-verify"
    files = ("math500_test.jsonl", "math500.jsonl")
    hub = HubSource("HuggingFaceH4/MATH-500", None, "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be")

    def problem(self, index: int, row: Row) -> Problem:
        """Subject and level travel along, so that a report can split by them."""
        meta = {"subject": row["subject"], "level": row["level"]}
        return Problem(f"math500/{row['unique_id']}", ask(row["problem"]), True, row["answer"], meta)

    def score(self, problem: Problem, text: str) -> Score:
        """Mathematical equality."""
        return grade_maths(problem.reference, text)

    def ready(self) -> None:
        """Equality needs math-verify."""
        require_math_verify()
