"""The analysis against counts made by hand, and what it refuses to compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from nsd.events import Origin
from nsd.trace.analyze import CORES, PAPER, PAPER_CORE, PAPER_VERIFYING, analyze
from nsd.trace.read import read_trace
from nsd.trace.schema import Trace
from nsd.verification import DraftLaw
from tests.trace.world import decode


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    folder = tmp_path_factory.mktemp("analysis")
    runs = [decode(rule, seed=seed, tokens=40) for rule in ("nsd", "sd") for seed in range(4)]
    return [read_trace(run.record(folder / f"{i}.jsonl")) for i, run in enumerate(runs)]


def test_populations_and_shares(both: list[Trace]) -> None:
    rejected = [
        t
        for trace in both
        for block in trace.blocks
        for t in block.tested
        if trace.header.requests[0].rule == "sd" and t.origin is Origin.REJECTED
    ]
    rescued = [t for trace in both for block in trace.blocks for t in block.tested if t.origin is Origin.RESCUED]
    assert len(rejected) > 20
    assert len(rescued) > 20
    found = analyze(both).estimates
    by_hand = {
        "rejections_in_nucleus": (sum(t.mass < 0.95 and t.p > 0 for t in rejected), len(rejected)),  # type: ignore[operator]
        "rejections_in_top_ten": (sum(t.rank <= 10 for t in rejected), len(rejected)),  # type: ignore[operator]
        "rescued_in_top_five": (sum(t.rank <= 5 for t in rescued), len(rescued)),  # type: ignore[operator]
        "higher_target_entropy": (sum(t.entropy_p > t.entropy_q for t in rescued), len(rescued)),  # type: ignore[operator]
    }
    for name, (hits, n) in by_hand.items():
        assert found[name].value == hits / n
        assert found[name].n == n
        assert found[name].paper == PAPER[name]
        low, high = found[name].low, found[name].high
        assert low is not None and high is not None and low <= hits / n <= high
    assert found["draft_entropy"].value == pytest.approx(sum(t.entropy_q or 0 for t in rescued) / len(rescued))
    assert found["target_entropy"].value == pytest.approx(sum(t.entropy_p or 0 for t in rescued) / len(rescued))
    cores = analyze(both, core=0.7).cores
    assert set(cores) == {f"{core:g}" for core in (*CORES, 0.7)}
    for level, estimate in cores.items():
        assert estimate.value == sum(t.mass < float(level) for t in rescued) / len(rescued)  # type: ignore[operator]


def test_intervals_are_scipys(both: list[Trace]) -> None:
    result = analyze(both)
    place = next(p for p in result.places if p.rule == "sd" and p.place == 1)
    values = [b.tested[1].R for trace in both[4:] for b in trace.blocks if len(b.tested) > 1]
    wanted = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))  # type: ignore[arg-type]
    assert (place.R.low, place.R.high) == pytest.approx(wanted)
    kept = [b.tested[1].origin is not Origin.REJECTED for trace in both[4:] for b in trace.blocks if len(b.tested) > 1]
    assert place.acceptance.value == sum(kept) / len(kept)
    assert place.acceptance.n == place.R.n == len(values)


def test_calls_and_time(both: list[Trace]) -> None:
    speeds = {speed.rule: speed for speed in analyze(both).speeds}
    blocks = [block for trace in both[4:] for block in trace.blocks if block.number]
    emitted = sum(len(block.committed) for block in blocks)
    assert speeds["sd"].calls_per_token == len(blocks) / emitted
    assert speeds["sd"].tau == pytest.approx(emitted / len(blocks))
    assert speeds["sd"].verifying == pytest.approx(0.8)
    assert speeds["sd"].paper_verifying == PAPER_VERIFYING
    assert speeds["nsd"].paper_verifying is None


def test_nothing_to_say_is_said_with_a_reason(both: list[Trace]) -> None:
    sd_only, nsd_only = analyze(both[4:]).estimates, analyze(both[:4]).estimates
    assert sd_only["rescued_in_top_five"].value is None
    assert "rule nsd" in str(sd_only["rescued_in_top_five"].reason)
    assert "rule sd" in str(nsd_only["rejections_in_nucleus"].reason)
    assert nsd_only["rejections_in_nucleus"].paper is None


def test_the_papers_figure_stands_only_beside_the_papers_setting(both: list[Trace], tmp_path: Path) -> None:
    def with_info(trace: Trace, **changes: object) -> Trace:
        requests = tuple(replace(info, **changes) for info in trace.header.requests)  # type: ignore[arg-type]
        return replace(trace, header=replace(trace.header, requests=requests))

    nsd = both[0]
    changes: list[tuple[dict[str, object], str]] = [
        ({"sampling": {"temperature": 0.7}}, "temperature 0.7"),
        ({"sampling": {"temperature": 1.0, "top_p": 0.9}}, "top_p 0.9"),
        ({"numbers": {"theta": 0.8, "ties": "all"}}, "theta 0.8"),
        ({"numbers": {"theta": 0.95, "max_deviation": 0.1}}, "a cap"),
        ({"agreement": 0.9}, "budget"),
    ]
    for change, why in changes:
        estimate = analyze([with_info(nsd, **change)]).estimates["rescued_in_top_five"]
        assert estimate.value is not None
        assert estimate.paper is None
        assert why in str(estimate.not_compared)
    point = analyze([read_trace(decode("nsd", DraftLaw.POINT, seed=3).record(tmp_path / "t.jsonl"))]).estimates
    assert point["draft_entropy"].value is None
    assert "point mass" in str(point["draft_entropy"].reason)
    assert point["target_entropy"].value is not None
    assert point["target_entropy"].paper is None


def test_the_core_is_shown_and_not_compared(both: list[Trace]) -> None:
    document = analyze(both).as_json()
    assert document["core"]["compared"] is False
    assert document["core"]["paper_undefined_core"] == PAPER_CORE
    assert set(document["core"]["others"]) == {"0.5", "0.8", "0.9"}
    assert document["schema"] == 1


def test_figures_are_drawn(both: list[Trace], tmp_path: Path) -> None:
    from nsd.trace.figures import draw_figures

    written = draw_figures(analyze(both), tmp_path / "figures")
    assert sorted(path.name for path in written) == sorted(
        f"{name}.{kind}" for name in ("places", "ranks", "entropies") for kind in ("svg", "png")
    )
    assert all(path.stat().st_size > 1000 for path in written)
    assert "rejections" in (tmp_path / "figures" / "ranks.svg").read_text()
    assert draw_figures(analyze([]), tmp_path / "none") == []
