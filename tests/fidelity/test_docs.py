"""Every figure in docs/fidelity.md, recomputed."""

import math
import re
from pathlib import Path

import pytest

from nsd.fidelity import agreement, expected_rescues_at_most, horizon, one_step
from nsd.fidelity.budget import POLICIES
from nsd.rules import NSD
from tests.fidelity.front import TOKENS, K, simulate

PAGE = " ".join((Path(__file__).parents[2] / "docs" / "fidelity.md").read_text(encoding="utf-8").split())


def says(text):
    assert text in PAGE, f"docs/fidelity.md does not say: {text}"


def test_one_step_figures():
    step = one_step([0.5, 0.25, 0.25], [0.5, 0.5, 0.0], NSD(0.95))
    says(f"here R = {step.R:g} and ES = {step.ES:g}")
    certain = one_step([1 / 20] * 20, 0, NSD(0.95))
    says(f"On a uniform law over 20 tokens that is {certain.ES:g}.")


@pytest.mark.parametrize("epsilon", [0.05, 0.01, 0.001])
def test_windows(epsilon):
    says(f"| {epsilon:g} | " + " | ".join(f"{agreement(epsilon, n):.4f}" for n in (8, 32, 128)) + " |")


def test_command_figures():
    says(f"--tokens 32` gives {agreement(0.001, 32):.6f}")
    length = horizon(0.001, 0.05)
    says(f"gives {length:.2f}, that is {math.floor(length)} whole tokens")


def test_counter_example():
    """By hand here, by enumeration in test_worlds.py: two tokens, the second deviating by 0.8 after token 0."""
    first = one_step([0.5, 0.25, 0.25], [0.5, 0.5, 0.0], NSD(0.95))
    second = one_step([0.2, 0.8, 0.0], [1.0, 0.0, 0.0], NSD(0.95))
    assert second.deviation == pytest.approx(0.8)
    mean = (1 - first.deviation) * (first.emitted[0] * (1 - second.deviation) + 1 - first.emitted[0])
    p, emitted = (0.5, 0.25, 0.25), first.emitted
    shared = sum(min(p[y], emitted[y]) * (1 - (second.deviation if y == 0 else 0)) for y in range(3))
    says(f"The mean of Q is {mean:.2f}; the agreement is {shared:.2f}.")


def test_budget_figures():
    at = {a: expected_rescues_at_most(1 - a) for a in (0.95, 0.8, 0.5)}
    says(f"{at[0.95]:.3f} a completion at 0.95, {at[0.8]:.3f} at 0.8, {at[0.5]:.3f} at 0.5")
    exact = simulate(1.0, None).calls
    saved = {a: {p: (exact - simulate(a, p).calls).mean() for p in POLICIES} for a in (0.8, 0.5)}
    says(f"Simulated, {TOKENS} tokens, K = {K}, {exact.mean():.0f} exact target calls a completion")
    eight, five = saved[0.8], saved[0.5]
    says(f"`even` saves {eight['even']:.2f} target calls, `greedy` {eight['greedy']:.2f}, `front` {eight['front']:.2f}")
    says(f"at 0.5 they save {five['even']:.2f}, {five['greedy']:.2f} and {five['front']:.2f}")


def test_the_four_words_and_what_is_not_promised():
    assert re.findall(r"\| `(\w+)` \|", PAGE) == ["guarantee", "ledger", "weight", "expected_rescues"]
    for promise in (
        "another engine's numerics",
        "prescribes no block size",
        "Averages do not certify",
        "accuracy or throughput",
    ):
        says(promise)
