"""The math of a pre-norm decoder: norm, attention over a ragged cache, gated MLP, one layer, a stack of them.

Rows are tokens, flat over a ragged batch: x [M, hidden]. One pass is one call whatever the batch looks like.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn.cache import KVCache, Rows
from nsd.nn.config import DecoderConfig
from nsd.nn.rope import Rotary, rotate
from nsd.nn.weights import LayerWeights

Angles = tuple[Tensor, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension; the mean square in float32 at least."""
    wide = x if x.dtype is torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed.to(weight.dtype) * weight).to(x.dtype)


class Decoder:
    """A stack of layers with its rotary table. norm [hidden] is the final norm, None where the model has none.

    It holds weights, never state: caches are made by `cache` and handed to every call.
    """

    def __init__(
        self, config: DecoderConfig, layers: Sequence[LayerWeights], norm: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.layers = tuple(layers)
        self.norm = norm
        self.dtype = dtype
        self.device = layers[0].attention_norm.device
        self.rotary = Rotary(config, self.device)

    @property
    def parameters(self) -> int:
        """How many numbers the layers and the final norm hold."""
        return sum(layer.parameters for layer in self.layers) + (0 if self.norm is None else self.norm.numel())

    def cache(self, batch: int, room: int) -> KVCache:
        """An empty cache with room for so many positions per request (it grows when they run out)."""
        return KVCache(self.config, batch, room, self.device, self.dtype)

    def run(
        self,
        x: Tensor,
        rows: Rows,
        cache: KVCache,
        taps: Sequence[int] = (),
        side: Tensor | None = None,
        extra: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """One pass: x [M, hidden] -> residual stream after the last layer [M, hidden], before the final norm, and taps.

        Tap i is the stream after i layers (0 = x itself), [M, len(taps), hidden] in the order asked for. side
        [M, hidden] is the token embedding of layers with two sources, x then the feature. extra adds the low-rank part
        of the output projections. Keys and values are written to `rows`; `cache.append(rows)` keeps them.
        """
        angles = self.rotary.angles(rows.position, x.dtype)
        scale = self._query_scale(rows.position, x.dtype)
        tapped = {0: x}
        for index, layer in enumerate(self.layers):
            read, residual = self._sources(layer, x, side)
            x = residual + self._attention(index, layer, read, rows, cache, angles, scale, extra)
            x = x + self._mlp(layer, rms_norm(x, layer.mlp_norm, self.config.eps))
            if index + 1 in taps:
                tapped[index + 1] = x
        return x, torch.stack([tapped[tap] for tap in taps], 1) if taps else None

    def inject(self, context: Tensor, rows: Rows, cache: KVCache) -> None:
        """Append and keep keys and values made from outside features alone: context [M, hidden], for every layer."""
        angles = self.rotary.angles(rows.position, context.dtype)
        c = self.config
        for index, layer in enumerate(self.layers):
            k, v = layer.qkv.part(c.q_size, c.q_size + 2 * c.kv_size)(context).chunk(2, -1)
            self._write(index, layer, k, v, rows, cache, angles)
        cache.append(rows)
        cache.keep_all()

    def normed(self, x: Tensor) -> Tensor:
        """The final norm, where there is one."""
        return x if self.norm is None else rms_norm(x, self.norm, self.config.eps)

    def _sources(self, layer: LayerWeights, x: Tensor, side: Tensor | None) -> tuple[Tensor, Tensor]:
        """What attention reads, and what its output is added to."""
        eps = self.config.eps
        if layer.feature_norm is None:
            return rms_norm(x, layer.attention_norm, eps), x
        assert side is not None, "layers with two sources read a token embedding beside the feature"
        feature = rms_norm(x, layer.feature_norm, eps)
        read = torch.cat((rms_norm(side, layer.attention_norm, eps), feature), -1)
        return read, feature if self.config.normed_residual else x

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        read: Tensor,
        rows: Rows,
        cache: KVCache,
        angles: Angles,
        scale: Tensor | None,
        extra: bool,
    ) -> Tensor:
        c = self.config
        q, k, v = torch.split(layer.qkv(read), [c.q_size, c.kv_size, c.kv_size], -1)
        self._write(index, layer, k, v, rows, cache, angles)
        q, gate = torch.unflatten(q, -1, (c.heads, -1)), None
        if c.gated:
            q, gate = q.chunk(2, -1)
        if layer.q_norm is not None:
            q = rms_norm(q, layer.q_norm, c.eps)
        q = rotate(q, angles)
        if scale is not None:
            q = q * scale
        mixed = attend(q, *cache.read(index, rows), rows, c)
        if gate is not None:
            mixed = mixed * torch.sigmoid(gate.flatten(-2))
        out = layer.o(mixed)
        return out + layer.o_extra(mixed) if extra and layer.o_extra is not None else out

    def _write(
        self, index: int, layer: LayerWeights, k: Tensor, v: Tensor, rows: Rows, cache: KVCache, angles: Angles
    ) -> None:
        k, v = (torch.unflatten(t, -1, (self.config.kv_heads, -1)) for t in (k, v))
        if layer.k_norm is not None:
            k = rms_norm(k, layer.k_norm, self.config.eps)
        cache.write(index, rows, rotate(k, angles), v)

    def _mlp(self, layer: LayerWeights, x: Tensor) -> Tensor:
        gate, up = layer.gate_up(x).chunk(2, -1)
        return layer.down(functional.silu(gate) * up)

    def _query_scale(self, position: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The extra query scale of Llama 4 and Ministral 3: [M, 1, 1]; None where the model has none.

        Source: transformers src/transformers/models/ministral3/modeling_ministral3.py.
        """
        c = self.config
        if not c.query_beta:
            return None
        return (1 + c.query_beta * torch.log1p((position // c.query_context).float())).to(dtype)[:, None, None]


def attend(q: Tensor, keys: Tensor, values: Tensor, rows: Rows, config: DecoderConfig) -> Tensor:
    """Attention of q [M, heads, head_dim] over keys, values [B, kv_heads, span, head_dim] -> [M, heads * head_dim].

    The query heads that share a key head are laid side by side as further queries, so that keys are never copied.
    """
    c, table = config, rows.padded(q)
    batch, width = table.shape[:2]
    folded = torch.unflatten(table, 2, (c.kv_heads, c.groups)).permute(0, 2, 1, 3, 4).flatten(2, 3)
    mixed = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=rows.mask)
    mixed = torch.unflatten(mixed, 2, (width, c.groups)).permute(0, 2, 1, 3, 4).reshape(batch, width, -1)
    return rows.flat(mixed)
