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

STEPS = 32
"""The longest pass whose causal mask is cut from one made in advance."""


class Sight(Enum):
    """Who sees whom among the tokens of one pass; all see their request's whole cache."""

    CAUSAL = "causal"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the M = sum(counts) rows of one ragged pass lie, request after request.

    owner [M] where its request lies in the cache; place [M] index inside its share; slot [M] where its key is written;
    position [M] its RoPE position; mask [B or 1, 1, width * groups, span] is added to attention scores (0 = seen,
    -inf = hidden), None if everything is seen or `causal` says enough: the pass fills empty caches, row i sees slots
    0..i. span slots are looked at. start is the first slot of a pass that is a rectangle (equal lengths, equal counts),
    else None. order [B] is the request at each place of the cache and back [B] the place of each request, both None
    while requests lie in order.
    """

    counts: tuple[int, ...]
    owner: Tensor
    place: Tensor
    slot: Tensor
    position: Tensor
    mask: Tensor | None
    width: int
    span: int
    start: int | None = None
    causal: bool = False
    order: Tensor | None = None
    back: Tensor | None = None

    @property
    def even(self) -> bool:
        """Whether every request has the same number of rows."""
        return all(count == self.width for count in self.counts)

    def padded(self, rows: Tensor) -> Tensor:
        """Rows [M, ...] as a table [B, width, ...] in the cache's order, short requests filled with zeros."""
        if self.even:
            whole = torch.unflatten(rows, 0, (len(self.counts), self.width))
            return whole if self.order is None else whole[self.order]
        table = rows.new_zeros(len(self.counts), self.width, *rows.shape[1:])
        table[self.owner, self.place] = rows
        return table

    def flat(self, table: Tensor) -> Tensor:
        """The inverse of `padded`: [B, width, ...] -> [M, ...]."""
        if self.even:
            return (table if self.back is None else table[self.back]).flatten(0, 1)
        return table[self.owner, self.place]


class KVCache:
    """Keys and values of one batch: per layer [B, kv_heads, capacity, head_dim]; grows by itself when full."""

    def __init__(self, config: DecoderConfig, batch: int, room: int, device: torch.device, dtype: torch.dtype) -> None:
        self.lengths = [0] * batch
        self.groups = config.groups
        self._settled = list(self.lengths)
        self._at = list(range(batch))
        shape = (batch, config.kv_heads, max(room, 1), config.head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.layers)]
        self._stairs: Tensor | None = None

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
        owner, place = _places(counts, device)
        even = min(counts) == width and min(self.lengths) == max(self.lengths)
        start = self.lengths[0] if even else None
        slot = place + start if start is not None else torch.tensor(self.lengths, device=device)[owner] + place
        causal = sight is Sight.CAUSAL and width > 1 and not any(self.lengths)
        mask = None if causal else self._mask(counts, width, span, sight, start)
        order, back = self._order()
        if order is not None and back is not None:
            owner, mask = back[owner], mask if mask is None or len(mask) == 1 else mask[order]
        return Rows(
            counts=tuple(counts),
            owner=owner,
            place=place,
            slot=slot,
            position=slot + shift if shift else slot,
            mask=mask,
            width=width,
            span=span,
            start=start,
            causal=causal,
            order=order,
            back=back,
        )

    def _order(self) -> tuple[Tensor | None, Tensor | None]:
        """The request at each place, and the place of each request; None, None where the two are the same."""
        if all(place == b for b, place in enumerate(self._at)):
            return None, None
        back = torch.tensor(self._at)
        device = self.keys[0].device
        return back.argsort().to(device), back.to(device)

    def _mask(
        self, counts: Sequence[int], width: int, span: int, sight: Sight | Tensor, start: int | None
    ) -> Tensor | None:
        if start is not None and (sight is Sight.BLOCK or (width == 1 and sight is Sight.CAUSAL)):
            return None
        if start is not None and sight is Sight.CAUSAL and width <= STEPS and self.keys[0].device.type == "cpu":
            return self._staircase(width, span, start)
        device = self.keys[0].device
        columns = torch.tensor([self.lengths, list(counts)], device=device)
        length, count, steps = columns[0], columns[1], torch.arange(width, device=device)
        new = (torch.arange(span, device=device) - length.unsqueeze(-1)).unsqueeze(1)
        if isinstance(sight, Tensor):
            place = new.clamp(0, width - 1).expand(-1, width, -1)
            seen = (sight.to(device).gather(-1, place) & (new < count[:, None, None])) | (new < 0)
        elif sight is Sight.BLOCK:
            # A request without rows still needs one key to look at: softmax over nothing is not a number.
            seen = (new < count.clamp_min(1)[:, None, None]).expand(-1, width, -1)
        else:
            seen = new <= steps.unsqueeze(-1)
        return self._added(seen.repeat_interleave(self.groups, dim=1).unsqueeze(1))

    def _staircase(self, width: int, span: int, start: int) -> Tensor:
        """The causal mask of a short pass, cut out of one that is made once: every start is another cut."""
        room = self.capacity
        if self._stairs is None or self._stairs.shape[-1] != room + STEPS:
            steps = torch.arange(STEPS).repeat_interleave(self.groups).unsqueeze(-1)
            self._stairs = self._added(torch.arange(room + STEPS) <= steps + room)[None, None]
        return self._stairs[:, :, : width * self.groups, room - start : room - start + span]

    def _added(self, seen: Tensor) -> Tensor:
        """Seen or not as a number to add to attention scores."""
        return seen.new_zeros(seen.shape, dtype=self.keys[0].dtype).masked_fill_(~seen, -torch.inf)

    def write(self, layer: int, rows: Rows, keys: Tensor, values: Tensor) -> None:
        """Write keys and values [M, kv_heads, head_dim] of a pass to its slots."""
        if rows.start is None:
            self.keys[layer][rows.owner, :, rows.slot] = keys
            self.values[layer][rows.owner, :, rows.slot] = values
            return
        shape = (len(rows.counts), rows.width, *keys.shape[1:])
        for store, new in ((self.keys[layer], keys), (self.values[layer], values)):
            table = new.reshape(shape) if rows.order is None else new.reshape(shape)[rows.order]
            store.narrow(2, rows.start, rows.width).copy_(table.transpose(1, 2))

    def read(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Keys and values that a pass looks at: [B, kv_heads, span, head_dim], views."""
        return self.keys[layer].narrow(2, 0, rows.span), self.values[layer].narrow(2, 0, rows.span)

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
        """Go on with these requests only.

        The others leave holes, and into those move the requests from the end: nothing else is copied, so that a batch
        that ends one by one does not copy itself each time.
        """
        places = [self._at[b] for b in requests]
        batch, span = len(places), max((self.lengths[b] for b in requests), default=0)
        holes = iter(sorted(set(range(batch)) - set(places)))
        self._at = [place if place < batch else next(holes) for place in places]
        for old, new in zip(places, self._at, strict=True):
            if old != new:
                for store in (*self.keys, *self.values):
                    store[new, :, :span] = store[old, :, :span]
        self.keys = [k[:batch] for k in self.keys]
        self.values = [v[:batch] for v in self.values]
        self.lengths = [self.lengths[b] for b in requests]
        self._settled = [self._settled[b] for b in requests]

    def _grow(self, span: int) -> None:
        extra = max(span, 2 * self.capacity) - self.capacity
        self.keys = [torch.nn.functional.pad(k, (0, 0, 0, extra)) for k in self.keys]
        self.values = [torch.nn.functional.pad(v, (0, 0, 0, extra)) for v in self.values]


def _places(counts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Owner and place of every row, found on the host, so that nothing waits for the device."""
    if len(counts) == 1:
        place = torch.arange(counts[0])
        return torch.zeros_like(place, device=device), place.to(device)
    host = torch.tensor(counts, dtype=torch.long)
    owner = torch.repeat_interleave(torch.arange(len(counts)), host)
    place = torch.arange(len(owner)) - (host.cumsum(0) - host)[owner]
    return owner.to(device), place.to(device)
