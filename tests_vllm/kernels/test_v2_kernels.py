"""vLLM's own V2 rejection kernels under Triton's interpreter, with the hooks in place, in a process of their own.

Statistical tests: false alarm 1e-6 each.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from nsd.fidelity import one_step
from nsd.rules import NSD

pytestmark = pytest.mark.xdist_group("v2 kernels")

ALARM = 1e-6
REQUESTS = 400


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    script = Path(__file__).parent / "v2_process.py"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NSD_")}
    command = [sys.executable, str(script), str(REQUESTS)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_without_a_request_that_asks_no_bit_changes(told: dict[str, Any]) -> None:
    mixed = told["mixed"]
    assert mixed["stock"] == mixed["strict"] == mixed["no_theta"]
    assert mixed["strict"] != mixed["relaxed"]


def test_exact_and_greedy_requests_are_untouched_beside_others(told: dict[str, Any]) -> None:
    mixed = told["mixed"]
    for i, (before, after) in enumerate(zip(mixed["strict"], mixed["relaxed"], strict=True)):
        if mixed["greedy"][i] or i % 4 == 0:
            assert before == after
        else:
            assert len(before) <= len(after)


def test_more_theta_keeps_more(told: dict[str, Any]) -> None:
    mixed = told["mixed"]
    counts = [mixed["strict_numbers"], *mixed["by_theta"]]
    for fewer, more in itertools.pairwise(counts):
        assert all(a <= b for a, b in zip(fewer, more, strict=True))
    assert sum(counts[0]) < sum(counts[-1])


def test_certain_means_certain(told: dict[str, Any]) -> None:
    """Point masses at theta 1: every draft with p(x) > 0 stands; masked and padded ones, one token in, never do."""
    mixed = told["mixed"]
    barred = {*mixed["masked"], *mixed["placeholder"]}
    assert [n for i, n in enumerate(mixed["point_numbers"]) if i not in barred] == [4] * (12 - len(barred))
    assert all(mixed["point_numbers"][i] <= 2 for i in barred)


def test_the_kernels_uniforms_are_known(told: dict[str, Any]) -> None:
    """The uniforms by which the ledger tells rescued from ordinary drafts are those the kernel draws."""
    mixed = told["mixed"]
    for i, greedy in enumerate(mixed["greedy"]):
        if not greedy:
            assert mixed["strict_numbers"][i] == mixed["predicted"][i]


@pytest.mark.parametrize("name", ["exact", "nsd", "cap"])
def test_emitted_law(told: dict[str, Any], name: str) -> None:
    laws = told["laws"]
    run = laws["runs"][name]
    p, q = (torch.tensor(laws[key], dtype=torch.float64) for key in "pq")
    exact = one_step(p, q, NSD(theta=run["theta"], max_deviation=run["cap"]))
    assert p_value(run["counts"], exact.emitted) > ALARM
    if name == "nsd":
        assert p_value(run["counts"], p.tolist()) < ALARM, "the test could not tell NSD from the exact method"


def p_value(counts: list[int], law: Any) -> float:
    wanted = [sum(counts) * mass for mass in law]
    return float(chi2.sf(sum((a - b) ** 2 / b for a, b in zip(counts, wanted, strict=True)), len(counts) - 1))


def test_the_ledger_adds_up(told: dict[str, Any]) -> None:
    totals = told["laws"]["totals"]
    assert 0 < totals["ordinary"] + totals["rescued"] <= totals["tested"]
    assert abs(totals["rescued"] - totals["spent"]) < 5 * totals["spent"] ** 0.5 + 5
