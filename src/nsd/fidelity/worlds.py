"""Toy worlds: every law of a target and of a drafter over a tiny vocabulary, many worlds side by side.

A history of t tokens is a number: its digits in base V, first token most significant. A world's draft length depends on
the block's start only. Worlds are what guarantees are checked on, by complete enumeration (nsd.fidelity.enumerate).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.laws import argmax, one_hot

_CONCENTRATIONS = (0.15, 0.5, 1.0, 3.0)
_ZERO_SHARE = 0.2


class DrafterKind(Enum):
    """How the drafter of a world proposes.

    AUTOREGRESSIVE: q depends on the history with the drafted tokens in it. BLOCK: q depends on the start of the block
    and the place. *_POINT: the most probable id of that law, without chance. UNKNOWN: drawn from the autoregressive
    law, which verification does not get to see.
    """

    AUTOREGRESSIVE = "autoregressive"
    BLOCK = "block-parallel"
    AUTOREGRESSIVE_POINT = "autoregressive-point"
    BLOCK_POINT = "block-parallel-point"
    UNKNOWN = "unknown"

    @property
    def parallel(self) -> bool:
        """Whether the drafts of one block are independent of each other."""
        return self in (DrafterKind.BLOCK, DrafterKind.BLOCK_POINT)

    @property
    def point(self) -> bool:
        """Whether drafts are chosen without chance."""
        return self in (DrafterKind.AUTOREGRESSIVE_POINT, DrafterKind.BLOCK_POINT)


@dataclass(frozen=True, slots=True)
class World:
    """W worlds of `tokens` tokens over `vocab` ids with up to k proposals per block, all laws in float64.

    target[t] [W, V^t, V] is p after a history of t tokens. draft[t] is q: for an autoregressive drafter [W, V^t, V] by
    history, for a block-parallel one [W, V^t, k, V] by the history at the block's start and the place.
    """

    kind: DrafterKind
    k: int
    target: tuple[Tensor, ...]
    draft: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if self.k < 0 or not self.target or len(self.draft) < len(self.target):
            raise ConfigError("a toy world needs k >= 0 and one target and draft table per token")

    @property
    def vocab(self) -> int:
        """V."""
        return self.target[0].shape[-1]

    @property
    def tokens(self) -> int:
        """T, the length of every sequence."""
        return len(self.target)

    @property
    def count(self) -> int:
        """W, the number of worlds."""
        return self.target[0].shape[0]

    def draft_laws(self, world: Tensor, length: int, history: Tensor, start: Tensor, place: Tensor) -> Tensor:
        """q at a history of `length` tokens, for paths [n] at these places of their blocks: [n, V]."""
        if not self.kind.parallel:
            return self.draft[length][world, history]
        q = self.target[0].new_zeros(len(world), self.vocab)
        for i in range(min(self.k, length + 1)):
            here = (place == i).nonzero().squeeze(-1)
            q[here] = self.draft[length - i][world[here], start[here], i]
        return q

    def target_sequences(self) -> Tensor:
        """The target's own law of whole sequences: [W, V^T]."""
        law = self.target[0].new_ones(self.count, 1)
        for p in self.target:
            law = (law.unsqueeze(-1) * p).flatten(1)
        return law


def random_worlds(
    kind: DrafterKind, k: int, count: int, seed: int, vocab: int = 3, tokens: int = 4, stop: bool = False
) -> World:
    """Random worlds, peaked and flat laws mixed, with impossible ids among them.

    stop makes id 0 absorbing for target and drafter, as the end of a text is.
    """
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> Tensor:
        return _random_laws((count, *shape, vocab), generator)

    target = [table(vocab**t) for t in range(tokens)]
    draft = [table(vocab**t, k) if kind.parallel else table(vocab**t) for t in range(tokens)]
    if stop:
        target, draft = [_absorb(t) for t in target], [_absorb(t) for t in draft]
    if kind.point:
        draft = [one_hot(argmax(q), q) for q in draft]
    return World(kind, k, tuple(target), tuple(draft))


def _random_laws(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Dirichlet-like rows by normalised powers of exponentials, some entries set to zero: [..., V] float64."""
    raw = -torch.rand(shape, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
    kind = torch.randint(len(_CONCENTRATIONS), shape[:-1], generator=generator)
    power = torch.tensor(_CONCENTRATIONS, dtype=torch.float64).reciprocal()[kind].unsqueeze(-1)
    weights = raw**power
    keep = torch.rand(shape, generator=generator, dtype=torch.float64) >= _ZERO_SHARE
    first = torch.randint(shape[-1], shape[:-1], generator=generator).unsqueeze(-1)
    weights = weights * keep.scatter(-1, first, True)
    return weights / weights.sum(-1, keepdim=True)


def _absorb(laws: Tensor) -> Tensor:
    """Laws after any history that contains id 0 become the point mass at 0: [W, V^t, ...]."""
    vocab, histories = laws.shape[-1], laws.shape[1]
    stopped = torch.zeros(1, dtype=torch.bool)
    while len(stopped) < histories:
        last_is_zero = torch.arange(vocab) == 0
        stopped = (stopped.unsqueeze(-1) | last_is_zero).flatten()
    laws = laws.clone()
    laws[:, stopped] = one_hot(torch.zeros((), dtype=torch.long).expand(laws.shape[:-1]), laws)[:, stopped]
    return laws
