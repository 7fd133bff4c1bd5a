"""Inverse-CDF draws at the edges: u = 0, u next to 1, ids without mass, unnormalised laws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsd.laws import draw, mass_below
from tests.strategies import dyadic_law, random_laws, uniform_numbers

NEXT_TO_ONE = 1 - 2.0**-53


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


@given(law=dyadic_law(7), u=uniform_numbers, scale=st.sampled_from([0.25, 1.0, 8.0]))
def test_the_drawn_id_is_where_the_running_mass_passes_u(law, u, scale):
    rows = column(law) * scale
    x = draw(rows, column(u)).item()
    below, total = sum(law[:x]) * scale, sum(law) * scale
    assert law[x] > 0
    assert below <= u * total
    assert u * total < below + law[x] * scale or u == NEXT_TO_ONE
    assert mass_below(rows, torch.tensor([x])).item() == below


def test_zero_skips_ids_without_mass():
    assert draw(torch.tensor([[0.0, 0.0, 0.5, 0.5, 0.0]]), column(0.0)).item() == 2


def test_next_to_one_stays_inside_the_support():
    assert draw(torch.tensor([[0.5, 0.5, 0.0, 0.0]]), column(NEXT_TO_ONE)).item() == 1
    p = random_laws(3, 50, 1000, 4.0, torch.float32)
    p[:, 900:] = 0
    assert (draw(p, torch.full((50,), NEXT_TO_ONE, dtype=torch.float64)) < 900).all()


def test_an_edge_belongs_to_the_next_id():
    assert draw(torch.tensor([[0.25, 0.25, 0.5]]), column(0.25)).item() == 1
    assert draw(torch.tensor([[0.25, 0.25, 0.5]]), column(0.5)).item() == 2


def test_tiny_and_huge_totals():
    law = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    for scale in (1e-300, 1e300):
        assert [draw(law * scale, column(u)).item() for u in (0.2, 0.3)] == [0, 1]


def test_frequencies():
    # Every id within the bound that a union over 20 ids at a false-alarm rate of 1e-7 gives.
    from scipy.stats import binom

    p = random_laws(8, 1, 20, 1.5)
    n = 200_000
    u = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    counts = torch.bincount(draw(p.expand(n, -1), u), minlength=20)
    for x in range(20):
        low, high = binom.ppf([2.5e-9, 1 - 2.5e-9], n, p[0, x].item())
        assert low <= counts[x] <= high


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_row_alone_is_drawn_from_as_in_a_batch(dtype):
    law = torch.rand(50, 300, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(dtype)
    law[:, ::3] = 0
    law[7], law[8] = 0, torch.nan
    u = torch.rand(50, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    u[0], u[1] = 0.0, 1 - 2.0**-53
    alone = torch.cat([draw(law[i : i + 1], u[i : i + 1]) for i in range(50)])
    assert torch.equal(alone, draw(law, u))
