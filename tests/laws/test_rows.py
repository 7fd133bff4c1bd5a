"""Row arithmetic: a row's result does not depend on the rows beside it, bit for bit."""

import math

import torch

from nsd.laws import argmax, draw, entropy, excess_masses, excess_masses_in, mass_above, residual, row_sum, threshold
from nsd.laws.excess import point_excess_masses
from tests.strategies import random_laws


def test_row_sum_in_float64():
    rows = random_laws(1, 4, 1000, 3.0, torch.float32)
    torch.testing.assert_close(row_sum(rows), rows.double().sum(-1), rtol=1e-6, atol=0)
    assert row_sum(rows).dtype == torch.float64
    assert row_sum(torch.ones(2, 129)).tolist() == [129.0, 129.0]
    assert row_sum(torch.ones(0, 300)).shape == (0,)


def test_one_long_row_equals_the_same_row_in_a_batch_bit_for_bit():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        p = random_laws(2, 16, 49152, 3.0, torch.float32)
        q = random_laws(3, 16, 49152, 3.0, torch.float32)
        u = torch.rand(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        edge = threshold(p, 0.9)
        functions = {
            "row_sum": lambda s: row_sum(p[s]),
            "entropy": lambda s: entropy(p[s]),
            "mass_above": lambda s: mass_above(p[s], p[s, 5]),
            "threshold": lambda s: threshold(p[s], 0.9),
            "excess": lambda s: torch.stack(excess_masses(p[s], q[s], edge[s])),
            "draw": lambda s: draw(p[s], u[s]),
            "softmax": lambda s: torch.softmax(p[s] * 9, -1)[:, 77],
        }
        for name, function in functions.items():
            together = function(slice(0, 16))
            for row in (0, 7, 15):
                assert torch.equal(function(slice(row, row + 1))[..., 0], together[..., row]), name
    finally:
        torch.set_num_threads(threads)


def test_entropy_in_nats():
    p = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(entropy(p), torch.tensor([math.log(4), 0.0], dtype=torch.float64))


def test_argmax_takes_the_lowest_id():
    p = torch.zeros(2, 49152)
    p[0, [77, 30_000]] = 0.5
    p[1, 49151] = 1.0
    assert argmax(p).tolist() == [77, 49151]


def test_excess_by_edge_and_by_mask():
    p, q = random_laws(4, 5, 60, 2.0), random_laws(5, 5, 60, 2.0)
    edge = threshold(p, 0.8)
    by_edge, by_mask = excess_masses(p, q, edge), excess_masses_in(p, q, p >= edge.unsqueeze(-1))
    for got, expected in zip(by_edge, by_mask, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(by_edge[0], (q - p).abs().sum(-1) / 2, rtol=0, atol=1e-15)
    assert excess_masses(p, q, torch.full((5,), torch.inf))[1].tolist() == [0.0] * 5
    torch.testing.assert_close(residual(p, q).sum(-1), by_edge[0], rtol=0, atol=1e-14)


def test_excess_of_a_point_mass():
    R, es = point_excess_masses(torch.tensor([0.25, 0.25]), torch.tensor([True, False]))
    assert R.tolist() == [0.75, 0.75]
    assert es.tolist() == [0.75, 0.0]
