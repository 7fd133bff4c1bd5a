"""`nsd bench --engine vllm` on a real engine: all three arms, the plugin's counts, a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsd.bench.bundle import StoredRun, read_run
from nsd.bench.metrics import values
from nsd.bench.report import report_of
from nsd.bench.results import results_of
from tests_vllm.engines import PLUGIN, SECONDS, environment

pytestmark = pytest.mark.xdist_group("bench")

PROMPTS = 4


@pytest.fixture(scope="module")
def stored(workplace: Path) -> StoredRun:
    """Four toy problems, 16 tokens each, AR, SD and two thresholds, n-gram drafts: two engines in one process."""
    command = (
        f"-m nsd bench --suite toy --engine vllm --drafter ngram --device cpu --dtype bfloat16 -k 3 --theta 0.5,0.95 "
        f"--limit {PROMPTS} --max-new-tokens 16 --name served --runs {workplace}"
    )
    log = workplace / "log.txt"
    with log.open("w", encoding="utf-8") as sink:
        done = subprocess.run(
            [sys.executable, *command.split()], env=environment(PLUGIN), stdout=sink, stderr=subprocess.STDOUT,
            cwd=workplace, timeout=SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text("utf-8", errors="replace")[-6000:]
    return read_run(workplace / "served")


def test_every_arm_answers_every_prompt(stored: StoredRun) -> None:
    arms = ["ar", "sd-k3", "nsd-theta0.5-k3", "nsd-theta0.95-k3"]
    assert stored.complete and [a["name"] for a in stored.manifest["config"]["arms"]] == arms
    assert len(stored.records) == PROMPTS * len(arms)
    facts = stored.manifest["config"]["engine"]
    assert facts["engine"] == "vllm" and facts["vllm"] and facts["draft_law"] == "point"


def test_counters_add_up_and_only_nsd_rescues(stored: StoredRun) -> None:
    """Tokens, blocks and acceptances agree with each other; the plugin's own count bounds what was tested."""
    for record in stored.records:
        stats: dict[str, Any] = record["counters"]["stats"]
        accepted = stats["by_ratio"] + stats["rescued"]
        assert record["tokens"] == stats["prefill_tokens_out"] + accepted + stats["recovered"] + stats["bonus"]
        assert stats["tested"] == accepted + stats["rejected"] and stats["prefill_s"] > 0
        if record["arm"].startswith("nsd"):
            assert stats["rescued"] <= record["fidelity"]["plugin"]["rescued"] <= record["fidelity"]["plugin"]["tested"]
        else:
            assert stats["rescued"] == 0 and "plugin" not in record["fidelity"]


def test_a_larger_nucleus_keeps_more_drafts(stored: StoredRun) -> None:
    """Over the run, not prompt by prompt: texts differ. theta 0.95 rescues, and accepts a larger share than SD."""
    model = results_of([stored]).models[0]
    got = {arm.name: values(model.row(arm).counters) for arm in model.arms}
    rescue, accepted = got["nsd-theta0.95-k3"]["rescue_rate"], got["nsd-theta0.95-k3"]["acceptance"]
    assert rescue is not None and rescue > 0 and got["ar"]["tau"] == 1.0
    assert accepted is not None and accepted > (got["sd-k3"]["acceptance"] or 0)
    assert all(one["tokens_per_second"] for one in got.values())


def test_its_report_names_the_engine(stored: StoredRun) -> None:
    text = report_of([stored], with_paper=True).markdown()
    assert "smollm2-135m + ngram" in text and "vllm, bfloat16, cpu" in text
