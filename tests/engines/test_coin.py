"""The cap's coin: the keyed generator of nsd.laws, on a tensor's own device, off the engines' own streams."""

import numpy as np
import pytest
import torch

from nsd.engines.coin import coin_key, coins
from nsd.laws import Purpose, uniforms


def test_same_numbers_as_the_keyed_generator() -> None:
    seeds = [0, 1, 7, 2**31, 2**63 - 1, 2**64 - 1]
    keys = [coin_key(seed) for seed in seeds]
    for position in (0, 1, 5000, 2**32 - 1):
        ours = coins(torch.tensor(keys), torch.full((len(keys),), position, dtype=torch.int64))
        theirs = uniforms([key % 2**64 for key in keys], 0, position, Purpose.COIN)
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_a_coin_depends_on_its_row_alone() -> None:
    keys, positions = torch.tensor([coin_key(s) for s in range(50)]), torch.arange(50)
    together = coins(keys, positions)
    alone = torch.cat([coins(keys[i : i + 1], positions[i : i + 1]) for i in range(50)])
    assert torch.equal(together, alone)


def test_keys_are_a_bijection_that_moves_every_seed() -> None:
    keys = [coin_key(seed) for seed in range(2000)]
    assert len(set(keys)) == 2000
    assert all(key % 2**64 != seed for seed, key in enumerate(keys))
    assert all(-(2**63) <= key < 2**63 for key in keys)


@pytest.mark.parametrize("along", ["seed", "position"])
def test_coins_are_uniform_along_seeds_and_positions(along: str) -> None:
    """Chi-square over 20 bins of 20,000 coins; false alarm below 1e-6 (limit 68.6 at 19 degrees of freedom)."""
    count = torch.arange(20000)
    keys = torch.tensor([coin_key(s) for s in range(20000)]) if along == "seed" else torch.full((20000,), coin_key(3))
    drawn = coins(keys, count if along == "position" else torch.zeros_like(count))
    seen = torch.histc(drawn, 20, 0.0, 1.0)
    assert float(((seen - 1000) ** 2 / 1000).sum()) < 68.6


def test_nothing_given_is_written_to() -> None:
    keys, positions = torch.tensor([coin_key(1)]), torch.tensor([9])
    before = keys.clone(), positions.clone()
    coins(keys, positions)
    assert torch.equal(keys, before[0]) and torch.equal(positions, before[1])
