"""Answers thousands of problems of a cell in ragged batches, and keeps one row a problem.

All cells of a task take the same problems under the same seeds, so that any two are paired: a request's uniforms depend
on the run's seed and on the problem's number alone. Rows are appended group by group; a killed run goes on at the first
group that is not there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.miniature.cells import BATCH, Arm, Cell
from nsd.api import Pair
from nsd.bench.task import Problem, Score, Task, find_task
from nsd.bench.tasks.mini_code import MiniCode
from nsd.decoding import Completion, Request
from nsd.decoding.stats import Stats
from nsd.events import Block, Origin, Tested
from nsd.laws import Sampling
from nsd.verification import Accounting

Row = dict[str, Any]
COUNTS = ("output_tokens", "prefill_tokens_out", "blocks", "drafted", "tested", "by_ratio", "rescued", "rejected")
CONTENT = frozenset("0123456789+-*/%=<>")
"""A token with one of these is content (its value is determined); all others are phrasing."""
INNER = 0.95
"""The nucleus that rejected tokens are looked up in."""


@dataclass(frozen=True, slots=True)
class Work:
    """A cell with what it needs: the loaded pair, the first `count` problems, the file of its rows."""

    cell: Cell
    pair: Pair
    count: int
    path: Path


def answer(work: Work, watch: Callable[[int, float], None] | None = None) -> list[Row]:
    """All rows of a cell; those in its file are not made again. watch(rows done, seconds of the last group)."""
    task = find_task(work.cell.task)
    problems = task.load(limit=work.count)
    rows = read_rows(work.path)[: work.count]
    rows = rows[: len(rows) // BATCH * BATCH] if len(rows) < work.count else rows
    while len(rows) < work.count:
        first = len(rows)
        started = time.monotonic()
        part = group(work.pair, task, problems[first : first + BATCH], first, work.cell.arm, work.cell.seed)
        _append(work.path, rows, part)
        rows += part
        if watch is not None:
            watch(len(rows), time.monotonic() - started)
    return rows


def group(pair: Pair, task: Task, problems: Sequence[Problem], first: int, arm: Arm, seed: int) -> list[Row]:
    """Rows of one ragged batch: problems number first, first + 1, ..."""
    used = pair if arm.k else Pair(pair.target, None)
    tokenizer = pair.target.tokenizer
    sampling, rule = Sampling(temperature=arm.temperature, top_p=arm.top_p), arm.made()
    requests = [
        Request(
            (*tokenizer.prefix, *tokenizer.encode(problem.prompt)), rule, sampling, arm.k, task.max_new_tokens,
            seed=seed, key=first + i, logprobs="raw",
        )
        for i, problem in enumerate(problems)
    ]  # fmt: skip
    started = time.perf_counter()
    run = used.decode(requests, Accounting.FULL, trace=arm.k > 0)
    for _ in run:
        pass
    seconds = (time.perf_counter() - started) / len(problems)
    completions = run.completions()
    scores = _scores(task, problems, [completion.text for completion in completions])
    texts = {i: text for i, text in enumerate(tokenizer.token_text(i) for i in range(pair.target.vocab))}
    return [
        _row(first + i, problem, completion, score, texts, seconds)
        for i, (problem, completion, score) in enumerate(zip(problems, completions, scores, strict=True))
    ]


def _scores(task: Task, problems: Sequence[Problem], texts: list[str]) -> list[Score]:
    if isinstance(task, MiniCode):
        return task.score_many(problems, texts)
    return [task.score(problem, text) for problem, text in zip(problems, texts, strict=True)]


def _row(
    index: int, problem: Problem, completion: Completion, score: Score, texts: dict[int, str | None], seconds: float
) -> Row:
    stats = Stats.of(list(completion.blocks))
    logprobs = [c.logprob for block in completion.blocks for c in block.committed]
    return {
        "index": index,
        "id": problem.id,
        "correct": score.correct,
        "text": completion.text,
        "finish": str(completion.finish_reason),
        "nll": -sum(value for value in logprobs if value is not None),
        "seconds": seconds,
        **{name: getattr(stats, name) for name in COUNTS},
        **dict(zip(("content", "phrasing"), _by_kind(completion.blocks, texts), strict=True)),
    }


SUMS = (
    "tested", "rejected", "rescued", "R", "ES", "eps", "rejected_in_95", "rejected_top10", "rescued_top5",
    "rescued_entropy_p", "rescued_entropy_q", "rescued_entropy_p_higher",
)  # fmt: skip


def _by_kind(blocks: Iterable[Block], texts: dict[int, str | None]) -> tuple[list[float], list[float]]:
    """SUMS over the tested tokens that are content, and over those that are phrasing."""
    found = [0.0] * len(SUMS), [0.0] * len(SUMS)
    for block in blocks:
        for t in block.tested:
            into = found[0] if CONTENT & set(texts[t.token] or "") else found[1]
            for i, value in enumerate(_of_one(t)):
                into[i] += value
    return found


def _of_one(t: Tested) -> tuple[float, ...]:
    """What one tested token adds to SUMS."""
    rejected, rescued = t.origin is Origin.REJECTED, t.origin is Origin.RESCUED
    deviation = t.ES or 0.0
    spent = deviation if t.eps is None else t.eps
    within = t.mass is not None and t.mass < INNER
    rank = t.rank or 10**9
    h_p, h_q = t.entropy_p or 0.0, t.entropy_q or 0.0
    return (
        1.0, float(rejected), float(rescued), t.R or 0.0, deviation, spent, float(rejected and within),
        float(rejected and rank <= 10), float(rescued and rank <= 5), h_p * rescued, h_q * rescued,
        float(rescued and h_p > h_q),
    )  # fmt: skip


def read_rows(path: Path) -> list[Row]:
    """The whole lines of a file of rows; a line that a kill cut off is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _append(path: Path, before: Sequence[Row], part: Sequence[Row]) -> None:
    """Add a group; what lies in the file beyond `before` is a remainder of a kill and is dropped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
    if len(read_rows(path)) == len(before):
        with path.open("a", encoding="utf-8") as file:
            file.write(lines)
        return
    kept = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in before)
    temporary = path.with_suffix(".part")
    temporary.write_text(kept + lines, encoding="utf-8")
    temporary.replace(path)
