"""A ragged key/value cache, preallocated, with a length per request.

It contains committed inputs only. A pass writes its keys and values behind the lengths; they join the cache when
`append` says so, and lie there as scratch otherwise, to be overwritten by the next pass. Rolling back sets lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from nsd.nn.config import DecoderConfig


class Sight(Enum):
    """Who sees whom among the tokens of one pass; all see their request's whole cache."""

    CAUSAL = "causal"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the M = sum(counts) rows of one ragged pass lie, request after request.

    owner [M] the request; place [M] index inside its share; slot [M] where its key is written; position [M] its RoPE
    position; mask [B, 1, width * groups, span] bool, True = seen, None if everything is; span slots are looked at.
    """

    counts: tuple[int, ...]
    owner: Tensor
    place: Tensor
    slot: Tensor
    position: Tensor
    mask: Tensor | None
    width: int
    span: int

    @property
    def even(self) -> bool:
        """Whether every request has the same number of rows."""
        return all(count == self.width for count in self.counts)

    def padded(self, rows: Tensor) -> Tensor:
        """Rows [M, ...] as a table [B, width, ...], short requests filled with zeros."""
        if self.even:
            return torch.unflatten(rows, 0, (len(self.counts), self.width))
        table = rows.new_zeros(len(self.counts), self.width, *rows.shape[1:])
        table[self.owner, self.place] = rows
        return table

    def flat(self, table: Tensor) -> Tensor:
        """The inverse of `padded`: [B, width, ...] -> [M, ...]."""
        return table.flatten(0, 1) if self.even else table[self.owner, self.place]


class KVCache:
    """Keys and values of one batch: per layer [B, kv_heads, capacity, head_dim]; grows by itself when full."""

    def __init__(self, config: DecoderConfig, batch: int, room: int, device: torch.device, dtype: torch.dtype) -> None:
        self.lengths = [0] * batch
        self.groups = config.groups
        self._settled = list(self.lengths)
        shape = (batch, config.kv_heads, max(room, 1), config.head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]

    @property
    def capacity(self) -> int:
        """Slots per request at present."""
        return self.keys[0].shape[2]

    def rows(self, counts: Sequence[int], sight: Sight | Tensor = Sight.CAUSAL, shift: int = 0) -> Rows:
        """Place a pass of counts[b] new tokens for request b behind its cache; nothing is written yet.

        sight [B, width, width] bool (True = query row sees key column) instead of a Sight gives any mask among the new
        tokens; shift is added to RoPE positions, which count from 0 at the first slot.
        """
        device = self.keys[0].device
        width, span = max(counts), max(n + count for n, count in zip(self.lengths, counts, strict=True))
        if span > self.capacity:
            self._grow(span)
        columns = torch.tensor([self.lengths, counts], device=device)
        length, count = columns[0], columns[1]
        steps = torch.arange(width, device=device)
        owner, place = _places(counts, device)
        slot = length[owner] + place
        return Rows(
            counts=tuple(counts),
            owner=owner,
            place=place,
            slot=slot,
            position=slot + shift,
            mask=self._mask(length, count, steps, span, sight, tuple(counts)),
            width=width,
            span=span,
        )

    def _mask(
        self, length: Tensor, count: Tensor, steps: Tensor, span: int, sight: Sight | Tensor, counts: tuple[int, ...]
    ) -> Tensor | None:
        ends = {n + c for n, c in zip(self.lengths, counts, strict=True)}
        if len(ends) == 1 and min(counts) == len(steps) and (sight is Sight.BLOCK or len(steps) == 1):
            return None
        behind = torch.arange(span, device=length.device) - length.unsqueeze(-1)
        new = behind.unsqueeze(1)
        if isinstance(sight, Tensor):
            place = new.clamp(0, len(steps) - 1).expand(-1, len(steps), -1)
            seen = (sight.to(length.device).gather(-1, place) & (new < count[:, None, None])) | (new < 0)
        elif sight is Sight.BLOCK:
            # A request without rows still needs one key to look at: softmax over nothing is not a number.
            seen = (new < count.clamp_min(1)[:, None, None]).expand(-1, len(steps), -1)
        else:
            seen = new <= steps.unsqueeze(-1)
        return seen.repeat_interleave(self.groups, dim=1).unsqueeze(1)

    def write(self, layer: int, rows: Rows, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [M, kv_heads, head_dim] of a pass to its slots."""
        self.keys[layer][rows.owner, :, rows.slot] = keys
        self.values[layer][rows.owner, :, rows.slot] = values

    def read(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Keys and values that a pass looks at: [B, kv_heads, span, head_dim], views."""
        return self.keys[layer][:, :, : rows.span], self.values[layer][:, :, : rows.span]

    def append(self, rows: Rows) -> None:
        """What this pass wrote now belongs to the cache, for the time being."""
        self.lengths = [n + count for n, count in zip(self.lengths, rows.counts, strict=True)]

    def keep(self, counts: Sequence[int]) -> None:
        """Of everything appended since the last `keep`, keep the first counts[b] rows of request b."""
        kept = [n + count for n, count in zip(self._settled, counts, strict=True)]
        assert all(least <= n <= now for least, n, now in zip(self._settled, kept, self.lengths, strict=True))
        self.lengths, self._settled = kept, list(kept)

    def keep_all(self) -> None:
        """Keep everything appended since the last `keep`."""
        self._settled = list(self.lengths)

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only."""
        at = torch.tensor(requests, device=self.keys[0].device, dtype=torch.long)
        self.keys = [k[at] for k in self.keys]
        self.values = [v[at] for v in self.values]
        self.lengths = [self.lengths[b] for b in requests]
        self._settled = [self._settled[b] for b in requests]

    def _grow(self, span: int) -> None:
        extra = max(span, 2 * self.capacity) - self.capacity
        self.keys = [torch.nn.functional.pad(k, (0, 0, 0, extra)) for k in self.keys]
        self.values = [torch.nn.functional.pad(v, (0, 0, 0, extra)) for v in self.values]


def _places(counts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Owner and place of every row, found on the host, so that nothing waits for the device."""
    host = torch.tensor(counts, dtype=torch.long)
    owner = torch.repeat_interleave(torch.arange(len(counts)), host)
    place = torch.arange(len(owner)) - (host.cumsum(0) - host)[owner]
    return owner.to(device), place.to(device)
