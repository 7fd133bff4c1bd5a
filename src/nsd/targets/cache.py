"""A key-value cache for ragged batches, allocated once and rolled back by setting lengths.

Row b holds request b's positions 0, 1, 2, ... from slot 0 on. A pass writes n slots from each row's own length on;
slots past a row's length hold old or padding values, which the causal mask hides until they are overwritten. Layers
with a sliding window keep everything too (the mask makes the window): that is what makes a rollback exact. Storage
starts as zeros, since a masked NaN would still poison a sum.

Uses of transformers (>= 5.19): `Cache.update`, `get_seq_length`, `get_mask_sizes`, `layers`; `CacheLayerMixin`.
Source: transformers src/transformers/cache_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

SLACK = 32
"""Slots beyond prompt + room: the padding that shorter rows of a ragged pass write past their end."""


class Plan:
    """Where the pass at hand writes: shared by all layers.

    start[b] first slot of row b, width slots for each row, extent = one past the last slot written. offset is the
    common start, None if rows differ; then rows [B, 1] and slots [B, width] index the storage.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.start: list[int] = []
        self.width = 0
        self.extent = 0
        self.offset: int | None = 0
        self.rows: Tensor | None = None
        self.slots: Tensor | None = None

    def begin(self, start: Sequence[int], width: int, device: torch.device) -> None:
        """Plan a pass of `width` positions after each start; the capacity grows only if the room was exceeded."""
        self.start, self.width = list(start), width
        self.extent = max(start) + width
        self.offset = start[0] if min(start) == max(start) else None
        if self.extent > self.capacity:
            self.capacity = self.extent + SLACK
        if self.offset is None:
            first = torch.tensor(self.start, device=device).unsqueeze(-1)
            self.rows = torch.arange(len(self.start), device=device).unsqueeze(-1)
            self.slots = first + torch.arange(width, device=device)


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers classes are untyped
    """Keys and values of one layer, [B, heads, capacity, head size]; the two head sizes may differ."""

    is_sliding = False

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.plan = plan

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate, or move to a larger storage if the room was exceeded."""
        self.keys = self._storage(key_states, self.keys)
        self.values = self._storage(value_states, self.values)
        self.is_initialized = True

    def _storage(self, like: Tensor, old: Tensor | None) -> Tensor:
        batch, heads, _, size = like.shape
        new = like.new_zeros(batch, heads, self.plan.capacity, size)
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new states in place -> views of keys and values up to the longest row."""
        plan = self.plan
        if self.keys is None or self.keys.shape[2] < plan.extent:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        if plan.offset is not None:
            keys[:, :, plan.offset : plan.extent] = key_states
            values[:, :, plan.offset : plan.extent] = value_states
        else:
            assert plan.rows is not None and plan.slots is not None
            rows, slots = plan.rows.to(keys.device), plan.slots.to(keys.device)
            keys[rows, :, slots] = key_states.transpose(1, 2)
            values[rows, :, slots] = value_states.transpose(1, 2)
        return keys[:, :, : plan.extent], values[:, :, : plan.extent]

    def select(self, requests: Tensor) -> None:
        """Keep these rows."""
        if self.keys is not None and self.values is not None:
            self.keys = self.keys.index_select(0, requests.to(self.keys.device))
            self.values = self.values.index_select(0, requests.to(self.values.device))

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that a query can see at most, and the position of the first."""
        return self.plan.extent, 0

    def get_seq_length(self) -> int:
        """Position of the first new token, where all rows share it."""
        return max(self.plan.start, default=0)

    def get_max_length(self) -> int:
        """No limit of its own."""
        return -1


class RaggedCache(Cache):  # type: ignore[misc]  # transformers classes are untyped
    """The layers of one batch; `begin` before each pass, `retain` when requests end."""

    def __init__(self, capacity: int) -> None:
        super().__init__(layers=[])
        self.plan = Plan(capacity)

    def begin(self, start: Sequence[int], width: int, device: torch.device) -> None:
        """Plan the next pass: `width` positions after each row's start."""
        self.plan.begin(start, width, device)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """What an attention layer calls: store new states -> all states up to the longest row."""
        while len(self.layers) <= layer_idx:
            self.layers.append(RaggedLayer(self.plan))
        states: tuple[Tensor, Tensor] = self.layers[layer_idx].update(key_states, value_states)
        return states

    def retain(self, requests: Sequence[int], device: torch.device) -> None:
        """Keep these rows, in one copy."""
        index = torch.tensor(list(requests), device=device, dtype=torch.long)
        for layer in self.layers:
            layer.select(index)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Position of the first new token, where all rows share it."""
        return max(self.plan.start, default=0)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Keys that a query can see at most, and the position of the first."""
        return self.plan.extent, 0

    @property
    def used_layers(self) -> int:
        """How many layers have stored something."""
        return sum(layer.is_initialized for layer in self.layers)
