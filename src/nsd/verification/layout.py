"""Where the rows of a ragged batch lie. Lengths are known to the host, so none of this waits for a device."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """Index columns of a flattened ragged batch of B requests, N drafted tokens, M = N + B target rows.

    owner [N] request of a drafted token; place [N] its index inside the block; row [N] its target row;
    first [B] target row of each request's first position; start [B] index of its first drafted token; length [B].
    """

    owner: Tensor
    place: Tensor
    row: Tensor
    first: Tensor
    start: Tensor
    length: Tensor
    lengths: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def widest(self) -> int:
        """The longest draft of the batch."""
        return max(self.lengths, default=0)

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> Layout:
        """Layout of requests that drafted these many tokens; the same lengths come back block after block."""
        host = torch.tensor(lengths, dtype=torch.long)
        owner = torch.repeat_interleave(torch.arange(len(lengths)), host)
        start = host.cumsum(0) - host
        place = torch.arange(len(owner)) - start[owner]
        first = start + torch.arange(len(lengths))
        row = torch.arange(len(owner)) + owner

        def moved(column: Tensor) -> Tensor:
            return column.to(device, non_blocking=True)

        return cls(
            owner=moved(owner),
            place=moved(place),
            row=moved(row),
            first=moved(first),
            start=moved(start),
            length=moved(host),
            lengths=lengths,
            starts=tuple(start.tolist()),
        )

    def padded(self, column: Tensor, filler: float | bool) -> Tensor:
        """Column [N] as a table [B, widest], short rows filled."""
        table = torch.full((len(self.length), self.widest), filler, dtype=column.dtype, device=column.device)
        table[self.owner, self.place] = column
        return table

    def flat(self, table: Tensor) -> Tensor:
        """The inverse of `padded`: table [B, widest] -> [N]."""
        return table[self.owner, self.place]
