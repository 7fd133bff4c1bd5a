"""Attention masks of ragged passes, for every kind of attention layer that a model mixes.

A query at position t of a row sees keys 0..t of that row, or fewer under a window. Padding queries are ordinary
positions past the row's end: they see something finite, and nobody reads them.
Source: transformers src/transformers/masking_utils.py (meaning of window and chunk).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
STATELESS = ("moe", "mlp")
"""Layer types without attention: nothing to cache, nothing to mask."""

LINEAR = "linear_attention"
"""Recurrent layers: a state of their own, nothing to mask."""


@dataclass(frozen=True, slots=True)
class Span:
    """How far back a layer looks: everything, the last `size` positions, or its own chunk of `size`."""

    kind: str
    size: int | None = None

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Which keys a query sees, both as positions that broadcast."""
        seen = key <= query
        if self.size is None:
            return seen
        if self.kind == SLIDING:
            return seen & (key > query - self.size)
        return seen & (key // self.size == query // self.size)


def spans(config: Any) -> dict[str, Span]:
    """The kinds of attention of a model by layer type, as its configuration has them."""
    window, chunk = getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        if window is not None and getattr(config, "use_sliding_window", True):
            kinds = [SLIDING]
        else:
            kinds = [FULL if chunk is None else CHUNKED]
    size = {FULL: None, SLIDING: window, CHUNKED: chunk}
    return {kind: Span(kind, size.get(kind)) for kind in dict.fromkeys(kinds) if kind not in (*STATELESS, LINEAR)}


def build(kinds: dict[str, Span], positions: Tensor, extent: int, additive: torch.dtype | None) -> Any:
    """Masks for queries at positions [B, n] over `extent` keys: [B, 1, n, extent], one for each kind if kinds differ.

    Boolean, or with `additive` a float mask of that dtype (0 = seen), as eager attention wants.
    """
    query = positions[:, None, :, None]
    key = torch.arange(extent, device=positions.device)
    masks = {name: span.sees(query, key) for name, span in kinds.items()}
    if additive is not None:
        hidden = torch.finfo(additive).min
        masks = {n: torch.zeros_like(m, dtype=additive).masked_fill_(~m, hidden) for n, m in masks.items()}
    return masks if len(masks) > 1 else next(iter(masks.values()))
