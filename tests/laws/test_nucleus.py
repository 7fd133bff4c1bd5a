"""The nucleus without a sort against the one with a sort, both forms, every shape of law."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsd.laws import is_member, mass_above, mass_before, members, members_by_sort, threshold
from tests.strategies import dyadic_law, random_laws, thetas


@st.composite
def rows(draw):
    vocab = draw(st.integers(1, 20))
    laws = draw(st.lists(dyadic_law(vocab), min_size=1, max_size=5))
    return torch.tensor(laws, dtype=draw(st.sampled_from([torch.float32, torch.float64])))


@given(p=rows(), data=st.data())
def test_members_equal_the_sorted_ones_with_ties_and_zeros(p, data):
    theta = torch.tensor([data.draw(thetas) for _ in p], dtype=torch.float64)
    assert torch.equal(members(p, theta), members_by_sort(p, theta))
    prefix = members_by_sort(p, theta, "smallest")
    assert torch.equal(members(p, theta, "smallest"), prefix)


@given(p=rows(), theta=thetas)
def test_membership_of_one_token_equals_the_whole_set(p, theta):
    whole, prefix = members(p, theta), members(p, theta, "smallest")
    for x in range(p.shape[-1]):
        ids = torch.full((len(p),), x)
        p_x = p[:, x]
        assert torch.equal(is_member(p_x, mass_above(p, p_x), theta), whole[:, x])
        assert torch.equal(is_member(p_x, mass_before(p, ids), theta), prefix[:, x])


@given(p=rows(), theta=thetas)
def test_threshold_is_the_smallest_member(p, theta):
    inside = members_by_sort(p, theta)
    assert torch.equal(threshold(p, theta), torch.where(inside, p, torch.inf).amin(-1))


@given(p=rows(), data=st.data())
def test_one_theta_per_row_equals_row_by_row(p, data):
    theta = torch.tensor([data.draw(thetas) for _ in p], dtype=torch.float64)
    together = threshold(p, theta)
    for row in range(len(p)):
        assert threshold(p[row : row + 1], theta[row : row + 1]).item() == together[row].item()


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 2.5, 6.0, 20.0])
@pytest.mark.parametrize("theta", [1e-9, 0.5, 0.95, 0.999, 1.0])
def test_large_vocabulary_peaked_and_flat(spread, theta):
    p = random_laws(11, 3, 50257, spread, torch.float32)
    assert torch.equal(members(p, theta), members_by_sort(p, theta))


def test_a_flat_row_beside_peaked_ones():
    spreads = [8.0, 0.1, 4.0, 0.0]
    p = torch.cat([random_laws(seed, 1, 5000, spread, torch.float32) for seed, spread in enumerate(spreads)])
    theta = torch.tensor([0.9, 0.95, 1.0, 0.5], dtype=torch.float64)
    assert torch.equal(members(p, theta), members_by_sort(p, theta))


def test_the_two_forms_differ_only_at_ties():
    p = torch.full((1, 20), 0.05, dtype=torch.float64)
    assert members(p, 0.95).sum() == 20
    assert members(p, 0.5).sum() == 20
    prefix = members(p, 0.5, "smallest")[0]
    assert prefix[: int(prefix.sum())].all()
    assert prefix.sum() in (10, 11)


def test_limits_of_theta():
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    assert members(p, 0.0).sum() == 0
    assert members(p, 1e-300).tolist() == [[True, False, False, False]]
    assert members(p, 1.0).tolist() == [[True, True, True, False]]
    assert threshold(p, 0.0).item() == torch.inf


def test_no_rows():
    assert threshold(torch.zeros(0, 100), 0.5).shape == (0,)
    assert mass_above(torch.zeros(0, 500), torch.zeros(0)).shape == (0,)
