"""verify() on every golden case: decision, branch, R, ES, deviation and the cap's coefficient, to 1e-12."""

import pytest

from nsd.rules import NSD
from nsd.verification import Branch
from tests.golden import cases, verdict_of

BRANCHES = {"ratio": Branch.RATIO, "nucleus": Branch.RESCUED, "reject": Branch.REJECTED}


def close(value):
    return pytest.approx(value, rel=0, abs=1e-12)


def test_all_cases_are_here():
    assert (len(cases("step")), len(cases("cap"))) == (400, 300)


def test_step_cases_uncapped():
    for case in cases("step"):
        verdict = verdict_of(case, NSD(case["theta"]))
        assert bool(verdict.accepted[0]) == case["accept_uncapped"]
        assert verdict.columns.R.item() == close(case["R"])
        assert verdict.columns.ES.item() == close(case["ES"])
        assert verdict.columns.eps.item() == close(case["ES"])


def test_step_cases_with_their_cap():
    for case in cases("step"):
        verdict = verdict_of(case, NSD(case["theta"], max_deviation=case["max_deviation"]))
        assert verdict.columns.eps.item() == close(case["deviation"])
        assert 1 - verdict.columns.R.item() + verdict.columns.eps.item() == close(case["acceptance"])


def test_cap_cases():
    for case in cases("cap"):
        verdict = verdict_of(case, NSD(case["theta"], max_deviation=case["max_deviation"]))
        assert bool(verdict.accepted[0]) == case["accept"]
        assert Branch(verdict.branch.item()) is BRANCHES[case["branch"]]
        for name, expected in (("lam", "lam"), ("R", "R"), ("ES", "ES"), ("eps", "deviation")):
            assert getattr(verdict.columns, name).item() == close(case[expected])


def test_the_cap_cases_hold_every_branch():
    assert {case["branch"] for case in cases("cap")} == set(BRANCHES)
