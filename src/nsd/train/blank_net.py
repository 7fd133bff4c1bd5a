"""Nemotron's linear self-speculation as a trainable module: what the target's own blocks add to its output projections.

The target is frozen. Its causal pass over the text is the context, its own layers fill in the blocks, and only the
low-rank addition that drafts alone use (`linear_spec_lora`) learns; it begins without effect, so the first step sees
the target's own draft. The blank is never proposed: the draft vocabulary is every id that the target can say.

Source: nvidia/Nemotron-Labs-Diffusion-8B linear_spec_lora/adapter_config.json (names, places, alpha = 4 r).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from nsd.drafters.nemotron import LORA_SCALE, longest_draft, lora_shapes
from nsd.errors import ConfigError, ModelError
from nsd.nn import query_scale, rms_norm
from nsd.nn.checkpoint import open_checkpoint
from nsd.targets.base import Target
from nsd.targets.nemotron import NemotronConfig, NemotronTarget
from nsd.train.blocks import Blocks, Context
from nsd.train.corpus import Batch
from nsd.train.layer import Layer, looked_up


class BlankStudent(Blocks):
    """Two thin matrices for each layer of a Nemotron target, whose float32 tensors are `frozen`."""

    kind = "nemotron"

    def __init__(self, config: NemotronConfig, frozen: Mapping[str, Tensor], block: int, rank: int) -> None:
        shapes = lora_shapes(config.decoder, rank)
        super().__init__(shapes, config.decoder, block, config.mask, 1)
        self.frozen, self.rank = frozen, rank
        for down, up in self.pairs:
            self.noise((down,), spread=shapes[down][1] ** -0.5)
            torch.nn.init.zeros_(self[up])

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Names of the two matrices of each layer: to the rank, and back."""
        return list(zip(self.names[::2], self.names[1::2], strict=True))

    def normed(self, x: Tensor) -> Tensor:
        """The target's final norm."""
        return rms_norm(x, self.frozen["encoder.norm.weight"], self.config.eps)

    @torch.no_grad()
    def context(self, batch: Batch, embedding: Tensor) -> Context:
        """Of the target's causal pass."""
        tokens, found = batch.tokens[:, :-1], []
        position = torch.arange(tokens.shape[1])
        angles = self.rotary.angles(position, torch.float32)
        scale = query_scale(self.config, position, torch.float32)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            found.append((k.transpose(1, 2), v.transpose(1, 2)))
            q = (q if scale is None else q * scale).transpose(1, 2)
            keys, values = found[-1][0].to(q.dtype), found[-1][1].to(q.dtype)
            mixed = functional.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=True)
            return mixed.transpose(1, 2).flatten(2)

        x = functional.embedding(tokens, embedding).float()
        for number in range(self.config.layers):
            layer = self._own(number)
            x = layer(x, layer.norm(x, "input_layernorm"), angles, attention)
        return found

    def layer(self, number: int) -> Layer:
        """The target's layer with the addition."""
        down, up = self.pairs[number]

        def extra(mixed: Tensor) -> Tensor:
            return functional.linear(functional.linear(mixed, self[down]), self[up]) * LORA_SCALE

        return Layer(self.config, self._own(number).look, extra)

    def _own(self, number: int) -> Layer:
        return Layer(self.config, looked_up(self.frozen, f"encoder.layers.{number}."))


def blank_student(target: Target, block: int, rank: int) -> BlankStudent:
    """The addition before its first step. Raises ModelError or ConfigError where the target cannot have one."""
    nemotron = nemotron_of(target)
    longest = longest_draft(nemotron.config, nemotron.name)
    if not 1 <= block <= longest:
        raise ConfigError(f"--block is {block}, wanted 1..{longest}, what {target.name} fills in; leave it out")
    if nemotron.folder is None:
        raise ModelError(f"{target.name} was made in memory, wanted a folder of weights; nsd train --model FOLDER")
    tensors = open_checkpoint(nemotron.folder).load(nemotron.config.shapes, torch.device("cpu"), torch.float32)
    return BlankStudent(nemotron.config, tensors, block, rank)


def nemotron_of(target: Target) -> NemotronTarget:
    """The target as what it is. Raises ModelError for one that fills in no blanks."""
    if not isinstance(target, NemotronTarget):
        raise ModelError(f"{target.name} fills in no blanks, wanted Nemotron-Labs-Diffusion; take another --kind")
    return target
