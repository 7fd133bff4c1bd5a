"""Every metric against a brute-force recomputation from events, and every interval against one from records."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from nsd import events
from nsd.bench import stats as st
from nsd.bench.bundle import RunWriter, read_run
from nsd.bench.engine import Answer
from nsd.bench.metrics import (
    BIN,
    METRICS,
    Counters,
    acceptance_by_position,
    bin_of,
    histogram,
    quantile,
    total,
    values,
)
from nsd.bench.results import OVERALL, Results, estimate, results_of
from nsd.bench.runner import run
from nsd.bench.task import Problem
from nsd.events import Block, Origin
from tests.bench.fake import SESSION, FakeEngine, finished, grid, plan

KEPT = (Origin.RATIO, Origin.RESCUED)


def brute(answers: list[list[Block]], relaxed: bool) -> dict[str, float | None]:
    """All metrics from events alone, written without the counters."""
    blocks = [b for answer in answers for b in answer if b.number > 0]
    tested = [t for b in blocks for t in b.tested]
    tokens = sum(len(b.committed) for answer in answers for b in answer)
    later = sum(len(b.committed) for b in blocks)
    prefill = sum(b.timing.total_s for answer in answers for b in answer if b.number == 0)
    decode = sum(b.timing.total_s for b in blocks)
    verify = sum(b.timing.score_s + b.timing.decide_s for b in blocks)
    score, draft = sum(b.timing.score_s for b in blocks), sum(b.timing.draft_s for b in blocks)
    drafted = sum(len(b.drafted) for b in blocks)
    spent = [sum(t.eps or 0 for b in answer for t in b.tested) for answer in answers]
    es = [t.ES for t in tested if t.ES is not None]
    pace = [1e3 * b.timing.total_s / len(b.committed) for b in blocks for _ in b.committed]
    gaps = [1e3 * b.timing.total_s for b in blocks]

    def per_tested(of: float) -> float | None:
        return of / len(tested) if tested else None

    def within(ranks: list[int | None], last: int) -> float | None:
        known = [rank for rank in ranks if rank is not None]
        return fmean(rank <= last for rank in known) if known else None

    return {
        "tokens_per_second": tokens / (prefill + decode),
        "decode_tokens_per_second": later / decode,
        "tau": later / len(blocks),
        "tau_per_request": fmean(fmean(len(b.committed) for b in answer if b.number) for answer in answers),
        "acceptance": per_tested(sum(t.origin in KEPT for t in tested)),
        "calls_per_token": len(blocks) / later,
        "verify_ms_per_token": 1e3 * verify / later,
        "target_ms_per_call": 1e3 * score / len(blocks),
        "verify_share": verify / decode,
        "verify_share_of_wall": verify / (prefill + decode),
        "draft_ms_per_token": 1e3 * draft / later if drafted else None,
        "draft_ms_per_block": 1e3 * draft / len(blocks) if drafted else None,
        "ttft_ms": 1e3 * fmean(answer[0].seconds_since_start for answer in answers),
        "inter_token_p50_ms": float(np.quantile(pace, 0.5, method="inverted_cdf")),
        "inter_token_p95_ms": float(np.quantile(pace, 0.95, method="inverted_cdf")),
        "gap_p50_ms": float(np.quantile(gaps, 0.5, method="inverted_cdf")),
        "gap_p95_ms": float(np.quantile(gaps, 0.95, method="inverted_cdf")),
        "rescue_rate": per_tested(sum(t.origin is Origin.RESCUED for t in tested)),
        "rejected_in_top_ten": within([t.rank for t in tested if t.origin is Origin.REJECTED], 10),
        "rescued_in_top_five": within([t.rank for t in tested if t.origin is Origin.RESCUED], 5),
        "mean_R": per_tested(sum(t.R or 0 for t in tested)),
        "mean_ES": fmean(es) if es else None,
        "max_ES": max(es) if es else None,
        "mean_eps": per_tested(sum(t.eps or 0 for t in tested)),
        "mean_spent": fmean(spent),
        "mean_Q": fmean(1 - min(s, 1) / 2 for s in spent),
        "mean_weight": 0.5 if relaxed else 1.0,
        "guarantee": None if relaxed else 1.0,
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[FakeEngine, Results]:
    engine = FakeEngine()
    stored = finished(tmp_path_factory.mktemp("runs"), engine=engine, count=12, seeds=(0, 1))
    return engine, results_of([stored])


@pytest.mark.parametrize("arm", ["ar", "sd-k2", "sd-k4", "nsd-theta0.85-k4", "nsd-theta0.95-k2"])
@pytest.mark.parametrize("task", ["maths", OVERALL])
def test_every_metric_is_what_events_say(world: tuple[FakeEngine, Results], arm: str, task: str) -> None:
    engine, results = world
    model = results.models[0]
    records = [r for r in model.runs[0].records if r["arm"] == arm and task in (r["task"], OVERALL)]
    answers = [engine.events[r["text"]] for r in records]
    wanted = brute(answers, relaxed=arm.startswith("nsd"))
    got = values(model.rows[arm, task].counters)
    assert got.keys() == wanted.keys() == METRICS.keys()
    for name, value in wanted.items():
        # Quantiles come from bins of 2%; all other numbers are sums in another order.
        tolerance = BIN - 1 if "_p50" in name or "_p95" in name else 1e-9
        assert got[name] == (None if value is None else pytest.approx(value, rel=tolerance)), name


def test_places_and_sizes_are_what_events_say(world: tuple[FakeEngine, Results]) -> None:
    engine, results = world
    model = results.models[0]
    for arm in grid():
        answers = [engine.events[r["text"]] for r in model.runs[0].records if r["arm"] == arm.name]
        blocks = [b for answer in answers for b in answer if b.number]
        by_place: dict[int, list[events.Tested]] = {}
        for block in blocks:
            for place, t in enumerate(block.tested):
                by_place.setdefault(place, []).append(t)
        counters = model.row(arm).counters
        wanted = [fmean(t.origin in KEPT for t in by_place[place]) for place in sorted(by_place)]
        assert acceptance_by_position(counters) == pytest.approx(wanted)
        sizes = [len(b.committed) for b in blocks]
        assert histogram(counters) == {size: sizes.count(size) for size in sorted(set(sizes))}


def test_scores_and_speedups_are_ratios_of_totals(world: tuple[FakeEngine, Results]) -> None:
    engine, results = world
    model = results.models[0]
    records = model.runs[0].records

    def rates(arm: str, task: str, decode: bool) -> list[tuple[str, float, float]]:
        found = []
        for r in records:
            if (r["arm"], r["task"]) == (arm, task):
                counted = [b for b in engine.events[r["text"]] if b.number > 0 or not decode]
                tokens, seconds = sum(len(b.committed) for b in counted), sum(b.timing.total_s for b in counted)
                found.append((r["problem"], float(tokens), seconds))
        return found

    for task, (arm, other, kind) in itertools.product(
        ("maths", "code"),
        (("nsd-theta0.95-k4", "ar", "ar"), ("nsd-theta0.95-k4", "sd-k4", "sd"), ("sd-k2", "ar", "ar")),
    ):
        speedup = model.rows[arm, task].over[kind]
        for decode, spread in ((False, speedup.prefill_in), (True, speedup.decode_only)):
            mine, theirs = rates(arm, task, decode), rates(other, task, decode)
            ratio = sum(n for _, n, _ in mine) / sum(s for *_, s in mine)
            ratio /= sum(n for _, n, _ in theirs) / sum(s for *_, s in theirs)
            assert spread is not None and spread.value == pytest.approx(ratio) and spread.n == 12
        each = []
        for problem in {p for p, *_ in rates(arm, task, False)}:
            (a, s), (b, t) = (
                map(sum, zip(*[(n, u) for p, n, u in rates(x, task, False) if p == problem], strict=True))
                for x in (arm, other)
            )
            each.append(a / s / (b / t))
        assert speedup.per_prompt is not None and speedup.per_prompt.value == pytest.approx(fmean(each))
        right = [r["correct"] for r in records if (r["arm"], r["task"]) == (arm, task)]
        row = model.rows[arm, task]
        assert row.score.value == pytest.approx(fmean(right)) == pytest.approx(row.passes[1])


def test_quality_pairs_answers_of_one_problem_and_seed(world: tuple[FakeEngine, Results]) -> None:
    _, results = world
    model = results.models[0]
    right = {(r["arm"], r["problem"], r["seed"]): r["correct"] for r in model.runs[0].records}
    pairs = [(v, right["sd-k4", p, s]) for (arm, p, s), v in right.items() if arm == "nsd-theta0.95-k4"]
    quality = model.rows["nsd-theta0.95-k4", OVERALL].quality["sd"]
    here, there = pairs.count((True, False)), pairs.count((False, True))
    assert (quality.only_one, quality.only_other) == (here, there)
    assert quality.p == pytest.approx(st.mcnemar(here, there))
    assert quality.difference.value == pytest.approx((here - there) / len(pairs))


def test_overall_rows_and_cells_are_means_over_tasks(world: tuple[FakeEngine, Results]) -> None:
    _, results = world
    model, cells = results.models[0], results.cells
    assert model.nsd is not None
    rows = [model.row(model.nsd, task) for task in model.tasks]
    over = [{kind: estimate(row.over[kind].prefill_in).value or 0 for kind in ("ar", "sd")} for row in rows]
    assert estimate(model.row(model.nsd).over["ar"].prefill_in).value == pytest.approx(fmean(o["ar"] for o in over))
    assert cells.over_sd is not None and cells.points is not None
    assert cells.over_sd.value == pytest.approx(100 * (fmean(o["sd"] for o in over) - 1))
    assert cells.max_over_ar is not None
    assert cells.max_over_ar.value == pytest.approx(100 * (max(o["ar"] for o in over) - 1))
    assert cells.fastest == sum(min(o.values()) > 1 for o in over)
    differences = [row.quality["sd"].difference.value for row in rows]
    assert (cells.up, cells.tied, cells.down) == tuple(
        sum(test(d) for d in differences) for test in (lambda d: d > 0, lambda d: d == 0, lambda d: d < 0)
    )
    assert cells.points.value == pytest.approx(100 * fmean(differences))


def test_shards_pool_to_the_whole(tmp_path: Path) -> None:
    whole = results_of([finished(tmp_path, count=9)])
    parts = results_of([finished(tmp_path, f"part{i}", count=9, shard=(i, 3)) for i in (1, 2, 3)])
    assert len(parts.models) == 1

    def numbers(results: Results) -> list[dict[str, object]]:
        found: list[dict[str, object]] = results.as_json()["models"][0]["rows"]
        return found

    for one, other in zip(numbers(whole), numbers(parts), strict=True):
        flat, same = (json.loads(json.dumps(x), parse_float=lambda t: float(f"{float(t):.9g}")) for x in (one, other))
        assert flat == same


def test_prompts_that_an_arm_has_not_answered_are_left_out(tmp_path: Path) -> None:
    engine, wanted = FakeEngine(), plan(count=6)
    with RunWriter(tmp_path, "part", wanted.config(engine.facts()), SESSION) as bundle:
        run(wanted, Breaking(11 * len(grid()) + 3), bundle)
    model = results_of([read_run(bundle.folder)]).models[0]
    assert len(model.runs[0].records) == 10 * len(grid()) + 3
    assert model.left_out == 1 and model.rows["ar", OVERALL].answers == 10


class Breaking(FakeEngine):
    """Is interrupted after so many answers, the warm-up's included."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        if self.asked == self.most:
            raise KeyboardInterrupt
        return super().answer(problem, settings, drafting)


def test_counters_survive_json_and_add_up(world: tuple[FakeEngine, Results]) -> None:
    _, results = world
    found = [Counters.from_json(r["counters"]) for r in results.models[0].runs[0].records[:40]]
    again = [Counters.from_json(json.loads(json.dumps(c.as_json()))) for c in found]
    assert again == found
    assert values(total(found)) == pytest.approx(values(total([total(found[:7]), total(found[7:])])))
    assert total([]).stats.tau is None and all(v is None for v in values(Counters()).values())


def test_quantiles_are_exact_to_a_bin() -> None:
    rng = Random(3)
    times = [math.exp(rng.gauss(-4, 1)) for _ in range(999)]
    bins = Counters()
    for t in times:
        bins.gaps[bin_of(t)] += 1
    for share in (0.05, 0.5, 0.95):
        wanted = float(np.quantile(times, share, method="inverted_cdf"))
        assert quantile(bins.gaps, share) == pytest.approx(wanted, rel=0.0101)
    assert quantile(Counters().gaps, 0.5) is None


def test_mcnemar_is_the_binomial_test() -> None:
    from scipy.stats import binomtest

    for here, there in itertools.product(range(8), range(8)):
        wanted = binomtest(here, here + there).pvalue if here + there else 1.0
        assert st.mcnemar(here, there) == pytest.approx(wanted)


def test_pass_at_k_is_the_chance_of_a_right_one_among_k() -> None:
    for n, c, k in ((5, 2, 1), (5, 2, 3), (6, 0, 2), (4, 4, 4), (7, 3, 5)):
        draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert st.pass_at_k(n, c, k) == pytest.approx(fmean(any(d) for d in draws))


def test_the_bootstrap_covers_as_often_as_it_says() -> None:
    """300 worlds with a known ratio of 2: coverage 95% +- 5 standard deviations (false alarm below 1e-6)."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        speed = rng.lognormal(0, 0.4, 60)
        slow = st.Totals(np.ones(60), speed * rng.lognormal(0, 0.2, 60))
        fast = st.Totals(np.ones(60), speed * rng.lognormal(0, 0.2, 60) / 2)
        found = st.ratio(fast, slow).estimate()
        hits += found.low is not None and found.high is not None and found.low <= 2 <= found.high
    assert 0.95 - 5 * math.sqrt(0.95 * 0.05 / 300) <= hits / 300


def test_pairing_narrows_the_interval() -> None:
    rng = np.random.default_rng(2)
    speed = rng.lognormal(0, 1, 50)
    slow, fast = st.Totals(np.ones(50), speed), st.Totals(np.ones(50), speed / 2)
    found = st.ratio(fast, slow).estimate()
    assert found.low == pytest.approx(2) and found.high == pytest.approx(2)


def test_few_problems_have_no_interval() -> None:
    found = st.fraction(st.Totals(np.ones(4), np.full(4, 2.0))).estimate()
    assert found.value == 0.5 and found.low is None and found.reason == "an interval needs 5 problems, here are 4"
