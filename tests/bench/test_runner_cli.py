"""`nsd bench` and `nsd report` from the command line, on the toy model: run, break off, go on, report, refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from nsd.bench.bundle import BenchError, read_run
from nsd.bench.engine import OwnEngine
from nsd.cli import bench as cli
from nsd.errors import ConfigError

app = typer.Typer()
app.command()(cli.bench)
app.command()(cli.report)
COMMON = ["--suite", "toy", "--model", "toy", "--limit", "5", "--max-new-tokens", "12"]


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def bench(runs: Path, *more: str) -> Result:
    return call("bench", *COMMON, "--runs", str(runs), *more)


@pytest.fixture(autouse=True)
def one_line_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_bench_then_report_on_the_toy_model(tmp_path: Path) -> None:
    assert bench(tmp_path, "--name", "first", "--theta", "0.8,0.95", "-k", "2").exit_code == 0
    stored = read_run(tmp_path / "first")
    config = stored.manifest["config"]
    assert [arm["name"] for arm in config["arms"]] == ["ar", "sd-k2", "nsd-theta0.8-k2", "nsd-theta0.95-k2"]
    assert len(stored.records) == 4 * 5 and stored.complete
    assert config["settings"]["temperature"] == 1.0 and config["settings"]["top_p"] == 1.0
    assert len(config["engine"]["target_hash"]["table"]) == 64
    result = call("report", "--runs", str(tmp_path))
    assert result.stdout.startswith("# Benchmark: toy + ngram\n")
    folder = tmp_path / "reports" / "first"
    assert (folder / "report.md").read_text(encoding="utf-8") in result.stdout
    assert (folder / "report.html").exists()
    document = json.loads(call("report", "first", "--runs", str(tmp_path), "--json").stdout.splitlines()[0])
    assert document["kind"] == "report" and document["models"][0]["runs"] == ["first"]


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = 0, OwnEngine.answer

    def limited(*arguments: Any, **more: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 9:
            raise KeyboardInterrupt
        return answer(*arguments, **more)

    monkeypatch.setattr(OwnEngine, "answer", limited)
    broken = bench(tmp_path, "--name", "two")
    assert broken.exit_code == 130
    assert "nsd bench --resume two" in broken.stderr
    partial = read_run(tmp_path / "two.partial")
    assert len(partial.records) == 5
    assert "a run is partial" in call("report", "two", "--runs", str(tmp_path)).stdout
    with pytest.raises(BenchError, match="another configuration"):
        bench(tmp_path, "--name", "two", "--temperature", "0.7")
    assert call("bench", "--resume", "two", "--runs", str(tmp_path)).exit_code == 0
    whole = read_run(tmp_path / "two")
    assert whole.records[:5] == partial.records and len(whole.records) == 15
    with pytest.raises(BenchError, match="run two is complete, wanted a partial one"):
        call("bench", "--resume", "two", "--runs", str(tmp_path))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--theta", "high"], "--theta got 'high'"),
        (["--theta", "1.5"], "theta"),
        (["--shard", "2"], "--shard got '2', wanted i/n"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--arms", "ar,fast"], "got arms ar, fast"),
        (["-k", "2", "--block-length", "4"], "got -k and --block-length"),
        (["--task", "gsm9k"], "did you mean gsm8k"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, more: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        bench(tmp_path, *more)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.partial"))


def test_an_exact_rule_leaves_no_relaxed_arm(tmp_path: Path) -> None:
    assert bench(tmp_path, "--name", "exact", "--rule", "sd", "-k", "2").exit_code == 0
    assert {r["arm"] for r in read_run(tmp_path / "exact").records} == {"ar", "sd-k2"}
    assert "No cell has AR, SD and NSD" in call("report", "--runs", str(tmp_path)).stdout


def test_arms_that_are_run_fit_the_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench(tmp_path, "--name", "plain", "--drafter", "none").exit_code == 0
    assert {r["arm"] for r in read_run(tmp_path / "plain").records} == {"ar"}
    assert "# Benchmark: toy + none" in call("report", "plain", "--runs", str(tmp_path)).stdout
    monkeypatch.setattr("nsd.bench.engine.NATIVE_MATCH", ("ngram",))
    assert bench(tmp_path, "--name", "native", "-k", "2").exit_code == 0
    stored = read_run(tmp_path / "native")
    assert {r["arm"] for r in stored.records} == {"ar", "sd-k2", "match-k2", "nsd-theta0.95-k2"}
    assert stored.manifest["config"]["sd_baseline"] == ["sample-and-match", "sd"]
    assert "SD, sample-and-match K=2: score" in call("report", "native", "--runs", str(tmp_path)).stdout


def test_reports_of_nothing_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="nsd bench --suite toy makes one"):
        call("report", "--runs", str(tmp_path))
