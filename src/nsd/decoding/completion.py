"""What a request comes back as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsd.decoding.request import Request
from nsd.decoding.stats import Stats
from nsd.events import Block
from nsd.fidelity.ledger import Fidelity


@dataclass(frozen=True, slots=True)
class Completion:
    """Text, ids, why it ended, what it cost.

    token_ids end with the token that ended the text, if one did; logprobs by token where asked for; blocks are the
    events; fidelity carries guarantee, ledger, weight and expected rescues.
    """

    request: Request
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[float, ...] | None
    blocks: tuple[Block, ...]
    stats: Stats
    fidelity: Fidelity

    @classmethod
    def of(cls, request: Request, blocks: list[Block], fidelity: Fidelity) -> Completion:
        """Put a request's events together; without a finish reason it was interrupted."""
        committed = [c for block in blocks for c in block.committed]
        reason = next((b.finish_reason for b in blocks if b.finish_reason is not None), None)
        stats = Stats.of(blocks)
        stats.ES_is = fidelity.ES_is
        logprobs = tuple(c.logprob for c in committed if c.logprob is not None)
        return cls(
            request=request,
            text="".join(c.text for c in committed),
            token_ids=tuple(c.token for c in committed),
            finish_reason="interrupted" if reason is None else reason.value,
            logprobs=logprobs if request.logprobs else None,
            blocks=tuple(blocks),
            stats=stats,
            fidelity=fidelity,
        )

    def _reasons(self) -> dict[str, str]:
        rule = self.request.rule
        reasons = {} if hasattr(rule, "theta") else {"theta": f"rule {rule.name} has no theta"}
        for name, value in (("logprobs", self.logprobs), ("agreement", self.request.agreement)):
            if value is None:
                reasons[name] = "not asked for"
        return reasons

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the events; where a value is null, `reasons` says why under its name."""
        rule = self.request.rule
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "rule": rule.name,
            "theta": getattr(rule, "theta", None),
            "reasons": self._reasons(),
            "rule_numbers": rule.settings(),
            "agreement": self.request.agreement,
            "k": self.request.k,
            "temperature": self.request.sampling.temperature,
            "seed": self.request.seed,
            "logprobs": None if self.logprobs is None else list(self.logprobs),
            "stats": self.stats.as_json(),
            "fidelity": self.fidelity.as_json(),
        }
