"""From the records of runs to the numbers of a report: by model, task and arm, everything paired.

Only prompts that all arms of a model have answered are counted, so that every comparison is of the same prompts. An
overall row is the unweighted mean over tasks; a speed-up is a ratio of totals over the prompts of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

from nsd.bench import stats as st
from nsd.bench.arms import Arm, baseline, main_arm
from nsd.bench.bundle import BenchError, Key, StoredRun, shards
from nsd.bench.metrics import METRICS, Counters, acceptance_by_position, histogram, total, values
from nsd.bench.stats import Estimate, Spread, Totals

OVERALL = "overall"
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Speedup:
    """Of one arm over another on the same prompts: prefill in and decode only (ratios of totals), prompt by prompt."""

    prefill_in: Spread | None
    decode_only: Spread | None
    per_prompt: Spread | None

    def as_json(self) -> dict[str, Any]:
        """Estimates by name."""
        return {name: estimate(getattr(self, name)).as_json() for name in ("prefill_in", "decode_only", "per_prompt")}


@dataclass(frozen=True, slots=True)
class Quality:
    """Score of one arm less another's: difference as a share, discordant answers, exact McNemar p."""

    difference: Spread
    only_one: int
    only_other: int
    p: float | None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        discordant = {"right_here_only": self.only_one, "right_there_only": self.only_other}
        return {"difference": estimate(self.difference).as_json(), **discordant, "mcnemar_p": self.p}


@dataclass(frozen=True, slots=True)
class Row:
    """One arm on one task, or over all tasks.

    score, tau and speed-ups with intervals; over and quality by the kind of arm compared with ("ar", "sd"); counters
    of all answers together; passes unbiased pass@k by k; prompts and answers counted.
    """

    arm: Arm
    task: str
    score: Spread
    tau: Spread | None
    over: Mapping[str, Speedup]
    quality: Mapping[str, Quality]
    counters: Counters
    passes: Mapping[int, float]
    prompts: int
    answers: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "arm": self.arm.name,
            "task": self.task,
            "prompts": self.prompts,
            "answers": self.answers,
            "score": estimate(self.score).as_json(),
            "pass_at_k": {str(k): value for k, value in self.passes.items()},
            "tau": estimate(self.tau).as_json(),
            "speedup": {kind: speedup.as_json() for kind, speedup in self.over.items()},
            "against": {kind: quality.as_json() for kind, quality in self.quality.items()},
            "metrics": values(self.counters),
            "histogram": {str(size): count for size, count in histogram(self.counters).items()},
            "acceptance_by_position": acceptance_by_position(self.counters),
        }


@dataclass(frozen=True, slots=True)
class Model:
    """One pair of target and drafter: its arms, its rows by (arm, task), and the runs they are from."""

    title: str
    runs: tuple[StoredRun, ...]
    arms: tuple[Arm, ...]
    tasks: tuple[str, ...]
    rows: Mapping[tuple[str, str], Row]
    left_out: int

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that its runs share."""
        found: dict[str, Any] = self.runs[0].manifest["config"]
        return found

    @property
    def main(self) -> tuple[Arm, ...]:
        """Arms of the headline table: AR, SD (and sample-and-match) of the same K, the main NSD arm."""
        chosen = main_arm(self.arms)
        if chosen is None:
            return tuple(arm for arm in self.arms if arm.k == max(a.k for a in self.arms) or arm.kind == "ar")
        found = [baseline(chosen, self.arms, kind) for kind in ("ar", "sd", "match")]
        return (*(arm for arm in found if arm is not None), chosen)

    @property
    def nsd(self) -> Arm | None:
        """The NSD arm of the headline table."""
        return main_arm(self.arms)

    def row(self, arm: Arm, task: str = OVERALL) -> Row:
        """An arm's row."""
        return self.rows[arm.name, task]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": self.title,
            "runs": [run.name for run in self.runs],
            "complete": all(run.complete for run in self.runs),
            "prompts_left_out": self.left_out,
            "config": self.config,
            "arms": [arm.as_json() for arm in self.arms],
            "headline_arms": [arm.name for arm in self.main],
            "rows": [row.as_json() for row in self.rows.values()],
        }


@dataclass(frozen=True, slots=True)
class Cells:
    """The line over all cells (model x task) that have AR, SD and NSD.

    Improvements in percent: mean, and that of the best cell, each with its interval; fastest counts cells where NSD
    is ahead of both; score against SD up, tied, down, and the mean difference in points.
    """

    count: int
    over_ar: Spread | None
    over_sd: Spread | None
    max_over_ar: Spread | None
    max_over_sd: Spread | None
    fastest: int
    up: int
    tied: int
    down: int
    points: Spread | None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cells": self.count,
            "mean_improvement_percent": {
                "ar": estimate(self.over_ar).as_json(),
                "sd": estimate(self.over_sd).as_json(),
            },
            "max_improvement_percent": {
                "ar": estimate(self.max_over_ar).as_json(),
                "sd": estimate(self.max_over_sd).as_json(),
            },
            "nsd_fastest": self.fastest,
            "score_against_sd": {"up": self.up, "tied": self.tied, "down": self.down},
            "mean_score_difference_points": estimate(self.points).as_json(),
        }


@dataclass(frozen=True, slots=True)
class Results:
    """Everything a report shows."""

    models: tuple[Model, ...]
    cells: Cells
    analysis: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the formula of every metric."""
        return {
            "models": [model.as_json() for model in self.models],
            "over_all_cells": self.cells.as_json(),
            "formulas": {name: metric.formula for name, metric in METRICS.items()},
            "intervals": f"95%, paired bootstrap over problems, {st.RESAMPLES} resamples; {st.FEWEST} problems or more",
            "analysis": dict(self.analysis),
        }


def results_of(runs: Sequence[StoredRun]) -> Results:
    """The numbers of some runs; shards of one evaluation are pooled, each other run is a model of its own."""
    models = _told_apart([_model(group) for group in shards(runs)])
    return Results(models, _cells(models))


def _told_apart(models: Sequence[Model]) -> tuple[Model, ...]:
    """Models of one pair under several configurations also bear the names of their runs."""
    titles = [m.title for m in models]
    return tuple(
        replace(m, title=f"{m.title} ({', '.join(run.name for run in m.runs)})") if titles.count(m.title) > 1 else m
        for m in models
    )


def estimate(spread: Spread | None) -> Estimate:
    """A spread as a value with its interval; none where there is none."""
    if spread is None:
        return Estimate(None, None, None, 0, "nothing to compare with")
    return spread.estimate()


def _model(runs: Sequence[StoredRun]) -> Model:
    config = runs[0].manifest["config"]
    arms = tuple(Arm.from_json(raw) for raw in config["arms"])
    by_key: dict[Key, Record] = {}
    for run in runs:
        for record in run.records:
            if Key.of(record) in by_key:
                raise BenchError(
                    f"{Key.of(record)} is in two of the runs, wanted parts that do not overlap; name one of them"
                )
            by_key[Key.of(record)] = record
    tasks, left_out = {}, 0
    for task in config["tasks"]:
        everyone = {(k.problem, k.seed) for k in by_key if k.task == task}
        shared = sorted(at for at in everyone if all(Key(a.name, task, *at) in by_key for a in arms))
        left_out += len(everyone) - len(shared)
        if shared:
            tasks[task] = {
                a.name: _Sums(crc32(task.encode()), [by_key[Key(a.name, task, *at)] for at in shared]) for a in arms
            }
    if not tasks:
        raise BenchError(
            f"run {runs[0].name} has no prompt that all arms answered, wanted one; nsd bench --resume {runs[0].name}"
        )
    rows = {(arm.name, task): _row(arm, task, sums, arms) for task, sums in tasks.items() for arm in arms}
    rows |= {(arm.name, OVERALL): _overall(arm, [rows[arm.name, task] for task in tasks]) for arm in arms}
    engine = config["engine"]
    title = f"{engine['target']} + {engine['drafter']}"
    return Model(title, tuple(runs), arms, tuple(tasks), rows, left_out)


class _Sums:
    """An arm's records of one task, summed by problem; the stratum is the task's, so that models share resamples."""

    def __init__(self, stratum: int, records: Sequence[Record]) -> None:
        self.stratum, self.records = stratum, records
        self.problems = sorted({str(r["problem"]) for r in records})
        self.counters = [Counters.from_json(r["counters"]) for r in records]

    def totals(self, above: Callable[[Record, Counters], float], below: Callable[[Record, Counters], float]) -> Totals:
        """What is counted above and below a fraction, by problem."""
        place = {name: i for i, name in enumerate(self.problems)}
        sums = np.zeros((2, len(place)))
        for record, counters in zip(self.records, self.counters, strict=True):
            sums[:, place[str(record["problem"])]] += above(record, counters), below(record, counters)
        return Totals(sums[0], sums[1])

    def score(self) -> Totals:
        return self.totals(lambda r, _: float(r["correct"]), lambda _r, _c: 1.0)

    def speed(self) -> Totals:
        return self.totals(lambda _, c: c.stats.output_tokens, lambda _, c: c.stats.prefill_s + c.stats.decode_s)

    def decode_speed(self) -> Totals:
        return self.totals(
            lambda _, c: c.stats.output_tokens - c.stats.prefill_tokens_out, lambda _, c: c.stats.decode_s
        )

    def tau(self) -> Totals:
        return self.totals(
            lambda _, c: c.stats.accepted + c.stats.recovered + c.stats.bonus, lambda _, c: c.stats.blocks
        )

    def passes(self) -> dict[int, float]:
        """Unbiased pass@k, the mean over problems, for every k that all problems have answers for."""
        score = self.score()
        most = int(score.below.min())
        pairs = [(int(n), int(c)) for c, n in zip(score.above, score.below, strict=True)]
        return {k: float(np.mean([st.pass_at_k(n, c, k) for n, c in pairs])) for k in range(1, most + 1)}


def _row(arm: Arm, task: str, sums: Mapping[str, _Sums], arms: Sequence[Arm]) -> Row:
    mine = sums[arm.name]
    others = {kind: baseline(arm, arms, kind) for kind in ("ar", "sd")}
    compared = {kind: sums[a.name] for kind, a in others.items() if a is not None and a is not arm and arm.kind != "ar"}
    tau = mine.tau()
    return Row(
        arm=arm,
        task=task,
        score=st.fraction(mine.score(), mine.stratum),
        tau=st.fraction(tau, mine.stratum) if _usable(tau) else None,
        over={kind: _speedup(mine, other) for kind, other in compared.items()},
        quality={kind: _quality(mine, other) for kind, other in compared.items()},
        counters=total(mine.counters),
        passes=mine.passes(),
        prompts=len(mine.problems),
        answers=len(mine.records),
    )


def _speedup(fast: _Sums, slow: _Sums) -> Speedup:
    whole, decode = (fast.speed(), slow.speed()), (fast.decode_speed(), slow.decode_speed())
    return Speedup(
        prefill_in=st.ratio(*whole, fast.stratum) if all(map(_usable, whole)) else None,
        decode_only=st.ratio(*decode, fast.stratum) if all(map(_usable, decode)) else None,
        per_prompt=st.mean_ratio(*whole, fast.stratum) if all(map(_everywhere, whole)) else None,
    )


def _usable(totals: Totals) -> bool:
    """Whether a fraction of these totals has a value in every resample worth speaking of."""
    return bool(totals.above.sum() > 0 and totals.below.sum() > 0)


def _everywhere(totals: Totals) -> bool:
    return bool((totals.above > 0).all() and (totals.below > 0).all())


def _quality(one: _Sums, other: _Sums) -> Quality:
    pairs = [(bool(a["correct"]), bool(b["correct"])) for a, b in zip(one.records, other.records, strict=True)]
    here, there = pairs.count((True, False)), pairs.count((False, True))
    return Quality(st.difference(one.score(), other.score(), one.stratum), here, there, st.mcnemar(here, there))


def _overall(arm: Arm, rows: Sequence[Row]) -> Row:
    over, quality = {}, {}
    for kind in rows[0].over:
        parts = [row.over[kind] for row in rows]
        over[kind] = Speedup(*(_average([getattr(p, name) for p in parts]) for name in Speedup.__slots__))
        judged = [row.quality[kind] for row in rows]
        difference = st.average([q.difference for q in judged])
        here, there = sum(q.only_one for q in judged), sum(q.only_other for q in judged)
        quality[kind] = Quality(difference, here, there, st.mcnemar(here, there))
    return Row(
        arm=arm,
        task=OVERALL,
        score=st.average([row.score for row in rows]),
        tau=_average([row.tau for row in rows]),
        over=over,
        quality=quality,
        counters=total(row.counters for row in rows),
        passes={k: float(np.mean([row.passes[k] for row in rows])) for k in _shared_ks(rows)},
        prompts=sum(row.prompts for row in rows),
        answers=sum(row.answers for row in rows),
    )


def _shared_ks(rows: Sequence[Row]) -> Iterable[int]:
    return sorted(set.intersection(*(set(row.passes) for row in rows)))


def _average(spreads: Sequence[Spread | None]) -> Spread | None:
    known = [spread for spread in spreads if spread is not None]
    return st.average(known) if len(known) == len(spreads) else None


def _cells(models: Sequence[Model]) -> Cells:
    rows = [m.row(m.nsd, task) for m in models if m.nsd is not None for task in m.tasks]
    rows = [r for r in rows if {"ar", "sd"} <= r.over.keys() and all(o.prefill_in is not None for o in r.over.values())]
    gains = {kind: [r.over[kind].prefill_in for r in rows] for kind in ("ar", "sd")}
    percent = {kind: [st.shifted(s, 100, -100) for s in found if s is not None] for kind, found in gains.items()}
    scores = [row.quality["sd"].difference for row in rows]
    return Cells(
        count=len(rows),
        over_ar=st.average(percent["ar"]) if percent["ar"] else None,
        over_sd=st.average(percent["sd"]) if percent["sd"] else None,
        max_over_ar=max(percent["ar"], key=lambda s: s.value, default=None),
        max_over_sd=max(percent["sd"], key=lambda s: s.value, default=None),
        fastest=sum(a.value > 0 and b.value > 0 for a, b in zip(percent["ar"], percent["sd"], strict=True)),
        up=sum(s.value > 0 for s in scores),
        tied=sum(s.value == 0 for s in scores),
        down=sum(s.value < 0 for s in scores),
        points=st.average([st.shifted(s, 100, 0) for s in scores]) if scores else None,
    )
