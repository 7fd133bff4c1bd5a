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
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


class Purpose(IntEnum):
    """What a uniform is for; part of its key."""

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    TARGET = 3
    COIN = 4


def philox(counter: Sequence[Uint64], seed: int) -> list[Uint64]:
    """Philox-4x32-10 of four 32-bit counter words (broadcast arrays) under a 64-bit key."""
    a, b, c, d = (np.asarray(word, dtype=np.uint64) & _LOW for word in counter)
    low, high = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (second >> _WORD) ^ b ^ np.uint64(low), second & _LOW
        c, d = (first >> _WORD) ^ d ^ np.uint64(high), first & _LOW
        low, high = (low + _WEYL[0]) & 0xFFFFFFFF, (high + _WEYL[1]) & 0xFFFFFFFF
    return [a, b, c, d]


def uniforms(
    seed: int,
    request: npt.ArrayLike,
    position: npt.ArrayLike,
    purpose: Purpose,
    block: npt.ArrayLike = 0,
) -> npt.NDArray[np.float64]:
    """Uniforms in [0, 1) with 53 bits, never 1.0; request, position and block broadcast against each other.

    position counts output tokens from 0; block is the block number, used by drafts alone.
    """
    position, request, block = np.broadcast_arrays(
        np.asarray(position, dtype=np.uint64),
        np.asarray(request, dtype=np.uint64),
        np.asarray(block, dtype=np.uint64),
    )
    kind = np.full(position.shape, int(purpose), dtype=np.uint64)
    first, second, _, _ = philox([position, request, kind, block], seed)
    return ((first >> np.uint64(5)) * 67108864.0 + (second >> np.uint64(6))) / 9007199254740992.0
