"""Reports: the text as it was agreed, no speed-up without its interval, a page that loads nothing and fits a phone."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from nsd.bench.arms import Arm, arms_of
from nsd.bench.bundle import BenchError, RunWriter, StoredRun, read_run
from nsd.bench.figures import Point, Series, bars, plot, ticks
from nsd.bench.page import page
from nsd.bench.paper import figures as paper_figures
from nsd.bench.pictures import ranks
from nsd.bench.report import NOT_MONOTONE, report_of, write
from nsd.bench.results import estimate, results_of
from nsd.bench.runner import Plan, run
from nsd.trace import read_trace
from tests.bench.fake import SESSION, FakeEngine, FakeTask, finished, grid
from tests.bench.test_metrics import brute

SNAPSHOT = Path(__file__).parent / "snapshots" / "report.md"
REGENERATE = "PYTHONPATH=src:. python -c 'from tests.bench.test_report import regenerate; regenerate()'"

needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
)


def settled(run: StoredRun) -> StoredRun:
    """The run with a name and times that do not change."""
    manifest = {**run.manifest, "created": "2026-01-01", "finished": "2026-01-02"}
    return replace(run, manifest=manifest)


def text_of(folder: Path) -> str:
    return report_of([settled(finished(folder, count=12, seeds=(0, 1)))], with_paper=True).markdown()


def regenerate() -> None:
    """Write the snapshot anew; read the difference before it is kept."""
    import tempfile

    SNAPSHOT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        SNAPSHOT.write_text(text_of(Path(folder)), encoding="utf-8")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return finished(tmp_path_factory.mktemp("runs"), count=12, seeds=(0, 1))


def test_the_report_is_the_snapshot(tmp_path: Path) -> None:
    assert text_of(tmp_path) == SNAPSHOT.read_text(encoding="utf-8"), f"if the change is meant: {REGENERATE}"


def test_no_speedup_stands_alone(stored: StoredRun) -> None:
    """Outside the paper's own column, every 'x' has its interval or the reason, and n."""
    text = report_of([stored], with_paper=False).markdown()
    found = re.findall(r"\d+\.\d\dx.{0,40}", text)
    assert len(found) > 20
    assert all(re.match(r"\d+\.\d\dx \[\d+\.\d\d, \d+\.\d\d\] \(n = \d+\)", one) for one in found)


def test_few_prompts_are_said_to_be_few(tmp_path: Path) -> None:
    text = report_of([finished(tmp_path, count=2)]).markdown()
    found = re.findall(r"\d+\.\d\dx.{0,40}", text)
    assert found and all("(n = 2, too few for an interval)" in one or "(n = 4, too few" in one for one in found)


def test_grids_say_that_effects_need_not_be_monotone(stored: StoredRun) -> None:
    text = report_of([stored]).markdown()
    assert NOT_MONOTONE in text
    rows = [line for line in text.splitlines() if line.startswith("| maths | ")]
    assert sum(bool(re.match(r"\| maths \| \d \| \d \| 0\.\d+ ", row)) for row in rows) == 4


def test_the_papers_figures_stand_beside_empty_cells(stored: StoredRun) -> None:
    report = report_of([stored], with_paper=True)
    paper = report.as_json()["paper"]
    assert len(paper) == len(paper_figures()) > 45
    assert all(one["own"] is None for one in paper)
    assert {("30 cells", 323.0), ("Nemotron-14B", 11.54), ("Qwen3.5-4B", 179.9)} <= {
        (o["model"], o["paper"]) for o in paper
    }
    assert "323.0 %" in report.markdown() and "5.16x" in report.markdown()


def run_of(root: Path, name: str, arms: Sequence[Arm], tasks: int = 5, **engine: Any) -> StoredRun:
    """A complete run of the fake engine with these arms, its engine's facts replaced by others."""
    made = FakeEngine()
    found = [FakeTask(task) for task in ("gsm8k", "math500", "humaneval", "mbpp", "aime25")[:tasks]]
    wanted = Plan([(t, t.problems(6)) for t in found], tuple(arms), (0,), {"temperature": 1.0, "top_p": 1.0})
    with RunWriter(root, name, wanted.config({**made.facts(), **engine}), SESSION) as bundle:
        assert run(wanted, made, bundle).complete
    return read_run(root / name)


def arms_at(k: int, unit: int = 0, thetas: tuple[float, ...] = (0.95,), kinds: str = "ar,sd,nsd") -> tuple[Arm, ...]:
    return arms_of(kinds.split(","), lambda *_: k, lambda n: n + unit, {"rule": "nsd"}, thetas)


def own_figures(*runs: StoredRun) -> dict[tuple[str, str], Any]:
    return {
        (o["model"], o["figure"]): o["own"] for o in report_of(runs, True).as_json()["paper"] if o["own"] is not None
    }


QWEN: dict[str, Any] = {"target": "Qwen/Qwen3-4B", "drafter": "dspark"}


@pytest.mark.parametrize("target", ["Qwen/Qwen3-4B", "/weights/Qwen3-4B", "/hub/models--Qwen--Qwen3-4B/snapshots/1a2b"])
def test_own_figures_fill_the_papers_cells(tmp_path: Path, target: str) -> None:
    stored = run_of(tmp_path, "one", arms_at(7), target=target, drafter="dspark")
    own = own_figures(stored)
    model = results_of([stored]).models[0]
    row, sd = model.rows["nsd-theta0.95-k7", "overall"], model.rows["sd-k7", "overall"]
    assert {name for _, name in own} == {
        "tau, SD", "tau, NSD", "score, SD", "score, NSD", "speed-up over AR, SD", "speed-up over AR, NSD",
    }  # fmt: skip
    assert {who for who, _ in own} == {"Qwen3-4B"}
    assert own["Qwen3-4B", "score, NSD"]["value"] == pytest.approx(100 * row.score.value)
    assert own["Qwen3-4B", "speed-up over AR, NSD"] == estimate(row.over["ar"].prefill_in).as_json()
    assert own["Qwen3-4B", "tau, SD"] == estimate(sd.tau).as_json()


def test_runs_of_another_setting_leave_the_papers_cells_empty(tmp_path: Path) -> None:
    """Another checkpoint of a like name, mechanism, temperature, block, theta, a cap, or fewer tasks."""
    capped = arms_of(("ar", "sd", "nsd"), lambda *_: 7, lambda n: n, {"rule": "nsd", "max_deviation": 0.1}, (0.95,))
    others = [
        run_of(tmp_path, "base", arms_at(7), target="Qwen/Qwen3-4B-Base", drafter="dspark"),
        run_of(tmp_path, "eagle", arms_at(7), target="Qwen/Qwen3-4B", drafter="eagle3"),
        run_of(tmp_path, "short", arms_at(4), **QWEN),
        run_of(tmp_path, "few", arms_at(7), tasks=4, **QWEN),
    ]
    assert own_figures(*others) == {}
    for arms in (arms_at(7, thetas=(0.9,)), capped):
        own = own_figures(run_of(tmp_path, f"n{len(list(tmp_path.iterdir()))}", arms, **QWEN))
        assert {name for _, name in own} == {"tau, SD", "score, SD", "speed-up over AR, SD"}
    warm = run_of(tmp_path, "warm", arms_at(7), **QWEN)
    config = {**warm.manifest["config"], "settings": {"temperature": 0.7, "top_p": 1.0}}
    assert own_figures(replace(warm, manifest={**warm.manifest, "config": config})) == {}


def test_the_papers_ablation_is_found_beside_the_main_run(tmp_path: Path) -> None:
    """Table 2 is a run of its own; Nemotron's verification is over all its sizes together."""
    names = {size: f"nvidia/Nemotron-Labs-Diffusion-{size}" for size in ("3B", "14B")}
    mains = [run_of(tmp_path, size, arms_at(31, 1), target=name, drafter="nemotron") for size, name in names.items()]
    grid_arms = arms_at(31, 1, (0.85, 0.925, 0.95))
    table = run_of(tmp_path, "table2", grid_arms, tasks=4, target=names["14B"], drafter="nemotron")
    own = own_figures(*mains, table)
    at = results_of([table]).models[0].rows["nsd-theta0.85-k31", "gsm8k"]
    assert (
        own["Nemotron-14B", "speed-up over AR; gsm8k, θ=0.85, block 32"] == estimate(at.over["ar"].prefill_in).as_json()
    )
    assert ("Nemotron-14B", "tau; mbpp, θ=0.925, block 24") not in own
    stats = [r["counters"]["stats"] for run in mains for r in run.records if r["arm"] == "sd-k31"]
    blocks, tokens = (sum(s[n] for s in stats) for n in ("blocks", "output_tokens"))
    wanted = blocks / (tokens - sum(s["prefill_tokens_out"] for s in stats))
    assert own["Nemotron", "target calls per token, SD"] == pytest.approx(wanted)


@pytest.mark.parametrize("kinds", ["sd,nsd", "ar,nsd", "ar,sd", "nsd", "sd", "ar"])
@pytest.mark.parametrize("problems", [1, 6])
def test_a_report_does_without_any_arm(tmp_path: Path, kinds: str, problems: int) -> None:
    """No column, card or figure of what was not run; what is left is said with its sample size."""
    stored = run_of(tmp_path, "part", arms_at(3, thetas=(0.8, 0.95), kinds=kinds), tasks=1, target="one")
    kept = tuple(r for r in stored.records if int(r["problem"].rpartition("/")[2]) < problems)
    report = report_of([replace(stored, records=kept)], True)
    text, html = report.markdown(), page(report)
    assert "nan" not in html.lower() and "None" not in text
    ran = kinds.split(",")
    assert ("speed-up over AR |" in text.split("## Figures")[0]) == ("ar" in ran and len(ran) > 1)
    assert ("NSD over SD" in text) == ({"sd", "nsd"} <= set(ran))
    assert html.count("<dl") == ("nsd" in ran) and ("speed-up over SD of the same K" in html) == (ran == ["sd", "nsd"])
    assert all("(n = " in one for one in re.findall(r"\d+\.\d\dx (?!\|)[^|.]{4,40}", text.split("## Beside")[0]))
    json.dumps(report.as_json(), allow_nan=False)


def test_runs_of_one_pair_under_two_settings_are_told_apart(tmp_path: Path) -> None:
    one, other = (finished(tmp_path, name, count=3) for name in ("cold", "warm"))
    config = {**other.manifest["config"], "settings": {"temperature": 0.7, "top_p": 1.0}}
    report = report_of([one, replace(other, manifest={**other.manifest, "config": config})])
    titles = [model.title for model in report.results.models]
    assert titles == ["fake-target + fake-drafter (cold)", "fake-target + fake-drafter (warm)"]
    assert all(f"**{title}**" in report.markdown() for title in titles)
    assert "fake-target + fake-drafter (warm). τ against K." in report.markdown()


def test_estimates_of_the_deviation_say_so_and_unknown_metrics_are_named(tmp_path: Path) -> None:
    """As an engine gives them that neither computes ES nor times its phases."""
    stored = finished(tmp_path, count=6)
    records = json.loads(json.dumps(stored.records))
    for record in records:
        stats = record["counters"]["stats"]
        stats |= {"score_s": 0.0, "evaluated": 0, "ES_is": "estimated by the rescue rate" if stats["drafted"] else None}
    text = report_of([replace(stored, records=tuple(records))]).markdown()
    assert "| mean ES, estimated by the rescue rate | – | " in text and "| max ES" not in text
    assert "Not known of this run: verification per token; target pass per call; " in text
    assert "estimated by the rescue rate" in page(report_of([replace(stored, records=tuple(records))]))


def test_several_seeds_are_said_to_share_prompts(stored: StoredRun, tmp_path: Path) -> None:
    assert "McNemar's p counts the answers of one prompt under several seeds" in report_of([stored]).markdown()
    assert "McNemar's p counts" not in report_of([finished(tmp_path, count=5)]).markdown()


def test_a_partial_run_says_so(tmp_path: Path) -> None:
    whole = finished(tmp_path, count=6)
    part = replace(whole, records=whole.records[: -len(grid()) - 2], complete=False)
    text = report_of([part]).markdown()
    assert "a run is partial" in text and "1 prompts that not all arms have answered are left out" in text


def test_a_run_without_one_whole_prompt_is_refused(stored: StoredRun) -> None:
    with pytest.raises(BenchError, match="no prompt that all arms answered"):
        report_of([replace(stored, records=stored.records[:2])])


def test_runs_that_overlap_are_refused(stored: StoredRun) -> None:
    with pytest.raises(BenchError, match="is in two of the runs"):
        report_of([stored, stored])


def test_the_report_is_written_in_three_forms(stored: StoredRun, tmp_path: Path) -> None:
    paths = write(report_of([stored]), tmp_path / "a" / "b")
    assert [path.name for path in paths] == ["report.md", "report.html", "report.json"]
    numbers = json.loads(paths[2].read_text(encoding="utf-8"))
    rows = numbers["models"][0]["rows"]
    assert len(rows) == len(grid()) * 3 and numbers["over_all_cells"]["cells"] == 2
    speedup = next(row for row in rows if row["arm"] == "sd-k2")["speedup"]["ar"]["prefill_in"]
    assert speedup["low"] < speedup["value"] < speedup["high"] and speedup["n"] == 12
    assert set(numbers["formulas"]) == set(rows[0]["metrics"])


class _Outside(HTMLParser):
    """Everything in a page that would be fetched, and all its text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.fetched += [value for value in named if not value.startswith("#")]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "object") else []


def test_the_page_loads_nothing_and_escapes_names(stored: StoredRun) -> None:
    config = json.loads(json.dumps(stored.manifest["config"]).replace("fake-target", "<script>alert(1)</script>"))
    html = page(report_of([replace(stored, manifest={**stored.manifest, "config": config})], True))
    parser = _Outside()
    parser.feed(html)
    assert parser.fetched == [] and "<script" not in html and "url(" not in html
    assert html.count("<svg") == 6


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    for flag in (*flags.split(), "--disable-sync", f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@needs_browser
def test_the_page_fits_a_phone_in_light_and_dark_and_prints(browser: Any, stored: StoredRun, tmp_path: Path) -> None:
    path = write(report_of([stored], True), tmp_path)[1]
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    browser.get(path.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    for table in browser.find_elements(By.CSS_SELECTOR, ".scroll"):
        assert table.size["width"] <= 390 - 2 * 14
    shades = []
    for scheme in ("light", "dark"):
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        shades.append(sum(map(int, re.findall(r"\d+", colour))))
    assert shades[0] > 700 and shades[1] < 100
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert len(pdf) > 20_000
    assert not browser.find_element(By.TAG_NAME, "nav").is_displayed()
    cell = browser.find_element(By.CSS_SELECTOR, "tbody td b").text
    assert re.fullmatch(r"\d+\.\d\dx", cell)
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_ranks_are_drawn_without_a_trace(stored: StoredRun) -> None:
    """Shares of each population over the ranges add up to 100%, and are those of the records' own counters."""
    model = results_of([stored]).models[0]
    svg = ranks(model)
    shares = [float(x) for x in re.findall(r">([\d.e+-]+) %</text>", svg)]
    populations = 1 + 1 + 1  # SD's rejections, NSD's, NSD's rescues
    assert sum(shares) == pytest.approx(100 * populations, abs=0.5)
    assert model.nsd is not None
    rescued = model.row(model.nsd).counters.rescued_ranks
    wanted = [r["counters"]["rescued_ranks"] for r in stored.records if r["arm"] == model.nsd.name]
    assert rescued == sum((Counter({int(k): n for k, n in one.items()}) for one in wanted), Counter())
    assert "rank 1" in svg and "rank over 100" in svg


def test_figures_place_points_by_value() -> None:
    svg = plot([Series("a <b>", [Point(0, 1), Point(1, 3)])], "x", "y")
    places = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)]
    assert places[0][0] < places[1][0] and places[0][1] > places[1][1]
    assert "a &lt;b&gt;" in svg and "<b>" not in svg
    assert plot([Series("empty", [])], "x", "y") == "" and bars([], "ms") == ""
    assert "3 ms" in bars([("one", [("a", 1.0), ("b", 2.0)])], "ms")


def test_labels_do_not_hide_each_other() -> None:
    near = [Point(1 + i / 1000, 5.0, f"label {i}") for i in range(6)]
    svg = plot([Series("a", [*near, Point(9, 5.0)])], "x", "y", zero=False)
    heights = sorted(float(y) for y in re.findall(r'y="([\d.]+)" text-anchor="start">label', svg))
    assert len(heights) == 6 and all(b - a >= 13.9 for a, b in pairwise(heights))


def test_one_point_has_room_around_it() -> None:
    svg = plot([Series("a", [Point(2, 0.0)])], "x", "y")
    assert "nan" not in svg and len(re.findall("<circle", svg)) == 1


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.83, 0.97), (-3.0, 250.0), (1e-4, 2e-4)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 3 <= len(found) <= 7 and all(low <= value <= high for value in found)


def test_toy_model_metrics_are_what_its_traces_say(tmp_path: Path) -> None:
    """Decode for real with the toy model, record every decision, recompute every metric from the trace files."""
    from nsd.api import load
    from nsd.bench.bundle import Key
    from nsd.bench.engine import OwnEngine
    from nsd.bench.metrics import BIN, values
    from nsd.bench.runner import trace_name
    from nsd.bench.task import find_task

    engine = OwnEngine(load("toy", "ngram"), "toy", "ngram", trace=True)
    arms = arms_of(("ar", "sd", "nsd"), engine.proposals, engine.unit, {"rule": "nsd"}, (0.9,), (3,))
    task = find_task("toy")
    wanted = Plan([(task, task.load(limit=6))], arms, (0,), {"temperature": 1.0}, 40)
    with RunWriter(tmp_path, "toy", wanted.config(engine.facts()), {}) as bundle:
        assert run(wanted, engine, bundle).complete
    stored = read_run(tmp_path / "toy")
    model = results_of([stored]).models[0]
    for arm in arms:
        records = [r for r in stored.records if r["arm"] == arm.name]
        traces = [read_trace(stored.folder / trace_name(Key.of(r))) for r in records]
        assert [sum(len(b.committed) for b in t.blocks) for t in traces] == [r["tokens"] for r in records]
        again = brute([list(t.blocks) for t in traces], relaxed=arm.kind == "nsd")
        got = values(model.row(arm).counters)
        for name in got.keys() - {"mean_Q", "mean_weight"}:
            rel = BIN - 1 if "_p50" in name or "_p95" in name else 1e-9
            assert got[name] == (None if again[name] is None else pytest.approx(again[name], rel=rel)), name
        ledgers = [t.footer.requests[0].fidelity for t in traces if t.footer is not None]
        assert got["mean_Q"] == pytest.approx(sum(x["ledger"]["Q"] for x in ledgers) / len(ledgers))
    assert report_of([stored]).as_json()["analysis"]["estimates"]["rescued_in_top_five"]["n"] > 0


def test_fake_runs_are_the_same_each_time(tmp_path: Path) -> None:
    one, other = (finished(tmp_path, name, FakeEngine(), count=2) for name in ("a", "b"))
    assert one.records == other.records
