"""The keyed uniforms once more, in plain integers, so that an audit does not lean on the code that it audits.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), Philox-4x32 with ten rounds.
"""

from __future__ import annotations

DRAFT, ACCEPT, RESIDUAL, TARGET = 0, 1, 2, 3
_WORD = 2**32


def words(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox-4x32-10: four 32-bit words under a key of two."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = second // _WORD ^ b ^ low, second % _WORD, first // _WORD ^ d ^ high, first % _WORD
        low, high = (low + 0x9E3779B9) % _WORD, (high + 0xBB67AE85) % _WORD
    return a, b, c, d


def uniform(seed: int, key: int, position: int, purpose: int, block: int = 0) -> float:
    """The uniform in [0, 1) of one draw: 53 bits of the first two words."""
    counter = (position % _WORD, key % _WORD, purpose, block % _WORD)
    first, second, _, _ = words(counter, (seed % _WORD, seed // _WORD % _WORD))
    return ((first >> 5) * 2**26 + (second >> 6)) / 2**53
