"""A long completion, simulated: many requests side by side, each position with an R and an ES of its own.

Policies see the same positions and the same uniforms, so that their differences are not noise.
"""

from dataclasses import dataclass

import numpy as np

from nsd.fidelity.budget import factor_left, place_caps

TOKENS, K = 128, 7


@dataclass(frozen=True)
class Outcome:
    """Per request: target calls, rescued tokens, Q at the end."""

    calls: np.ndarray
    rescues: np.ndarray
    Q: np.ndarray


def simulate(agreement, policy, requests=20_000, seed=0):
    """policy None is exact speculation."""
    rng = np.random.default_rng(seed)
    R = rng.beta(1.0, 2.5, (requests, TOKENS))
    ES = R * rng.random((requests, TOKENS)) * (rng.random((requests, TOKENS)) > 0.4)
    u = rng.random((requests, TOKENS))
    every = np.arange(requests)
    length, place = np.zeros(requests, dtype=int), np.zeros(requests, dtype=int)
    Q, calls, rescues = np.ones(requests), np.zeros(requests), np.zeros(requests)
    caps, drafted = np.zeros((requests, K)), np.zeros(requests, dtype=int)
    while (length < TOKENS).any():
        live = length < TOKENS
        fresh = live & (place == 0)
        calls += fresh
        drafted = np.where(fresh, np.minimum(K, TOKENS - length - 1), drafted)
        if policy is not None:
            remaining = np.maximum(TOKENS - length, 1).astype(float)
            caps = np.where(fresh[:, None], place_caps(policy, factor_left(agreement, Q), remaining, K), caps)
        here = np.minimum(length, TOKENS - 1)
        test = live & (place < drafted)
        cap = np.minimum(caps[every, np.minimum(place, K - 1)], 1 - factor_left(agreement, Q))
        eps = np.where(test, np.minimum(ES[every, here], cap), 0.0)
        by_ratio = u[every, here] < 1 - R[every, here]
        accepted = test & (u[every, here] < 1 - R[every, here] + eps)
        rescues += accepted & ~by_ratio
        Q = Q * (1 - eps)
        length, place = length + live, np.where(accepted, place + 1, 0)
    return Outcome(calls, rescues, Q)
