"""The keyed generator against published vectors, and its streams against each other."""

import numpy as np
import pytest

from nsd.laws import MAX_SEED, Purpose, uniforms
from nsd.laws.rng import philox

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES, ONES), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_philox_4x32_10(counter, key, expected):
    words = philox([np.uint64(word) for word in counter], *(np.uint64(word) for word in key))
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_all_ones_never_give_one():
    # The largest output: every one of the 53 bits set.
    high, low = np.uint64(ONES) >> np.uint64(5), np.uint64(ONES) >> np.uint64(6)
    assert (high * 67108864.0 + low) / 9007199254740992.0 == 1 - 2.0**-53
    many = uniforms(7, 0, np.arange(200_000), Purpose.ACCEPT)
    assert many.min() >= 0
    assert many.max() < 1


def test_streams_are_distinct_in_every_part_of_the_key():
    seeds, requests, positions, blocks = [0, 1, 2**32, MAX_SEED], [0, 1, 2], [0, 1, 5], [0, 1]
    values = [
        uniforms(seed, request, position, purpose, block).item()
        for seed in seeds
        for request in requests
        for position in positions
        for purpose in Purpose
        for block in blocks
    ]
    assert len(set(values)) == len(values)


def test_a_batch_gives_what_single_calls_give():
    request, position = np.arange(4)[:, None], np.arange(6)[None, :]
    table = uniforms(99, request, position, Purpose.DRAFT, 3)
    assert table.shape == (4, 6)
    assert all(table[b, t] == uniforms(99, b, t, Purpose.DRAFT, 3) for b in range(4) for t in range(6))


def test_one_seed_per_row():
    seeds = np.array([3, MAX_SEED, 2**40], dtype=np.uint64)
    table = uniforms(seeds, 0, 5, Purpose.TARGET)
    assert table.tolist() == [uniforms(int(seed), 0, 5, Purpose.TARGET).item() for seed in seeds]


def test_uniformity():
    # Chi-square of 100,000 values in 100 cells, and of pairs of purposes in 10 x 10; false-alarm rate 1e-7 together.
    from scipy.stats import chi2

    accept = uniforms(5, 0, np.arange(100_000), Purpose.ACCEPT)
    residual = uniforms(5, 0, np.arange(100_000), Purpose.RESIDUAL)
    single = np.bincount((accept * 100).astype(int), minlength=100)
    double = np.bincount((accept * 10).astype(int) * 10 + (residual * 10).astype(int), minlength=100)
    for counts in (single, double):
        statistic = ((counts - 1000) ** 2 / 1000).sum()
        assert chi2.sf(statistic, 99) > 5e-8
