"""DFlash's and DSpark's networks as a trainable module: blocks of masks over the target's stored states.

    context  c_t = norm(fc(taps at t))                      keys and values of every layer, t = 0..n - 1

DSpark adds a bias from the token before (vanilla Markov head), w2 w1[x_k-1], inside the softmax: that is the law it
draws from. In training the token before is the text's. Its confidence head learns 1 - TV of its slot, and nothing else
learns from that. DFlash's anchor slot predicts nothing; DSpark's predicts the token behind the anchor.

Source: Chen et al., "DFlash" (arXiv 2602.06036); DSpark (arXiv 2607.05147); deepseek-ai/DeepSpec
deepspec/modeling/dspark; names as in speculators src/speculators/models/dspark/model_definitions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn import DecoderConfig, Shapes, layer_shapes, rms_norm
from nsd.train.blocks import Blocks, Context
from nsd.train.corpus import Batch
from nsd.train.layer import Layer
from nsd.train.student import Rows

W1, W2 = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
CONFIDENCE, CONFIDENCE_BIAS = "confidence_head.proj.weight", "confidence_head.proj.bias"


def block_config(target: DecoderConfig, layers: int) -> DecoderConfig:
    """Layers of the target's width with norms on queries and keys, which all layouts have."""
    return replace(target, layers=layers, qk_norm=True, gated=False, zero_centred=False, query_beta=0.0)


class BlockStudent(Blocks):
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
        super().__init__(shapes, config, block, mask, 0 if kind == "dspark" else 1)
        self.kind, self.rank = kind, rank
        self.by_id = (W2,) if kind == "dspark" else ()

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

    def before(self, tokens: Tensor) -> Tensor | None:
        """Rows of the Markov head's first matrix."""
        return functional.embedding(tokens, self[W1]) if self.kind == "dspark" else None

    def aside(self, rows: Rows, kept: Tensor) -> Tensor | None:
        """Cross-entropy of the confidence head against 1 - TV."""
        if self.kind != "dspark" or rows.read is None or not len(kept):
            return None
        seen = torch.cat((rows.states.detach(), rows.read.detach()), -1)
        sure = functional.linear(seen, self[CONFIDENCE], self[CONFIDENCE_BIAS]).squeeze(-1)
        return functional.binary_cross_entropy_with_logits(sure, kept)

    def context(self, batch: Batch, embedding: Tensor) -> Context:
        """Of every layer, from the target's stored states alone."""
        taps = batch.taps
        fused = functional.linear(taps.flatten(-2), self["fc.weight"]).float()
        seen = rms_norm(fused, self["hidden_norm.weight"], self.config.eps)
        angles = self.rotary.angles(torch.arange(taps.shape[1]), torch.float32)
        pairs = [self.layer(i).keys(seen, angles) for i in range(self.config.layers)]
        return [(k.transpose(1, 2), v.transpose(1, 2)) for k, v in pairs]

    def layer(self, number: int) -> Layer:
        """A layer of its own."""
        prefix = f"layers.{number}."
        return Layer(self.config, lambda name: self[prefix + name] if prefix + name in self.names else None)
