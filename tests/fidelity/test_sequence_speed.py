"""Closed formulas: sequences, horizons, tau and wall time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsd.errors import ConfigError
from nsd.fidelity import agreement, horizon, speedup, tau


def test_agreement():
    assert agreement(0.001, 32) == pytest.approx(0.999**32, rel=1e-13) == pytest.approx(0.9684910757595)
    assert (agreement(0, 10**9), agreement(1, 0), agreement(1, 1)) == (1, 1, 0)


def test_horizon():
    assert horizon(0.001, 0.05) == pytest.approx(51.267643, abs=1e-6)
    assert math.floor(horizon(0.001, 0.05)) == 51
    assert horizon(0, 0.05) == horizon(0, 0) == horizon(0.5, 1) == horizon(1, 1) == math.inf
    assert horizon(1, 0.05) == horizon(0.3, 0) == horizon(1, 0) == 0


@given(st.floats(1e-6, 0.999), st.floats(1e-6, 0.999))
def test_horizon_inverts_agreement(epsilon, delta):
    whole = math.floor(horizon(epsilon, delta) * (1 + 1e-12))
    assert agreement(epsilon, whole) >= (1 - delta) * (1 - 1e-9)
    assert agreement(epsilon, whole + 1) <= (1 - delta) * (1 + 1e-9)


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_shares_out_of_range(bad):
    for call in (lambda: agreement(bad, 3), lambda: horizon(bad, 0.1), lambda: horizon(0.1, bad)):
        with pytest.raises(ConfigError, match="wanted a number in"):
            call()
    with pytest.raises(ConfigError, match="tokens is -1"):
        agreement(0.1, -1)


@given(st.floats(0, 0.999), st.integers(0, 40))
def test_tau_of_equal_positions(a, k):
    assert tau([a] * k) == pytest.approx((1 - a ** (k + 1)) / (1 - a), rel=1e-9)


def test_speed_of_an_autoregressive_and_a_parallel_drafter():
    a, k = 0.8, 7
    tokens = (1 - a**8) / (1 - a)
    chain = speedup(a, k, draft=0.1)
    assert (chain.tau, chain.cost, chain.speedup) == pytest.approx((tokens, 1.7, tokens / 1.7))
    at_once = speedup(a, k, draft=0.3, verify=1.2, parallel=True)
    assert at_once.speedup == pytest.approx(tokens / 1.5)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("verify", [1.0, 1.3])
def test_break_even_means_speed_up_one(parallel, verify):
    model = speedup(0.7, 5, draft=0.05, verify=verify, parallel=parallel)
    at_draft = speedup(0.7, 5, draft=model.break_even_draft, verify=verify, parallel=parallel)
    at_acceptance = speedup(model.break_even_acceptance, 5, draft=0.05, verify=verify, parallel=parallel)
    assert at_draft.speedup == pytest.approx(1, abs=1e-9)
    assert at_acceptance.speedup == pytest.approx(1, abs=1e-9)
    if parallel:
        assert model.best_k is None and "costs no more" in model.reasons["best_k"]
        return
    best = speedup(0.7, model.best_k, draft=0.05, verify=verify)
    others = [speedup(0.7, k, draft=0.05, verify=verify).speedup for k in range(30)]
    assert best.speedup >= max(others)


def test_what_cannot_break_even():
    for model, name, why in (
        (speedup(0.5, 2, draft=5.0), "break_even_acceptance", "more than the 3 tokens"),
        (speedup(0.1, 4, draft=0.1, verify=3.0), "break_even_draft", "even if drafting is free"),
        (speedup(0.5, 1, draft=0.1, verify=0.5), "break_even_acceptance", "above 1 at every acceptance"),
        (speedup([], None, draft=0.1), "break_even_draft", "without proposals"),
        (speedup([], None, draft=0.1), "break_even_acceptance", "without proposals"),
    ):
        assert getattr(model, name) is None
        assert why in model.reasons[name]
    plain = speedup([], None, draft=0.1)
    assert (plain.tau, plain.speedup) == (1, 1)
    assert speedup(0.5, 2, draft=0).break_even_acceptance == 0


@pytest.mark.parametrize(
    ("acceptance", "draft", "verify", "parallel", "best", "why"),
    [
        (1.0, 0.1, 1.0, False, None, "still rising at 256"),
        (0.999, 1e-6, 1.0, False, None, "still rising at 256"),
        (0.5, 0.0, 1.0, False, None, "still rising: a longer block costs no more"),
        (0.5, 0.2, 1.0, True, None, "still rising: a longer block costs no more"),
        (0.5, 9.0, 1.0, True, 0, None),
        (1.0, 0.3, 0.3, False, 0, None),
        (0.0, 0.0, 1.0, False, 0, None),
        (0.5, 0.1, 1.0, False, 2, None),
    ],
)
def test_the_search_limit_is_no_best_k(acceptance, draft, verify, parallel, best, why):
    model = speedup(acceptance, 4, draft, verify, parallel)
    assert model.best_k == best
    assert model.reasons.get("best_k", "").startswith(why or "") and ("best_k" in model.reasons) == (best is None)


def test_every_null_has_its_reason_and_nothing_else_has():
    for model in (speedup(0.7, 4, 0.1), speedup([0.5, 0.1], None, 3.0), speedup(1.0, 0, 0.0, 0.5)):
        nulls = {name for name in model.__slots__ if getattr(model, name) is None}
        assert set(model.reasons) == nulls
    assert hash(speedup(0.7, 4, 0.1)) == hash(speedup(0.7, 4, 0.1))


def test_acceptance_by_position():
    model = speedup([0.9, 0.5, 0.2], None, draft=0.1)
    assert model.tau == pytest.approx(1 + 0.9 + 0.45 + 0.09)
    assert (model.k, model.best_k) == (3, None)
    assert speedup([0.9, 0.5, 0.2], 2, draft=0.1).tau == pytest.approx(2.35)


@pytest.mark.parametrize(
    ("acceptance", "k", "draft", "verify", "says"),
    [
        (1.2, 3, 0.1, 1, "acceptance is 1.2"),
        (0.5, None, 0.1, 1, "needs k"),
        (0.5, -1, 0.1, 1, "k is -1"),
        ([0.5, 0.4], -1, 0.1, 1, "k is -1"),
        ([0.5], 2, 0.1, 1, "k is 2 but acceptance has 1"),
        (0.5, 2, -0.1, 1, "draft is -0.1"),
        (0.5, 2, 0.1, 0, "verify is 0"),
    ],
)
def test_bad_costs(acceptance, k, draft, verify, says):
    with pytest.raises(ConfigError, match=says):
        speedup(acceptance, k, draft, verify)
