"""The path of a single request against that of every batch: the same verdict to the last bit, or the same refusal."""

import random
from dataclasses import fields

import pytest
import torch

from nsd.errors import NonFiniteTarget
from nsd.laws import Sampling, draw, laws
from nsd.rules import NSD, SD
from nsd.verification import Accounting, Branch, Caps, Columns, Draft, DraftLaw, Final, verify
from nsd.verification.layout import Layout
from nsd.verification.one import verify_one
from nsd.verification.verify import verify_batch, with_rule_caps
from tests.verification.blocks import column, numbers, sampled_batch, uniforms

THETAS = (0.0, 1e-9, 0.3, 0.5, 0.8, 0.95, 0.999, 1 - 2.0**-53, 1.0)


def block(seed):
    """A random block: ties, forbidden ids, zero support, broken rows of q, point masses, extreme uniforms."""
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    vocab, k, dtype = (
        r.choice([2, 3, 7, 64, 300, 2000]),
        r.choice([0, 1, 3, 5]),
        r.choice([torch.float32, torch.double]),
    )
    scores = torch.randn(k + 1, vocab, generator=g) * r.choice([0, 0.5, 2, 4, 8])
    if r.random() < 0.4:
        scores = scores.round()
    if r.random() < 0.4:
        scores[torch.rand(scores.shape, generator=g) < 0.3] = -torch.inf
        scores[:, 0] = 0
    drafts = scores[:k].nan_to_num(neginf=-9) + torch.randn(k, vocab, generator=g) * r.choice([0, 1, 3])
    if r.random() < 0.3:
        drafts[:, vocab // 2 + 1 :] = -torch.inf
    p = laws(scores.to(dtype), [Sampling()] * (k + 1))
    q = laws(drafts.to(dtype), [Sampling()] * k) if k else p[:0]
    tokens = draw(q, numbers(k, seed)) if k else torch.zeros(0, dtype=torch.long)
    if k and r.random() < 0.2:
        q[r.randrange(k)] = torch.nan
    if r.random() < 0.1:
        p[r.randrange(k + 1)] = torch.nan
    chance = uniforms(k + 1, seed)
    if r.random() < 0.2:
        chance.accept.fill_(r.choice([0.0, 1 - 2.0**-53]))
    point = r.random() < 0.3
    draft = Draft(tokens, (k,), DraftLaw.POINT) if point else Draft(tokens, (k,), DraftLaw.SAMPLED, q)
    return r, draft, p, chance


def rule_and_caps(r, p, k):
    """Any theta, some of them at a mass of the first row to the last bit; caps and budgets."""
    theta = r.choice(THETAS)
    if r.random() < 0.3:
        at = r.choice(p[0].sort(descending=True).values.double().cumsum(0).tolist()) + r.choice(
            [-(2.0**-52), 0, 2.0**-52]
        )
        theta = min(max(at, 0.0), 1.0) if at == at else theta
    rule = SD() if r.random() < 0.15 else NSD(theta, max_deviation=r.choice([None, None, 0.0, 0.05, 0.3, 1.0, 2.0]))
    free = r.random() < 0.6
    return rule, None if free else Caps(
        column(*(r.choice([0.0, 0.1, 1.0]) for _ in range(k))), column(r.choice([0.0, 0.5, 0.9, 1.0]))
    )


def same(one, other):
    return torch.equal(one.double().nan_to_num(-7), other.double().nan_to_num(-7))


def outcome(work, *asked):
    """The verdict, or the words of a refusal."""
    try:
        return work(*asked)
    except NonFiniteTarget as problem:
        return str(problem)


@pytest.mark.parametrize("part", range(4))
def test_one_request_is_decided_as_any_batch_is(part):
    refused = 0
    for seed in range(100 * part, 100 * part + 100):
        r, draft, p, chance = block(seed)
        rule, caps = rule_and_caps(r, p, draft.lengths[0])
        layout = Layout.of(draft.lengths, p.device)
        joined = with_rule_caps([rule], caps, layout)
        for level in Accounting:
            wanted = outcome(verify_batch, draft, p, [rule], chance, level, joined, False, layout)
            got = outcome(verify_one, draft, p, rule, chance, level, joined)
            if isinstance(wanted, str) or isinstance(got, str):
                refused += 1
                assert got == wanted
                continue
            tested = wanted.branch != Branch.UNTESTED
            for name in ("accepted", "branch", "guard", "invalid"):
                assert same(getattr(got, name), getattr(wanted, name)), (seed, level, name)
            for f in fields(Final):
                assert same(getattr(got.final, f.name), getattr(wanted.final, f.name)), (seed, level, f.name)
            for f in fields(Columns):
                mine, theirs = (getattr(v.columns, f.name)[tested] for v in (got, wanted))
                assert same(mine, theirs), (seed, level, f.name)
    assert refused


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_flat_laws_of_a_large_vocabulary_too(spread):
    draft, p, chance = sampled_batch([3], 50_000, seed=3, spread=spread)
    layout = Layout.of(draft.lengths, p.device)
    for theta in (0.3, 0.95, 0.9999):
        rule = NSD(theta)
        wanted = verify_batch(draft, p, [rule], chance, Accounting.FULL, None, False, layout)
        got = verify(draft, p, [rule], chance, Accounting.FULL)
        tested = wanted.branch != Branch.UNTESTED
        assert torch.equal(got.branch, wanted.branch) and torch.equal(got.final.token, wanted.final.token)
        for name in ("R", "ES"):
            assert torch.equal(getattr(got.columns, name)[tested], getattr(wanted.columns, name)[tested])
