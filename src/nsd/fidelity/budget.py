"""A whole-sequence budget: `agreement` = 1 - delta is kept on every path, prod (1 - eps_t) >= 1 - delta.

It buys little. The expected number of rescued tokens under a budget is at most -log(1 - delta), whatever the policy and
the length; a policy only chooses where they fall. What a policy may look at is the ledger, the number of emitted tokens
and k: never a drafted token, a later row, or a draft length that depends on drafted tokens.

even    the same share for each remaining token; what a position leaves is spread over the rest
greedy  everything that is left, as soon as a position can use it
front   the first position of each block, spread evenly over the blocks that are left at least; what is still left in
        a block that can be the last may be spent anywhere in it

Why the front: a rescue at place i of k (from 0) keeps x_i and lets the k-i-1 drafts behind it be tested, so with
acceptance a it adds (1 - a^(k-i)) / (1 - a) tokens to this target call, most at i = 0. One expected rescue costs the
same wherever it falls, and -log(1-eps) >= eps makes many small shares buy more of them than one large one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from nsd.errors import ConfigError
from nsd.verification import Caps

Policy = Literal["even", "greedy", "front"]
POLICIES: tuple[str, ...] = get_args(Policy)
Floats = npt.NDArray[np.float64]

_MARGIN = 1e-12
"""Kept unspent, so that rounding in a long product cannot end below the promise."""


def expected_rescues_at_most(delta: float) -> float:
    """-log(1 - delta): a kept budget has at most so many expected rescued tokens in a whole completion."""
    if not 0.0 <= delta <= 1.0:
        raise ConfigError(f"delta is {delta}, wanted a number in [0, 1]; try --agreement 0.95")
    return math.inf if delta == 1.0 else -math.log1p(-delta) + 0.0


def place_caps(policy: Policy, left: Floats, remaining: Floats, k: int) -> Floats:
    """Caps on the places of a block: left [n] = the factor by which Q may still fall, remaining [n] tokens -> [n, k].

    The block's floor is `left` itself; caps alone need not keep it.
    """
    places = np.arange(k)
    left, remaining = left[:, None], remaining[:, None]
    if policy == "greedy":
        return np.ones((len(left), k))
    if policy == "even":
        return np.broadcast_to(1.0 - left ** (1.0 / remaining), (len(left), k))
    blocks = np.ceil(remaining / (k + 1))
    return np.where(blocks <= 1, 1.0, np.where(places == 0, 1.0 - left ** (1.0 / blocks), 0.0))


def factor_left(agreement: float, spent: Floats) -> Floats:
    """By which factor Q may still fall, given Q so far: 1 = nothing left."""
    return np.minimum(1.0, agreement * (1.0 + _MARGIN) / spent)


class Budget:
    """One request's budget. `caps` before a block is verified, `settle` after it, in turn."""

    def __init__(self, agreement: float, max_new_tokens: int, k: int, policy: Policy = "even") -> None:
        """k is the number of proposals asked for per block, not the number that came."""
        if not 0.0 < agreement <= 1.0:
            raise ConfigError(f"agreement is {agreement}, wanted a number in (0, 1]; try --agreement 0.95")
        if policy not in POLICIES:
            raise ConfigError(f"budget policy is '{policy}', wanted one of {', '.join(POLICIES)}; try --policy front")
        self.agreement, self.policy = agreement, policy
        self.Q = 1.0
        self._tokens, self._k = max_new_tokens, k

    def caps(self, length: int, emitted: int) -> tuple[list[float], float]:
        """Caps of the `length` drafted positions of the next block after `emitted` tokens, and the block's floor."""
        left = factor_left(self.agreement, np.array([self.Q]))
        remaining = np.array([max(self._tokens - emitted, 1)], dtype=np.float64)
        return place_caps(self.policy, left, remaining, max(self._k, length))[0, :length].tolist(), float(left[0])

    def settle(self, eps: Iterable[float]) -> None:
        """Take off what the tested positions of the block spent: lam ES each, rescued or not."""
        for spent in eps:
            self.Q *= 1.0 - spent

    def notice(self) -> str:
        """What to print before decoding, so that nobody is surprised."""
        most = expected_rescues_at_most(1.0 - self.agreement)
        return (
            f"agreement {self.agreement:g} over the whole completion: expect at most {most:.3g} rescued tokens in all "
            f"(-log {self.agreement:g}), whatever the policy; this is close to exact speculative decoding"
        )


def join(
    parts: Sequence[tuple[Sequence[float], float] | None], lengths: Sequence[int], device: str = "cpu"
) -> Caps | None:
    """Caps of a batch from those of its requests, None for a request without a budget; None if there is no budget."""
    if all(part is None for part in parts):
        return None
    cap: list[float] = []
    floor: list[float] = []
    for part, length in zip(parts, lengths, strict=True):
        places, least = ([1.0] * length, 0.0) if part is None else part
        cap += places
        floor.append(least)
    return Caps(
        torch.tensor(cap, dtype=torch.float64, device=device), torch.tensor(floor, dtype=torch.float64, device=device)
    )
