"""mini-math: 4,096 word problems of two to four steps, held out from training by order of steps, name and start.

Made from a seed, without data files. The prompt is text to continue ("Q: ... A:"); the answer is the last number of the
text, and must equal the story's. Small models trained by `python -m benchmarks.miniature` solve it in part; models that
never saw its form do not, though their answers are scored alike.

Source: own problems and own rule (nsd.miniature.maths).
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from nsd.bench.task import Problem, Row, Score, Task
from nsd.miniature.maths import answer_of, problems
from nsd.miniature.splits import Sample

SEED = 20261130
SIZE = 4096


class MiniMath(Task):
    """The same problems on every machine."""

    name, title, metric, size, max_new_tokens = "mini-math", "mini-math", "accuracy", SIZE, 160
    source = "own problems from a seed; answer: last number of the text"

    @property
    def options(self) -> dict[str, Any]:
        """The seed of the problems."""
        return {"seed": SEED}

    def load(self, data_dir: Path | None = None, limit: int | None = None) -> list[Problem]:
        """Made, not read."""
        self.check_limit(limit)
        samples = islice(problems("test", SEED), SIZE if limit is None else min(limit, SIZE))
        return [self.problem(index, row_of(sample)) for index, sample in enumerate(samples)]

    def origin(self, data_dir: Path | None) -> dict[str, Any]:
        """The problems are made here."""
        return {"prompt_and_scoring": self.source, "data": f"made from seed {SEED}"}

    def available(self, data_dir: Path | None) -> bool:
        """No data are needed."""
        return True

    def problem(self, index: int, row: Row) -> Problem:
        """The reference is the answer."""
        meta = {"template": row["template"], "solution": row["solution"]}
        return Problem(f"mini-math/{index:04d}", row["prompt"], False, row["answer"], meta)

    def score(self, problem: Problem, text: str) -> Score:
        """The last number of the text."""
        got = answer_of(text)
        if got is None:
            return Score(False, None, "no number in the text")
        same = int(got) == int(problem.reference)
        return Score(same, got, "equal" if same else f"wanted {problem.reference}")


def row_of(sample: Sample) -> Row:
    """A sample as a row of data."""
    return {"prompt": sample.prompt, "answer": sample.answer, "template": sample.template, "solution": sample.solution}
