"""The search: limits are kept, the fastest of what is left wins, halving saves prompts, the file can be read back."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from nsd.bench.bundle import read_run
from nsd.bench.engine import Answer
from nsd.bench.metrics import Counters, mean_ES
from nsd.bench.sweep import Candidate, Found, Limits, as_toml, candidates_of, sweep
from nsd.bench.task import Problem
from nsd.cli import bench as cli
from nsd.cli import sweep as searching
from nsd.cli.config import read_config, split_config
from nsd.cli.main import main
from nsd.errors import ConfigError
from tests.bench.fake import FakeEngine, blocks_of, plan


class Known(FakeEngine):
    """Speed rises with theta and K; so does mean ES, and answers of theta over 0.9 are wrong."""

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        self.asked += 1
        theta, k = settings.get("theta", 0.0), settings["k"]
        blocks = blocks_of(random.Random(f"{settings['seed']}"), 3, 0.5, (1 + theta) * (1 + k / 10))
        fidelity = {"guarantee": None, "ES_is": "exact", "ledger": {"Q": None}, "weight": None}
        counters = Counters.of(blocks, fidelity)
        counters.stats.sum_ES = counters.stats.sum_eps = 0.1 * theta * counters.stats.evaluated
        return Answer("wrong" if theta > 0.9 else "right", 4, "eos", counters, fidelity)


def search(limits: Limits, **more: Any) -> tuple[Found, Known]:
    engine = Known()
    found = candidates_of([2, 4], [0.5, 0.8, 0.95], [], ["default"], limits)
    return sweep({"default": engine}, plan(count=16, **more), found, limits), engine


@pytest.mark.parametrize(
    ("limits", "chosen"),
    [
        (Limits(mean_es=0.2), "nsd-theta0.95-k4"),
        (Limits(mean_es=0.085), "nsd-theta0.8-k4"),
        (Limits(mean_es=0.06), "nsd-theta0.5-k4"),
        (Limits(mean_es=0.01), "sd-k4"),
        (Limits(score_drop=5.0), "nsd-theta0.8-k4"),
        (Limits(score_drop=100.0), "nsd-theta0.95-k4"),
    ],
)
def test_the_fastest_setting_within_the_limit_is_chosen(limits: Limits, chosen: str) -> None:
    found, _ = search(limits)
    assert found.chosen.name == chosen
    mean = mean_ES(found.chosen.counters)
    assert found.chosen.arm.kind == "sd" or limits.mean_es is None or (mean is not None and mean <= limits.mean_es)
    assert chosen in found.why and "keeps the limits" in found.why


class Unlucky(Known):
    """Wrong on the first of its prompts, and right ever after; a nucleus of 0.95 is wrong on every second one."""

    def answer(self, problem: Problem, settings: Mapping[str, Any], drafting: bool) -> Answer:
        found, number = super().answer(problem, settings, drafting), int(problem.reference)
        theta = settings.get("theta", 0.0)
        wrong = number == 0 if theta == 0.8 else number % 2 == 0 if theta == 0.95 else False
        return replace(found, text="wrong" if wrong else "right")


def test_one_unlucky_prompt_of_the_first_round_stops_nobody() -> None:
    limits = Limits(score_drop=10.0)
    candidates = candidates_of([2], [0.8, 0.95], [], ["default"], limits)
    found = sweep({"default": Unlucky()}, plan(count=16), candidates, limits)
    assert found.chosen.name == "nsd-theta0.8-k2" and found.chosen.score > 90
    assert "more than 10 points lower" in str(next(c for c in candidates if c.arm.theta == 0.95).stopped)


def test_halving_asks_less_than_a_full_grid() -> None:
    found, engine = search(Limits(mean_es=0.2))
    assert engine.asked < 0.6 * len(found.candidates) * 32
    assert [left for _, left in found.rounds] == sorted((left for _, left in found.rounds), reverse=True)
    stopped = [c for c in found.candidates if c.stopped]
    assert stopped and all(c.answers < found.chosen.answers for c in stopped)


def test_a_limit_on_the_deviation_is_a_cap_on_every_relaxed_setting() -> None:
    found = candidates_of([2], [0.9], [0.01, 0.2], ["default"], Limits(max_deviation=0.05))
    assert [c.arm.settings.get("max_deviation") for c in found] == [None, 0.01, 0.05]
    assert found[0].arm.kind == "sd"


def test_an_agreement_says_that_it_is_practically_exact() -> None:
    limits = Limits(agreement=0.9)
    found = sweep({"default": Known()}, plan(count=2), candidates_of([2], [0.8], [], ["default"], limits), limits)
    assert "practically SD" in found.why and found.candidates[1].arm.settings["agreement"] == 0.9


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="no limit was given"):
        Limits()
    with pytest.raises(ConfigError, match=r"--max-mean-es is 2, wanted a number in \[0, 1\]"):
        Limits(mean_es=2)
    with pytest.raises(ConfigError, match="--max-score-drop is -1"):
        Limits(score_drop=-1)
    with pytest.raises(ConfigError, match="needs prompts and candidates"):
        sweep({}, plan(), [], Limits(mean_es=0.1))


def test_the_file_gives_the_setting_back(tmp_path: Path) -> None:
    found, _ = search(Limits(mean_es=0.085))
    text = as_toml(found, {"model": 'a"b\\c', "drafter": "ngram", "temperature": 1.0, "draft": ["n=3"]})
    assert tomllib.loads(text) == {
        "model": 'a"b\\c', "drafter": "ngram", "temperature": 1.0,
        "rule": "nsd", "theta": 0.8, "k": 4, "draft": ["n=3"],
    }  # fmt: skip
    greedy = Found(Candidate(found.chosen.arm, "greedy"), (), (), found.why)
    assert tomllib.loads(as_toml(greedy, {}))["draft"] == ["greedy=true"]
    (tmp_path / "one.toml").write_text(text, encoding="utf-8")
    rest, defaults = split_config(["generate", "--config", str(tmp_path / "one.toml"), "hi"], ["generate"])
    assert rest == ["generate", "hi"] and defaults["generate"]["theta"] == 0.8
    assert split_config(["generate", f"--config={tmp_path / 'one.toml'}"], ["generate"])[1] == defaults
    assert split_config(["generate", "hi"], ["generate"]) == (["generate", "hi"], {})
    given = ["vllm", "serve", "--config", str(tmp_path / "one.toml"), "--", "--config", "theirs.yaml"]
    rest, defaults = split_config(given, ["generate"], {"vllm": ["serve", "check"]})
    assert rest == ["vllm", "serve", "--", "--config", "theirs.yaml"]
    assert defaults["vllm"]["serve"]["k"] == 4 and defaults["generate"]["k"] == 4


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "hi", "--max-new-tokens", "4"],
        ["compare", "hi", "--max-new-tokens", "4"],
        ["bench", "--suite", "toy", "--limit", "1", "--max-new-tokens", "4", "--name", "one"],
        ["vllm", "serve", "some/model", "--dry-run"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Through the command table, as typed; what a command has no option for is no mistake."""
    found, _ = search(Limits(mean_es=0.085))
    (tmp_path / "nsd.toml").write_text(
        as_toml(found, {"model": "toy", "drafter": "ngram", "temperature": 0.5, "draft": ["max_n=3"]})
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["nsd", *command, "--config", "nsd.toml"])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code in (0, None), told.err
    if command[0] == "bench":
        config = read_run(tmp_path / "runs" / "one").manifest["config"]
        assert [arm["name"] for arm in config["arms"]] == ["ar", "sd-k4", "nsd-theta0.8-k4"]
        assert config["settings"]["temperature"] == 0.5
    if command[0] == "vllm":
        assert "NSD_THETA=0.8" in told.out and '"num_speculative_tokens": 4' in told.out


@pytest.mark.parametrize(
    ("text", "message"), [("theta = ", "is not TOML"), ("[nsd]\ntheta = 1", r"has a table \[nsd\]")]
)
def test_bad_files_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path / "bad.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="--config got nothing"):
        split_config(["generate", "--config"], [])


def test_sweep_on_the_toy_model(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(searching.sweep)
    app.command()(cli.report)
    out = tmp_path / "nsd.toml"
    given = ["--model", "toy", "-k", "2", "--theta", "0.8", "--limit", "3", "--max-new-tokens", "8"]
    result = CliRunner().invoke(app, ["sweep", *given, "--max-deviation", "0.05", "--out", str(out)])
    assert result.exit_code == 0, result.output
    values = read_config(out)
    assert values["k"] == 2 and values["rule"] in ("sd", "nsd")
    assert values["rule"] == "sd" or values["max_deviation"] == 0.05
    assert "fastest that keeps the limits (deviation per step at most 0.05)" in result.stdout.replace("\n", " ")
