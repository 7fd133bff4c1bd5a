"""EAGLE-3's layer as a trainable module, unrolled over its own outputs ("training-time test").

Row t of a text x_0, x_1, ... holds the target's states at position t and the token x_t+1 beside them. At depth 1 it
reads true features; at depth d > 1 its own output of depth d - 1, with the token x_t+d. Its law is that of x_t+d+1.
A row of depth d sees all true rows up to t, and of its own chain the rows of depth 2..d: what drafting shows it.

Tensors are named as in SafeAILab's checkpoints, so that export copies them.
Source: Li et al., "EAGLE-3" (arXiv 2503.01840), section 3; SafeAILab/EAGLE eagle/traineagle3/cnets.py (what is seen).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from nsd.nn import DecoderConfig, Rotary, layer_shapes, rms_norm, rotate

LAYER = "midlayer."


def draft_config(target: DecoderConfig) -> DecoderConfig:
    """The shape of the draft layer: one layer of the target, reading two vectors side by side."""
    return replace(target, layers=1, sources=2)


class DraftLayer(nn.Module):
    """The weights being trained: fc, one layer, the final norm, and the gain on logits (as its logarithm)."""

    def __init__(self, config: DecoderConfig, taps: int) -> None:
        super().__init__()
        self.config = config
        shapes = {"fc.weight": (config.hidden, taps * config.hidden), "norm.weight": (config.hidden,), "log_gain": ()}
        shapes |= layer_shapes(config, LAYER)
        self.weights = nn.ParameterDict({_key(name): nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()})
        self.names = tuple(shapes)
        self.rotary = Rotary(config, torch.device("cpu"))

    def __getitem__(self, name: str) -> Tensor:
        weight: Tensor = self.weights[_key(name)]
        return weight

    def tensors(self) -> dict[str, Tensor]:
        """All weights by their names, detached."""
        return {name: self[name].detach() for name in self.names}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy weights in by name."""
        for name in self.names:
            self[name].copy_(tensors[name])

    @torch.no_grad()
    def start_from(self, layer: Mapping[str, Tensor], norm: Tensor) -> None:
        """Begin as the target's last layer on its own input (the last tap); the embedding's half begins at zero."""
        c = self.config
        self["fc.weight"].zero_()[:, -c.hidden :] = torch.eye(c.hidden)
        self["log_gain"].zero_()
        self["norm.weight"].copy_(norm)
        for name in layer_shapes(c, ""):
            mine = self[LAYER + name]
            if name == "hidden_norm.weight":
                mine.copy_(layer["input_layernorm.weight"])
            elif name == "input_layernorm.weight":
                mine.fill_(1.0)
            elif name.startswith(("self_attn.q_proj.w", "self_attn.k_proj.w", "self_attn.v_proj.w")):
                mine.zero_()[:, c.hidden :] = layer[name]
            else:
                mine.copy_(layer[name])

    @torch.no_grad()
    def start_from_noise(self) -> None:
        """Begin at random (seeded), for targets whose last layer is of another kind; the last tap passes through."""
        generator = torch.Generator().manual_seed(0)
        for name in self.names:
            if self[name].dim() > 1:
                self[name].normal_(0.0, 0.02, generator=generator)
        self["fc.weight"][:, -self.config.hidden :] += torch.eye(self.config.hidden)
        self["log_gain"].zero_()

    def features(self, taps: Tensor) -> Tensor:
        """True features of taps [B, T, n, H] -> [B, T, H]."""
        return functional.linear(taps.flatten(-2), self["fc.weight"]).float()

    def unroll(self, features: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
        """Outputs of each depth, before the final norm: features [B, T, H], embedded [B, T + depths - 1, H] of x_1..

        Returns `depths` tensors [B, T, H]; the last rows of deeper ones would need tokens past the end, which the
        caller pads and leaves out.
        """
        length, x, chain, outputs = features.shape[1], features, list[tuple[Tensor, Tensor]](), []
        unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
        for depth in range(depths):
            x = self._layer(x, embedded[:, depth : depth + length], depth, chain, unseen)
            outputs.append(x)
        return outputs

    def normed(self, x: Tensor) -> Tensor:
        """The final norm."""
        return rms_norm(x, self["norm.weight"], self.config.eps)

    def _layer(self, x: Tensor, side: Tensor, depth: int, chain: list[tuple[Tensor, Tensor]], unseen: Tensor) -> Tensor:
        c, w = self.config, self._layer_weight
        read = torch.cat(
            (
                rms_norm(side.float(), w("input_layernorm.weight"), c.eps),
                rms_norm(x, w("hidden_norm.weight"), c.eps),
            ),
            -1,
        )
        angles = self.rotary.angles(torch.arange(x.shape[1]) + depth, torch.float32)
        q, k, v = (
            torch.unflatten(self._linear(read, f"self_attn.{part}_proj"), -1, (heads, c.head_dim))
            for part, heads in (("q", c.heads), ("k", c.kv_heads), ("v", c.kv_heads))
        )
        if c.qk_norm:
            q = rms_norm(q, w("self_attn.q_norm.weight"), c.eps)
            k = rms_norm(k, w("self_attn.k_norm.weight"), c.eps)
        chain.append((rotate(k.float(), angles), v))
        mixed = _attend(rotate(q.float(), angles), chain, unseen, c)
        x = x + self._linear(mixed, "self_attn.o_proj")
        inner = rms_norm(x, w("post_attention_layernorm.weight"), c.eps)
        gate, up = self._linear(inner, "mlp.gate_proj"), self._linear(inner, "mlp.up_proj")
        return x + self._linear(functional.silu(gate) * up, "mlp.down_proj")

    def _layer_weight(self, name: str) -> Tensor:
        return self[LAYER + name]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias = f"{LAYER}{name}.bias"
        return functional.linear(x, self[f"{LAYER}{name}.weight"], self[bias] if bias in self.names else None)


def _attend(q: Tensor, chain: list[tuple[Tensor, Tensor]], unseen: Tensor, c: DecoderConfig) -> Tensor:
    """Attention of q [B, T, heads, d] over the true rows (chain[0]) and each row's own chain (the rest)."""
    batch, length = q.shape[:2]
    q = torch.unflatten(q, 2, (c.kv_heads, c.groups)).permute(0, 2, 3, 1, 4) * c.head_dim**-0.5
    k, v = (part.transpose(1, 2) for part in chain[0])
    folded = q.flatten(2, 3)
    scores = torch.unflatten(folded @ k.transpose(-1, -2), 2, (c.groups, length))
    scores = scores.masked_fill(unseen, -torch.inf)
    own = [torch.einsum("bhgtd,bthd->bhgt", q, k_own).unsqueeze(-1) for k_own, _ in chain[1:]]
    law = torch.softmax(torch.cat([scores.float(), *(s.float() for s in own)], -1), -1)
    mixed = torch.unflatten(law[..., :length].flatten(2, 3) @ v, 2, (c.groups, length))
    for place, (_, v_own) in enumerate(chain[1:], length):
        mixed = mixed + law[..., place, None] * v_own.permute(0, 2, 1, 3).unsqueeze(2)
    return mixed.permute(0, 3, 1, 2, 4).reshape(batch, length, -1)


def _key(name: str) -> str:
    """Parameter dictionaries cannot hold names with dots."""
    return name.replace(".", "/")
