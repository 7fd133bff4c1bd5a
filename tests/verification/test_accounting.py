"""What is computed at which level, and that fast figures equal a float64 recomputation."""

import pytest
import torch

from nsd.laws import excess_masses_in
from nsd.rules import NSD, RULES, SD, make_rule
from nsd.verification import Accounting, Branch, Caps, Draft, DraftLaw, verify
from tests.verification.blocks import column, sampled_batch


def rows_of_drafts(draft):
    return torch.cat([torch.arange(k) + sum(draft.lengths[:b]) + b for b, k in enumerate(draft.lengths)])


def test_figures_equal_float64_at_every_tested_position():
    draft, p, chance = sampled_batch([7] * 12, 3000, seed=2)
    rule = NSD(0.3)
    verdict = verify(draft, p, [rule] * 12, chance, Accounting.FULL, trace=True)
    law, q = p[rows_of_drafts(draft)].double(), draft.q.double()
    R, es = excess_masses_in(law, q, rule.whole_set(law))
    tested = verdict.branch != Branch.UNTESTED
    assert tested.any()
    assert not tested.all()
    for got, expected in ((verdict.columns.R, R), (verdict.columns.ES, es)):
        torch.testing.assert_close(got[tested], expected[tested], rtol=0, atol=1e-6)
    p_x = law.gather(-1, draft.tokens.unsqueeze(-1))
    above = torch.where(law > p_x, law, 0.0).sum(-1)
    torch.testing.assert_close(verdict.columns.mass[tested], above[tested], rtol=0, atol=1e-6)
    assert torch.equal(verdict.columns.rank[tested], ((law > p_x).sum(-1) + 1).double()[tested])
    for got, rows in ((verdict.columns.entropy_p, law), (verdict.columns.entropy_q, q)):
        torch.testing.assert_close(got[tested], -torch.xlogy(rows, rows).sum(-1)[tested], rtol=0, atol=1e-5)


@pytest.mark.parametrize("level", [Accounting.OFF, Accounting.RESCUES])
def test_nothing_is_computed_that_was_not_asked_for(level):
    draft, p, chance = sampled_batch([4, 4], 100)
    columns = verify(draft, p, [NSD(), SD()], chance, level).columns
    assert columns.R.isnan().all()
    assert columns.ES.isnan().all()
    assert columns.rank.isnan().all()


@pytest.mark.parametrize("name", RULES)
def test_full_accounting_holds_the_deviation_of_every_rule(name):
    draft, p, chance = sampled_batch([3] * 4, 40, seed=5)
    rule = RULES[name]()
    verdict = verify(draft, p, [rule] * 4, chance, Accounting.FULL)
    law, q = p[rows_of_drafts(draft)].double(), draft.q.double()
    deviation = (rule.emitted(law, q) - rule.aimed(law)).abs().sum(-1) / 2
    tested = verdict.branch != Branch.UNTESTED
    torch.testing.assert_close(verdict.columns.ES[tested], deviation[tested], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_blocks_without_drafts_draw_from_the_target(name):
    draft = Draft(torch.zeros(0, dtype=torch.long), (0, 0), DraftLaw.POINT)
    _, p, chance = sampled_batch([1], 30)
    verdict = verify(draft, p, [RULES[name]()] * 2, chance, Accounting.FULL, trace=True)
    assert verdict.accepted.tolist() == [0, 0]
    assert verdict.final.bonus.tolist() == [True, True]
    assert torch.allclose(verdict.final.mass, column(1.0, 1.0))


def test_the_budget_floor_is_never_crossed():
    draft, p, chance = sampled_batch([6] * 10, 50, seed=4)
    for floor in (0.99, 0.9, 0.5):
        caps = Caps(torch.ones(60, dtype=torch.float64), torch.full((10,), floor, dtype=torch.float64))
        verdict = verify(draft, p, [NSD(0.95)] * 10, chance, caps=caps)
        kept = (1 - verdict.columns.eps.nan_to_num(0.0)).view(10, 6).prod(-1)
        assert (kept >= floor - 1e-12).all()
        assert (verdict.columns.eps.nan_to_num(0) > 0).any()


def test_a_cap_does_not_read_past_the_token_it_decides():
    """eps and lam of a position stay the same whatever the rows and tokens after it are."""
    draft, p, chance = sampled_batch([4], 60, seed=6)
    caps = Caps(torch.full((4,), 0.1, dtype=torch.float64), torch.full((1,), 0.8, dtype=torch.float64))
    before = verify(draft, p, [NSD(0.9)], chance, caps=caps).columns
    other, other_p, _ = sampled_batch([4], 60, seed=60)
    for t in range(3):
        q, law, tokens = draft.q.clone(), p.clone(), draft.tokens.clone()
        q[t + 1 :], law[t + 1 :], tokens[t + 1 :] = other.q[t + 1 :], other_p[t + 1 :], other.tokens[t + 1 :]
        after = verify(Draft(tokens, (4,), DraftLaw.SAMPLED, q), law, [NSD(0.9)], chance, caps=caps).columns
        assert torch.equal(before.eps[: t + 1].nan_to_num(-1), after.eps[: t + 1].nan_to_num(-1))
        assert torch.equal(before.lam[: t + 1].nan_to_num(-1), after.lam[: t + 1].nan_to_num(-1))


def test_an_unknown_law_is_verified_as_a_point_mass():
    draft, p, chance = sampled_batch([3], 40)
    unknown, point = (Draft(draft.tokens, (3,), law) for law in (DraftLaw.UNKNOWN, DraftLaw.POINT))
    one, other = (verify(d, p, [NSD(max_deviation=0.2)], chance, Accounting.FULL) for d in (unknown, point))
    assert torch.equal(one.branch, other.branch)
    assert torch.equal(one.final.token, other.final.token)


def test_mixed_kinds_of_rules_in_one_batch():
    rules = [SD(), NSD(0.5), make_rule("mentored"), make_rule("greedy"), NSD(0.5, max_deviation=0.0), NSD(0.9)]
    draft, p, chance = sampled_batch([3] * 6, 80, seed=9)
    verdict = verify(draft, p, rules[:2] + [SD()] * 2 + rules[4:], chance, Accounting.FULL)
    assert not (verdict.branch.view(6, 3)[[0, 2, 3, 4]] == Branch.RESCUED).any()
    free = verify(draft, p, rules, chance)
    assert torch.equal(free.branch.view(6, 3)[[0, 1]], verdict.branch.view(6, 3)[[0, 1]])
