"""The multi-token prediction layer as a trainable module: the chain of EAGLE-3 over the target's final state.

    x = fc([norm(embedding of the token), norm(state)])      one ordinary layer, its final norm, the target's head

The normed output is both what the head reads and the next step's state. There is no gain: the head is the target's.

Names are those of Qwen3.5's checkpoints for its family (norms stored as w, applied as 1 + w; gated queries), and those
of speculators for targets of any other type.
Source: vllm-project/vllm vllm/model_executor/models/qwen3_5_mtp.py; speculators src/speculators/models/mtp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from nsd.nn import DecoderConfig, Shapes, layer_shapes, norm_weight, rms_norm
from nsd.train.corpus import Batch
from nsd.train.net import Chain, Pairs


@dataclass(frozen=True, slots=True)
class MtpNames:
    """Where a layout keeps its parts: layer is a prefix, the others are whole names."""

    layer: str
    fuse: str
    state_norm: str
    token_norm: str
    final_norm: str


QWEN = MtpNames(
    "mtp.layers.0.",
    "mtp.fc.weight",
    "mtp.pre_fc_norm_hidden.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.norm.weight",
)
SPECULATORS = MtpNames(
    "mtp_layers.0.",
    "mtp_layers.0.input_proj.weight",
    "mtp_layers.0.hidden_layernorm.weight",
    "mtp_layers.0.token_layernorm.weight",
    "mtp_layers.0.final_layernorm.weight",
)


class MtpLayer(Chain):
    """fc, one layer of the target's shape, three norms."""

    kind = "mtp"

    def __init__(self, config: DecoderConfig, names: MtpNames) -> None:
        config = replace(config, layers=1)
        norms = dict.fromkeys((names.state_norm, names.token_norm, names.final_norm), (config.hidden,))
        shapes: Shapes = {names.fuse: (config.hidden, 2 * config.hidden), **norms}
        shapes |= layer_shapes(config, names.layer)
        super().__init__(shapes, config, [(names.layer, config)])
        self.parts = names

    @torch.no_grad()
    def start_from(self, layer: Mapping[str, Tensor] | None, norm: Tensor) -> None:
        """Begin as a layer of the target on its final state (at random if None); the embedding's half begins small."""
        self.noise(self.names)
        self[self.parts.fuse][:, self.config.hidden :] += torch.eye(self.config.hidden)
        self[self.parts.final_norm].copy_(norm)
        for name, weight in (layer or {}).items():
            if self.parts.layer + name in self.names:
                self[self.parts.layer + name].copy_(weight)

    def true_features(self, batch: Batch) -> Tensor:
        """The state behind the target's final norm."""
        return batch.final.float()

    def step(self, features: Tensor, side: Tensor, depth: int, chains: list[Pairs], unseen: Tensor) -> Tensor:
        """Fuse, one layer, its norm."""
        pair = self._norm(side.float(), self.parts.token_norm), self._norm(features, self.parts.state_norm)
        x = functional.linear(torch.cat(pair, -1), self[self.parts.fuse]).float()
        layer, _ = self.layer(0)
        x = self.attended(0, x, layer.norm(x, "input_layernorm"), depth, chains, unseen)
        return self._norm(x, self.parts.final_norm)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, norm_weight(self[name], self.config.zero_centred), self.config.eps)
