"""No drafting: K = 0, plain decoding in the common loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.targets.base import Target
from nsd.verification import Draft, DraftLaw


class NoDraftSession(DraftSession):
    """Proposes nothing and remembers nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """An empty draft for every request."""
        return Draft(torch.empty(0, dtype=torch.long, device=self._device), (0,) * len(asks), DraftLaw.POINT)

    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Nothing to learn."""

    def retain(self, requests: Sequence[int]) -> None:
        """Nothing to drop."""


class NoDrafter(Drafter):
    """Plain decoding: k is always 0."""

    name = "none"
    law = DraftLaw.POINT
    default_k = 0
    max_k = 0

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device or torch.device("cpu")

    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> NoDraftSession:
        """A session without state."""
        return NoDraftSession(self._device)


def no_drafter(target: Target) -> NoDrafter:
    """No drafter, on the target's device."""
    return NoDrafter(target.device)
