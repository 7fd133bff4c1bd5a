"""Drafting below the target's temperature: any drafter, asked for colder laws. q is what it then really draws from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.targets.base import TargetSession
from nsd.verification import Draft


class Sharper(Drafter):
    """A drafter at `factor` times the temperature that it is asked for."""

    def __init__(self, inner: Drafter, factor: float) -> None:
        self.inner, self.factor = inner, factor
        self.name, self.law = f"{inner.name}, draft temperature x{factor:g}", inner.law
        self.default_k, self.max_k, self.taps, self.void = inner.default_k, inner.max_k, inner.taps, inner.void

    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> DraftSession:
        """Start a batch of the inner drafter."""
        return _SharperSession(self.inner.open(prompts, taps, room), self.factor)

    def open_beside(
        self, session: TargetSession, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int
    ) -> DraftSession:
        """Start a batch of the inner drafter beside the target's session."""
        return _SharperSession(self.inner.open_beside(session, prompts, taps, room), self.factor)


class _SharperSession(DraftSession):
    def __init__(self, inner: DraftSession, factor: float) -> None:
        self._inner, self._factor = inner, factor

    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """The inner proposals to colder asks."""
        colder = [
            replace(ask, sampling=replace(ask.sampling, temperature=self._factor * ask.sampling.temperature))
            for ask in asks
        ]
        return self._inner.propose(colder, u)

    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Hand on."""
        self._inner.commit(tokens, taps)

    def retain(self, requests: Sequence[int]) -> None:
        """Hand on."""
        self._inner.retain(requests)
