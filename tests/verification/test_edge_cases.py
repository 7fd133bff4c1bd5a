"""Failures seen in other projects, each with the behaviour wanted here. Numbers follow one list across the suite."""

import pytest
import torch

from nsd.errors import ConfigError, NonFiniteTarget
from nsd.laws import History, Purpose, Sampling, draw, laws, mass_below, residual
from nsd.laws import uniforms as keyed
from nsd.rules import NSD, RULES, SD, Greedy
from nsd.verification import Accounting, Branch, Draft, DraftLaw, Uniforms, verify
from tests.strategies import random_laws
from tests.verification.blocks import column, numbers, sampled_batch, single, uniforms

NEXT_TO_ONE = 1 - 2.0**-53


def run(p, q, x, rule=None, **chance):
    draft, rows, u = single(p, q, x, **chance)
    return verify(draft, rows, [rule or SD()], u, Accounting.FULL)


def test_edge_case_01_the_residual_is_divided_by_its_sum_never_softmaxed():
    p, q = [0.6, 0.3, 0.1, 0.0], [0.1, 0.2, 0.1, 0.6]
    torch.testing.assert_close(SD().recovered(column(p), column(q)), column([5 / 6, 1 / 6, 0, 0]))
    for u, token in ((0.0, 0), (0.83, 0), (0.84, 1), (NEXT_TO_ONE, 1)):
        assert run(p, q, 3, residual_u=u).final.token.item() == token


def test_edge_case_02_a_residual_without_mass_falls_back_to_the_target_and_is_counted():
    p = [0.5, 0.5, 0.0]
    verdict = run(p, p, 2, u=0.0, residual_u=0.7)
    assert verdict.branch.tolist() == [Branch.REJECTED]
    assert verdict.guard.tolist() == [True]
    assert verdict.final.token.item() == 1


def test_edge_case_03_a_residual_of_nan_does_not_pass_for_one_with_mass():
    verdict = run([0.5, 0.5], [torch.nan, torch.nan], 0, residual_u=0.7)
    assert verdict.final.token.item() == 1
    assert verdict.invalid.tolist() == [True]


@pytest.mark.parametrize("rule", [kind() for kind in RULES.values()], ids=list(RULES))
def test_edge_case_04_a_target_row_of_nan_names_request_and_position(rule):
    draft, p, chance = sampled_batch([2, 3], 50)
    # Every draft of request 1 stands up to the broken row: it is the target's own draw and argmax, and q equals p.
    p[3:5] = torch.eye(50)[7]
    draft.q[2:5] = torch.eye(50)[7]
    draft.tokens[2:5] = torch.tensor([7, 7, 49])
    p[5] = torch.nan
    with pytest.raises(NonFiniteTarget, match="request 1 at place 2"):
        verify(draft, p, [SD(), rule], chance)


def test_edge_case_04_rows_behind_the_first_rejection_may_be_broken():
    draft, p, chance = sampled_batch([3], 50)
    p[0, draft.tokens[0]] = 0
    p[2:] = torch.nan
    verdict = verify(draft, p, [NSD()], chance)
    assert verdict.accepted.tolist() == [0]
    assert 0 <= verdict.final.token.item() < 50


@pytest.mark.parametrize("rule", [kind() for kind in RULES.values()], ids=list(RULES))
def test_edge_case_05_a_draft_row_of_nan_is_an_invalid_draft_recovered_from_the_target(rule):
    p = [0.0, 0.25, 0.75]
    verdict = run(p, [torch.nan] * 3, 0, rule, u=0.0, residual_u=0.9, target_u=0.9)
    assert verdict.branch.tolist() == [Branch.REJECTED]
    assert verdict.invalid.tolist() == [True]
    assert verdict.guard.tolist() == [False]
    assert verdict.final.token.item() == 2


@pytest.mark.parametrize("rule", [*(kind() for kind in RULES.values()), NSD(1.0)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("q", [[0.5, 0.25, 0.25], None], ids=["sampled", "point"])
def test_edge_case_06_a_coin_of_zero_accepts_nothing_the_target_forbids(rule, q):
    verdict = run([0.0, 0.5, 0.5], q, 0, rule, u=0.0, target_u=0.0)
    assert verdict.accepted.tolist() == [0]
    assert verdict.final.token.item() != 0


def test_edge_case_06_the_ratio_test_is_strict():
    assert run([0.25, 0.75], [0.5, 0.5], 0, u=0.5).accepted.item() == 0
    assert run([0.25, 0.75], [0.5, 0.5], 0, u=0.5 - 2.0**-54).accepted.item() == 1


def test_edge_case_07_acceptance_depends_on_the_uniforms():
    p, q = random_laws(1, 1, 6, 1.0), random_laws(2, 1, 6, 1.0)
    n = 20_000
    draft = Draft(draw(q.expand(n, -1), numbers(n, 1)), (1,) * n, DraftLaw.SAMPLED, q.expand(n, -1))
    rate = verify(draft, p.expand(2 * n, -1), [SD()] * n, uniforms(2 * n), Accounting.OFF).accepted.double().mean()
    wanted = torch.minimum(p, q).sum()
    assert abs(rate - wanted) < 6 * (wanted * (1 - wanted) / n).sqrt()


def test_edge_case_08_small_terms_of_a_residual_survive():
    p = torch.tensor([[0.5, 0.5 - 2e-30, 3e-30]], dtype=torch.float32)
    q = torch.tensor([[0.5, 0.5, 1e-30]], dtype=torch.float32)
    assert residual(p, q)[0, 2].item() == pytest.approx(2e-30, rel=1e-6)


def test_edge_case_09_q_is_the_tensor_that_was_drawn_from():
    q = laws((random_laws(3, 40, 500, 3.0).log() * 1.3).bfloat16(), [Sampling(temperature=0.7)] * 40)
    u = numbers(40, 4)
    x = draw(q, u)
    below, weight = mass_below(q, x), q.gather(-1, x.unsqueeze(-1)).squeeze(-1).double()
    total = q.double().sum(-1)
    assert (below <= u * total).all()
    assert (u * total < below + weight).all()


def test_edge_case_10_a_point_draft_has_no_soft_law_and_a_sampled_one_must_have_its_own():
    x, q = torch.tensor([1]), torch.tensor([[0.5, 0.5]])
    for law in (DraftLaw.POINT, DraftLaw.UNKNOWN):
        with pytest.raises(ConfigError, match="without its law"):
            Draft(x, (1,), law, q)
    with pytest.raises(ConfigError, match="with its law"):
        Draft(x, (1,), DraftLaw.SAMPLED)
    with pytest.raises(ConfigError, match="lengths"):
        Draft(x, (2,), DraftLaw.POINT)


def test_edge_case_10_a_point_draft_has_excess_one_minus_p():
    verdict = run([0.25, 0.75], None, 0, NSD(1.0), u=0.9)
    assert verdict.branch.tolist() == [Branch.RESCUED]
    assert verdict.columns.R.tolist() == [0.75]
    assert verdict.columns.ES.tolist() == [0.75]


@pytest.mark.parametrize("rule", [SD(), NSD(), NSD(1.0), Greedy()], ids=["sd", "nsd", "nsd at 1", "greedy"])
@pytest.mark.parametrize("x", [0, 1, 2])
def test_edge_case_11_at_temperature_zero_only_the_argmax_stands(rule, x):
    p = laws(torch.tensor([[1.0, 5.0, 5.0]]), [Sampling(temperature=0.0)])[0].tolist()
    for q in (None, [0.2, 0.4, 0.4]):
        verdict = run(p, q, x, rule, u=NEXT_TO_ONE)
        assert verdict.accepted.item() == (x == 1)
        assert verdict.final.token.item() == 1


def test_edge_case_15_requests_do_not_share_their_uniforms():
    table = keyed(980406, [[0], [1], [2]], [[0, 1, 2]], Purpose.ACCEPT)
    assert len(set(table.flatten().tolist())) == 9


def test_edge_case_16_greedy_requests_do_not_depend_on_the_seed():
    scores = random_laws(6, 5, 40, 2.0).log().float()
    p = laws(scores, [Sampling(temperature=0.0)] * 2 + [Sampling()] * 3)
    tokens = torch.tensor([int(p[0].argmax()), 3, 4])
    seen = set()
    for seed in range(20):
        draft = Draft(tokens, (1, 2), DraftLaw.POINT)
        verdict = verify(draft, p, [NSD(), NSD()], uniforms(5, seed))
        seen.add((verdict.accepted[0].item(), verdict.final.token[0].item()))
    assert seen == {(1, int(p[1].argmax()))}


def test_edge_case_17_ragged_requests_keep_their_own_rows():
    # Lengths 0, 3, 1: request 0 draws from row 0, request 1 is judged by rows 1-4, request 2 by rows 5-6.
    rows = torch.eye(7, dtype=torch.float64)
    draft = Draft(torch.tensor([1, 2, 6, 5]), (0, 3, 1), DraftLaw.POINT)
    verdict = verify(draft, rows, [SD()] * 3, uniforms(7))
    assert verdict.accepted.tolist() == [0, 2, 1]
    assert verdict.final.token.tolist() == [0, 3, 6]
    assert verdict.final.bonus.tolist() == [True, False, True]
    assert verdict.branch.tolist() == [Branch.RATIO, Branch.RATIO, Branch.REJECTED, Branch.RATIO]


def test_edge_case_18_penalties_see_the_tokens_drafted_before_the_position():
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=0.5)
    histories = [History([4], [1][:i]) for i in (0, 1)]
    law = laws(torch.ones(2, 5), [sampling] * 2, histories)
    scores = torch.tensor([[1, 1, 1, 1, 0.5], [1, 0.0, 1, 1, 0.5]])
    torch.testing.assert_close(law, torch.softmax(scores, -1))


def test_edge_case_19_the_nucleus_is_that_of_the_processed_law():
    scores = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(2, -1)
    p = laws(scores, [Sampling(min_p=0.5)] * 2)
    draft = Draft(torch.tensor([2]), (1,), DraftLaw.POINT)
    cut = verify(draft, p, [NSD(0.99)], Uniforms(*(column(0.9, 0.9) for _ in range(3))))
    assert cut.accepted.item() == 0
    whole = verify(draft, laws(scores, [Sampling()] * 2), [NSD(0.99)], Uniforms(*(column(0.9, 0.9) for _ in range(3))))
    assert whole.accepted.item() == 1


def test_edge_case_21_padding_is_never_drawn_and_the_target_keeps_ids_the_drafter_lacks():
    absent = torch.tensor([False, False, False, True])
    p = laws(torch.zeros(1, 4), [Sampling()], absent=absent)[0].double().tolist()
    assert p[3] == 0
    q = [0.5, 0.5, 0.0, 0.0]
    finals = {run(p, q, 0, u=0.99, residual_u=u).final.token.item() for u in (0.0, 0.5, NEXT_TO_ONE)}
    assert finals == {2}


def test_edge_case_27_the_probability_reported_is_the_targets():
    p, q = [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]
    accepted = run(p, q, 1, target_u=0.9)
    assert accepted.columns.p_x.tolist() == [0.3]
    assert accepted.final.p_x.tolist() == [p[accepted.final.token.item()]]
    replaced = run(p, q, 0, u=0.99)
    assert replaced.final.p_x.tolist() == [p[replaced.final.token.item()]]


def test_edge_case_28_the_first_draft_is_judged_by_the_first_row():
    rows = column(0.0, 1.0, 0.0, 1.0).view(2, 2)
    for x, accepted in ((0, 0), (1, 1)):
        draft = Draft(torch.tensor([x]), (1,), DraftLaw.POINT)
        assert verify(draft, rows, [SD()], uniforms(2)).accepted.item() == accepted


def test_edge_case_30_healthy_blocks_use_no_guard_and_no_floor():
    for spread in (0.5, 3.0, 12.0):
        draft, p, chance = sampled_batch([3] * 40, 200, seed=8, spread=spread)
        verdict = verify(draft, p, [SD(), NSD()] * 20, chance)
        assert not verdict.guard.any()
        assert not verdict.invalid.any()


def test_edge_case_30_a_residual_far_below_any_floor_is_still_used():
    verdict = run([0.0, 1.0 - 2.0**-50, 2.0**-50], [2.0**-50, 1.0 - 2.0**-50, 0.0], 0, residual_u=0.5)
    assert verdict.final.token.item() == 2
    assert verdict.guard.tolist() == [False]
