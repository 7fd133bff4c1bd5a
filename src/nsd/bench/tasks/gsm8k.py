"""GSM8K: 1319 word problems of grade school, each with one number as its answer.

A row has `question` and `answer`; the answer ends with a line "#### 18". The number in the last \\boxed counts, else
what stands after the last "####" or "answer is", else the last number; commas, currency and units are ignored, values
compared exactly.

Source: data openai/grade-school-math (test split, MIT); prompt z-lab/dflash dflash/benchmark.py; last-number rule
EleutherAI/lm-evaluation-harness lm_eval/tasks/gsm8k (flexible-extract).
"""

from __future__ import annotations

from nsd.bench.grade import grade_number
from nsd.bench.judge import require_math_verify
from nsd.bench.task import HubSource, Problem, Row, Score, Task
from nsd.bench.tasks.maths import ask


class Gsm8k(Task):
    """The whole test split, zero-shot."""

    name, title, metric, size = "gsm8k", "GSM8K", "accuracy", 1319
    source = (
        "prompt: z-lab/dflash benchmark; answer: last \\boxed, else marked, else last number (lm-evaluation-harness)"
    )
    files = ("gsm8k_test.jsonl", "gsm8k.jsonl")
    hub = HubSource("openai/gsm8k", "main", "test", "740312add88f781978c0658806c59bc2815b9866")

    def problem(self, index: int, row: Row) -> Problem:
        """The number after "####" is the reference."""
        return Problem(f"gsm8k/{index}", ask(row["question"]), True, row["answer"].rsplit("####", 1)[-1].strip())

    def score(self, problem: Problem, text: str) -> Score:
        """Exact equality of numbers."""
        return grade_number(problem.reference, text)

    def ready(self) -> None:
        """Formulas inside the box need math-verify."""
        require_math_verify()
