"""The shipped drafter drafts in vLLM as it does in this project's own loop: tau agrees, for exact and nucleus tests.

A short version of `python -m benchmarks.vllm_agreement`: at least 200 blocks an arm, the same folders in both loops, in
float32. Twelve prompts, so a difference beyond 5 standard errors (paired, 11 degrees of freedom) is no chance: 1 in
1,000 for both arms; seeds are fixed, so the outcome is too.
"""

from __future__ import annotations

from benchmarks.vllm_agreement import K, measure
from benchmarks.vllm_pair import Engines


def test_tau_is_that_of_our_own_loop() -> None:
    with Engines(K, dtype="float32") as engines:
        exact, relaxed = measure(engines.get, least=200, prompts=12, dtype="float32")
    for one in (exact, relaxed):
        assert abs(one.z) < 5, one
        assert min(one.ours.blocks, one.theirs.blocks) >= 200
    assert exact.theirs.tau > 1.2, "a drafter that is read wrongly drafts gibberish"
    assert exact.theirs.tau < relaxed.theirs.tau
