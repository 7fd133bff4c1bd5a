"""The reproduction kit: every mechanism of the paper through the whole pipeline, on tiny random checkpoints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper.__main__ import config_of, main, names
from nsd.bench.bundle import read_run
from nsd.bench.report import report_of

MECHANISMS = {
    "main-nemotron-3b": ("nemotron", ["ar", "sd-k31", "match-k31", "nsd-theta0.95-k31"]),
    "main-qwen3-4b": ("dspark", ["ar", "sd-k7", "nsd-theta0.95-k7"]),
    "table4-dflash-b16-greedy": ("dflash", ["ar", "sd-k15", "nsd-theta0.95-k15"]),
    "table4-eagle3-ttt7": ("eagle3", ["ar", "sd-k7", "nsd-theta0.95-k7"]),
    "table6-mtp-vllm-sampled": ("mtp", ["ar", "sd-k2", "nsd-theta0.95-k2"]),
}
SHORT = ["--task", "mbpp", "--seeds", "1", "--max-new-tokens", "6"]


def call(*arguments: str) -> int:
    """Run the kit's command in this process -> its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["nsd"])


@pytest.mark.parametrize("name", MECHANISMS)
def test_an_experiment_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    """Checkpoint files, prompts, all arms, grading in the sandbox, records, a report with the paper's figures."""
    drafter, arms = MECHANISMS[name]
    maths = ["--task", "gsm8k"] if drafter == "nemotron" else []
    assert call(name, "--tiny", *SHORT, *maths, "--runs", str(tmp_path)) == 0
    stored = read_run(tmp_path / name)
    config = stored.manifest["config"]
    assert stored.complete and len(stored.records) == (1 + bool(maths)) * len(arms)
    assert [arm["name"] for arm in config["arms"]] == arms and config["engine"]["drafter"] == drafter
    assert all(0 < record["tokens"] <= 6 for record in stored.records)
    assert config["settings"] == {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "accounting": "full"}
    assert "model.safetensors" in config["engine"]["target_hash"]
    origin = config["origins"]["mbpp"]
    assert (
        len(origin["sha256"]) == 64
        and origin["file"] == "mbpp_sample.jsonl"
        and "z-lab" in origin["prompt_and_scoring"]
    )
    assert set(stored.manifest["sessions"][0]["sandbox"]) == {"network", "pids", "files", "own_user"}
    drafted = [r["counters"]["stats"] for r in stored.records if r["arm"].startswith("nsd")]
    assert all(stats["tested"] > 0 for stats in drafted)
    text = report_of([stored], with_paper=True).markdown()
    assert "## Beside the paper" in text and f"+ {drafter}" in text


def test_greedy_and_sampled_drafts_are_told_apart(tmp_path: Path) -> None:
    laws = {}
    for name in ("table4-dflash-b16-greedy", "table4-dflash-b16-sampled"):
        assert call(name, "--tiny", *SHORT, "--runs", str(tmp_path)) == 0
        laws[name] = read_run(tmp_path / name).manifest["config"]["engine"]["draft_law"]
    assert laws["table4-dflash-b16-greedy"] == "point" and laws["table4-dflash-b16-sampled"] == "sampled"


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixtures = str(Path(__file__).parent / "fixtures")
    assert call("main-qwen3-8b", "--dry-run", "--json", "--data-dir", fixtures, "--runs", str(tmp_path)) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)["dry_run"]
    assert told["target"]["name"] == "Qwen/Qwen3-8B" and told["memory_bytes"]["total"] > 2e10
    assert not list(tmp_path.iterdir())


def test_experiments_are_listed_and_unknown_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == names() and all(len(line.split()) > 4 for line in lines)
    with pytest.raises(SystemExit, match="there is no experiment table9, wanted one of main-nemotron-14b"):
        config_of("table9")
