"""Frequencies of the real path against the exact laws.

Fixed seeds. All tests of this file together raise a false alarm with probability below 1e-6 (Bonferroni over fewer than
200 comparisons at 5e-9 each).
"""

import pytest
import torch
from scipy.stats import binom, chi2

from nsd.laws import draw, excess_masses_in, one_hot
from nsd.rules import NSD, RULES, SD, make_rule
from nsd.verification import Accounting, Branch, Draft, DraftLaw, Uniforms, verify
from tests.strategies import random_laws
from tests.verification.blocks import numbers

ALARM = 5e-9
N = 60_000
VOCAB = 8

EXTRA = {
    "nsd, prefix": NSD(0.6, ties="smallest"),
    "nsd, capped": NSD(0.9, max_deviation=0.05),
    "topk, capped": make_rule("topk", k=3, max_deviation=0.02),
    "nsd, theta 1": NSD(1.0),
    "nsd, theta 0": NSD(0.0),
}
CASES = {**{name: kind() for name, kind in RULES.items()}, **EXTRA}


def fits(counts, law):
    """Chi-square of counts against a law; ids without mass must not occur at all."""
    possible = law > 1e-9
    assert counts[~possible].sum() == 0
    expected = law[possible] / law[possible].sum() * counts.sum()
    assert (expected > 5).all(), "the law of this test has too small a cell"
    statistic = ((counts[possible] - expected) ** 2 / expected).sum().item()
    return chi2.sf(statistic, max(int(possible.sum()) - 1, 1)) > ALARM or possible.sum() == 1


def play(rule, p, q, seed, point=None):
    """N blocks of one drafted token from q (or always `point`), verified in one batch."""
    tokens = torch.full((N,), point) if point is not None else draw(q.expand(N, -1), numbers(N, seed))
    law = DraftLaw.SAMPLED if point is None else DraftLaw.POINT
    draft = Draft(tokens, (1,) * N, law, q.expand(N, -1) if point is None else None)
    chance = Uniforms(*(numbers(2 * N, seed + part) for part in (1, 2, 3)))
    verdict = verify(draft, p.expand(2 * N, -1), [rule] * N, chance, Accounting.OFF)
    return tokens, verdict, torch.where(verdict.accepted == 1, tokens, verdict.final.token)


@pytest.mark.parametrize("name", CASES)
def test_first_token_follows_the_emitted_law(name):
    p, q = random_laws(21, 1, VOCAB, 1.0), random_laws(22, 1, VOCAB, 1.0)
    _, _, first = play(CASES[name], p, q, seed=100)
    assert fits(torch.bincount(first, minlength=VOCAB), CASES[name].emitted(p, q)[0])


@pytest.mark.parametrize("name", CASES)
def test_acceptance_rate_is_the_rules(name):
    p, q = random_laws(23, 1, VOCAB, 1.0), random_laws(24, 1, VOCAB, 1.0)
    _, verdict, _ = play(CASES[name], p, q, seed=200)
    rate = (q * CASES[name].acceptance_of_all(p, q)).sum().clamp(0, 1).item()
    low, high = binom.ppf([ALARM / 2, 1 - ALARM / 2], N, rate)
    assert low <= verdict.accepted.sum().item() <= high


@pytest.mark.parametrize("name", ["sd", "sample-and-match", "nsd", "nsd, capped", "ensemble", "cascade"])
def test_a_point_mass_draft_follows_the_emitted_law(name):
    p = random_laws(25, 1, VOCAB, 1.0)
    point = int(p[0].argsort()[-3])
    _, _, first = play(CASES[name], p, None, seed=300, point=point)
    q = one_hot(torch.tensor([point]), p)
    assert fits(torch.bincount(first, minlength=VOCAB), CASES[name].emitted(p, q)[0])


@pytest.mark.parametrize("theta", [0.3, 0.7, 0.95])
def test_rescues_happen_as_often_as_the_excess_says(theta):
    p, q = random_laws(31, 1, VOCAB, 1.0), random_laws(32, 1, VOCAB, 1.0)
    rule = NSD(theta)
    _, verdict, _ = play(rule, p, q, seed=400)
    _, exact, _ = play(SD(), p, q, seed=400)
    rescued = verdict.branch == Branch.RESCUED
    assert torch.equal(rescued, (exact.accepted == 0) & (verdict.accepted == 1))
    es = excess_masses_in(p, q, rule.whole_set(p))[1].item()
    assert es > 0.01
    low, high = binom.ppf([ALARM / 2, 1 - ALARM / 2], N, es)
    assert low <= rescued.sum().item() <= high


@pytest.mark.parametrize("name", ["sd", "nsd", "nsd, capped"])
def test_the_replacement_does_not_depend_on_the_rejected_token(name):
    p, q = random_laws(28, 1, VOCAB, 1.2), random_laws(29, 1, VOCAB, 1.2)
    rule = CASES[name] if name != "nsd" else NSD(0.5)
    tokens, verdict, _ = play(rule, p, q, seed=500)
    residual = rule.recovered(p, q)[0]
    rejected = verdict.accepted == 0
    compared = 0
    for x in tokens[rejected].unique():
        counts = torch.bincount(verdict.final.token[rejected & (tokens == x)], minlength=VOCAB)
        if counts.sum() * residual[residual > 1e-9].min() > 5:
            assert fits(counts, residual)
            compared += 1
    assert compared >= 2


def test_bonus_follows_the_target():
    p = random_laws(30, 1, VOCAB, 1.0)
    _, verdict, _ = play(NSD(1.0), p, p, seed=600)
    assert verdict.final.bonus.all()
    assert fits(torch.bincount(verdict.final.token, minlength=VOCAB), p[0])
