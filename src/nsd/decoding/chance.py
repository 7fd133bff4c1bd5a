"""All uniforms of one step, in one call to the keyed generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nsd.laws import Purpose, uniforms
from nsd.verification import Uniforms

_KINDS = (Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.TARGET, Purpose.DRAFT)


@dataclass(frozen=True, slots=True)
class Chance:
    """Uniforms of every request at positions 0..k of its block: table [4, B, k+1], purposes in the order of _KINDS."""

    table: Tensor

    @classmethod
    def of_step(
        cls, seeds: Sequence[int], keys: Sequence[int], positions: Sequence[int], blocks: Sequence[int], k: int
    ) -> Chance:
        """The step whose blocks start at these output positions and draft up to k tokens."""
        kind = np.array(_KINDS).reshape(-1, 1, 1)
        block = np.where(kind == Purpose.DRAFT, np.array(blocks).reshape(1, -1, 1), 0)
        place = np.array(positions).reshape(1, -1, 1) + np.arange(k + 1)
        seed = np.array(seeds, dtype=np.uint64).reshape(1, -1, 1)
        return cls(torch.from_numpy(uniforms(seed, np.array(keys).reshape(1, -1, 1), place, kind, block)))

    @property
    def draft(self) -> Tensor:
        """For the drafter: [B, k+1], the last column unused."""
        return self.table[3]

    def verification(self, lengths: Sequence[int], device: torch.device) -> Uniforms:
        """For verification: the first lengths[b] + 1 of each request, flattened to [M]."""
        used = torch.arange(self.table.shape[-1]) <= torch.tensor(lengths).unsqueeze(-1)
        accept, residual, target = (self.table[i][used].to(device) for i in range(3))
        return Uniforms(accept, residual, target)
