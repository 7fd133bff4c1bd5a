"""The cap's own coin: a uniform keyed by (seed, position), on any device, without a wait for it.

An engine's kernels draw their u where nothing outside can see it, so the share lam of a capped excess is decided by a
coin of our own: the draft is forced iff its token is in S and coin < lam. Its law is the one of the cap in
`nsd.rules.ratio_or_set`, provided the coin is independent of u. Equal keys give equal coins on every rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nsd.laws import Purpose
from nsd.laws.rng import MAX_SEED

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_GOLDEN = 0x9E3779B97F4A7C15


def coin_key(seed: int) -> int:
    """The 64-bit key of a seed, as a signed number that fits an int64 tensor.

    Engines feed seeds to Philox themselves; the finaliser of SplitMix64 keeps our stream off theirs.
    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    z = (seed + _GOLDEN) & MAX_SEED
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_SEED
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_SEED
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z


def coins(key: Tensor, position: Tensor) -> Tensor:
    """One coin per row: key [N] int64 from `coin_key`, position [N] int64 in [0, 2^32) -> [N] float64 in [0, 1).

    The same numbers as `nsd.laws.uniforms(key, 0, position, Purpose.COIN)`, made on the tensors' own device.
    """
    low, high = key & _LOW, (key >> 32) & _LOW
    a, b = position & _LOW, torch.zeros_like(position)
    c, d = torch.full_like(position, int(Purpose.COIN)), torch.zeros_like(position)
    for _ in range(_ROUNDS):
        # Products of two 32-bit words wrap in int64; their upper word survives the shift because it is masked.
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = ((second >> 32) & _LOW) ^ b ^ low, second & _LOW
        c, d = ((first >> 32) & _LOW) ^ d ^ high, first & _LOW
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return ((a >> 5).double() * 67108864.0 + (b >> 6).double()) / 9007199254740992.0
