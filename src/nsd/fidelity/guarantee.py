"""What is promised before decoding, the same for every prompt: the one word `guarantee`.

A guarantee g says: the completion can be coupled with a plain sample of the target so that both are the same text, up
to the stop, with probability at least g; and the two sequence laws differ by at most 1 - g in total variation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nsd.errors import ConfigError
from nsd.fidelity.sequence import agreement as agreement_of_tokens
from nsd.rules import RatioOrSet, Rule

WRONG_LAW = "q was not the law of the draw"
"""Reason of a null guarantee where a drafter states a q that its proposals were not drawn from."""

_EXACT_AT = {
    "nsd": ("theta", 0),
    "topk": ("k", 0),
    "lenience": ("l", 1),
    "lossy-epsilon": ("epsilon", 0),
    "ensemble": ("w", 1),
    "mentored": ("a", 1),
}
"""The number of a relaxed rule at which it is exact speculation, by construction."""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """value, or None with its reason; basis in words; epsilon the cap on every step, where there is one."""

    value: float | None
    basis: str
    reason: str | None = None
    epsilon: float | None = None

    def windowed(self, tokens: int) -> float | None:
        """From any prefix that both share, the next `tokens` tokens agree with at least this probability."""
        if self.value is None:
            return None
        if self.epsilon is None:
            return self.value
        return max(self.value, agreement_of_tokens(self.epsilon, tokens))

    def void(self, reason: str) -> Guarantee:
        """No guarantee any more; the first reason stays."""
        return self if self.value is None else replace(self, value=None, reason=reason)


def is_exact(rule: Rule, temperature: float = 1.0) -> bool:
    """Whether the rule keeps the target's law whatever p and q are.

    At temperature 0 p is a point mass, and every rule here emits it: none keeps a token without target probability.
    """
    name, value = _EXACT_AT.get(rule.name, (None, None))
    neutral = name is not None and bool(getattr(rule, name) == value)
    capped_at_zero = rule.max_deviation is not None and bool(rule.max_deviation == 0)
    cold = temperature == 0 and not rule.untempered
    return rule.lossless or cold or neutral or capped_at_zero


def guarantee_of(
    rule: Rule,
    max_new_tokens: int,
    temperature: float = 1.0,
    agreement: float | None = None,
    void: str | None = None,
) -> Guarantee:
    """The guarantee of one request.

    agreement is 1 - delta of a whole-sequence budget, None without one. void is a reason known beforehand why nothing
    can be promised, such as WRONG_LAW or a stopping rule of the drafter that looks at later tokens. A draft of unknown
    law voids nothing: it is verified as a point mass, for which exact rules stay exact and caps hold.
    """
    granted = _granted(rule, max_new_tokens, temperature, agreement)
    return granted if void is None else granted.void(void)


def _granted(rule: Rule, max_new_tokens: int, temperature: float, agreement: float | None) -> Guarantee:
    if is_exact(rule, temperature):
        basis = "temperature 0" if temperature == 0 else "exact rule"
        return Guarantee(1.0, basis, epsilon=0.0)
    if agreement is not None and not isinstance(rule, RatioOrSet):
        raise ConfigError(
            f"rule {rule.name} cannot keep a budget; take a ratio-or-set rule such as nsd, or drop --agreement"
        )
    cap = rule.max_deviation
    epsilon = None if cap is None else min(float(cap), 1.0)
    by_cap = None if epsilon is None else agreement_of_tokens(epsilon, max_new_tokens)
    if by_cap is not None and by_cap >= (agreement or 0.0):
        return Guarantee(by_cap, f"cap {epsilon:g} over {max_new_tokens} tokens", epsilon=epsilon)
    if agreement is not None:
        return Guarantee(agreement, f"budget {1 - agreement:g} over the whole sequence", epsilon=epsilon)
    return Guarantee(
        None,
        "none",
        f"rule {rule.name} is relaxed and has no cap, so nothing bounds its one-step deviation; "
        "--max-deviation or --agreement does",
    )
