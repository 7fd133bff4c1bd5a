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
def test_full_accounting_of_a_point_mass_and_of_forbidden_drafts(name):
    _, p, chance = sampled_batch([3] * 4, 40, seed=5)
    rows = torch.tensor([r for r in range(16) if r % 4 != 3])
    p[rows[::2], :20] = 0
    p /= p.sum(-1, keepdim=True)
    tokens = torch.arange(12) * 3
    q = 0.5 * torch.nn.functional.one_hot(tokens, 40) + 0.5 / 40
    for draft, law_q in (
        (Draft(tokens, (3,) * 4, DraftLaw.POINT), torch.nn.functional.one_hot(tokens, 40)),
        (Draft(tokens, (3,) * 4, DraftLaw.SAMPLED, q), q),
    ):
        rule = RULES[name]()
        verdict = verify(draft, p, [rule] * 4, chance, Accounting.FULL)
        law, law_q = p[rows].double(), law_q.double()
        deviation = (rule.emitted(law, law_q) - rule.aimed(law)).abs().sum(-1) / 2
        R = (law_q - rule.aimed(law)).clamp_min(0).sum(-1)
        tested = verdict.branch != Branch.UNTESTED
        torch.testing.assert_close(verdict.columns.ES[tested], deviation[tested], rtol=0, atol=1e-6)
        torch.testing.assert_close(verdict.columns.R[tested], R[tested], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["lenience", "lossy-epsilon", "ensemble", "typical", "relaxed-topk"])
def test_full_accounting_with_a_number_per_request(name):
    """Requests of one kind with numbers of their own are accounted for as if each were alone."""
    values = {"lenience": ("l", (0.3, 0.9)), "lossy-epsilon": ("epsilon", (0.05, 0.4)), "ensemble": ("w", (0.2, 0.9))}
    number, pair = values.get(name, ("delta", (0.1, 0.8)))
    rules = [make_rule(name, **{number: value}) for value in pair]
    draft, p, chance = sampled_batch([3, 3], 40, seed=8)
    together = verify(draft, p, rules, chance, Accounting.FULL).columns.ES
    for b, rule in enumerate(rules):
        mine = verify(draft, p, [rule] * 2, chance, Accounting.FULL).columns.ES[3 * b : 3 * b + 3]
        assert torch.equal(together[3 * b : 3 * b + 3].nan_to_num(-1), mine.nan_to_num(-1))


@pytest.mark.parametrize("name", sorted(set(RULES) - {"nsd", "cold-nucleus"}))
def test_full_accounting_orders_no_vocabulary(name, monkeypatch):
    """Only the nucleus orders anything, and of a large vocabulary only the few ids above a floor."""

    def refuse(*_, **__):
        raise AssertionError("a sort")

    draft, p, chance = sampled_batch([3] * 4, 3000, seed=5)
    for place, call in ((torch.Tensor, "sort"), (torch, "sort"), (torch.Tensor, "argsort"), (torch, "argsort")):
        monkeypatch.setattr(place, call, refuse)
    verdict = verify(draft, p, [RULES[name]()] * 4, chance, Accounting.FULL)
    assert not verdict.columns.ES[verdict.branch != Branch.UNTESTED].isnan().any()


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
