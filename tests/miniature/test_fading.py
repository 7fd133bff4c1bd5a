"""The threshold that falls with confidence: one set by its edge and by the mass above a token, exact where sure."""

import pytest
import torch

from benchmarks.miniature.cells import Arm, Cell, fadings
from benchmarks.miniature.fading import FadingNSD
from nsd.errors import ConfigError
from nsd.rules import NSD, SD
from nsd.rules.base import evidence_of_all


def laws(rows=200, ids=12, seed=0):
    """Laws from flat to sharp."""
    generator = torch.Generator().manual_seed(seed)
    sharp = torch.linspace(0.2, 9.0, rows, dtype=torch.float64).unsqueeze(-1)
    p, q = (torch.randn(rows, ids, generator=generator, dtype=torch.float64) for _ in range(2))
    return (p * sharp).softmax(-1), q.softmax(-1)


def test_the_set_by_mass_is_the_set_by_edge():
    rule, (p, _) = FadingNSD(0.95, 4.0), laws()
    inside = rule.contains(evidence_of_all(p, p, rule.needs))
    assert torch.equal(inside, rule.whole_set(p)) and inside.any() and not inside.all()


def test_it_lies_between_exact_speculation_and_nsd():
    p, q = laws()
    accepted = [(q * rule.acceptance_of_all(p, q)).sum(-1) for rule in (SD(), FadingNSD(0.95, 4.0), NSD(0.95))]
    assert (accepted[0] <= accepted[1] + 1e-12).all() and (accepted[1] <= accepted[2] + 1e-12).all()
    assert accepted[0].mean() < accepted[1].mean() < accepted[2].mean()
    certain = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert not FadingNSD(0.95, 4.0).whole_set(certain).any()


def test_the_emitted_law_is_a_law_and_its_distance_is_the_excess_in_the_set():
    rule, (p, q) = FadingNSD(0.95, 8.0), laws()
    emitted = rule.emitted(p, q)
    assert torch.allclose(emitted.sum(-1), torch.ones(len(p), dtype=torch.float64))
    excess = ((q - p).clamp_min(0) * rule.whole_set(p)).sum(-1)
    assert torch.allclose((emitted - p).clamp_min(0).sum(-1), excess, atol=1e-12)


def test_a_higher_power_falls_later():
    most = torch.tensor([0.3, 0.6, 0.9, 0.99])
    values = [FadingNSD(0.95, power).faded(most) for power in (2.0, 4.0, 8.0)]
    assert (values[0] < values[1]).all() and (values[1] < values[2]).all()
    assert (values[0].diff() < 0).all() and (values[2] < 0.95).all()


def test_arms_are_made_and_stored():
    for arm in fadings(7):
        cell = Cell("t", "mini-math", "eagle3:matched", arm)
        assert Cell.from_json(cell.as_json()) == cell and isinstance(arm.made(), FadingNSD) and arm.theta is None
    assert len({arm.speaks for arm in fadings(7)}) == 4
    with pytest.raises(ConfigError, match="power is 0"):
        Arm("x", "fading-nsd", (("theta", 0.9), ("power", 0.0)), 3).made()
