"""verify() on random ragged batches against the position-by-position reference, which shares no code with it."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsd.rules import NSD, SD
from nsd.verification import Accounting, Branch, Caps, Draft, DraftLaw, Uniforms, verify
from nsd.verification.reference import Allowance, decide
from tests.strategies import dyadic_law, thetas, uniform_numbers
from tests.verification.blocks import column

caps_at = st.sampled_from([0.0, 0.0625, 0.25, 1.0, math.inf])
floors = st.sampled_from([0.0, 0.5, 0.875, 1.0])


@st.composite
def request(draw, vocab, sampled):
    k = draw(st.integers(0, 5))
    laws = st.lists(dyadic_law(vocab), min_size=k, max_size=k)
    numbers = st.lists(uniform_numbers, min_size=k + 1, max_size=k + 1)
    return {
        "tokens": draw(st.lists(st.integers(0, vocab - 1), min_size=k, max_size=k)),
        "p": [*draw(laws), draw(dyadic_law(vocab))],
        "q": draw(laws) if sampled else None,
        "theta": draw(thetas),
        "accept_u": draw(numbers),
        "residual_u": draw(numbers),
        "target_u": draw(numbers),
        "ties": draw(st.sampled_from(["all", "smallest"])),
    }


@st.composite
def batch(draw):
    vocab, sampled = draw(st.integers(2, 9)), draw(st.booleans())
    requests = draw(st.lists(request(vocab, sampled), min_size=1, max_size=5))
    limited = draw(st.booleans())
    limits = [(draw(caps_at), draw(floors)) if limited else None for _ in requests]
    return vocab, sampled, requests, limits


def tensor(parts, *width):
    flat = [row for part in parts for row in part]
    return torch.tensor(flat, dtype=torch.float64).reshape(len(flat), *width)


def verified(vocab, sampled, requests, limits, accounting=Accounting.FULL, rules=None):
    lengths = tuple(len(r["tokens"]) for r in requests)
    draft = Draft(
        tokens=torch.tensor([x for r in requests for x in r["tokens"]], dtype=torch.long),
        lengths=lengths,
        law=DraftLaw.SAMPLED if sampled else DraftLaw.POINT,
        q=tensor([r["q"] for r in requests], vocab) if sampled else None,
    )
    caps = None
    if limits[0] is not None:
        cap = [limit[0] for limit, n in zip(limits, lengths, strict=True) for _ in range(n)]
        caps = Caps(column(*cap), column(*(limit[1] for limit in limits)))
    uniforms = Uniforms(*(tensor([r[name] for r in requests]) for name in ("accept_u", "residual_u", "target_u")))
    rules = rules or [NSD(r["theta"], ties=r["ties"]) for r in requests]
    return verify(draft, tensor([r["p"] for r in requests], vocab), rules, uniforms, accounting, caps)


@settings(max_examples=400)
@given(batch())
def test_verify_is_the_reference_request_by_request(made):
    vocab, sampled, requests, limits = made
    verdict = verified(vocab, sampled, requests, limits)
    start = 0
    for b, (asked, limit) in enumerate(zip(requests, limits, strict=True)):
        expected = decide(**asked, allowance=None if limit is None else Allowance(*limit))
        tested = len(expected.branch)
        here = slice(start, start + tested)
        untested = slice(start + tested, start + len(asked["tokens"]))
        assert verdict.branch[here].tolist() == expected.branch
        assert set(verdict.branch[untested].tolist()) <= {Branch.UNTESTED}
        assert verdict.accepted[b] == expected.accepted
        assert verdict.final.token[b] == expected.final
        assert verdict.final.bonus[b] == expected.bonus
        assert verdict.guard[b] == expected.guard
        for name in ("R", "ES", "eps", "lam"):
            got, wanted = getattr(verdict.columns, name)[here], column(*getattr(expected, name))
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)
        start += len(asked["tokens"])


@given(batch())
def test_accounting_never_changes_a_decision(made):
    vocab, sampled, requests, limits = made
    verdicts = [verified(vocab, sampled, requests, limits, level) for level in Accounting]
    for other in verdicts[1:]:
        assert torch.equal(verdicts[0].branch, other.branch)
        assert torch.equal(verdicts[0].final.token, other.final.token)


@given(batch())
def test_theta_zero_and_a_cap_of_zero_are_standard_speculation(made):
    vocab, sampled, requests, _ = made
    free = [None] * len(requests)
    exact = verified(vocab, sampled, requests, free, rules=[SD()] * len(requests))
    capped = [NSD(r["theta"], ties=r["ties"], max_deviation=0.0) for r in requests]
    for rules in ([NSD(0.0)] * len(requests), capped):
        same = verified(vocab, sampled, requests, free, rules=rules)
        assert torch.equal(same.branch, exact.branch)
        assert torch.equal(same.final.token, exact.final.token)


@given(batch())
def test_a_cap_above_every_excess_is_no_cap(made):
    vocab, sampled, requests, _ = made
    free = verified(vocab, sampled, requests, [None] * len(requests))
    capped = verified(vocab, sampled, requests, [(1.0, 0.0)] * len(requests))
    assert torch.equal(free.branch, capped.branch)
    assert torch.equal(free.final.token, capped.final.token)
