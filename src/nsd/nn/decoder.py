"""The math of a pre-norm decoder: norm, attention over a ragged cache, gated MLP, one layer, a stack of them.

Rows are tokens, flat over a ragged batch: x [M, hidden]. One pass is one call whatever the batch looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn.cache import KVCache, Rows
from nsd.nn.config import DecoderConfig
from nsd.nn.onednn import packed_layer
from nsd.nn.rope import Rotary, rotate
from nsd.nn.weights import LayerWeights, Projection

Angles = tuple[Tensor, Tensor]

FEW = 32
"""Rows up to which the host's work for each operation counts more than the operation."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension; the mean square in float32 at least."""
    if weight.dim() == 1 and weight.dtype is x.dtype:
        return functional.rms_norm(x, weight.shape, weight, eps)
    wide = x if x.dtype is torch.float64 else x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed.to(weight.dtype) * weight).to(x.dtype)


class Norm:
    """An RMSNorm of a stack, prepared once: weight [hidden].

    On a CPU torch has one kernel for layer norm and a chain of seven for RMS norm. A row beside its own negative has
    mean 0 and the row's mean square as its variance, so the layer norm of that pair is the RMS norm in half the time.
    """

    def __init__(self, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        self.weight, self.eps = weight, eps
        self.size = weight.numel()
        plain = weight.device.type == "cpu" and weight.dtype is dtype
        self._paired = torch.cat((weight, weight)) if plain else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normed rows of x [M, hidden]."""
        if self._paired is None or x.shape[0] > FEW or x.dtype is not self._paired.dtype:
            return rms_norm(x, self.weight, self.eps)
        pair = torch.cat((x, -x), -1)
        normed = functional.layer_norm(pair, (2 * self.size,), self._paired, None, self.eps)
        return normed.narrow(-1, 0, self.size).contiguous()


class Decoder:
    """A stack of layers with its rotary table. norm [hidden] is the final norm, None where the model has none.

    It holds weights, never state: caches are made by `cache` and handed to every call.
    """

    def __init__(
        self, config: DecoderConfig, layers: Sequence[LayerWeights], norm: Tensor | None, dtype: torch.dtype
    ) -> None:
        self.config = config
        self.layers = tuple(map(packed_layer, layers))
        self.norm = norm
        self.dtype = dtype
        self.device = layers[0].attention_norm.device
        self.rotary = Rotary(config, self.device)
        eps = config.eps
        self._norms = [(Norm(a.attention_norm, eps, dtype), Norm(a.mlp_norm, eps, dtype)) for a in self.layers]
        self._final = None if norm is None else Norm(norm, eps, dtype)
        self._head_norms = [_head_norm(layer, config) for layer in self.layers]

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
        scale = query_scale(self.config, rows.position, x.dtype)
        tapped = {0: x}
        for index, layer in enumerate(self.layers):
            read, residual = self._sources(index, x, side)
            x = residual + self._attention(index, layer, read, rows, cache, angles, scale, extra)
            x = x + self._mlp(layer, self._norms[index][1](x))
            if index + 1 in taps:
                tapped[index + 1] = x
        return x, torch.stack([tapped[tap] for tap in taps], 1) if taps else None

    def inject(self, context: Tensor, rows: Rows, cache: KVCache) -> None:
        """Append and keep keys and values made from outside features alone: context [M, hidden], for every layer."""
        angles = self.rotary.angles(rows.position, context.dtype)
        for index, layer in enumerate(self.layers):
            k, v = self._keys_values[index](context).chunk(2, -1)
            self._write(index, layer, k, v, rows, cache, angles)
        cache.append(rows)
        cache.keep_all()

    @cached_property
    def _keys_values(self) -> list[Projection]:
        """The part of each layer's qkv that makes keys and values."""
        first, last = self.config.q_size, self.config.q_size + 2 * self.config.kv_size
        return [layer.qkv.part(first, last) for layer in self.layers]

    def normed(self, x: Tensor) -> Tensor:
        """The final norm, where there is one."""
        return x if self._final is None else self._final(x)

    def _sources(self, index: int, x: Tensor, side: Tensor | None) -> tuple[Tensor, Tensor]:
        """What attention reads, and what its output is added to."""
        norm, feature_norm = self._norms[index][0], self.layers[index].feature_norm
        if feature_norm is None:
            return norm(x), x
        assert side is not None, "layers with two sources read a token embedding beside the feature"
        feature = rms_norm(x, feature_norm, self.config.eps)
        return torch.cat((norm(side), feature), -1), feature if self.config.normed_residual else x

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
        c, qkv, gate = self.config, layer.qkv(read), None
        if c.gated:
            q, gate = torch.unflatten(qkv[:, : c.q_size], -1, (c.heads, -1)).chunk(2, -1)
            qkv = torch.cat((q.flatten(1), qkv[:, c.q_size :]), -1)
        heads = qkv.reshape(qkv.shape[0], -1, c.head_dim)
        turning, v = torch.split(heads, [c.heads + c.kv_heads, c.kv_heads], 1)
        norm = self._head_norms[index]
        if norm is not None:
            turning = rms_norm(turning, norm, c.eps)
        q, k = torch.split(rotate(turning, angles), [c.heads, c.kv_heads], 1)
        cache.write(index, rows, k, v)
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
        return layer.down(functional.silu(gate).mul_(up))


def query_scale(config: DecoderConfig, position: Tensor, dtype: torch.dtype) -> Tensor | None:
    """The extra query scale of Llama 4 and Ministral 3: positions [...] -> [..., 1, 1]; None where a model has none.

    Source: transformers src/transformers/models/ministral3/modeling_ministral3.py.
    """
    if not config.query_beta:
        return None
    scale = 1 + config.query_beta * torch.log1p((position // config.query_context).float())
    return scale.to(dtype)[..., None, None]


def _head_norm(layer: LayerWeights, config: DecoderConfig) -> Tensor | None:
    """Weights of the norms on query and key heads, side by side as the heads lie: [heads + kv_heads, head_dim]."""
    if layer.q_norm is None or layer.k_norm is None:
        return None
    return torch.cat((layer.q_norm.expand(config.heads, -1), layer.k_norm.expand(config.kv_heads, -1)))


def attend(q: Tensor, keys: Tensor, values: Tensor, rows: Rows, config: DecoderConfig) -> Tensor:
    """Attention of q [M, heads, head_dim] over keys, values [B, kv_heads, span, head_dim] -> [M, heads * head_dim].

    The query heads that share a key head are laid side by side as further queries, so that keys are never copied.
    """
    c, table = config, rows.padded(q)
    batch, width = table.shape[:2]
    if rows.causal:
        mixed = functional.scaled_dot_product_attention(
            table.transpose(1, 2), keys, values, is_causal=True, enable_gqa=c.groups > 1
        )
        return rows.flat(mixed.transpose(1, 2).flatten(2))
    folded = (
        torch.unflatten(table, 2, (c.kv_heads, c.groups)).transpose(1, 2).reshape(batch, c.kv_heads, -1, c.head_dim)
    )
    mixed = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=rows.mask)
    mixed = torch.unflatten(mixed, 2, (width, c.groups)).transpose(1, 2).reshape(batch, width, -1)
    return rows.flat(mixed)
