"""EAGLE-3's layers (mostly one) as a trainable module, unrolled over its own outputs ("training-time test").

Row t of a text x_0, x_1, ... holds the target's states at position t and the token x_t+1 beside them. At depth 1 it
reads true features; at depth d > 1 its own output of depth d - 1, with the token x_t+d. Its law is that of x_t+d+1.
A row of depth d sees all true rows up to t, and of its own chain the rows of depth 2..d: what drafting shows it. Layers
behind the first are ordinary ones; each has keys and values of its own, and the last one's output is fed back.

Tensors are named as in SafeAILab's checkpoints, so that export copies them. `Chain` is what multi-token prediction
(`nsd.train.mtp_net`) shares.
Source: Li et al., "EAGLE-3" (arXiv 2503.01840), section 3; SafeAILab/EAGLE eagle/traineagle3/cnets.py (what is seen).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn import DecoderConfig, Rotary, Shapes, layer_shapes, rms_norm
from nsd.train.corpus import Batch, chain_mask
from nsd.train.layer import Layer
from nsd.train.student import Rows, Weighted

LAYER = "midlayer."

Pairs = list[tuple[Tensor, Tensor]]
"""Keys and values [B, T, kv_heads, d] of the true rows, then of each deeper step."""


def draft_config(target: DecoderConfig, layers: int = 1) -> DecoderConfig:
    """The shape of the drafter: layers of the target's shape, the first of which reads two vectors side by side."""
    return replace(target, layers=layers, sources=2)


def layer_names(config: DecoderConfig) -> list[tuple[str, DecoderConfig]]:
    """Prefix and shape of each layer, as in SafeAILab's checkpoints and those that continue them."""
    rest = replace(config, sources=1)
    return [(LAYER, config), *((f"layers.{i}.", rest) for i in range(1, config.layers))]


class Chain(Weighted):
    """A chain of steps, each fed with a feature and the token after it; layers are (prefix, shape) in order."""

    def __init__(self, shapes: Shapes, config: DecoderConfig, layers: list[tuple[str, DecoderConfig]]) -> None:
        super().__init__(shapes, 0.0 if config.zero_centred else 1.0)
        self.config, self.layers = config, layers
        self.rotary = Rotary(config, torch.device("cpu"))

    @abstractmethod
    def true_features(self, batch: Batch) -> Tensor:
        """The target's features [B, T, H] that depth 1 reads."""

    @abstractmethod
    def step(self, features: Tensor, side: Tensor, depth: int, chains: list[Pairs], unseen: Tensor) -> Tensor:
        """One step of all rows at a depth (from 0): features and tokens' embeddings [B, T, H] -> next features."""

    def normed(self, x: Tensor) -> Tensor:
        """What the head reads of a step's output."""
        return x

    def unroll(self, features: Tensor, embedded: Tensor, depths: int) -> list[Tensor]:
        """Outputs of each depth: features [B, T, H], embedded [B, T + depths - 1, H] of x_1..

        Returns `depths` tensors [B, T, H]; the last rows of deeper ones would need tokens past the end, which the
        caller pads and leaves out.
        """
        length, x, outputs = features.shape[1], features, []
        chains: list[Pairs] = [[] for _ in self.layers]
        unseen = torch.ones(length, length, dtype=torch.bool).triu(1)
        for depth in range(depths):
            x = self.step(x, embedded[:, depth : depth + length], depth, chains, unseen)
            outputs.append(x)
        return outputs

    def rows(self, batch: Batch, embedding: Tensor, depths: int, wanted: int, key: str | None) -> list[Rows]:
        """Rows of each depth; chains start everywhere."""
        tokens = functional.pad(batch.tokens[:, 1:], (0, depths))
        embedded = functional.embedding(tokens, embedding)
        with self.products():
            outputs = self.unroll(self.true_features(batch), embedded, depths)
        found = []
        for depth, output in enumerate(outputs, 1):
            at = chain_mask(batch.kinds, depth, wanted).flatten().nonzero().squeeze(-1)
            found.append(Rows(self.normed(output).flatten(0, 1)[at], at))
        return found

    def layer(self, number: int) -> tuple[Layer, DecoderConfig]:
        """A layer to call, and its shape."""
        prefix, shape = self.layers[number]
        return Layer(shape, lambda name: self[prefix + name] if prefix + name in self.names else None), shape

    def attended(self, number: int, x: Tensor, read: Tensor, depth: int, chains: list[Pairs], unseen: Tensor) -> Tensor:
        """The stream x [B, T, H] after a layer whose attention reads `read`."""
        layer, shape = self.layer(number)
        angles = self.rotary.angles(torch.arange(x.shape[1]) + depth, torch.float32)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            chains[number].append((k, v))
            return _attend(q, chains[number], unseen, shape)

        return layer(x, read, angles, attention)


class DraftLayer(Chain):
    """The weights being trained: fc, the layers, the final norm, and the gain on logits (as its logarithm)."""

    kind = "eagle3"

    def __init__(self, config: DecoderConfig, taps: int) -> None:
        shapes: Shapes = {
            "fc.weight": (config.hidden, taps * config.hidden),
            "norm.weight": (config.hidden,),
            "log_gain": (),
        }
        layers = layer_names(config)
        for prefix, shape in layers:
            shapes |= layer_shapes(shape, prefix)
        super().__init__(shapes, config, layers)

    @torch.no_grad()
    def start_from(self, layer: Mapping[str, Tensor], norm: Tensor) -> None:
        """Begin as the target's last layer on its own input (the last tap); the embedding's half begins at zero.

        Layers behind the first begin as the same layer without effect: what they add to the stream is zero.
        """
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
        self.start_rest(1, layer)

    @torch.no_grad()
    def start_rest(self, first: int, layer: Mapping[str, Tensor] | None) -> None:
        """Begin layers first.. (from 0) as a layer of the target (as they are if None), but adding nothing yet."""
        for prefix, shape in self.layers[first:]:
            for name in layer_shapes(shape, ""):
                if layer is not None:
                    self[prefix + name].copy_(layer[name])
                if name.startswith(("self_attn.o_proj", "mlp.down_proj")):
                    self[prefix + name].zero_()

    @torch.no_grad()
    def start_from_noise(self) -> None:
        """Begin at random (seeded), for targets whose last layer is of another kind; the last tap passes through."""
        self.noise(self.names)
        self["fc.weight"][:, -self.config.hidden :] += torch.eye(self.config.hidden)
        self["log_gain"].zero_()
        self.start_rest(1, None)

    def gain(self) -> Tensor:
        """Learned."""
        return self["log_gain"]

    def features(self, taps: Tensor) -> Tensor:
        """True features of taps [B, T, n, H] -> [B, T, H]."""
        return functional.linear(taps.flatten(-2), self["fc.weight"]).float()

    def true_features(self, batch: Batch) -> Tensor:
        """fc of the taps."""
        return self.features(batch.taps)

    def normed(self, x: Tensor) -> Tensor:
        """The final norm."""
        return rms_norm(x, self["norm.weight"], self.config.eps)

    def step(self, features: Tensor, side: Tensor, depth: int, chains: list[Pairs], unseen: Tensor) -> Tensor:
        """The first layer reads the token's embedding beside the feature, the others the stream."""
        first, _ = self.layer(0)
        read = torch.cat((first.norm(side.float(), "input_layernorm"), first.norm(features, "hidden_norm")), -1)
        x = self.attended(0, features, read, depth, chains, unseen)
        for number in range(1, len(self.layers)):
            layer, _ = self.layer(number)
            x = self.attended(number, x, layer.norm(x, "input_layernorm"), depth, chains, unseen)
        return x


def _attend(q: Tensor, chain: Pairs, unseen: Tensor, c: DecoderConfig) -> Tensor:
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
