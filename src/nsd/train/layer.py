"""One decoder layer with gradients: the math of `nsd.nn`, over tensors looked up by name.

It serves every drafter in training. Attention comes from outside, since who sees whom is what tells mechanisms apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn import DecoderConfig, norm_weight, rms_norm, rotate

Angles = tuple[Tensor, Tensor]
Look = Callable[[str], Tensor | None]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q [..., heads, d], k and v [..., kv_heads, d] -> mixed [..., heads * d]."""
Extra = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer's shape and where its tensors are: look(name) gives one, None where the layer has none of that name.

    extra is added to the output projection: mixed [..., heads * d] -> [..., H].
    """

    config: DecoderConfig
    look: Look
    extra: Extra | None = None

    def weight(self, name: str) -> Tensor:
        """A tensor that must be there."""
        found = self.look(name)
        assert found is not None, name
        return found

    def norm(self, x: Tensor, name: str) -> Tensor:
        """An RMSNorm by its name."""
        return rms_norm(x, norm_weight(self.weight(f"{name}.weight"), self.config.zero_centred), self.config.eps)

    def linear(self, x: Tensor, name: str) -> Tensor:
        """A projection by its name."""
        return functional.linear(x, self.weight(f"{name}.weight"), self.look(f"{name}.bias"))

    def keys(self, read: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        """Turned keys and values of rows [..., in]: [..., kv_heads, d] each."""
        c = self.config
        k, v = (torch.unflatten(self.linear(read, f"self_attn.{part}_proj"), -1, (c.kv_heads, -1)) for part in "kv")
        if c.qk_norm:
            k = self.norm(k, "self_attn.k_norm")
        return rotate(k.float(), angles), v

    def __call__(self, x: Tensor, read: Tensor, angles: Angles, attention: Attention) -> Tensor:
        """The stream x [..., H] after the layer; its attention reads `read` (x normed, or more)."""
        c, gate = self.config, None
        q = torch.unflatten(self.linear(read, "self_attn.q_proj"), -1, (c.heads, -1))
        if c.gated:
            q, gate = q.chunk(2, -1)
        k, v = self.keys(read, angles)
        if c.qk_norm:
            q = self.norm(q, "self_attn.q_norm")
        mixed = attention(rotate(q.float(), angles), k, v)
        if gate is not None:
            mixed = mixed * torch.sigmoid(gate.flatten(-2))
        x = x + self.linear(mixed, "self_attn.o_proj")
        if self.extra is not None:
            x = x + self.extra(mixed)
        inner = self.norm(x, "post_attention_layernorm")
        gated = functional.silu(self.linear(inner, "mlp.gate_proj")) * self.linear(inner, "mlp.up_proj")
        return x + self.linear(gated, "mlp.down_proj")


def looked_up(tensors: Mapping[str, Tensor], prefix: str) -> Look:
    """Tensors of a dictionary by their names behind a prefix."""
    return lambda name: tensors.get(prefix + name)
