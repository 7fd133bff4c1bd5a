"""The closed-form laws and the sets of the golden cases, to 1e-12."""

import torch

from nsd.laws import excess_masses_in, members, members_by_sort
from nsd.rules import NSD
from tests.golden import cases, column, laws_of


def ids(mask):
    return mask[0].nonzero().flatten().tolist()


def test_mass_form_sets():
    for case in [*cases("step"), *cases("cap")]:
        p, _ = laws_of(case)
        assert ids(members(p, case["theta"])) == case["nucleus"]
        assert ids(members_by_sort(p, case["theta"])) == case["nucleus"]


def test_prefix_form_sets():
    for case in cases("cap"):
        p, _ = laws_of(case)
        assert ids(members(p, case["theta"], "smallest")) == case["nucleus_smallest"]
    assert any(case["nucleus"] != case["nucleus_smallest"] for case in cases("cap"))


def test_emitted_law_and_acceptance():
    for case in cases("step"):
        p, q = laws_of(case)
        rule = NSD(case["theta"], max_deviation=case["max_deviation"])
        torch.testing.assert_close(rule.emitted(p, q), column(case["emitted"]), rtol=0, atol=1e-12)
        accepted = (q * rule.acceptance_of_all(p, q)).sum()
        assert abs(accepted.item() - case["acceptance"]) < 1e-12


def test_excess_and_coefficient():
    for case in [*cases("step"), *cases("cap")]:
        p, q = laws_of(case)
        R, es = excess_masses_in(p, q, members(p, case["theta"]))
        assert abs(R.item() - case["R"]) < 1e-12
        assert abs(es.item() - case["ES"]) < 1e-12
    for case in cases("cap"):
        p, q = laws_of(case)
        rule = NSD(case["theta"], max_deviation=case["max_deviation"])
        assert abs(rule.coefficient(p, q).item() - case["lam"]) < 1e-12
