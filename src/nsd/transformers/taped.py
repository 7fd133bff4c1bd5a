"""A target that remembers the logits of its last pass, for callers who ask for scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nsd.targets.base import Scores, Target, TargetSession


class Taped(Target):
    """Another target, word for word, whose newest logits stay readable: row(b, i) for the b-th live request."""

    def __init__(self, inner: Target) -> None:
        self.inner = inner
        self._logits: Tensor | None = None
        self._starts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(
        self, prompts: Sequence[Sequence[int]], room: int, taps: Sequence[int] = ()
    ) -> tuple[TargetSession, Scores]:
        """Prefill; see `Target.open`."""
        session, scores = self.inner.open(prompts, room, taps)
        self.remember(scores, [1] * len(prompts))
        return TapedSession(session, self), scores

    def remember(self, scores: Scores, lengths: Sequence[int]) -> None:
        """Keep the logits of a pass with so many rows for each request."""
        self._logits = scores.logits
        self._starts = [sum(lengths[:b]) for b in range(len(lengths))]

    def row(self, b: int, i: int) -> Tensor:
        """Float32 logits [1, V] after the i-th input of the b-th request of the last pass."""
        assert self._logits is not None
        at = self._starts[b] + i
        return self._logits[at : at + 1].float()


class TapedSession(TargetSession):
    """A session that hands its logits to the tape as they come."""

    def __init__(self, inner: TargetSession, tape: Taped) -> None:
        self.inner, self.tape = inner, tape

    def score(self, inputs: Sequence[Sequence[int]]) -> Scores:
        """One pass; see `TargetSession.score`."""
        scores = self.inner.score(inputs)
        self.positions, self.calls = self.inner.positions, self.inner.calls
        self.tape.remember(scores, [len(ids) for ids in inputs])
        return scores

    def keep(self, counts: Sequence[int]) -> None:
        """See `TargetSession.keep`."""
        self.inner.keep(counts)

    def retain(self, requests: Sequence[int]) -> None:
        """See `TargetSession.retain`."""
        self.inner.retain(requests)
