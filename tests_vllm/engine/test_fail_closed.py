"""What must not pass in silence: a plugin that ignores theta, a hook that is gone, one that a worker cannot load.

Each is a copy of the package with a line changed, found by vLLM before the installed one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests_vllm import models
from tests_vllm.engines import PLUGIN, PROMPTS, Job, Outcome, copy_of_nsd, mean_tau, request, run, settings

THETAS = (0.0, 0.95)
ASKED = {"NSD_THETA": "0.95"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def _batch() -> list[Job]:
    return [request(start, seed=5, max_tokens=40, nsd_theta=theta) for theta in THETAS for start in PROMPTS[:4]]


def _rises(outcome: Outcome) -> None:
    """The check of a plugin that works."""
    exact, relaxed = (mean_tau(outcome.answers()[i : i + 4]) for i in (0, 4))
    assert exact + 0.3 < relaxed, (exact, relaxed)


@pytest.fixture(scope="module")
def engine() -> dict[str, object]:
    return settings(models.target(), NGRAM)


def test_a_plugin_that_ignores_theta_is_found_out(engine: dict[str, object], workplace: Path) -> None:
    change = {"engines/vllm/rows.py": ("theta = ask.theta if ask.acts else 0.0", "theta = 0.0")}
    environment = copy_of_nsd(workplace / "ignores", change)
    outcome = run(engine, [_batch()], PLUGIN | environment, workplace / "ignoring")
    assert outcome.code == 0, outcome.log[-4000:]
    with pytest.raises(AssertionError, match=r"^\(1\.\d"):
        _rises(outcome)


def test_a_hook_that_is_gone_stops_an_engine_that_was_asked_for_nsd(engine: dict[str, object], workplace: Path) -> None:
    old = '_V1,\n        "rejection_sample",'
    change = {"engines/vllm/hooks.py": (old, old.replace("sample", "sample_x"))}
    environment = copy_of_nsd(workplace / "renamed", change)
    outcome = run(engine, [_batch()], PLUGIN | environment | ASKED, workplace / "stopped")
    assert outcome.code != 0 and not outcome.batches
    assert "rejection_sample_x" in outcome.log
    assert "NSD was asked for" in outcome.log


def test_a_worker_without_the_plugin_is_not_served(engine: dict[str, object], workplace: Path) -> None:
    """The plugin cannot be loaded in workers: vLLM itself would log that and go on."""
    change = {"engines/vllm/plugin.py": ("def register() -> None:", _NOT_IN_WORKERS + "def register() -> None:")}
    environment = copy_of_nsd(workplace / "partly", change)
    outcome = run(engine, [_batch()], PLUGIN | environment | ASKED, workplace / "unserved")
    assert outcome.code != 0 and not outcome.batches
    assert "a worker did not answer" in outcome.log or "not loaded" in outcome.log


_NOT_IN_WORKERS = """import multiprocessing

if "Worker" in multiprocessing.current_process().name:
    raise ImportError("not here")


"""
