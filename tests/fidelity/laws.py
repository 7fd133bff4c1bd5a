"""Random laws and rules for the tests of this folder."""

import numpy as np
import torch
from hypothesis import strategies as st

from nsd.rules import NSD, RULES, make_rule
from nsd.rules.ratio_or_set import FloorSet, RelativeSet, TopKSet


def rows(count, vocab, seed):
    """Peaked and flat laws, some with impossible ids: [count, vocab] float64."""
    rng = np.random.default_rng(seed)
    raw = rng.gamma(rng.choice([0.1, 0.5, 2.0], size=(count, 1)), size=(count, vocab)) + 1e-12
    raw *= rng.random((count, vocab)) > 0.15
    raw[:, 0] += 1e-9
    return torch.from_numpy(raw / raw.sum(-1, keepdims=True))


@st.composite
def pairs(draw, largest=8):
    """p and q over one vocabulary."""
    vocab = draw(st.integers(2, largest))
    p, q = rows(2, vocab, draw(st.integers(0, 2**32 - 1)))
    return p, (p if draw(st.integers(0, 9)) == 0 else q)


thetas = st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.95, 1.0]), st.floats(0, 1))
caps = st.one_of(st.sampled_from([None, 0.0, 0.05, 1.0]), st.floats(0, 1))


def set_rules(cap=None):
    """One of each kind of set, with this cap."""
    return [
        NSD(0.9, max_deviation=cap),
        NSD(0.7, ties="smallest", max_deviation=cap),
        TopKSet(2, max_deviation=cap),
        FloorSet(0.2, max_deviation=cap),
        RelativeSet(0.4, max_deviation=cap),
    ]


def every_rule():
    """Every rule of the catalogue at its defaults."""
    return [make_rule(name) for name in RULES]
