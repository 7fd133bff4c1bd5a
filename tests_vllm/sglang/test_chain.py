"""SGLang's Triton chain kernel, under Triton's interpreter, with the coins that the hook hands it."""

from itertools import pairwise

import pytest
import torch
from scipy.stats import chi2

from nsd.engines.sglang import coins
from nsd.engines.sglang.requests import Asked
from nsd.engines.vllm.settings import Ask
from tests_vllm.sglang.world import hooked, kernel_arguments, laws, run_chain

P = torch.tensor([0.46, 0.27, 0.15, 0.08, 0.04])
Q = torch.tensor([0.10, 0.15, 0.20, 0.25, 0.30])
THETA = 0.8  # the nucleus is ids 0, 1, 2: 0.46 + 0.27 < 0.8 <= 0.88


def same(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_theta_zero_is_the_stock_kernel_bit_for_bit():
    p, q, drafted = laws(8, 3, 64, seed=0)
    for seed in range(3):
        stock = run_chain(kernel_arguments(p, q, drafted, seed))
        for ask in (Ask("nsd", 0.0), Ask("sd"), Ask("nsd", 0.9, 0.0), None):
            with hooked(ask):
                assert same(stock, run_chain(kernel_arguments(p, q, drafted, seed)))


def test_a_token_stands_if_it_passes_or_lies_in_the_nucleus():
    p, q, drafted = laws(40, 4, 50, seed=1)
    arguments = kernel_arguments(p, q, drafted, seed=2)
    given = arguments["uniform_samples"].clone()
    with hooked(Ask("nsd", 0.7)):
        accepted, tokens = run_chain(arguments)
    assert torch.equal(arguments["uniform_samples"], given)  # what SGLang owns is not written to
    rescued = 0
    for b in range(40):
        expected = 0
        for j in range(1, 5):
            law, x = p[b, j - 1], int(drafted[b, j])
            ratio = float(given[b, j - 1] * q[b, j - 1, x]) < float(law[x])
            nucleus = float(law[law > law[x]].double().sum()) < 0.7
            if not (ratio or nucleus):
                break
            expected, rescued = expected + 1, rescued + (not ratio)
        assert int(accepted[b]) == expected
        assert tokens[b, :expected].tolist() == drafted[b, 1 : expected + 1].tolist()
    assert rescued > 10


def test_acceptance_rises_with_theta():
    p, q, drafted = laws(24, 4, 50, seed=3)
    counts = []
    for theta in (0.0, 0.5, 0.8, 0.95, 1.0):
        with hooked(Ask("nsd", theta)):
            counts.append(run_chain(kernel_arguments(p, q, drafted, seed=4))[0])
    assert all((after >= before).all() for before, after in pairwise(counts))
    totals = [int(count.sum()) for count in counts]
    assert totals == sorted(totals) and totals[0] < totals[2] < totals[-1] == 24 * 4


def emitted(lam: float) -> torch.Tensor:
    """The law of one verified token: q where it stands by the set with probability lam, the exact test elsewhere."""
    p, q = P.double(), Q.double()
    inside = torch.tensor([True, True, True, False, False])
    exact = torch.minimum(p, q)
    kept = torch.where(inside, lam * q + (1 - lam) * exact, exact)
    left = (p - q).clamp_min(0)
    return kept + (1 - kept.sum()) * left / left.sum()


@pytest.mark.parametrize(("cap", "lam"), [(None, 1.0), (0.02, None)])
def test_law_of_the_emitted_token(cap, lam):
    """Chi-square over 700 rows of one step each, false alarm 1e-4; strict verification would fail it."""
    rows = 700
    ES = float((Q - P).clamp_min(0)[:3].sum())
    law = emitted(cap / ES if lam is None else lam)
    generator = torch.Generator().manual_seed(5)
    drawn = torch.multinomial(Q, rows, True, generator=generator).unsqueeze(-1)
    drafted = torch.cat([torch.zeros_like(drawn), drawn], -1)
    arguments = kernel_arguments(P.expand(rows, 2, 5).contiguous(), Q.expand(rows, 1, 5).contiguous(), drafted, seed=6)
    torch.manual_seed(7)
    with hooked(Ask("nsd", THETA, cap)):
        _, tokens = run_chain(arguments)
    seen = torch.bincount(tokens[:, 0].long(), minlength=5).double()

    def statistic(expected):
        return float(((seen - rows * expected) ** 2 / (rows * expected)).sum())

    assert statistic(law) < chi2.isf(1e-4, 4)
    if cap is None:
        assert statistic(P.double()) > chi2.isf(1e-4, 4)
    assert float(0.5 * (law - P.double()).abs().sum()) == pytest.approx(ES if cap is None else cap, abs=1e-6)


def test_tokens_without_target_mass_never_stand():
    p, q, drafted = laws(16, 3, 20, seed=8)
    p[torch.arange(16), 1, drafted[:, 2]] = 0.0  # a grammar forbids every second draft
    p = p / p.sum(-1, keepdim=True)
    with hooked(Ask("nsd", 1.0)):
        accepted, _ = run_chain(kernel_arguments(p, q, drafted, seed=9))
    assert accepted.tolist() == [1] * 16


def test_rows_reduced_to_one_token_stay_greedy():
    p, q, drafted = laws(16, 2, 20, seed=10)
    point = torch.zeros_like(p).scatter_(-1, p.argmax(-1, keepdim=True), 1.0)  # top_k = 1 in a mixed batch
    with hooked(Ask("nsd", 0.95)):
        accepted, tokens = run_chain(kernel_arguments(point, q, drafted, seed=11))
    stock = run_chain(kernel_arguments(point, q, drafted, seed=11))
    assert same(stock, (accepted, tokens))


def test_a_draft_outside_its_own_law_is_left_to_the_kernel():
    p, q, drafted = laws(8, 1, 20, seed=12)
    q[torch.arange(8), 0, drafted[:, 1]] = 0.0
    asked = Asked(torch.ones(8, dtype=torch.float64))
    assert not coins.forced_drafts(kernel_arguments(p, q, drafted, 0), asked, sampled=True).any()
    assert coins.forced_drafts(kernel_arguments(p, q, drafted, 0), asked, sampled=False).all()


def test_trees_are_left_to_the_kernel_row_by_row():
    p, q, drafted = laws(3, 3, 20, seed=13)
    arguments = kernel_arguments(p, q, drafted, 0)
    arguments["retrive_next_sibling"][1, 1] = 2  # two children of the root
    arguments["retrive_next_token"][2, 0] = 2  # another order of slots
    forced = coins.forced_drafts(arguments, Asked(torch.ones(3, dtype=torch.float64)), sampled=True)
    assert forced.any(-1).tolist() == [True, False, False]


def test_tree_kernel_gets_coins_for_point_masses():
    """The kernel itself is CUDA's; its test, u < p(x), is applied here to the coins that the hook hands it."""
    p, _, drafted = laws(64, 3, 20, seed=14)
    arguments = kernel_arguments(p, torch.zeros_like(p), drafted, 15)
    given = arguments["uniform_samples"].clone()
    with hooked(Ask("nsd", 0.6)):
        _, changed = coins.before_tree(**arguments)
    used = changed["uniform_samples"]
    x = drafted[:, 1:]
    p_x = p[:, :-1].gather(-1, x.unsqueeze(-1)).squeeze(-1)
    above = (p[:, :-1] * (p[:, :-1] > p_x.unsqueeze(-1))).double().sum(-1)
    stands = used[:, :3] < p_x
    assert torch.equal(stands, (given[:, :3] < p_x) | (above < 0.6))
    assert torch.equal(used[:, 3], given[:, 3])
    assert torch.equal(changed["uniform_samples_for_final_sampling"], arguments["uniform_samples_for_final_sampling"])


def test_block_verification_is_refused_and_only_when_nsd_acts():
    p, q, drafted = laws(2, 2, 20, seed=16)
    arguments = {**kernel_arguments(p, q, drafted, 17), "block_verification": True}
    with hooked(Ask("nsd", 0.9)), pytest.raises(RuntimeError, match="block verification"):
        run_chain(arguments)
    with hooked(Ask("sd")):
        run_chain(arguments)


def test_seeded_caps_repeat_and_do_not_follow_sglangs_coins():
    asked = Asked(torch.ones(2), torch.full((2,), 0.1), torch.tensor([7, 8]), torch.tensor([100, 100]))
    first = coins.cap_coins(asked, 2, 500, torch.device("cpu"))
    assert torch.equal(first, coins.cap_coins(asked, 2, 500, torch.device("cpu")))
    assert not torch.equal(first[:500], first[500:])
    assert abs(float(first.mean()) - 0.5) < 0.04  # four standard errors: false alarm below 1e-4
