"""Budgets: what they allow, what they keep, what they buy."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsd.errors import ConfigError
from nsd.fidelity import Budget, expected_rescues_at_most, join
from nsd.fidelity.budget import POLICIES
from nsd.verification.allowance import spend
from nsd.verification.layout import Layout
from nsd.verification.types import Caps
from tests.fidelity.front import simulate

policies = st.sampled_from(POLICIES)


@given(policies, st.floats(0.01, 1.0), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_product_never_falls_below_the_promise(policy, agreement, k, seed):
    """Any excess, any number of tested positions per block, until the last token."""
    rng = np.random.default_rng(seed)
    budget, emitted, tokens = Budget(agreement, 24, k, policy), 0, 24
    while emitted < tokens:
        length = min(k, tokens - emitted)
        caps, floor = budget.caps(length, emitted)
        assert len(caps) == length
        es = torch.from_numpy(rng.random(length) ** 3)
        layout = Layout.of((length,), torch.device("cpu"))
        allowed = Caps(torch.tensor(caps, dtype=torch.float64), torch.tensor([floor], dtype=torch.float64))
        eps, _ = spend(es, allowed, layout)
        tested = int(rng.integers(1, length + 1))
        budget.settle(eps[:tested].tolist())
        emitted += tested
        assert agreement <= budget.Q <= 1.0


@pytest.mark.parametrize("policy", POLICIES)
def test_caps_depend_on_ledger_and_place_alone(policy):
    """Two requests with the same ledger get the same caps, whatever they emitted, and a longer draft changes none."""
    first, second = Budget(0.9, 64, 4, policy), Budget(0.9, 64, 4, policy)
    first.settle([0.01, 0.02])
    second.settle([0.02, 0.01])
    for one, other in zip(first.caps(4, 10), second.caps(4, 10), strict=True):
        assert one == pytest.approx(other)
    assert first.caps(2, 10)[0] == first.caps(4, 10)[0][:2]


def test_policies_differ_as_documented():
    even, _ = Budget(0.9, 10, 3, "even").caps(3, 0)
    assert even == pytest.approx([1 - 0.9**0.1] * 3)
    greedy, floor = Budget(0.9, 10, 3, "greedy").caps(3, 0)
    assert (greedy, floor) == ([1.0] * 3, pytest.approx(0.9))
    front, _ = Budget(0.9, 12, 3, "front").caps(3, 0)
    assert front == pytest.approx([1 - 0.9 ** (1 / 3), 0, 0])
    last, _ = Budget(0.9, 12, 3, "front").caps(3, 8)
    assert last == [1.0] * 3


def test_nothing_to_spend_means_exact():
    for policy in POLICIES:
        caps, floor = Budget(1.0, 8, 3, policy).caps(3, 4)
        layout = Layout.of((3,), torch.device("cpu"))
        es = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64)
        eps, lam = spend(es, Caps(torch.tensor(caps).double(), torch.tensor([floor]).double()), layout)
        assert eps.tolist() == [0, 0, 0]
        assert lam[1:].tolist() == [0, 0]


def test_expected_rescues_and_the_notice():
    assert expected_rescues_at_most(0.05) == pytest.approx(0.0513, abs=1e-4)
    assert expected_rescues_at_most(0.0) == 0
    assert expected_rescues_at_most(1.0) == math.inf
    notice = Budget(0.95, 128, 7).notice()
    assert "at most 0.0513 rescued tokens" in notice
    assert "close to exact" in notice


@pytest.mark.parametrize("agreement", [0.8, 0.5])
def test_front_keeps_the_most_drafts(agreement):
    """128 tokens, K = 7: the same promise saves most target calls at the front, by three paired standard errors."""
    exact = simulate(1.0, None)
    found = {policy: simulate(agreement, policy) for policy in POLICIES}
    for outcome in found.values():
        assert (agreement <= outcome.Q).all()
        assert outcome.rescues.mean() <= expected_rescues_at_most(1 - agreement) + 0.02
        assert outcome.calls.mean() < exact.calls.mean()
    for other in ("even", "greedy"):
        gain = found[other].calls - found["front"].calls
        assert gain.mean() > 3 * gain.std() / math.sqrt(len(gain)), other


def test_join_mixes_requests_with_and_without_a_budget():
    caps = join([([0.1, 0.2], 0.9), None], [2, 1])
    assert caps.cap.tolist() == [0.1, 0.2, 1.0]
    assert caps.floor.tolist() == [0.9, 0.0]
    assert join([None, None], [2, 1]) is None


def test_bad_budgets():
    for agreement in (0.0, 1.2, math.nan):
        with pytest.raises(ConfigError, match="wanted a number in"):
            Budget(agreement, 8, 3)
    with pytest.raises(ConfigError, match="wanted one of even, greedy, front"):
        Budget(0.9, 8, 3, "best")
    with pytest.raises(ConfigError, match="delta is 2"):
        expected_rescues_at_most(2)
