"""The real verify() against the enumerated law, cap and budgets included.

Chi-square over whole sequences. The false-alarm rate of this file is 1e-6 in total, shared out by Bonferroni; seeds are
fixed, so a run that passed passes again.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from nsd.fidelity import Budget, Enumeration, World, join, random_worlds
from nsd.fidelity.worlds import DrafterKind
from nsd.laws import draw
from nsd.rules import NSD, SD
from nsd.verification import Branch, Draft, DraftLaw, Uniforms, verify

FALSE_ALARMS = 1e-6
REQUESTS = 6_000
SETTINGS = [
    (SD(), None, "even"),
    (NSD(0.95), None, "even"),
    (NSD(0.95, max_deviation=0.1), None, "even"),
    (NSD(0.8, ties="smallest", max_deviation=0.05), None, "even"),
    (NSD(0.95), 0.7, "even"),
    (NSD(0.95), 0.7, "greedy"),
    (NSD(0.95), 0.7, "front"),
]
KINDS = list(DrafterKind)
TESTS = 2 * len(SETTINGS) * len(KINDS)


@dataclass
class Decoded:
    """Sequence numbers [requests], and per request rescued tokens, ledger."""

    sequences: np.ndarray
    rescued: np.ndarray
    Q: np.ndarray


def interesting_world(kind):
    """Of sixty random worlds the one in which a cap of 0.1 deviates most."""
    many = random_worlds(kind, 3, 60, seed=5 + KINDS.index(kind), tokens=3)
    chosen = int(Enumeration(many, NSD(0.95, max_deviation=0.1)).run().agreement.argmin())
    one = slice(chosen, chosen + 1)
    return World(kind, many.k, tuple(p[one] for p in many.target), tuple(q[one] for q in many.draft))


def decode(world, rule, agreement, policy, seed):
    """Many requests in the one world, through verify(): drafts, laws and uniforms made here, decisions made there."""
    rng = np.random.default_rng(seed)
    vocab, tokens, k = world.vocab, world.tokens, world.k
    budgets = [None if agreement is None else Budget(agreement, tokens, k, policy) for _ in range(REQUESTS)]
    rescued, Q = np.zeros(REQUESTS), np.ones(REQUESTS)
    number, emitted = torch.zeros(REQUESTS, dtype=torch.long), torch.zeros(REQUESTS, dtype=torch.long)
    while bool((emitted < tokens).any()):
        live = (emitted < tokens).nonzero().squeeze(-1)
        lengths = (tokens - emitted[live]).clamp_max(k)
        drafts, q, p = propose(world, number[live], emitted[live], lengths, rng)
        counts = tuple(lengths.tolist())
        parts = [budgets[b] and budgets[b].caps(n, int(emitted[b])) for b, n in zip(live.tolist(), counts, strict=True)]
        law = DraftLaw.UNKNOWN if world.kind is DrafterKind.UNKNOWN else DraftLaw.SAMPLED
        draft = Draft(drafts, counts, law, None if law is DraftLaw.UNKNOWN else q)
        uniforms = Uniforms(*(torch.from_numpy(rng.random(len(p))) for _ in range(3)))
        verdict = verify(draft, p, [rule] * len(live), uniforms, caps=join(parts, counts))
        assert not bool(verdict.guard.any())
        eps, branch = verdict.columns.eps.tolist(), verdict.branch.tolist()
        firsts = (lengths.cumsum(0) - lengths).tolist()
        for b, first, n, a in zip(live.tolist(), firsts, counts, verdict.accepted.tolist(), strict=True):
            mine = slice(first, first + min(a + 1, n))
            rescued[b] += sum(one == Branch.RESCUED for one in branch[mine])
            if budgets[b] is not None:
                budgets[b].settle(eps[mine])
                Q[b] = budgets[b].Q
        first = lengths.cumsum(0) - lengths
        for place in range(k + 1):
            grows = (place <= verdict.accepted) & (emitted[live] < tokens)
            drafted = drafts[(first + place).clamp_max(len(drafts) - 1)]
            y = torch.where(place < verdict.accepted, drafted, verdict.final.token)
            number[live] = torch.where(grows, number[live] * vocab + y, number[live])
            emitted[live] += grows.long()
    return Decoded(number.numpy(), rescued, Q)


def propose(world, start, before, lengths, rng):
    """Drafted ids [N], their laws [N, V], and the target's rows [M, V], request after request."""
    count, k, vocab = len(start), world.k, world.vocab
    x = torch.zeros(count, k, dtype=torch.long)
    q = torch.zeros(count, k, vocab, dtype=torch.float64)
    p = torch.full((count, k + 1, vocab), 1 / vocab, dtype=torch.float64)
    at = start.clone()
    for place in range(k + 1):
        for length in range(world.tokens):
            here = ((before + place == length) & (place <= lengths)).nonzero().squeeze(-1)
            p[here, place] = world.target[length][0, at[here]]
            here = here[place < lengths[here]]
            if place < k and len(here):
                zero = torch.zeros_like(here)
                law = world.draft_laws(zero, length, at[here], start[here], zero + place)
                q[here, place] = law
                x[here, place] = draw(law, torch.from_numpy(rng.random(len(here))))
        if place < k:
            at = torch.where(place < lengths, at * vocab + x[:, place], at)
    drafted = torch.arange(k) < lengths.unsqueeze(-1)
    rows = torch.arange(k + 1) <= lengths.unsqueeze(-1)
    return x[drafted], q[drafted], p[rows]


def p_value(counts, law):
    """Chi-square with rare sequences pooled; an impossible sequence that occurred is a certain failure."""
    expected = law * counts.sum()
    if counts[law < 1e-12].sum():
        return 0.0
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return 1.0
    return stats.chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(wanted) - 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_verify_follows_the_enumerated_law(kind, setting):
    rule, agreement, policy = setting
    world = interesting_world(kind)
    exact = Enumeration(world, rule, agreement, policy).run()
    found = decode(world, rule, agreement, policy, seed=KINDS.index(kind))
    counts = np.bincount(found.sequences, minlength=world.vocab**world.tokens)
    assert p_value(counts, exact.emitted[0].numpy()) > FALSE_ALARMS / TESTS
    mean, expected = found.rescued.mean(), float(exact.rescues)
    # Hoeffding over completions of at most 3 rescues each, two-sided.
    bound = 3 * np.sqrt(np.log(2 * TESTS / FALSE_ALARMS) / (2 * REQUESTS))
    if not rule.lossless:
        assert abs(mean - expected) < bound
    if agreement is not None:
        assert found.Q.min() >= agreement


def test_the_comparison_can_fail():
    """The same counts against the target's law, and against the uncapped one, are refused."""
    world = interesting_world(DrafterKind.AUTOREGRESSIVE)
    found = decode(world, NSD(0.95, max_deviation=0.1), None, "even", seed=0)
    counts = np.bincount(found.sequences, minlength=27)
    uncapped = Enumeration(world, NSD(0.95)).run()
    assert p_value(counts, uncapped.target[0].numpy()) < FALSE_ALARMS / TESTS
    assert p_value(counts, uncapped.emitted[0].numpy()) < FALSE_ALARMS / TESTS
