"""A target that drafts for itself: at temperature 1 every draft stands, if the temperature reaches its row.

In float32, draft and verification differ by rounding only. On stock vLLM for CPUs the temperatures of drafted rows are
uninitialised memory, and almost nothing stands: the reason for the plugin's cure, which acts with NSD asked for or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests_vllm import models
from tests_vllm.engines import PLUGIN, PROMPTS, STOCK, answered, mean_tau, request, settings

K = 4


@pytest.mark.parametrize("environment", [PLUGIN, STOCK], ids=["cured", "stock"])
def test_self_draft_gives_k_plus_one_with_the_cure_alone(environment: dict[str, str], workplace: Path) -> None:
    draft: dict[str, Any] = {
        "method": "draft_model",
        "model": str(models.target()),
        "num_speculative_tokens": K,
        "draft_sample_method": "probabilistic",
    }
    engine = settings(models.target(), draft, dtype="float32")
    batch = [request(start, seed=1, max_tokens=31) for start in PROMPTS[:4]]
    outcome = answered(engine, [batch], environment, workplace / environment["VLLM_PLUGINS"])
    if environment is PLUGIN:
        assert mean_tau(outcome.answers()) == K + 1
    else:
        assert mean_tau(outcome.answers()) < K, "stock vLLM has been cured: drop the cure for this version"
