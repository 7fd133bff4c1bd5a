"""What the trainer and the examiner ask of a drafter in training, whatever its mechanism.

Chains start at positions t of a stored text x_0, x_1, ...: the target has read x_0..x_t, x_t+1 is the anchor. Depth d
(from 1) proposes x_t+d+1, so its law is compared with the target's p at position t + d, whichever network made it.

    z = gain * head(states) + map(read)        both parts optional; the head is the target's and frozen, the map is ours
    q = softmax(z / T)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nsd.nn import Shapes
from nsd.train.corpus import Batch
from nsd.train.losses import target_law


@dataclass(frozen=True, slots=True)
class Ends:
    """What the drafter borrows: embedding [V, H] and the head's rows [n, H] of the draft vocabulary ids [n].

    silent [n] marks ids that the target never says (None: it may say all).
    """

    embedding: Tensor
    head: Tensor
    ids: Tensor
    silent: Tensor | None = None

    def law(self, final: Tensor, lse: Tensor, cold: Tensor) -> Tensor:
        """The target's p over the draft vocabulary; see `target_law`."""
        p = target_law(final, self.head, lse, cold)
        return p if self.silent is None else p.masked_fill_(self.silent, 0.0)


@dataclass(frozen=True, slots=True)
class Rows:
    """One depth's laws before the head: states [n, H] normed, at [n] flat chain starts; read [n, r] what the drafter's
    own map reads (None: it has none)."""

    states: Tensor
    at: Tensor
    read: Tensor | None = None


class Student(nn.Module, ABC):
    """A drafter in training: tensors by the names of its checkpoint, and laws along stored text.

    limit: proposals per block at most (None: any number). by_id: names of tensors that have a row for each id of the
    draft vocabulary. narrow: whether products are made in bfloat16.
    """

    kind: str
    limit: int | None = None
    by_id: tuple[str, ...] = ()
    narrow: bool = True
    names: tuple[str, ...]

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor:
        """A weight by its name."""

    @abstractmethod
    def rows(self, batch: Batch, embedding: Tensor, depths: int, wanted: int, key: str | None) -> list[Rows]:
        """Rows of each depth, of chains whose tokens all are of kind `wanted` at least; embedding [V, H] the target's.

        key seeds the choice of chains where only some are looked at; None looks at all.
        """

    def tensors(self) -> dict[str, Tensor]:
        """All weights by their names, detached."""
        return {name: self[name].detach() for name in self.names}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy weights in by name."""
        for name in self.names:
            self[name].copy_(tensors[name])

    def products(self) -> torch.autocast:
        """Where products are made in bfloat16, if they are."""
        return torch.autocast("cpu", torch.bfloat16, enabled=self.narrow)

    def gain(self) -> Tensor:
        """Logarithm of the gain on the head's logits."""
        return torch.zeros(())

    def map(self) -> Tensor | None:
        """The drafter's own map [n, r] to its vocabulary."""
        return None

    def lent(self, head: Tensor) -> Tensor:
        """What it uses of the target's head [n, H]."""
        return head

    def aside(self, rows: Rows, kept: Tensor) -> Tensor | None:
        """A loss beside the law's, from what was kept (1 - TV) [n] of each row."""
        del rows, kept
        return None


class Weighted(Student):
    """A student whose weights are a plain dictionary."""

    def __init__(self, shapes: Shapes, start: float = 1.0) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {_key(name): nn.Parameter(torch.full(shape, start)) for name, shape in shapes.items()}
        )
        self.names = tuple(shapes)

    def __getitem__(self, name: str) -> Tensor:
        weight: Tensor = self.weights[_key(name)]
        return weight

    @torch.no_grad()
    def noise(self, names: Sequence[str], seed: int = 0, spread: float = 0.02) -> None:
        """Fill the matrices among these at random, in order."""
        generator = torch.Generator().manual_seed(seed)
        for name in names:
            if self[name].dim() > 1:
                self[name].normal_(0.0, spread, generator=generator)


def _key(name: str) -> str:
    """Parameter dictionaries cannot hold names with dots."""
    return name.replace(".", "/")
