"""Guarantees against exact sequence laws: 200 random worlds per kind of drafter and K, nothing sampled."""

import pytest
import torch

from nsd.errors import ConfigError
from nsd.fidelity import Enumeration, World, random_worlds
from nsd.fidelity.budget import factor_left
from nsd.fidelity.worlds import DrafterKind
from nsd.rules import NSD, RULES, SD, SampleAndMatch, make_rule
from nsd.rules.ratio_or_set import RelativeSet
from nsd.verification import Branch

WORLDS = 200
EXACT = 1e-12
THETA = 0.95
LAWFUL = [kind for kind in DrafterKind if kind is not DrafterKind.UNKNOWN]
ALL = list(DrafterKind)
POLICIES = ["even", "greedy", "front"]


def worlds(kind, k, count=WORLDS, stop=False):
    # A draft of unknown law branches most: a quarter of the worlds keeps the suite fast.
    count = count // 4 if kind is DrafterKind.UNKNOWN else count
    return random_worlds(kind, k, count, seed=100 * ALL.index(kind) + 10 * k + stop, stop=stop)


def each(kinds, ks=(1, 2, 3)):
    return pytest.mark.parametrize(("kind", "k"), [(kind, k) for kind in kinds for k in ks], ids=str)


@each(ALL)
@pytest.mark.parametrize("rule", [SD(), SampleAndMatch(), NSD(0.0), NSD(THETA, max_deviation=0.0)], ids=str)
def test_exact_rules_keep_the_sequence_law(kind, k, rule):
    law = Enumeration(worlds(kind, k), rule).run()
    assert float((law.emitted - law.target).abs().max()) < EXACT
    assert float(law.lowest_Q.min()) == 1.0


@each(ALL)
@pytest.mark.parametrize("epsilon", [0.05, 0.2])
@pytest.mark.parametrize("stop", [False, True])
def test_the_cap_keeps_its_guarantee(kind, k, epsilon, stop):
    law = Enumeration(worlds(kind, k, stop=stop), NSD(THETA, max_deviation=epsilon)).run()
    promised = (1 - epsilon) ** 4
    assert bool((law.agreement >= promised - EXACT).all())
    assert bool((law.lowest_Q >= promised - EXACT).all())
    assert float(law.agreement.min()) < 0.99, "the worlds must leave the cap something to do"


@each(ALL)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("promised", [0.95, 0.6])
def test_budgets_keep_their_guarantee(kind, k, policy, promised):
    law = Enumeration(worlds(kind, k), NSD(THETA), promised, policy).run()
    assert bool((law.agreement >= promised).all())
    assert bool((law.lowest_Q >= promised).all())
    most = -torch.log(torch.tensor(promised, dtype=torch.float64))
    assert bool((law.rescues <= most + EXACT).all())
    assert float(law.agreement.min()) < 0.5 + promised / 2, "the worlds must leave the budget something to do"


@each(ALL, ks=(2,))
def test_a_cap_beside_a_budget_keeps_both(kind, k):
    law = Enumeration(worlds(kind, k), NSD(THETA, max_deviation=0.1), 0.8, "greedy").run()
    assert bool((law.agreement >= 0.8).all())
    assert law.kernel_excess < EXACT


@each(LAWFUL)
@pytest.mark.parametrize(
    ("rule", "promised"),
    [(NSD(THETA), None), (NSD(THETA, max_deviation=0.1), None), (NSD(THETA), 0.7), (RelativeSet(0.3), None)],
    ids=str,
)
def test_the_theorem(kind, k, rule, promised):
    """E[1_A/Q] = 1; E[W] is at most the agreement; expected rescues = expected sum of eps."""
    law = Enumeration(worlds(kind, k), rule, promised).run()
    assert float((law.mean_agreed_over_Q - 1).abs().max()) < EXACT
    assert bool((law.mean_weight <= law.agreement + EXACT).all())
    assert float((law.rescues - law.spent).abs().max()) < EXACT


@each(ALL)
def test_uncapped_kernel_is_within_the_excess_at_every_state(kind, k):
    """TV(next-token law, p) <= ES at every history and decoder state (tested positions; others emit p itself)."""
    assert Enumeration(worlds(kind, k), NSD(THETA)).run().kernel_excess < EXACT


@each(LAWFUL, ks=(2,))
@pytest.mark.parametrize("name", [name for name in RULES if name not in ("sd", "sample-and-match")])
def test_other_rules_spend_what_their_law_deviates(kind, k, name):
    law = Enumeration(worlds(kind, k, count=60), make_rule(name)).run()
    assert law.kernel_excess < 1e-9
    assert bool((law.mean_weight <= law.agreement + 1e-9).all())
    assert float((law.emitted.sum(-1) - 1).abs().max()) < EXACT


class Peek(Enumeration):
    """Wrong: saves the budget where the row after x has more excess. That row was computed with x in the prefix."""

    def allowed(self, proposals):
        eps, lam = super().allowed(proposals)
        paths, length = proposals.paths, proposals.length
        if length + 1 == self.world.tokens:
            return eps, lam
        grown = self._grow(paths.at(proposals.row), proposals.x, proposals.chance, ends_block=False)
        ahead = torch.zeros_like(eps)
        still = (grown.place < self.world.k).nonzero().squeeze(-1)
        if len(still):
            following = self.proposals(grown.at(still), length + 1)
            ahead[still] = ahead[still].scatter_reduce(0, following.row, following.ES, "amax")
        wait = ahead > proposals.ES
        return torch.where(wait, 0.0, eps), torch.where(wait, 0.0, lam)


class ChargeSome(Enumeration):
    """Wrong: the ledger is charged on some branches only, and what was not charged is spent again."""

    charged: frozenset[Branch] = frozenset()

    def charges(self, branch):
        return branch in self.charged

    def allowed(self, proposals):
        left = 1 - torch.from_numpy(factor_left(self.agreement, proposals.paths.Q[proposals.row].numpy()))
        eps = torch.minimum(proposals.ES, left)
        return eps, torch.where(eps == proposals.ES, 1.0, eps / proposals.ES.clamp_min(1e-300))


class ChargeRescues(ChargeSome):
    """Wrong: a position costs nothing unless its token was rescued."""

    charged = frozenset({Branch.RESCUED})


class ChargeRatioFailures(ChargeSome):
    """Wrong: a position costs nothing when its token passed the ratio test."""

    charged = frozenset({Branch.RESCUED, Branch.REJECTED})


class ChargeAll(ChargeSome):
    """Right: the same spending, charged everywhere. Shows that the checks below blame the charging alone."""

    charged = frozenset({Branch.RATIO, Branch.RESCUED, Branch.REJECTED})


def broken_promises(wrong, kind, promised=0.8):
    law = wrong(worlds(kind, 3), NSD(THETA), promised, "greedy").run()
    assert bool((law.lowest_Q >= promised).all()), "the ledger looks clean: it cannot show the fault"
    return int((law.agreement < promised - 1e-9).sum())


@pytest.mark.parametrize("kind", LAWFUL, ids=str)
@pytest.mark.parametrize("wrong", [ChargeRescues, ChargeRatioFailures])
def test_charging_some_branches_breaks_the_promise(wrong, kind):
    assert broken_promises(wrong, kind) > 0
    assert broken_promises(ChargeAll, kind) == 0


@pytest.mark.parametrize("kind", [DrafterKind.AUTOREGRESSIVE, DrafterKind.BLOCK], ids=str)
def test_peeking_at_the_next_row_breaks_the_promise(kind):
    assert broken_promises(Peek, kind) > 0


@pytest.mark.parametrize("kind", [DrafterKind.AUTOREGRESSIVE_POINT, DrafterKind.BLOCK_POINT], ids=str)
def test_peeking_is_harmless_where_the_draft_is_certain(kind):
    """x is a function of the history there, so the next row tells nothing new: the check is not trigger-happy."""
    assert broken_promises(Peek, kind) == 0


def counter_example(k=2):
    """One world, two tokens: after token 0 the draft is bad, elsewhere it is perfect."""
    p2 = torch.tensor([[0.2, 0.8, 0.0], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]], dtype=torch.float64)
    q2 = p2.clone()
    q2[0] = torch.tensor([1.0, 0.0, 0.0])
    p1 = torch.tensor([[[0.5, 0.25, 0.25]]], dtype=torch.float64)
    q1 = torch.tensor([[[0.5, 0.5, 0.0]]], dtype=torch.float64)
    return World(DrafterKind.AUTOREGRESSIVE, k, (p1, p2.unsqueeze(0)), (q1, q2.unsqueeze(0)))


def test_the_mean_of_Q_bounds_nothing():
    law = Enumeration(counter_example(), NSD(THETA)).run()
    assert float(law.mean_Q) == pytest.approx(0.45)
    assert float(law.agreement) == pytest.approx(0.35)
    assert float(law.mean_agreed_over_Q) == pytest.approx(1)


def test_enumeration_against_a_hand_made_tree():
    """K = 1 in the same world: the second token is a bonus or plain, so only the first deviates."""
    law = Enumeration(counter_example(k=1), NSD(THETA)).run()
    first = law.emitted.view(3, 3).sum(-1)
    assert first.tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert float(law.agreement) == pytest.approx(0.75)
    assert float(law.calls) == pytest.approx(1.0)


def test_tables_that_do_not_fit_are_refused():
    world = counter_example()
    with pytest.raises(ConfigError, match="toy world"):
        World(world.kind, -1, world.target, world.draft)
    with pytest.raises(ConfigError, match="cannot keep a budget"):
        Enumeration(world, make_rule("lenience"), 0.9)
