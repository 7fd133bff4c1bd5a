"""DFlash: a block of masks is filled in by one bidirectional pass over the target's hidden states.

Slots do not see each other's tokens, so given the text so far all proposals are independent, q_i = softmax(head(h_i)).
Drawn that way (`sampled`) they have a law and are verified with min(1, p/q). As argmax (`greedy`) they are point
masses, and exact verification accepts x with probability p(x).

Source: Chen et al., "DFlash" (arXiv 2602.06036); z-lab/dflash dflash/model.py; speculators
src/speculators/models/dflash/core.py.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsd.drafters.block import BlockDrafter, BlockNet, ends_for
from nsd.drafters.block_shape import Facts, Layout, block_shape, may_be_left
from nsd.drafters.checkpoint import misfits, open_checkpoint, require_fit
from nsd.drafters.drawing import Drawing, Pen
from nsd.drafters.recognise import is_dflash
from nsd.targets.base import Target
from nsd.verification import Draft

recognises = is_dflash


class DFlashDrafter(BlockDrafter):
    """Independent slots: sampled from their softmax, or their argmax."""

    def fill(self, drawing: Drawing, states: Tensor, anchors: Tensor) -> Draft:
        """All logits by one call of the head, all draws at once."""
        net, lengths = self.net, [n for n in drawing.lengths if n]
        first = net.shape.first
        owner = [i for i, n in enumerate(lengths) for _ in range(n)]
        slot = [first + j for n in lengths for j in range(n)]
        drawing.at_once(net.over_target(net.logits(states[owner, slot]), self.pen.vocab))
        return drawing.draft()

    def describe(self) -> dict[str, object]:
        """The block's facts and the drafting mode."""
        return {**super().describe(), "mechanism": "DFlash", "mode": "greedy" if self.pen.greedy else "sampled"}


def load(target: Target, source: Any, greedy: bool = False, default_k: int | None = None) -> DFlashDrafter:
    """Load a checkpoint (folder or hub name) for a target, on its device and in its dtype.

    Raises ModelError for a bad checkpoint, ModelError or PairMismatch for one that does not fit the target.
    """
    checkpoint = open_checkpoint(source)
    facts = Facts(checkpoint.config, checkpoint.where)
    shape = block_shape(facts, target, checkpoint.shapes, anchor_predicts=facts.layout is Layout.DEEPSPEC)
    problems = misfits(target, shape.decoder.hidden, shape.vocab, shape.target_layers, shape.mask)
    require_fit(target, problems, checkpoint.where)
    tensors = checkpoint.load(shape.tensors(), target.device, target.dtype, ignored=may_be_left(shape.layout))
    net = BlockNet(shape, tensors, *ends_for(shape, target), checkpoint.where)
    absent = None if target.absent is None else target.absent.to(target.device)
    return DFlashDrafter("dflash", net, Pen(greedy, target.vocab, absent, target.device), default_k)
