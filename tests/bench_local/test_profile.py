"""Exclusive times of nested spans, and the profile of a real block."""

from contextlib import ExitStack
from itertools import count

import pytest

import nsd
from benchmarks.profile_block import Spans, profile, table


def test_a_span_counts_without_what_lies_inside_it():
    ticks = count()
    spans = Spans(lambda: float(next(ticks)))
    with spans.inside("target"):
        with spans.inside("mlp"), spans.inside("head"):
            pass
        with spans.inside("mlp"):
            pass
    assert spans.seconds == {"target": 3, "target: mlp": 3, "target: head": 1}


def test_wrapping_is_undone():
    class Owner:
        def method(self):
            return 3

        @classmethod
        def made(cls):
            return cls

    before = Owner.__dict__["method"]
    spans = Spans(lambda: 0.0)
    with ExitStack() as stack:
        spans.wrap(stack, Owner, "method", "a")
        spans.wrap(stack, Owner, "made", "b")
        assert Owner().method() == 3 and Owner.made() is Owner and Owner.__dict__["method"] is not before
    assert Owner.__dict__["method"] is before and Owner.made() is Owner
    assert set(spans.seconds) == {"a", "b"}


def test_shares_add_up():
    lines = table({"int8": {"target": 6.0, "draft: head": 3.0, "commit": 1.0}}).splitlines()
    assert lines[2:] == [
        "| draft: head | 3.00 | 30.0% |",
        "| target | 6.00 | 60.0% |",
        "| commit | 1.00 | 10.0% |",
        "| block | 10.00 | 100.0% |",
    ]


@pytest.mark.model
def test_every_part_of_a_real_block_is_seen():
    pair = nsd.load("smollm2-135m", "auto", dtype="int8", threads=1)
    ticks = count()
    parts = profile(pair, 3, 1.0, 1, 12, lambda: float(next(ticks)))
    wanted = ("head", "mlp", "qkv", "attention output", "scaled dot product", "norms")
    assert {f"target: {name}" for name in (*wanted, "embedding")} | {f"draft: {name}" for name in wanted} <= set(parts)
    assert {"uniforms", "decision: laws", "decision: verify", "decision: accounting", "commit"} <= set(parts)
