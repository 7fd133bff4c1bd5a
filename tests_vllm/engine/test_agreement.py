"""The shipped drafter drafts in vLLM as it does in this project's own loop: tau agrees, for exact and nucleus tests.

A short version of `python -m benchmarks.vllm_cpu --part agreement`: 300 blocks an arm in float32. Two differences of
means beyond 3.9 standard errors are no chance (1 in 5,000 for both arms); seeds are fixed, so the outcome is too.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.vllm_agreement import K, measure
from benchmarks.vllm_live import Live
from tests_vllm import models
from tests_vllm.engines import PLUGIN, environment, settings


def test_tau_is_that_of_our_own_loop(workplace: Path) -> None:
    speculative = {
        "method": "eagle3",
        "model": str(models.exported_folder()),
        "num_speculative_tokens": K,
        "draft_sample_method": "probabilistic",
    }
    live = Live(settings(models.target(), speculative, dtype="float32"), environment(PLUGIN), workplace / "log.txt")
    try:
        exact, relaxed = measure(live, least=160, prompts=12, dtype="float32")
    finally:
        live.close()
    for one in (exact, relaxed):
        assert abs(one.z) < 3.9, one
    assert exact.theirs.tau > 1.2, "a drafter that is read wrongly drafts gibberish"
    assert exact.theirs.tau < relaxed.theirs.tau
