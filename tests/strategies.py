"""Random laws for property tests. Dyadic laws are exact in floating point: sums of them carry no rounding at all."""

import numpy as np
import torch
from hypothesis import strategies as st


@st.composite
def dyadic_law(draw, size, total=None):
    """A law of multiples of a power of two: small totals make ties and zeros likely."""
    total = draw(st.sampled_from([4, 16, 64, 1024])) if total is None else total
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=size - 1, max_size=size - 1)))
    return [(b - a) / total for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


@st.composite
def pair(draw, most=12):
    """p and q over one vocabulary, as tensors [1, V]."""
    size = draw(st.integers(2, most))
    return tuple(torch.tensor([draw(dyadic_law(size))], dtype=torch.float64) for _ in "pq")


thetas = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.95, 1.0]), st.integers(0, 64).map(lambda n: n / 64))
uniform_numbers = st.one_of(st.just(0.0), st.just(1 - 2.0**-53), st.integers(0, 2**20 - 1).map(lambda n: n / 2**20))


def random_laws(seed, rows, vocab, spread=2.5, dtype=torch.float64):
    """Soft-maxed normal logits, [rows, vocab]."""
    logits = np.random.default_rng(seed).normal(size=(rows, vocab)) * spread
    return torch.softmax(torch.tensor(logits, dtype=dtype), -1)
