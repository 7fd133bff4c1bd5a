"""One step: golden cases, the identities, the two forms against each other, bad laws."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsd.errors import LawError, NoClosedForm
from nsd.fidelity import along_theta, check_law, one_step, one_step_rows
from nsd.rules import NSD, SD, Evidence, passes_ratio
from tests.fidelity.laws import caps, every_rule, pairs, rows, set_rules, thetas

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
EXACT = 1e-12


def by_rows(p, q, rule):
    return one_step_rows(torch.as_tensor(p).unsqueeze(0), torch.as_tensor(q).unsqueeze(0), rule)


@pytest.mark.parametrize("case", GOLDEN["step"], ids=range(len(GOLDEN["step"])))
def test_capped_step_cases(case):
    rule = NSD(case["theta"], max_deviation=case["max_deviation"])
    one = one_step(case["p"], case["q"], rule)
    many = by_rows(np.array(case["p"]), np.array(case["q"]), rule)
    for name in ("R", "ES", "deviation", "acceptance", "tv"):
        assert getattr(one, name) == pytest.approx(case[name], abs=EXACT)
        assert float(getattr(many, name)[0]) == pytest.approx(case[name], abs=EXACT)
    assert one.emitted == pytest.approx(case["emitted"], abs=EXACT)
    assert many.emitted[0].tolist() == pytest.approx(case["emitted"], abs=EXACT)
    assert list(one.nucleus) == case["nucleus"] == many.nucleus[0].nonzero().squeeze(-1).tolist()


@pytest.mark.parametrize("case", GOLDEN["cap"], ids=range(len(GOLDEN["cap"])))
def test_cap_cases(case):
    rule = NSD(case["theta"], max_deviation=case["max_deviation"])
    one = one_step(case["p"], case["q"], rule)
    for name in ("R", "ES", "lam", "deviation"):
        assert getattr(one, name) == pytest.approx(case[name], abs=EXACT)
    assert list(one.nucleus) == case["nucleus"]
    prefix = one_step(case["p"], case["q"], replace(rule, ties="smallest"))
    assert list(prefix.nucleus) == case["nucleus_smallest"]
    assert decision(case, rule, one) == (case["accept"], case["branch"])


def decision(case, rule, one):
    """The rule's own decision for the case's x and u, with its branch."""
    x = torch.tensor([case["x"]])
    p_x, q_x = (torch.tensor([case[name][case["x"]]], dtype=torch.float64) for name in ("p", "q"))
    e = Evidence(x, p_x, q_x, member=torch.tensor([case["x"] in one.nucleus]), lam=torch.tensor([one.lam]).double())
    u = torch.tensor([case["u"]], dtype=torch.float64)
    accepted, by_ratio = bool(rule.decide(e, u)), bool(passes_ratio(e, u))
    return accepted, "ratio" if by_ratio else "nucleus" if accepted else "reject"


@given(pairs(), thetas, caps)
def test_deviation_is_the_capped_excess(pair, theta, cap):
    p, q = pair
    one = one_step(p, q, NSD(theta, max_deviation=cap))
    expected = one.ES if cap is None else min(one.ES, cap)
    assert one.tv == pytest.approx(expected, abs=EXACT) == one.deviation
    assert one.acceptance == pytest.approx(1 - one.R + expected, abs=EXACT)
    assert one.residual == pytest.approx(one.R - expected, abs=EXACT)
    assert sum(one.emitted) == pytest.approx(1, abs=EXACT)


@given(pairs(), caps)
def test_closed_form_is_what_the_rule_emits(pair, cap):
    p, q = pair
    for rule in set_rules(cap):
        one = one_step(p, q, rule)
        emitted = rule.emitted(p.unsqueeze(0), q.unsqueeze(0))[0]
        assert one.emitted == pytest.approx(emitted.tolist(), abs=EXACT), rule
        inside = set(one.nucleus)
        assert one.exact == (one.deviation == 0)
        if cap is None:
            assert one.exact == all(q[i] <= p[i] for i in inside)


@given(pairs(), caps)
def test_over_and_under_emitted_ids(pair, cap):
    p, q = pair
    for rule in set_rules(cap):
        one = one_step(p, q, rule)
        difference = np.array(one.emitted) - p.numpy()
        assert set(np.flatnonzero(difference > 1e-9)) <= set(one.over)
        assert set(np.flatnonzero(difference < -1e-9)) <= set(one.under)
        assert not set(one.over) & set(one.under)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_rows_agree_with_the_reference_for_every_rule(seed):
    p, q = rows(3, 7, seed), rows(3, 7, seed + 1)
    for rule in [*every_rule(), *set_rules(0.1)]:
        many = one_step_rows(p, q, rule)
        for i in range(len(p)):
            one = one_step(p[i], q[i], rule)
            for name in ("R", "ES", "acceptance", "residual", "lam", "deviation", "tv"):
                assert float(getattr(many, name)[i]) == pytest.approx(getattr(one, name), abs=1e-11), (rule, name)
            assert many.emitted[i].tolist() == pytest.approx(one.emitted, abs=1e-11)
            assert bool(many.exact[i]) == one.exact
            for name in ("over", "under"):
                assert tuple(getattr(many, name)[i].nonzero().squeeze(-1).tolist()) == getattr(one, name), (rule, name)
            for name in ("kl_emitted", "kl_target"):
                found, reference = float(getattr(many, name)[i]), getattr(one, name)
                assert found == pytest.approx(np.inf if reference is None else reference, rel=1e-3, abs=1e-9)


@given(pairs(), caps)
def test_lam_does_not_depend_on_the_draft_or_its_uniform(pair, cap):
    """a(x) - r(x) is the same share of 1 - r(x) for every x of S: one lam, made from the rows alone."""
    p, q = pair
    rule = NSD(0.9, max_deviation=cap)
    one = one_step(p, q, rule)
    a = rule.acceptance_of_all(p.unsqueeze(0), q.unsqueeze(0))[0]
    r = (p / q).nan_to_num(nan=0.0).clamp_max(1.0)
    for x in one.nucleus:
        assert float(a[x] - r[x]) == pytest.approx(one.lam * float(1 - r[x]), abs=EXACT)


@given(pairs(), caps)
def test_nothing_falls_as_theta_grows(pair, cap):
    p, q = pair
    steps = along_theta(p, q, [0, 0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 1.0], NSD(max_deviation=cap))
    for name in ("ES", "deviation", "acceptance"):
        values = [getattr(step, name) for step in steps]
        assert all(later >= earlier - EXACT for earlier, later in pairwise(values))
    assert steps[0].exact


def test_a_point_mass_costs_one_minus_p():
    p = [0.2, 0.5, 0.3]
    one = one_step(p, 0, NSD(0.95))
    assert pytest.approx((0.8, 0.8)) == (one.R, one.ES)
    assert one.emitted == pytest.approx((1, 0, 0))
    assert one.kl_target is None
    assert one.kl_emitted == pytest.approx(np.log(5))
    assert float(one_step_rows(torch.tensor([p]), None, NSD(0.95), torch.tensor([0])).ES) == pytest.approx(0.8)


def test_float32_rows_of_a_large_vocabulary():
    p, q = (torch.softmax(torch.randn(4, 50_000, generator=torch.Generator().manual_seed(s)) * 4, -1) for s in (1, 2))
    many = one_step_rows(p, q, NSD(0.95, max_deviation=0.1))
    wide = one_step_rows(p.double(), q.double(), NSD(0.95, max_deviation=0.1))
    assert torch.allclose(many.ES, wide.ES, atol=1e-5)
    assert torch.allclose(many.tv, many.deviation, atol=1e-5)


@pytest.mark.parametrize("rule", every_rule(), ids=lambda rule: rule.name)
def test_unknown_draft_law_is_said_not_estimated(rule):
    with pytest.raises(NoClosedForm, match="unknown"):
        one_step([0.5, 0.5], None, rule)
    with pytest.raises(NoClosedForm, match="unknown"):
        one_step_rows(torch.tensor([[0.5, 0.5]]), None, rule)


@pytest.mark.parametrize(
    ("p", "q", "says"),
    [
        ([0.5, 0.4], [0.5, 0.5], r"p sums to 0\.9, wanted 1"),
        ([0.5, 0.5], [0.5, 0.6], r"q sums to 1\.1, wanted 1"),
        ([1.2, -0.2], [0.5, 0.5], r"p is negative at id 1 \(-0\.2; the law sums to 1\)"),
        ([0.5, 0.5], [0.2, 0.3, 0.5], r"p has 2 entries \(sum 1\) and q has 3 \(sum 1\)"),
        ([np.nan, 0.5], [0.5, 0.5], "not finite"),
        ([], [0.5, 0.5], "shape"),
        ([0.5, 0.5], 2, r"drafted id is 2, wanted one of 0\.\.1"),
    ],
)
def test_bad_laws_are_refused(p, q, says):
    with pytest.raises(LawError, match=says):
        one_step(p, q, SD())


def test_bad_rows_are_refused():
    good = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(LawError, match=r"row 1 of q sums to 0\.9"):
        one_step_rows(good, torch.tensor([[0.5, 0.5], [0.5, 0.4]]), SD())
    with pytest.raises(LawError, match=r"smallest entry -0\.5"):
        one_step_rows(torch.tensor([[1.5, -0.5]]), good[:1], SD())
    with pytest.raises(LawError, match="same rows"):
        one_step_rows(good, good[:1], SD())
    assert check_law([0.5, 0.5], "p").tolist() == [0.5, 0.5]
