"""Weights of a decoder, apart from the math that uses them: fused projections, and the names they are stored under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn.config import DecoderConfig

Shapes = dict[str, tuple[int, ...]]


class Projection(Protocol):
    """A linear map x [M, in] -> [M, out]. Other storage forms (int8) only need these members."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""

    def part(self, first: int, last: int) -> Projection:
        """The map to outputs first..last - 1 only, sharing storage."""

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of its matrix, as it computes with them: [n, in]."""

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A plain linear map: weight [out, in], bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows."""
        return functional.linear(x, self.weight, self.bias)

    def part(self, first: int, last: int) -> Dense:
        """Outputs first..last - 1 only."""
        return Dense(self.weight[first:last], None if self.bias is None else self.bias[first:last])

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the weight: [n, in]."""
        return functional.embedding(ids, self.weight)

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return self.weight.numel() + (0 if self.bias is None else self.bias.numel())


@dataclass(frozen=True, slots=True)
class LowRank:
    """A low-rank addition to a projection: scale * up(down(x)); down [r, in], up [out, r]."""

    down: Tensor
    up: Tensor
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """The addition for rows x [M, in]."""
        return functional.linear(functional.linear(x, self.down), self.up) * self.scale


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. qkv stacks query (and gate), key and value outputs; gate_up stacks the MLP's two inputs.

    Norm weights are ready to multiply with (1 already added where stored zero-centred). feature_norm belongs to layers
    with two sources; o_extra is added to the output projection in passes that ask for it.
    """

    attention_norm: Tensor
    mlp_norm: Tensor
    qkv: Projection
    o: Projection
    gate_up: Projection
    down: Projection
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    feature_norm: Tensor | None = None
    o_extra: LowRank | None = None

    @property
    def parameters(self) -> int:
        """How many numbers the layer holds."""
        maps = sum(p.parameters for p in (self.qkv, self.o, self.gate_up, self.down))
        norms = (self.attention_norm, self.mlp_norm, self.q_norm, self.k_norm, self.feature_norm)
        extra = 0 if self.o_extra is None else self.o_extra.down.numel() + self.o_extra.up.numel()
        return maps + sum(n.numel() for n in norms if n is not None) + extra

    def mapped(self, form: Callable[[Dense], Projection], dtype: torch.dtype) -> LayerWeights:
        """The same layer with its four projections in another storage form and its norms in dtype."""

        def norm(weight: Tensor | None) -> Tensor | None:
            return None if weight is None else weight.to(dtype)

        qkv, o, gate_up, down = (
            form(p) if isinstance(p, Dense) else p for p in (self.qkv, self.o, self.gate_up, self.down)
        )
        return LayerWeights(
            self.attention_norm.to(dtype),
            self.mlp_norm.to(dtype),
            qkv,
            o,
            gate_up,
            down,
            norm(self.q_norm),
            norm(self.k_norm),
            norm(self.feature_norm),
            self.o_extra,
        )

    def with_projections(self, qkv: Projection, o: Projection, gate_up: Projection, down: Projection) -> LayerWeights:
        """The same layer with other forms of its four projections."""
        return replace(self, qkv=qkv, o=o, gate_up=gate_up, down=down)

    def with_extra(self, extra: LowRank) -> LayerWeights:
        """The same layer with a low-rank addition on its output projection."""
        return replace(self, o_extra=extra)


def layer_shapes(config: DecoderConfig, prefix: str) -> Shapes:
    """Names and shapes of one layer's tensors as transformers stores them, prefix such as "layers.0."."""
    c, read = config, config.hidden * config.sources
    shapes: Shapes = {
        "input_layernorm.weight": (c.hidden,),
        "post_attention_layernorm.weight": (c.hidden,),
        "self_attn.q_proj.weight": (c.q_size, read),
        "self_attn.k_proj.weight": (c.kv_size, read),
        "self_attn.v_proj.weight": (c.kv_size, read),
        "self_attn.o_proj.weight": (c.hidden, c.heads * c.head_dim),
        "mlp.gate_proj.weight": (c.intermediate, c.hidden),
        "mlp.up_proj.weight": (c.intermediate, c.hidden),
        "mlp.down_proj.weight": (c.hidden, c.intermediate),
    }
    biased = [f"self_attn.{n}_proj" for n in "qkv"] * c.qkv_bias + ["self_attn.o_proj"] * c.o_bias
    biased += [f"mlp.{n}_proj" for n in ("gate", "up", "down")] * c.mlp_bias
    shapes |= {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in biased}
    if c.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (c.head_dim,), "self_attn.k_norm.weight": (c.head_dim,)}
    if c.sources > 1:
        shapes["hidden_norm.weight"] = (c.hidden,)
    return {prefix + name: shape for name, shape in shapes.items()}


def layer_weights(config: DecoderConfig, tensors: Mapping[str, Tensor], prefix: str) -> LayerWeights:
    """One layer from tensors named as in `layer_shapes`, already checked, on their device and in their dtype."""

    def norm(name: str) -> Tensor | None:
        weight = tensors.get(f"{prefix}{name}.weight")
        return None if weight is None else norm_weight(weight, config.zero_centred)

    def stacked(*names: str) -> Dense:
        weights = [tensors[f"{prefix}{name}.weight"] for name in names]
        biases = [tensors[f"{prefix}{name}.bias"] for name in names if f"{prefix}{name}.bias" in tensors]
        return Dense(torch.cat(weights), torch.cat(biases) if biases else None)

    attention_norm, mlp_norm = norm("input_layernorm"), norm("post_attention_layernorm")
    assert attention_norm is not None and mlp_norm is not None
    return LayerWeights(
        attention_norm=attention_norm,
        mlp_norm=mlp_norm,
        qkv=stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        o=stacked("self_attn.o_proj"),
        gate_up=stacked("mlp.gate_proj", "mlp.up_proj"),
        down=stacked("mlp.down_proj"),
        q_norm=norm("self_attn.q_norm"),
        k_norm=norm("self_attn.k_norm"),
        feature_norm=norm("hidden_norm"),
    )


def norm_weight(stored: Tensor, zero_centred: bool) -> Tensor:
    """A norm's weight, ready to multiply with. Zero-centred ones become 1 + w in float32, to keep w's digits."""
    return 1.0 + stored.float() if zero_centred else stored
