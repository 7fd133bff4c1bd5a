"""What each layout minimises in training."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.miniature.delta_net import DeltaNet
from benchmarks.miniature.net import Net
from benchmarks.miniature.rows import Batch

MTP_WEIGHT = 0.3
"""Weight of the MTP head's losses beside the target's own; there is one for each depth."""

MTP_DEPTHS = 2
"""Tokens ahead that the MTP head is trained for: K of the paper."""

SHORTEST_BLOCK = 4


class Autoregressive:
    """Next-token prediction: the Qwen3 layout."""

    layout = "qwen3"

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.module = Net(config, self.layout, seed)

    def loss(self, rows: Batch, step: int) -> Tensor:
        """Weighted mean of -log p of the next token."""
        return weighted(self.module.logits, self.module(rows.ids[:, :-1]), rows.ids[:, 1:], rows.weights)

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint."""
        return self.module.tensors()


class BlockDiffusion(Autoregressive):
    """Next-token prediction, and filling in the masks of blocks: the Nemotron layout, both in one pass.

    A clean copy of each text is causal. A second copy is cut into blocks of an anchor and masks; a block sees the clean
    text before it and all of itself. Block length and offset change from step to step.
    """

    layout = "nemotron"

    def loss(self, rows: Batch, step: int) -> Tensor:
        """The mean of both losses."""
        draw = random.Random(f"blocks/{step}")
        length = draw.randint(SHORTEST_BLOCK, self.module.config["block_size"])
        ids = rows.ids
        block = (torch.arange(ids.shape[1]) + draw.randrange(length)) // length
        anchors = torch.cat((torch.tensor([True]), block[1:] != block[:-1]))
        masked = torch.where(anchors, ids, self.module.config["mask_token_id"])
        places = torch.arange(ids.shape[1]).repeat(2)
        states = self.module(torch.cat((ids, masked), 1), places, block_mask(block)[None, None])
        clean, blanks = states.split(ids.shape[1], 1)
        following = weighted(self.module.logits, clean[:, :-1], ids[:, 1:], rows.weights)
        hidden = rows.weights * ~anchors[1:]
        return (following + weighted(self.module.logits, blanks[:, 1:], ids[:, 1:], hidden)) / 2


def block_mask(block: Tensor) -> Tensor:
    """Who sees whom: block numbers [L] -> [2L, 2L] bool over the clean copy and the masked one."""
    length = len(block)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    earlier = block[:, None] > block[None, :]
    same = block[:, None] == block[None, :]
    nothing = torch.zeros_like(causal)
    return torch.cat((torch.cat((causal, nothing), 1), torch.cat((earlier, same), 1)))


class WithMtp:
    """Next-token prediction and an MTP head beside it: the Qwen3.5 layout.

    The head reads the state after the final norm and the embedding of the token that follows, and predicts the one
    after it; at the second depth it reads its own output. Tensors of the head are named mtp.* in the checkpoint.
    """

    layout = "qwen3_5"

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.module = DeltaNet(config, seed)

    def loss(self, rows: Batch, step: int) -> Tensor:
        """The target's loss, and MTP_WEIGHT times that of each depth of the head."""
        net, ids, weights = self.module, rows.ids, rows.weights
        states = net(ids)[:, :-1]  # whole rows, whose width is one of whole chunks
        total = weighted(net.logits, states, ids[:, 1:], weights)
        for depth in range(1, MTP_DEPTHS + 1):
            states = net.ahead(states[:, :-1], ids[:, depth:-1])
            total = total + MTP_WEIGHT * weighted(net.logits, states, ids[:, depth + 1 :], weights[:, depth:])
        return total

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint."""
        return self.module.tensors()


def weighted(logits: Callable[[Tensor], Tensor], states: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross-entropy; the head runs only where there is a weight."""
    counted = weights > 0
    each = functional.cross_entropy(logits(states[counted]), wanted[counted], reduction="none")
    w = weights[counted]
    return (each * w).sum() / w.sum()


LAYOUTS: dict[str, type[Autoregressive] | type[WithMtp]] = {
    "qwen3": Autoregressive,
    "nemotron": BlockDiffusion,
    "qwen3_5": WithMtp,
}
