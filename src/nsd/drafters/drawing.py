"""From logits to drafted tokens and the laws they were drawn from, for a ragged batch.

One uniform per token, at its place in the block. Depths are taken in order wherever a law depends on the tokens before
it; slots that depend on none are drawn together. Nothing waits for the device unless a penalty needs the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from nsd.drafters.base import Ask
from nsd.drafters.checkpoint import spread
from nsd.drafters.draft_model import coldest
from nsd.laws import argmax, draw, laws
from nsd.verification import Draft, DraftLaw


@dataclass(frozen=True, slots=True)
class Pen:
    """How logits become drafts: argmax or sampled; absent [V] ids can never be drawn.

    ids [n], ascending: the reduced vocabulary that logits are over, None if they are over the whole one.
    """

    greedy: bool
    vocab: int
    absent: Tensor | None
    device: torch.device
    ids: Tensor | None = None

    @property
    def law(self) -> DraftLaw:
        """What kind of law its drafts have."""
        return DraftLaw.POINT if self.greedy else DraftLaw.SAMPLED


class Drawing:
    """One block's drafts of a batch: request b draws lengths[b] tokens with the uniforms u [B, max k].

    Laws over a reduced vocabulary stay so until all are drawn; what goes by id (penalties, bans) wants the whole one.
    """

    def __init__(self, pen: Pen, asks: Sequence[Ask], lengths: Sequence[int], u: Tensor) -> None:
        self.lengths = tuple(lengths)
        self._pen, self._asks = pen, asks
        self._u = u.to(pen.device)
        self._samplings = [coldest(ask.sampling) if pen.greedy else ask.sampling for ask in asks]
        self._needs_tokens = any(s.needs_history for s in self._samplings)
        by_id = self._needs_tokens or any(s.banned for s in self._samplings)
        self._ids = None if by_id else pen.ids
        self._absent = pen.absent if pen.absent is None or self._ids is None else pen.absent[self._ids]
        self._starts = list(accumulate(self.lengths, initial=0))[:-1]
        self._tokens = torch.zeros(sum(self.lengths), dtype=torch.long, device=pen.device)
        self._q: Tensor | None = None

    @property
    def depths(self) -> int:
        """The longest draft of the batch."""
        return max(self.lengths, default=0)

    def going(self, depth: int) -> list[int]:
        """The requests that draw a token at this depth."""
        return [b for b, length in enumerate(self.lengths) if length > depth]

    def rows(self, depth: int) -> list[int]:
        """Where the drafts of this depth lie among all, for the requests still going."""
        return [self._starts[b] + depth for b in self.going(depth)]

    def at_once(self, logits: Tensor) -> None:
        """Draw all tokens from logits [N, V or ids] that do not depend on each other (by depth where penalties do)."""
        if self._needs_tokens:
            for depth in range(self.depths):
                self.next(logits[self.rows(depth)], depth)
            return
        owners = [b for b, length in enumerate(self.lengths) for _ in range(length)]
        places = [i for length in self.lengths for i in range(length)]
        law = laws(self._over(logits), [self._samplings[b] for b in owners], None, self._absent)
        u = self._u[owners, places]
        self._tokens = self._named(argmax(law) if self._pen.greedy else draw(law, u))
        self._q = None if self._pen.greedy else law

    def next(self, logits: Tensor, depth: int) -> Tensor:
        """Draw the tokens of one depth from logits [n, V or ids] of the requests still going -> [n]."""
        going, rows = self.going(depth), self.rows(depth)
        histories = None
        if self._needs_tokens:
            drawn = self._tokens.tolist()
            histories = [self._asks[b].history(drawn[self._starts[b] : self._starts[b] + depth]) for b in going]
        law = laws(self._over(logits), [self._samplings[b] for b in going], histories, self._absent)
        if self._pen.greedy:
            picked = self._named(argmax(law))
        else:
            if self._q is None:
                self._q = law.new_empty(len(self._tokens), law.shape[-1])
            self._q[rows] = law
            picked = self._named(draw(law, self._u[going, depth]))
        self._tokens[rows] = picked
        return picked

    def draft(self, keep: Sequence[int] | None = None) -> Draft:
        """Everything drawn, or only the first keep[b] tokens of request b."""
        lengths, tokens, q = self.lengths, self._tokens, self._q
        if q is None and not self._pen.greedy:
            q = torch.empty(0, self._pen.vocab, device=self._pen.device)
        elif q is not None and self._ids is not None:
            nothing = (q[:, :1] * 0).repeat(1, self._pen.vocab)  # NaN where there is no law
            q = nothing.scatter_(1, self._ids.expand(len(q), -1), q)
        if keep is not None and tuple(keep) != lengths:
            rows = [start + i for start, count in zip(self._starts, keep, strict=True) for i in range(count)]
            lengths, tokens, q = tuple(keep), tokens[rows], None if q is None else q[rows]
        return Draft(tokens, lengths, self._pen.law, q)

    def _over(self, logits: Tensor) -> Tensor:
        """Logits over the vocabulary that laws are made over here."""
        pen = self._pen
        return logits if pen.ids is None or self._ids is not None else spread(logits, pen.ids, pen.vocab)

    def _named(self, places: Tensor) -> Tensor:
        """The target's ids of drawn places."""
        return places if self._ids is None else self._ids[places]
