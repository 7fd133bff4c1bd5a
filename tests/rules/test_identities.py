"""What holds for whole families of rules, on random laws: masses, deviations, sets, permutations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsd.laws import excess_masses_in, members
from nsd.rules import NSD, RULES, RatioOrSet, make_rule
from nsd.rules.base import Need, Rule, evidence_of_all
from nsd.rules.plausible import ColdNucleus, RelaxedTopK
from nsd.rules.relaxed import Ensemble, Lenience, LossyEpsilon
from nsd.verification import evidence
from nsd.verification.types import Draft, DraftLaw
from tests.strategies import pair, random_laws, thetas

SET_RULES = sorted(name for name, kind in RULES.items() if issubclass(kind, RatioOrSet))
SET_NUMBERS = {"nsd": {"theta": 0.7}, "topk": {"k": 2}, "floor": {"c": 0.25}, "relative": {"rho": 0.5}}
caps = st.sampled_from([None, 0.0, 0.03125, 0.125, 1.0])


def tv(a, b):
    return (a - b).abs().sum(-1) / 2


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
@given(laws=pair())
def test_emitted_law_has_mass_one_and_keeps_to_the_target(name, laws):
    p, q = laws
    emitted = RULES[name]().emitted(p, q)
    close(emitted.sum(-1), torch.ones(1, dtype=torch.float64))
    assert (emitted >= 0).all()
    assert (emitted[p == 0] < 1e-12).all() or name == "mentored" or name == "cascade"


@pytest.mark.parametrize("name", [name for name, kind in RULES.items() if kind.lossless])
@given(laws=pair())
def test_lossless_rules_emit_the_target_law(name, laws):
    p, q = laws
    close(RULES[name]().emitted(p, q), p)


@pytest.mark.parametrize("name", SET_RULES)
@given(laws=pair(), cap=caps)
def test_deviation_is_the_excess_inside_the_set_or_the_cap(name, laws, cap):
    p, q = laws
    rule = make_rule(name, **SET_NUMBERS[name], max_deviation=cap)
    R, es = excess_masses_in(p, q, rule.whole_set(p))
    spent = es if cap is None else es.clamp_max(cap)
    close(tv(rule.emitted(p, q), p), spent)
    close((q * rule.acceptance_of_all(p, q)).sum(-1), 1 - R + spent)


@pytest.mark.parametrize("rule", [Lenience(0.5), LossyEpsilon(0.1), Ensemble(0.7)], ids=lambda rule: rule.name)
@given(laws=pair())
def test_every_wider_ratio_deviates_by_its_extra_acceptance(rule, laws):
    p, q = laws
    R, _ = excess_masses_in(p, q, torch.zeros_like(p, dtype=torch.bool))
    extra = (q * rule.acceptance_of_all(p, q)).sum(-1) - (1 - R)
    # A rule that keeps a token which the target forbids would be here; acceptance is 0 there, so mass may be left over.
    forbidden = (q * (p == 0)).sum(-1)
    if forbidden.item() == 0:
        close(tv(rule.emitted(p, q), p), extra)


@given(laws=pair(), w=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_ensemble_emits_the_mixture(laws, w):
    p, q = laws
    if (q * (p == 0)).sum().item() == 0:
        close(Ensemble(w).emitted(p, q), w * p + (1 - w) * q)


@given(laws=pair(), w=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_ensemble_deviates_by_its_share_of_the_excess_that_the_target_allows(laws, w):
    p, q = laws
    close(tv(Ensemble(w).emitted(p, q), p), (1 - w) * torch.where(p > 0, (q - p).clamp_min(0), 0.0).sum(-1))


def test_ensemble_is_not_the_mixture_where_the_target_forbids_a_draft():
    p, q = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.5, 0.5]]).double()
    close(Ensemble(0.5).emitted(p, q), p)


@given(laws=pair(), l=st.sampled_from([0.25, 0.5, 1.0]))
def test_lenience_never_emits_more_than_p_over_l(laws, l):  # noqa: E741 - the paper's symbol
    p, q = laws
    assert (Lenience(l).emitted(p, q) <= p / l + 1e-12).all()


@given(laws=pair(), a=thetas, b=thetas)
def test_nested_sets_order_excess_and_acceptance(laws, a, b):
    p, q = laws
    low, high = NSD(min(a, b)), NSD(max(a, b))
    assert (low.whole_set(p) <= high.whole_set(p)).all()
    assert (low.acceptance_of_all(p, q) <= high.acceptance_of_all(p, q)).all()
    (_, less), (_, more) = (excess_masses_in(p, q, rule.whole_set(p)) for rule in (low, high))
    assert (less <= more).all()


@given(laws=pair(), theta=thetas)
def test_exact_if_and_only_if_q_is_below_p_on_the_set(laws, theta):
    p, q = laws
    rule = NSD(theta)
    exact = bool((q <= p)[rule.whole_set(p)].all())
    assert (tv(rule.emitted(p, q), p).item() < 1e-12) == exact


@given(laws=pair())
def test_theta_one_accepts_every_token_the_target_allows(laws):
    p, q = laws
    assert torch.equal(NSD(1.0).acceptance_of_all(p, q) == 1, p > 0)


@given(laws=pair(), theta=thetas, data=st.data())
def test_renaming_the_vocabulary_renames_the_law(laws, theta, data):
    p, q = laws
    order = torch.tensor(data.draw(st.permutations(range(p.shape[-1]))))
    close(NSD(theta).emitted(p[:, order], q[:, order]), NSD(theta).emitted(p, q)[:, order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SET_RULES)
@given(seed=st.integers(0, 10**6), spread=st.sampled_from([0.0, 1.0, 4.0, 40.0]))
def test_edge_and_whole_set_and_contains_agree(name, dtype, seed, spread):
    p = random_laws(seed, 4, 37, spread, dtype)
    for rule in (make_rule(name, **SET_NUMBERS[name]), RULES[name]()):
        whole = rule.whole_set(p)
        assert torch.equal((p >= rule.edge(p).unsqueeze(-1)) & (p > 0), whole)
        assert torch.equal(rule.contains(evidence_of_all(p, p, rule.needs)), whole)


@pytest.mark.parametrize("name", SET_RULES)
def test_sets_of_no_rows_are_empty(name):
    none = torch.zeros(0, 9)
    assert RULES[name]().edge(none).shape == (0,)
    assert RULES[name]().whole_set(none).shape == (0, 9)


def test_topk_takes_subnormal_probabilities_in():
    p = torch.tensor([[1.0, 1e-40, 0.0]])
    assert make_rule("topk", k=3).whole_set(p).tolist() == [[True, True, False]]


@given(laws=pair(), theta=thetas)
def test_prefix_form_is_inside_the_mass_form(laws, theta):
    p, _ = laws
    mass, prefix = members(p, theta), members(p, theta, "smallest")
    assert (prefix <= mass).all()
    if len(p[p > 0].unique()) == (p > 0).sum():
        assert torch.equal(prefix, mass)


@given(laws=pair())
def test_mentored_emits_no_token_beyond_its_factor(laws):
    p, q = laws
    assert (make_rule("mentored", a=2.0).emitted(p, q) <= 2.0 * p + 1e-9).all()
    close(make_rule("mentored", a=1.0).emitted(p, q), p)


@pytest.mark.parametrize("name", ["cascade", "mentored"])
@given(laws=pair())
def test_rules_for_another_law_emit_it(name, laws):
    """min(1, pi/q) and the residual (pi-q)+, put together token by token, are pi; nothing lies where p = 0."""
    p, q = laws
    rule = RULES[name]()
    pi = rule.surrogate(p, q)
    close(pi.sum(-1), torch.ones(1, dtype=torch.float64))
    assert (pi[p == 0] == 0).all()
    close(rule.emitted(p, q), pi)
    close(Rule.emitted(rule, p, q), pi)


@given(laws=pair(), a=st.sampled_from([1.0, 1.25, 2.0, 8.0, float("inf")]))
def test_mentored_equals_bisection(laws, a):
    p, q = laws
    upper = torch.minimum(q, torch.where(p > 0, a * p, 0.0))
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        if torch.maximum(upper, middle * p).sum() < 1:
            low = middle
        else:
            high = middle
    close(make_rule("mentored", a=a).surrogate(p, q), torch.maximum(upper, high * p))


def test_mentored_does_not_depend_on_the_rows_beside_it():
    p, q = (random_laws(seed, 40, 1000, 4.0, torch.float32) for seed in (1, 2))
    rule = make_rule("mentored", a=1.5)
    together = rule.surrogate(p, q)
    for row in range(40):
        assert torch.equal(rule.surrogate(p[row : row + 1], q[row : row + 1])[0], together[row])


@pytest.mark.parametrize("rule", [ColdNucleus(0.6), RelaxedTopK(3, 0.2), RelaxedTopK(50, 1.0)], ids=str)
@given(laws=pair())
def test_masks_equal_the_decision_from_ranks_and_masses(rule, laws):
    p, q = laws
    reference = rule.acceptance(evidence_of_all(p, q, rule.needs)).where(p > 0, 0.0)
    assert torch.equal(rule.acceptance_of_all(p, q), reference)


@pytest.mark.parametrize("needs", [need for need in Need if need is not Need.TARGET_DRAW], ids=str)
@given(laws=pair())
def test_evidence_of_all_ids_is_that_of_each(needs, laws):
    p, q = laws
    vocab = p.shape[-1]
    every = evidence_of_all(p, q, needs)
    rows = torch.zeros(vocab, dtype=torch.long)
    draft = Draft(torch.arange(vocab), (vocab,), DraftLaw.SAMPLED, q.expand(vocab, -1))
    each = evidence.gather(evidence.Tested.of(draft, p, rows, torch.zeros(1, dtype=torch.float64)), needs)
    for name in ("mass", "rank", "max_p", "argmax", "entropy_p"):
        one = getattr(each, name)
        if one is not None:
            close(getattr(every, name).expand(1, vocab)[0].double(), one.double())
    assert (every.p is None) == (Need.ROWS not in needs)
