"""Every proposer that vLLM runs on a CPU, one engine each, thetas batched inside: its ids and laws reach the decision.

Heads with random weights draft gibberish, so theta 0.95 may rescue little; theta 1 keeps every id that has a
probability, which says that no drafted id of that proposer goes past the decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests_vllm import models
from tests_vllm.engines import PLUGIN, PROMPTS, Outcome, answered, mean_tau, request, settings

THETAS = (0.0, 0.95, 1.0)
STARTS = PROMPTS[:4]
SAMPLED = {"draft_sample_method": "probabilistic"}


@dataclass(frozen=True)
class Case:
    """A proposer: vLLM's method, folders of target and drafter by name, K, its drafting, and least gain at 0.95."""

    method: str
    drafter: str | None
    k: int
    more: dict[str, Any]
    target: str = "target"
    gain: float = -0.1
    point: bool = False


CASES = {
    "ngram": Case("ngram", None, 4, {"prompt_lookup_max": 3, "prompt_lookup_min": 1}, gain=0.3, point=True),
    "draft_model-greedy": Case("draft_model", "first-20", 4, {}, gain=0.5, point=True),
    "eagle": Case("eagle", "eagle", 3, SAMPLED),
    "eagle3": Case("eagle3", "shipped", 3, SAMPLED, gain=0.3),
    "mtp": Case("mtp", "mimo", 2, SAMPLED, target="mimo"),
    "dflash": Case("dflash", "dflash", 4, SAMPLED),
}


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in CASES])
def ran(request: pytest.FixtureRequest, workplace: Path) -> tuple[Case, Outcome]:
    case = CASES[request.param]
    speculative = {"method": case.method, "num_speculative_tokens": case.k} | case.more
    if case.drafter is not None:
        speculative["model"] = str(models.ALL[case.drafter]())
    engine = settings(models.ALL[case.target](), speculative)
    return case, answered(engine, [_batch()], PLUGIN | {"NSD_ACCOUNTING": "full"}, workplace / request.param)


def _batch() -> list[Any]:
    return [request(start, seed=3, max_tokens=40, nsd_theta=theta) for theta in THETAS for start in STARTS]


def test_acceptance_follows_theta(ran: tuple[Case, Outcome]) -> None:
    case, outcome = ran
    count = len(STARTS)
    answers = [outcome.answers()[i * count : (i + 1) * count] for i in range(len(THETAS))]
    exact, relaxed = mean_tau(answers[0]), mean_tau(answers[1])
    assert exact + case.gain <= relaxed, (exact, relaxed)
    for answer in answers[2]:
        assert answer["accepted"][:-1] == answer["drafted"][:-1], "theta 1 keeps every draft"
        assert sum(answer["drafted"]) > 0


def test_the_ledger_counts_what_was_kept(ran: tuple[Case, Outcome]) -> None:
    case, outcome = ran
    asked = outcome.answers()[len(STARTS) :]
    kept = sum(sum(answer["accepted"]) for answer in asked)
    ledger = outcome.ledger
    # vLLM does not count drafts beyond the token limit, at most K of each last step.
    assert kept <= ledger["ordinary"] + ledger["rescued"] <= kept + case.k * len(asked)
    assert ledger["rescued"] > 0
    assert ledger["measured"] == ledger["tested"]
    assert 0 < ledger["spent"] <= ledger["excess"] * (1 + 1e-9)
    assert ledger["bound"] == 0, "the law of sampled drafts reached the decision"


def test_the_log_says_when_drafts_are_point_masses(ran: tuple[Case, Outcome]) -> None:
    case, outcome = ran
    assert "nsd active" in outcome.log
    assert ("point mass" in outcome.log) is case.point
