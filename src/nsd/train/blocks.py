"""Blocks of masks along stored text, whatever network fills them in: what DFlash, DSpark and Nemotron share.

    context                                            keys and values of every layer at t = 0..n - 1
    block    anchor x_n, MASK, MASK, ...               queries and keys of every layer, at positions n, n + 1, ...

A block sees the context before its anchor and all of itself. In a step, some anchors of every row are trained, each
with a block of its own, side by side in one pass. Slot k's law is compared with the target's p along the stored text.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn import DecoderConfig, Rotary, Shapes, query_scale
from nsd.train.corpus import Batch, chain_mask
from nsd.train.layer import Layer
from nsd.train.student import Rows, Weighted

ANCHORS = 64
"""Anchors of a row that one pass takes, if no other number is asked for."""

Context = list[tuple[Tensor, Tensor]]
"""Keys and values [B, kv_heads, T, d] of every layer."""


class Blocks(Weighted):
    """A student that fills in blocks. first is the slot that proposes first: 0 if the anchor's own does, else 1."""

    def __init__(self, shapes: Shapes, config: DecoderConfig, block: int, mask: int, first: int) -> None:
        super().__init__(shapes)
        self.config, self.limit, self.mask, self.first = config, block, mask, first
        self.anchors = ANCHORS
        self.rotary = Rotary(config, torch.device("cpu"))

    @abstractmethod
    def context(self, batch: Batch, embedding: Tensor) -> Context:
        """What blocks see of the text before them; embedding [V, H] is the target's."""

    @abstractmethod
    def layer(self, number: int) -> Layer:
        """A layer as blocks run it."""

    @abstractmethod
    def normed(self, x: Tensor) -> Tensor:
        """What the head reads of the last layer's stream."""

    def before(self, tokens: Tensor) -> Tensor | None:
        """What the drafter's own map reads of the tokens [n] before the slots."""
        del tokens
        return None

    def rows(self, batch: Batch, embedding: Tensor, depths: int, wanted: int, key: str | None) -> list[Rows]:
        """Rows of each slot; with a key, up to `anchors` anchors of every row, else all."""
        masks = [chain_mask(batch.kinds, depth, wanted) for depth in range(1, depths + 1)]
        length = batch.kinds.shape[1]
        with self.products():
            context = self.context(batch, embedding)
        parts: list[list[Rows]] = [[] for _ in range(depths)]
        start = torch.arange(len(batch.kinds)).unsqueeze(-1) * length
        for places, real in _anchors(masks[0], key, self.anchors):
            with self.products():
                x = self._block(batch.tokens.gather(1, places + 1), places, context, embedding)
            states = self.normed(x)
            for depth, mask in enumerate(masks):
                good = real & mask.gather(1, places)
                before = batch.tokens.gather(1, (places + 1 + depth).clamp(max=length))[good]
                read = self.before(before)
                parts[depth].append(Rows(states[:, :, self.first + depth][good], (start + places)[good], read))
        return [_joined(mine) for mine in parts]

    def _block(self, anchors: Tensor, places: Tensor, context: Context, embedding: Tensor) -> Tensor:
        """Streams [B, A, S, H] of blocks behind positions `places` [B, A]."""
        size = self.first + (self.limit or 0)
        ids = torch.full((*anchors.shape, size), self.mask)
        ids[..., 0] = anchors
        position = places.unsqueeze(-1) + 1 + torch.arange(size)
        angles = self.rotary.angles(position, torch.float32)
        scale = query_scale(self.config, position, torch.float32)
        hidden = torch.arange(context[0][0].shape[2]) > places[:, None, None, :, None, None]
        x = functional.embedding(ids, embedding).float()
        for i, (k, v) in enumerate(context):
            layer = self.layer(i)
            x = layer(x, layer.norm(x, "input_layernorm"), angles, _Sight(k, v, hidden, self.config, scale))
        return x


class _Sight:
    """Attention of blocks q [B, A, S, heads, d]: context k, v [B, kv_heads, T, d] unless hidden [B, 1, 1, A, 1, T], and
    each block's own keys; scale [B, A, S, 1, 1] is the queries' own, where the model has one."""

    def __init__(self, k: Tensor, v: Tensor, hidden: Tensor, config: DecoderConfig, scale: Tensor | None) -> None:
        self.k, self.v, self.hidden, self.config, self.scale = k, v, hidden, config, scale

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        c, length = self.config, self.k.shape[2]
        batch, blocks, size = q.shape[:3]
        if self.scale is not None:
            q = q * self.scale
        q = torch.unflatten(q, 3, (c.kv_heads, c.groups)).permute(0, 3, 4, 1, 2, 5) * c.head_dim**-0.5
        seen = q.flatten(2, 4) @ self.k.transpose(-1, -2)
        scores = torch.unflatten(seen, 2, (c.groups, blocks, size)).masked_fill(self.hidden, -torch.inf)
        own = torch.einsum("bkgasd,baukd->bkgasu", q, k)
        law = torch.softmax(torch.cat((scores.float(), own.float()), -1), -1)
        mixed = torch.unflatten(law[..., :length].flatten(2, 4) @ self.v, 2, (c.groups, blocks, size))
        mixed = mixed + torch.einsum("bkgasu,baukd->bkgasd", law[..., length:], v)
        return mixed.permute(0, 3, 4, 1, 2, 5).reshape(batch, blocks, size, -1)


def _anchors(good: Tensor, key: str | None, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Positions [B, A] before anchors and which of them count, drawn by a key, `most` of a row, or all in groups."""
    length = good.shape[1]
    if key is None:
        for first in range(0, length, ANCHORS):
            mine = good[:, first : first + ANCHORS]
            if mine.any():
                yield torch.arange(first, first + mine.shape[1]).expand(len(good), -1), mine
        return
    generator = torch.Generator().manual_seed(random.Random(key).randrange(2**62))
    lots = torch.rand(good.shape, generator=generator).masked_fill(~good, -1.0)
    best, places = lots.topk(min(most, length), 1)
    yield places, best >= 0


def _joined(parts: Sequence[Rows]) -> Rows:
    """Parts one after another."""
    reads = [part.read for part in parts if part.read is not None]
    states, at = torch.cat([part.states for part in parts]), torch.cat([part.at for part in parts])
    return Rows(states, at, torch.cat(reads) if reads else None)
