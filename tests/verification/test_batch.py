"""What a request gets does not depend on the requests beside it, and a large batch costs no more operations."""

from dataclasses import fields

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nsd.rules import NSD, SD, SampleAndMatch, make_rule
from nsd.verification import Accounting, Branch, Caps, Draft, DraftLaw, Uniforms, verify
from nsd.verification.layout import Layout
from nsd.verification.verify import _groups
from tests.verification.blocks import only, sampled_batch

RULES = [
    NSD(0.95),
    SD(),
    NSD(0.8, max_deviation=0.1),
    NSD(0.9),
    make_rule("topk", k=5),
    SampleAndMatch(),
    NSD(0.7, ties="smallest"),
    make_rule("typical"),
    make_rule("relative", max_deviation=0.05),
]


def assert_same(alone, together, draft, b):
    start, k = sum(draft.lengths[:b]), draft.lengths[b]
    per_token, per_request = slice(start, start + k), slice(b, b + 1)
    for part, rows in (("columns", per_token), ("final", per_request)):
        for f in fields(getattr(alone, part)):
            one, many = getattr(getattr(alone, part), f.name), getattr(getattr(together, part), f.name)[rows]
            if part == "columns":
                one, many = (column[alone.branch != Branch.UNTESTED] for column in (one, many))
            assert torch.equal(one.nan_to_num(-1), many.nan_to_num(-1)), f"{part}.{f.name} of request {b}"
    assert torch.equal(alone.branch, together.branch[per_token])
    for name in ("accepted", "guard", "invalid"):
        assert torch.equal(getattr(alone, name), getattr(together, name)[per_request])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_request_equals_the_same_request_among_64_bit_for_bit(dtype):
    lengths = [(2, 0, 3, 1)[b % 4] for b in range(64)]
    rules = [RULES[b % len(RULES)] for b in range(64)]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        draft, p, chance = sampled_batch(lengths, 49152, dtype)
        together = verify(draft, p, rules, chance, Accounting.FULL, trace=True)
        for b in [*range(0, 18), 63]:
            one, one_p, one_u = only(draft, p, chance, b)
            alone = verify(one, one_p, [rules[b]], one_u, Accounting.FULL, trace=True)
            assert_same(alone, together, draft, b)
    finally:
        torch.set_num_threads(threads)


def test_a_column_of_numbers_equals_each_number_alone():
    thetas = [0.0, 0.3, 0.6, 0.9, 1.0]
    draft, p, chance = sampled_batch([3] * 5, 500)
    together = verify(draft, p, [NSD(theta) for theta in thetas], chance, Accounting.FULL)
    for b, theta in enumerate(thetas):
        alone_draft, alone_p, alone_u = only(draft, p, chance, b)
        assert_same(verify(alone_draft, alone_p, [NSD(theta)], alone_u, Accounting.FULL), together, draft, b)


SETTINGS = {
    "lenience": ("l", [0.3, 0.6, 1.0]),
    "lossy-epsilon": ("epsilon", [0.0, 0.2, 0.5]),
    "ensemble": ("w", [0.1, 0.6, 1.0]),
    "cascade": ("alpha", [0.1, 0.5, 0.9]),
    "mentored": ("a", [1.0, 2.0, 8.0]),
    "floor": ("c", [0.01, 0.1, 0.5]),
    "relaxed-topk": ("k", [1, 5, 50]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_numbers_per_request_for_every_kind_of_rule(name):
    key, values = SETTINGS[name]
    rules = [make_rule(name, **{key: value}) for value in values]
    draft, p, chance = sampled_batch([4, 2, 3], 60)
    together = verify(draft, p, rules, chance, Accounting.FULL, trace=True)
    for b, rule in enumerate(rules):
        alone_draft, alone_p, alone_u = only(draft, p, chance, b)
        alone = verify(alone_draft, alone_p, [rule], alone_u, Accounting.FULL, trace=True)
        assert_same(alone, together, draft, b)


class Recorder(TorchDispatchMode):
    """Notes every tensor operation that reaches a kernel; views cost nothing and are left out."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.operations.append(str(function))
        return function(*args, **(kwargs or {}))


def operations(draft, p, rules, chance, accounting, caps=None):
    """Counted from scratch: what earlier calls left in the caches of shapes must not make one batch cheaper."""
    Layout.of.cache_clear()
    _groups.cache_clear()
    with Recorder() as recorder:
        verify(draft, p, rules, chance, accounting, caps)
    return recorder.operations


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize(
    ("rule", "accounting", "capped"),
    [
        (SD(), Accounting.OFF, False),
        (NSD(0.9), Accounting.OFF, False),
        (NSD(0.9), Accounting.FULL, False),
        (NSD(0.9), Accounting.FULL, True),
        (NSD(0.9, ties="smallest"), Accounting.FULL, False),
        (SampleAndMatch(), Accounting.OFF, False),
    ],
)
def test_64_requests_take_as_many_operations_as_one(rule, accounting, capped, sampled):
    # The same block 64 times, so that only the number of rows can make a difference.
    one, p, chance = sampled_batch([4], 1000, seed=3)
    if not sampled:
        one = Draft(one.tokens, one.lengths, DraftLaw.POINT)
    many = Draft(one.tokens.repeat(64), (4,) * 64, one.law, None if one.q is None else one.q.repeat(64, 1))
    many_u = Uniforms(*(u.repeat(64) for u in (chance.accept, chance.residual, chance.target)))

    def caps(batch):
        return Caps(torch.full((4 * batch,), 0.2).double(), torch.full((batch,), 0.5).double()) if capped else None

    two = Draft(*(many.tokens[:8], (4, 4), one.law), None if one.q is None else many.q[:8])
    two_u = Uniforms(*(u[:10] for u in (many_u.accept, many_u.residual, many_u.target)))
    counts = {
        1: len(operations(one, p, [rule], chance, accounting, caps(1))),
        2: len(operations(two, p.repeat(2, 1), [rule] * 2, two_u, accounting, caps(2))),
        64: len(operations(many, p.repeat(64, 1), [rule] * 64, many_u, accounting, caps(64))),
    }
    # A single request has a path of its own under SD and NSD; else it may save a few copies that become views.
    assert counts[64] == counts[2]
    own_path = isinstance(rule, SD) or (isinstance(rule, NSD) and rule.ties == "all")
    assert counts[1] <= (60 if own_path else counts[2])
