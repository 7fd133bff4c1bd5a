"""Rotary position embedding: frequencies of each variant, and the rotation of queries and keys.

Source: transformers src/transformers/modeling_rope_utils.py; Peng et al., "YaRN" (arXiv 2309.00071), section 3.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nsd.nn.config import DecoderConfig, Rope


def frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Angle per position of each rotated pair of channels: [rotated / 2] float32."""
    rotated = int(head_dim * rope.rotary)
    plain = 1.0 / rope.theta ** (torch.arange(0, rotated, 2, dtype=torch.float32) / rotated)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(plain, rope)
    if rope.kind == "yarn":
        return _yarn(plain, rope, rotated)
    return plain


def attention_factor(rope: Rope) -> float:
    """What cosines and sines are multiplied by: 1 for all but yarn."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(rope.factor, rope.mscale) / _magnitude(rope.factor, rope.mscale_all_dim)
    return _magnitude(rope.factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended."""
    turns = rope.original_context * plain / (2 * math.pi)
    blend = ((turns - rope.low) / (rope.high - rope.low)).clamp(0.0, 1.0)
    return plain * ((1 - blend) / rope.factor + blend)


def _yarn(plain: Tensor, rope: Rope, rotated: int) -> Tensor:
    """As llama3, but blended linearly in the channel index between two numbers of turns."""
    ends = [_channel(turns, rope, rotated) for turns in (rope.beta_fast, rope.beta_slow)]
    if rope.truncate:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    first, last = max(ends[0], 0), min(ends[1], rotated - 1)
    slowed = ((torch.arange(rotated // 2, dtype=torch.float32) - first) / (last - first or 0.001)).clamp(0.0, 1.0)
    return plain * (slowed / rope.factor + (1 - slowed))


def _channel(turns: float, rope: Rope, rotated: int) -> float:
    """The pair of channels that makes so many turns over the original context."""
    return rotated * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


class Rotary:
    """Turns queries and keys. Angles are taken in float32, their cosines cast to the dtype of what they turn."""

    def __init__(self, config: DecoderConfig, device: torch.device) -> None:
        self.frequencies = frequencies(config.rope, config.head_dim).to(device)
        self.factor = attention_factor(config.rope)

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines at positions [M], to be shared by all layers: [M, 1, rotated] each."""
        angle = (positions.float().unsqueeze(-1) * self.frequencies).unsqueeze(-2)
        cos, sin = angle.cos() * self.factor, angle.sin() * self.factor
        return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rotate(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Heads [M, n, head_dim] turned by angles [M, 1, rotated]; channel j pairs with channel j + rotated / 2."""
    cos, sin = angles
    turned = cos.shape[-1]
    if turned == heads.shape[-1]:
        return torch.addcmul(heads * cos, heads.roll(turned // 2, -1), sin)
    first = heads[..., :turned]
    return torch.cat((torch.addcmul(first * cos, first.roll(turned // 2, -1), sin), heads[..., turned:]), -1)
