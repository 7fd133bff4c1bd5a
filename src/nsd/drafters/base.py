"""What decoding asks of a drafter: proposals with the law they were drawn from.

A drafter is loaded once; each batch drafts in a session of its own, beside the target's. q must be the very tensor that
a proposal was drawn from, after temperature and truncation. How many tokens are drafted may depend on emitted tokens;
on drafted ones only by a stopping rule, where x_<k decide whether there is an x_k at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from nsd.laws import History, Sampling
from nsd.targets.base import TargetSession
from nsd.verification import Draft, DraftLaw


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks its drafter for.

    k proposals at most (0 = none); anchor the newest committed token, not yet seen by any cache; prompt and output all
    committed ids (anchor last); sampling how q is made from logits.
    """

    k: int
    anchor: int
    prompt: Sequence[int]
    output: Sequence[int]
    sampling: Sampling

    def history(self, drafted: Sequence[int]) -> History:
        """What a position sees that follows these drafted tokens."""
        return History(self.prompt, [*self.output, *drafted])


class DraftSession(ABC):
    """The drafter's state for one batch. Its cache holds committed tokens only, as the target's does."""

    positions: int = 0
    """Token positions fed to the drafter's network so far; 0 for drafters without one."""

    @abstractmethod
    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """Draft for the whole batch: u [B, max k] float64, the uniform of request b's i-th draw at [b, i]."""

    @abstractmethod
    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Learn what was committed: tokens[b] (accepted and final) of request b in this block, before any cut.

        taps [sum len(tokens[b]), n, H] are the target's hidden states at the inputs that were kept, anchor first: the
        i-th row of a request is the state that predicted tokens[b][i].
        """

    @abstractmethod
    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only (indices into the present batch, ascending)."""


class Drafter(ABC):
    """A proposal mechanism.

    law how its tokens come about; default_k and max_k proposals per block (None = no limit); taps the target's hidden
    states it reads.
    """

    name: str
    law: DraftLaw
    default_k: int
    max_k: int | None = None
    taps: tuple[int, ...] = ()
    void: str | None = None
    """Why nothing can be guaranteed with this drafter, such as a gate that looks ahead; None if its q is right."""

    def block_unit(self, k: int) -> int:
        """The mechanism's own count for k proposals; most count proposals."""
        return k

    @abstractmethod
    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> DraftSession:
        """Start a batch: prompts, the target's hidden states at all prompt positions [sum len, n, H], room after."""

    def open_beside(
        self, session: TargetSession, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int
    ) -> DraftSession:
        """Start a batch beside the target's own session, for drafters that read its cache; others `open` as usual."""
        return self.open(prompts, taps, room)

    def describe(self) -> dict[str, object]:
        """Facts for `nsd doctor`: mechanism, proposals per block, proposal law, parameters."""
        return {"drafter": self.name, "law": self.law.value, "k": self.default_k, "max_k": self.max_k}
