"""From a bound on one step to a bound on a sequence, and back.

If no step deviates by more than epsilon from the target's law, at any history, then T tokens agree with the target's
own with probability at least (1 - epsilon)^T under the best coupling, and the two sequence laws are within
1 - (1 - epsilon)^T in total variation. The same holds for the next T tokens after any prefix that both share.

Source: arXiv 2610.07822, section 3 (conditional-kernel assumption); the proof is in docs/fidelity.md.
"""

from __future__ import annotations

import math

from nsd.errors import ConfigError


def agreement(epsilon: float, tokens: int) -> float:
    """(1 - epsilon)^tokens: from any shared prefix, the next `tokens` tokens agree with at least this probability."""
    _require_share("epsilon", epsilon)
    if tokens < 0:
        raise ConfigError(f"tokens is {tokens}, wanted an integer >= 0; try --tokens 32")
    if epsilon == 1.0:
        return 1.0 if tokens == 0 else 0.0
    return math.exp(tokens * math.log1p(-epsilon))


def horizon(epsilon: float, delta: float) -> float:
    """The real T with (1 - epsilon)^T = 1 - delta, inf if unlimited; whole tokens are its floor.

    epsilon = 0 never deviates and delta = 1 asks for nothing: both are unlimited. epsilon = 1, or delta = 0, gives 0.
    It says how long a bound lasts; it prescribes no block size.
    """
    _require_share("epsilon", epsilon)
    _require_share("delta", delta)
    if epsilon == 0.0 or delta == 1.0:
        return math.inf
    if epsilon == 1.0 or delta == 0.0:
        return 0.0
    return math.log1p(-delta) / math.log1p(-epsilon)


def _require_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is {value}, wanted a number in [0, 1]; try --{name} 0.05")
