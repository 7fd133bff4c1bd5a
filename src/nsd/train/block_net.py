"""DFlash's and DSpark's networks as a trainable module: blocks of masks over the target's stored states.

    context  c_t = norm(fc(taps at t))                      keys and values of every layer, t = 0..n - 1
    block    anchor x_n, MASK, MASK, ...                    queries and keys of every layer, at positions n, n + 1, ...

A block sees the context before its anchor and all of itself. In a step, some anchors of every row are trained, each
with a block of its own, side by side in one pass. Slot k's law is compared with the target's p along the stored text.

DSpark adds a bias from the token before (vanilla Markov head), w2 w1[x_k-1], inside the softmax: that is the law it
draws from. In training the token before is the text's. Its confidence head learns 1 - TV of its slot, and nothing else
learns from that. DFlash's anchor slot predicts nothing; DSpark's predicts the token behind the anchor.

Source: Chen et al., "DFlash" (arXiv 2602.06036); DSpark (arXiv 2607.05147); deepseek-ai/DeepSpec
deepspec/modeling/dspark; names as in speculators src/speculators/models/dspark/model_definitions.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn import DecoderConfig, Rotary, Shapes, layer_shapes, rms_norm
from nsd.train.corpus import Batch, chain_mask
from nsd.train.layer import Layer
from nsd.train.student import Rows, Weighted

ANCHORS = 64
"""Anchors of a row that one pass takes, if no other number is asked for."""

W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
CONFIDENCE, CONFIDENCE_BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"


def block_config(target: DecoderConfig, layers: int) -> DecoderConfig:
    """Layers of the target's width with norms on queries and keys, which all layouts have."""
    return replace(target, layers=layers, qk_norm=True, gated=False, zero_centred=False, query_beta=0.0)


class BlockStudent(Weighted):
    """Weights of a block drafter: fc and its norm, layers, the final norm, a gain; for DSpark both heads.

    sizes are those of the target's vocabulary and of the draft's; rank is the Markov head's.
    """

    def __init__(
        self, kind: str, config: DecoderConfig, taps: int, block: int, mask: int, sizes: tuple[int, int], rank: int
    ) -> None:
        hidden = config.hidden
        shapes: Shapes = {"fc.weight": (hidden, taps * hidden), "hidden_norm.weight": (hidden,)}
        shapes |= {"norm.weight": (hidden,), "log_gain": ()}
        for i in range(config.layers):
            shapes |= layer_shapes(config, f"layers.{i}.")
        if kind == "dspark":
            shapes |= {W1: (sizes[0], rank), W2: (sizes[1], rank)}
            shapes |= {CONFIDENCE: (1, hidden + rank), CONFIDENCE_BIAS: (1,)}
        super().__init__(shapes)
        self.kind, self.config, self.mask, self.limit, self.rank = kind, config, mask, block, rank
        self.anchors = ANCHORS
        self.first = 0 if kind == "dspark" else 1
        self.by_id = (W2,) if kind == "dspark" else ()
        self.rotary = Rotary(config, torch.device("cpu"))

    @torch.no_grad()
    def start_from(self, layers: Sequence[Mapping[str, Tensor]] | None, norm: Tensor | None) -> None:
        """Begin as the target's last layers over its last tap; at random where they are of another kind (None)."""
        self.noise(self.names)
        self["log_gain"].zero_()
        self["fc.weight"][:, -self.config.hidden :] += torch.eye(self.config.hidden)
        if layers is not None:
            self["hidden_norm.weight"].copy_(layers[0]["input_layernorm.weight"])
            for i, layer in enumerate(layers):
                for name in layer_shapes(self.config, ""):
                    if name in layer:
                        self[f"layers.{i}.{name}"].copy_(layer[name])
        if norm is not None:
            self["norm.weight"].copy_(norm)
        if self.kind == "dspark":
            self[W1].mul_(5.0)
            for name in (W2, CONFIDENCE, CONFIDENCE_BIAS):
                self[name].zero_()

    def map(self) -> Tensor | None:
        """The Markov head's second matrix."""
        return self[W2] if self.kind == "dspark" else None

    def normed(self, x: Tensor) -> Tensor:
        """The final norm; the gain is part of its weight when it is exported."""
        return rms_norm(x, self["norm.weight"] * self["log_gain"].exp(), self.config.eps)

    def aside(self, rows: Rows, kept: Tensor) -> Tensor | None:
        """Cross-entropy of the confidence head against 1 - TV."""
        if self.kind != "dspark" or rows.read is None or not len(kept):
            return None
        seen = torch.cat((rows.states.detach(), rows.read.detach()), -1)
        sure = functional.linear(seen, self[CONFIDENCE], self[CONFIDENCE_BIAS]).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(sure, kept)

    def rows(self, batch: Batch, embedding: Tensor, depths: int, wanted: int, key: str | None) -> list[Rows]:
        """Rows of each slot; with a key, up to `anchors` anchors of every row, else all."""
        masks = [chain_mask(batch.kinds, depth, wanted) for depth in range(1, depths + 1)]
        length = batch.kinds.shape[1]
        with self.products():
            context = self._context(batch.taps)
        parts: list[list[Rows]] = [[] for _ in range(depths)]
        start = torch.arange(len(batch.kinds)).unsqueeze(-1) * length
        for places, real in _anchors(masks[0], key, self.anchors):
            with self.products():
                x = self._block(batch.tokens.gather(1, places + 1), places, context, embedding)
            states = self.normed(x)
            for depth, mask in enumerate(masks):
                good = real & mask.gather(1, places)
                before = batch.tokens.gather(1, (places + 1 + depth).clamp(max=length))[good]
                read = functional.embedding(before, self[W1]) if self.kind == "dspark" else None
                parts[depth].append(Rows(states[:, :, self.first + depth][good], (start + places)[good], read))
        return [_joined(mine) for mine in parts]

    def _context(self, taps: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of every layer: [B, kv_heads, T, d] each."""
        fused = functional.linear(taps.flatten(-2), self["fc.weight"]).float()
        seen = rms_norm(fused, self["hidden_norm.weight"], self.config.eps)
        angles = self.rotary.angles(torch.arange(taps.shape[1]), torch.float32)
        pairs = [self._layer(i).keys(seen, angles) for i in range(self.config.layers)]
        return [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in pairs]

    def _block(
        self, anchors: Tensor, places: Tensor, context: Sequence[tuple[Tensor, Tensor]], embedding: Tensor
    ) -> Tensor:
        """Streams [B, A, S, H] of blocks behind positions `places` [B, A]."""
        size = self.first + (self.limit or 0)
        ids = torch.full((*anchors.shape, size), self.mask)
        ids[..., 0] = anchors
        position = places.unsqueeze(-1) + 1 + torch.arange(size)
        angles = self.rotary.angles(position, torch.float32)
        hidden = torch.arange(context[0][0].shape[2]) > places[:, None, None, :, None, None]
        x = functional.embedding(ids, embedding).float()
        for i, (k, v) in enumerate(context):
            layer = self._layer(i)
            x = layer(x, layer.norm(x, "input_layernorm"), angles, _Sight(k, v, hidden, self.config))
        return x

    def _layer(self, number: int) -> Layer:
        prefix = f"layers.{number}."
        return Layer(self.config, lambda name: self[prefix + name] if prefix + name in self.names else None)


class _Sight:
    """Attention of blocks q [B, A, S, heads, d]: context k, v [B, kv_heads, T, d] unless hidden [B, 1, 1, A, 1, T], and
    each block's own keys."""

    def __init__(self, k: Tensor, v: Tensor, hidden: Tensor, config: DecoderConfig) -> None:
        self.k, self.v, self.hidden, self.config = k, v, hidden, config

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        c, length = self.config, self.k.shape[2]
        batch, blocks, size = q.shape[:3]
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
