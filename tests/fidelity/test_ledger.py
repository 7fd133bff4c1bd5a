"""The four words: guarantee, ledger, weight, expected rescues; and what makes each of them null."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsd import events
from nsd.errors import ConfigError
from nsd.events import Block, Origin, Timing
from nsd.fidelity import WRONG_LAW, Ledger, guarantee_of, weight_factor, weight_factor_of
from nsd.rules import NSD, RULES, SD, make_rule
from nsd.verification import Accounting, DraftLaw
from tests.fidelity.laws import pairs, set_rules

TOKENS = 32


def at_position(origin=Origin.RATIO, **values):
    return events.Tested(position=0, token=1, origin=origin, u=0.5, p=0.4, q=0.5, **values)


def block(*positions, guard=False, invalid=False):
    return Block(0, 3, 0, (), positions, None, (), "", guard, invalid, None, Timing(0, 0, 0, 0), 1, 0.0)


def ledger(rule, accounting=Accounting.FULL, law=DraftLaw.SAMPLED, temperature=1.0, **more):
    return Ledger(guarantee_of(rule, TOKENS, temperature), rule, law, accounting, temperature, **more)


@pytest.mark.parametrize("rule", [SD(), make_rule("sample-and-match"), NSD(0.0), NSD(max_deviation=0.0)], ids=str)
def test_exact_rules_are_guaranteed(rule):
    assert guarantee_of(rule, TOKENS).value == 1.0
    assert guarantee_of(rule, TOKENS).windowed(10**6) == 1.0


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_exact_at_temperature_zero(name):
    """p is a point mass there; every rule emits it, whatever q is and whichever id was drafted."""
    rule = make_rule(name)
    if rule.untempered:
        assert guarantee_of(rule, TOKENS, temperature=0).value is None
        return
    assert guarantee_of(rule, TOKENS, temperature=0).value == 1.0
    p = torch.tensor([[0.0, 1.0, 0.0]] * 4, dtype=torch.float64)
    q = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]], dtype=torch.float64)
    assert torch.allclose(rule.emitted(p, q), p, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "number", "neutral"),
    [
        ("nsd", "theta", 0),
        ("topk", "k", 0),
        ("lenience", "l", 1),
        ("lossy-epsilon", "epsilon", 0),
        ("ensemble", "w", 1),
        ("mentored", "a", 1),
    ],
)
def test_neutral_numbers_are_exact(name, number, neutral):
    rule = make_rule(name, **{number: neutral})
    assert guarantee_of(rule, TOKENS).value == 1.0
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    assert torch.allclose(rule.emitted(p, p.flip(-1)), p, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in RULES if n not in ("sd", "sample-and-match")])
def test_uncapped_relaxed_rules_promise_nothing(name):
    promise = guarantee_of(make_rule(name), TOKENS)
    assert promise.value is None
    assert promise.windowed(1) is None
    assert "no cap" in promise.reason


def test_cap_budget_and_their_windows():
    capped = guarantee_of(NSD(max_deviation=0.01), TOKENS)
    assert capped.value == pytest.approx(0.99**32)
    assert capped.windowed(8) == pytest.approx(0.99**8)
    budget = guarantee_of(NSD(), TOKENS, agreement=0.95)
    assert (budget.value, budget.windowed(8)) == (0.95, 0.95)
    both = guarantee_of(NSD(max_deviation=0.01), TOKENS, agreement=0.95)
    assert both.value == 0.95
    assert both.windowed(2) == pytest.approx(0.99**2)
    assert guarantee_of(NSD(max_deviation=1e-4), TOKENS, agreement=0.95).value == pytest.approx(0.9999**32)
    assert guarantee_of(NSD(max_deviation=3.0), TOKENS).value == 0.0
    with pytest.raises(ConfigError, match="cannot keep a budget"):
        guarantee_of(make_rule("lenience"), TOKENS, agreement=0.9)


def test_a_reason_known_beforehand_voids():
    promise = guarantee_of(SD(), TOKENS, void=WRONG_LAW)
    assert (promise.value, promise.reason) == (None, WRONG_LAW)


@given(pairs(), st.sampled_from([None, 0.1]))
def test_weight_factor_is_p_over_the_emitted_law(pair, cap):
    p, q = pair
    rows_p, rows_q = p.unsqueeze(0), q.unsqueeze(0)
    for rule in set_rules(cap):
        pi = rule.emitted(rows_p, rows_q)[0]
        a = rule.acceptance_of_all(rows_p, rows_q)[0]
        inside = rule.whole_set(rows_p)[0]
        lam = float(rule.coefficient(rows_p, rows_q))
        for x in range(len(p)):
            if q[x] * a[x] > 1e-9:
                found = weight_factor(float(p[x]), float(q[x]), lam, bool(inside[x]))
                assert found == pytest.approx(min(1.0, float(p[x] / pi[x])), abs=1e-6)


@given(pairs())
def test_weight_factor_of_every_rule_is_right_or_not_known(pair):
    p, q = pair
    for name in RULES:
        rule = make_rule(name)
        pi = rule.emitted(p.unsqueeze(0), q.unsqueeze(0))[0]
        a = rule.acceptance_of_all(p.unsqueeze(0), q.unsqueeze(0))[0]
        inside = rule.whole_set(p.unsqueeze(0))[0] if hasattr(rule, "whole_set") else torch.zeros(len(p))
        for x in range(len(p)):
            if q[x] * a[x] > 1e-9:
                found = weight_factor_of(rule, float(p[x]), float(q[x]), 1.0, bool(inside[x]))
                if found is not None:
                    assert found == pytest.approx(min(1.0, float(p[x] / pi[x])), abs=1e-6), (name, x)


def test_which_weight_factors_are_known():
    known = {name for name in RULES if weight_factor_of(make_rule(name), 0.3, 0.6, 1.0, True) is not None}
    unknown = {"typical", "relaxed-topk", "cascade", "mentored", "greedy", "cold-nucleus"}
    assert known == set(RULES) - unknown


def test_weight_factor_needs_membership_only_where_it_matters():
    assert weight_factor_of(NSD(), 0.5, 0.4, None, None) == 1.0
    assert weight_factor_of(NSD(), 0.4, 0.5, None, None) is None
    assert weight_factor_of(NSD(), 0.4, 0.5, None, True) is None
    assert weight_factor_of(NSD(), 0.4, 1.0, 1.0, True) == pytest.approx(0.4), "a point mass has q = 1"
    assert weight_factor_of(NSD(), 0.4, 0.5, None, None, temperature=0) == 1.0


def test_full_accounting_adds_up():
    book = ledger(NSD(max_deviation=0.2))
    book.consume(
        block(
            at_position(eps=0.1, ES=0.1, weight_factor=0.5),
            at_position(Origin.RESCUED, eps=0.2, ES=0.6, weight_factor=0.8),
            at_position(Origin.REJECTED, eps=0.0, ES=0.0),
        )
    )
    found = book.fidelity()
    assert (found.Q, found.sum_eps, found.max_eps) == pytest.approx((0.9 * 0.8, 0.3, 0.2))
    assert found.weight == pytest.approx(0.4)
    assert found.expected_rescues == pytest.approx(0.3)
    assert (found.mean_ES, found.max_ES, found.ES_is) == (pytest.approx(0.7 / 3), 0.6, "exact")
    assert (found.tested, found.rescued) == (3, 1)
    assert found.guarantee.value == pytest.approx(0.8**TOKENS)
    assert found.reasons == {}


def test_rescues_level_estimates_and_says_so():
    book = ledger(NSD(), Accounting.RESCUES)
    for origin in (Origin.RATIO, Origin.RESCUED, Origin.RATIO, Origin.REJECTED):
        book.charge(at_position(origin))
    found = book.fidelity()
    assert (found.mean_ES, found.ES_is) == (0.25, "estimated by the rescue rate")
    nothing = {"guarantee", "ledger", "expected_rescues", "weight", "max_ES"}
    assert (found.Q, found.sum_eps, found.max_eps, found.expected_rescues, found.weight, found.max_ES) == (None,) * 6
    assert set(found.reasons) == nothing


def test_off_is_null_with_reasons():
    book = ledger(NSD(max_deviation=None), Accounting.OFF)
    book.charge(at_position(Origin.RESCUED))
    found = book.fidelity()
    assert (found.Q, found.weight, found.expected_rescues, found.mean_ES, found.max_ES, found.ES_is) == (None,) * 6
    assert all("accounting level off" in found.reasons[name] for name in ("ledger", "weight", "mean_ES"))


@pytest.mark.parametrize("accounting", list(Accounting))
def test_exact_rules_spend_nothing_at_any_level(accounting):
    book = ledger(SD(), accounting)
    book.charge(at_position())
    found = book.fidelity()
    assert (found.guarantee.value, found.Q, found.sum_eps, found.weight, found.expected_rescues) == (1, 1, 0, 1, 0)
    assert (found.mean_ES, found.ES_is, found.reasons) == (0, "exact", {})


@pytest.mark.parametrize(("event", "word"), [({"guard": True}, "guard"), ({"invalid": True}, "not finite")])
def test_guards_void_the_guarantee_with_the_reason(event, word):
    book = ledger(SD())
    book.consume(block(at_position(), **event))
    found = book.fidelity()
    assert found.guarantee.value is None
    assert word in found.reasons["guarantee"]
    assert "block 3" in found.reasons["guarantee"]
    assert found.as_json()["guarantee_window"] is None
    assert found.weight is None


def test_unknown_draft_law():
    book = ledger(NSD(max_deviation=0.1), law=DraftLaw.UNKNOWN)
    book.charge(at_position(eps=0.1, ES=0.6, weight_factor=0.9))
    found = book.fidelity()
    assert found.guarantee.value == pytest.approx(0.9**TOKENS)
    assert found.ES_is == "upper bound"
    assert found.weight is None
    assert "unknown" in found.reasons["weight"]


def test_a_q_that_was_not_the_law_of_the_draw():
    book = Ledger(
        guarantee_of(NSD(max_deviation=0.1), TOKENS, void=WRONG_LAW),
        NSD(max_deviation=0.1),
        DraftLaw.SAMPLED,
        Accounting.FULL,
        law_is_right=False,
    )
    book.charge(at_position(eps=0.1, ES=0.6, weight_factor=0.9))
    found = book.fidelity()
    assert (found.guarantee.value, found.Q, found.weight, found.mean_ES) == (None,) * 4
    assert set(found.reasons.values()) == {WRONG_LAW}


def test_rules_without_the_identity_count_no_rescues():
    book = ledger(make_rule("typical"))
    book.charge(at_position(Origin.RESCUED, eps=0.3, ES=0.3))
    found = book.fidelity()
    assert pytest.approx(0.7) == found.Q
    assert found.expected_rescues is None
    assert "extra accepted mass" in found.reasons["expected_rescues"]
    assert "whole rows" in found.reasons["weight"]


def test_json_is_plain():
    book = ledger(NSD(max_deviation=0.01))
    found = json.loads(json.dumps(book.fidelity().as_json(), allow_nan=False))
    assert found["guarantee"] == pytest.approx(0.99**32)
    assert found["guarantee_window"]["8"] == pytest.approx(0.99**8)
    assert (found["mean_ES"], found["reasons"]["mean_ES"]) == (None, "no position was tested")
    assert math.isclose(found["ledger"]["Q"], 1.0)
