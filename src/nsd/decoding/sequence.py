"""One request while it decodes: what it has emitted, what it may still emit, what it has spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nsd.decoding.cut import cut
from nsd.decoding.request import Request
from nsd.decoding.text import TextStream
from nsd.drafters.base import Ask
from nsd.events import FinishReason
from nsd.fidelity.budget import Budget
from nsd.laws import Sampling
from nsd.targets.base import Target

_CONTEXT = 8
"""Prompt tokens read with the first output tokens, for decoders that treat the start of a text apart."""


class Sequence:
    """The growing answer to one request; number is its place in the batch as given."""

    def __init__(self, number: int, request: Request, target: Target) -> None:
        self.number = number
        self.request = request
        self.output: list[int] = []
        self.blocks = 0
        self.finish_reason: FinishReason | None = None
        self.budget = (
            None
            if request.agreement is None
            else Budget(request.agreement, request.max_new_tokens, request.k, request.policy)
        )
        self._eos = frozenset() if request.ignore_eos else target.eos
        self._stream = TextStream(target.tokenizer, request.stop, request.prompt[-_CONTEXT:])
        self._longest = min(request.max_new_tokens, target.context - len(request.prompt))

    @property
    def sampling(self) -> Sampling:
        """How the target's law is made: as asked for, or at temperature 1 for a rule that looks beyond 0."""
        asked = self.request.sampling
        return replace(asked, temperature=1.0) if self.request.rule.untempered else asked

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self._longest - len(self.output)

    def allowance(self, length: int) -> tuple[list[float], float] | None:
        """What the budget, if there is one, allows a block of so many proposals."""
        return None if self.budget is None else self.budget.caps(length, len(self.output))

    def ask(self, limit: int | None) -> Ask:
        """What the drafter is asked for: never more than can be emitted beside the final token."""
        k = max(min(self.request.k, self.room - 1, self.request.k if limit is None else limit), 0)
        anchor = self.output[-1] if self.output else self.request.prompt[-1]
        return Ask(k, anchor, self.request.prompt, self.output, self.request.sampling)

    def emit(self, tokens: list[int]) -> list[str]:
        """Take a block's tokens up to where the text ends -> the text of each token taken."""
        texts, self.finish_reason = cut(tokens, self.room, self._eos, self._stream, self._until(tokens))
        self.output += tokens[: len(texts)]
        self.blocks += 1
        return texts

    def _until(self, tokens: list[int]) -> Callable[[int], bool] | None:
        """The request's own criterion, asked about what was emitted and the first n of these tokens."""
        until = self.request.until
        return None if until is None else lambda n: until([*self.output, *tokens[:n]])
