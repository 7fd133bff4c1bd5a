"""Counter-based uniforms: the same number for the same key, whatever the batch, the block or the order of calls.

A uniform is a pure function of (seed, request, position, purpose, block). Draft, accept and residual draws never
share a stream. The autoregressive draw, the bonus and sample-and-match's y share one purpose, TARGET, so that
sample-and-match reproduces plain decoding token for token.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox-4x32 with ten rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Uint64 = npt.NDArray[np.uint64]
MAX_SEED = 2**64 - 1

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10


class Purpose(IntEnum):
    """What a uniform is for; part of its key."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    TARGET = 3
    COIN = 4


def philox(counter: Sequence[Uint64], low: Uint64, high: Uint64) -> list[Uint64]:
    """Philox-4x32-10 of four 32-bit counter words under a key of two; all arrays broadcast."""
    a, b, c, d = (np.asarray(word, dtype=np.uint64) & _LOW for word in counter)
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> _WORD) ^ b ^ low, second & _LOW
        c, d = (first >> _WORD) ^ d ^ high, first & _LOW
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return [a, b, c, d]


def uniforms(
    seed: npt.ArrayLike,
    request: npt.ArrayLike,
    position: npt.ArrayLike,
    purpose: npt.ArrayLike,
    block: npt.ArrayLike = 0,
) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1) with 53 bits, never 1.0; all arguments broadcast against each other.

    seed in [0, 2^64); position counts output tokens from 0; purpose is a Purpose; block is the block number, which only
    drafts have (0 elsewhere).
    """
    keys = [np.asarray(key, dtype=np.uint64) for key in (seed, request, position, purpose, block)]
    seed, request, position, purpose, block = np.broadcast_arrays(*keys)
    first, second, _, _ = philox([position, request, purpose, block], seed & _LOW, seed >> _WORD)
    return ((first >> np.uint64(5)) * 67108864.0 + (second >> np.uint64(6))) / 9007199254740992.0
