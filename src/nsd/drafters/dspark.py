"""DSpark: DFlash's block pass, then a light left-to-right head that lets each proposal see the one before it.

q_k is the softmax of the *corrected* logits, base + bias(x_k-1) (and the slots before, in the rnn head), so drafting is
an ordinary chain as far as verification is concerned.

A confidence head may cut the block: the proposal before the first slot whose confidence falls below a threshold is the
last. The confidence of slot k looks at x_<k alone. Whether x_k is proposed is settled before x_k is drawn: a stopping
rule, under which q_k of what is proposed is unchanged and exact verification stays exact.

Source: DSpark (arXiv 2607.05147); deepseek-ai/DeepSpec deepspec/modeling/dspark/markov_head.py; speculators
src/speculators/models/dspark/model_definitions.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nsd.drafters.block import BlockDrafter, BlockNet, ends_for
from nsd.drafters.block_shape import BlockShape, Facts, block_shape, may_be_left
from nsd.drafters.checkpoint import misfits, open_checkpoint, require_fit
from nsd.drafters.drawing import Drawing, Pen
from nsd.drafters.recognise import is_dspark
from nsd.errors import ConfigError, ModelError
from nsd.nn import Dense, Shapes
from nsd.targets.base import Target
from nsd.verification import Draft

recognises = is_dspark

KINDS = ("vanilla", "gated", "rnn")


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The sequential head: its kind and rank, and the confidence head beside it, if there is one.

    confident: there is a confidence head; conf_sees_token: it reads the embedding of x_k-1 beside the slot's state.
    """

    kind: str
    rank: int
    confident: bool
    conf_sees_token: bool
    conf_bias: bool

    def tensors(self, hidden: int, vocab: int, draft_vocab: int) -> Shapes:
        """Names and shapes of both heads' tensors."""
        r = self.rank
        shapes: Shapes = {"markov_head.markov_w1.weight": (vocab, r), "markov_head.markov_w2.weight": (draft_vocab, r)}
        if self.kind == "gated":
            shapes |= {"markov_head.gate_proj.weight": (r, hidden + r), "markov_head.gate_proj.bias": (r,)}
        if self.kind == "rnn":
            shapes |= {
                "markov_head.joint_proj.weight": (3 * r, 2 * r + hidden),
                "markov_head.joint_proj.bias": (3 * r,),
            }
        if self.confident:
            shapes["confidence_head.proj.weight"] = (1, hidden + r * self.conf_sees_token)
            if self.conf_bias:
                shapes["confidence_head.proj.bias"] = (1,)
        return shapes


class MarkovHead:
    """Bias on the logits of slot k from the token before it: w2(f(w1[x_k-1], state of slot k, memory)).

    vanilla: f is the embedding alone; gated: scaled by a gate of state and embedding; rnn: read out of a small memory
    that runs along the block.
    """

    def __init__(self, shape: HeadShape, tensors: Mapping[str, Tensor]) -> None:
        def dense(name: str) -> Dense | None:
            weight = tensors.get(f"{name}.weight")
            return None if weight is None else Dense(weight, tensors.get(f"{name}.bias"))

        out = dense("markov_head.markov_w2")
        assert out is not None
        self.shape, self.out = shape, out
        self.table = tensors["markov_head.markov_w1.weight"]
        self.gate, self.joint = dense("markov_head.gate_proj"), dense("markov_head.joint_proj")
        self.confidence = dense("confidence_head.proj")
        self.parameters = sum(
            t.numel() for name, t in tensors.items() if name.startswith(("markov_head.", "confidence"))
        )

    def memory(self, batch: int) -> Tensor:
        """The memory before the first slot: [batch, rank] zeros."""
        return self.table.new_zeros(batch, self.shape.rank)

    def step(self, previous: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One slot: tokens before it [n], its states [n, hidden], memory [n, rank] -> bias [n, draft_vocab], memory."""
        token = functional.embedding(previous, self.table)
        if self.gate is not None:
            token = torch.sigmoid(self.gate(torch.cat((state, token), -1))) * token
        if self.joint is not None:
            gate, new, read = self.joint(torch.cat((memory, token, state), -1)).chunk(3, -1)
            gate = torch.sigmoid(gate)
            memory = gate * memory + (1 - gate) * torch.tanh(new)
            token = torch.tanh(read)
        return self.out(token), memory

    def confident(self, previous: Tensor, state: Tensor) -> Tensor:
        """The share of proposals at this slot that it expects to be accepted: [n] in (0, 1)."""
        assert self.confidence is not None
        seen = (
            torch.cat((state, functional.embedding(previous, self.table)), -1) if self.shape.conf_sees_token else state
        )
        return torch.sigmoid(self.confidence(seen)).squeeze(-1)


class DSparkDrafter(BlockDrafter):
    """A block pass and a chain of corrected draws. threshold > 0 cuts the block by the confidence head."""

    def __init__(
        self, net: BlockNet, head: MarkovHead, pen: Pen, default_k: int | None = None, threshold: float = 0.0
    ) -> None:
        super().__init__("dspark", net, pen, default_k)
        if not 0 <= threshold <= 1:
            raise ConfigError(f"threshold is {threshold}, wanted a number in [0, 1] (0 = no gate)")
        if threshold > 0 and head.confidence is None:
            raise ConfigError(f"threshold is {threshold}, but this checkpoint has no confidence head; leave it at 0")
        self.head, self.threshold = head, threshold

    @property
    def parameters(self) -> int:
        """Numbers in the checkpoint, the heads included."""
        return self.net.parameters + self.head.parameters

    def fill(self, drawing: Drawing, states: Tensor, anchors: Tensor) -> Draft:
        """Base logits of all slots by one call of the head, then depth by depth: bias, law, draw."""
        net, first = self.net, self.net.shape.first
        base = net.logits(states[:, first : first + drawing.depths])
        memory, previous = self.head.memory(len(states)), anchors
        for slot in range(first):  # the memory runs over slots that predict nothing, too
            _, memory = self.head.step(anchors, states[:, slot], memory)
        drafting = {b: i for i, b in enumerate(drawing.going(0))}
        sure = states.new_ones(len(states), drawing.depths, dtype=torch.float32)
        for depth in range(drawing.depths):
            rows = [drafting[b] for b in drawing.going(depth)]
            state, before = states[rows, first + depth], previous[rows]
            bias, memory[rows] = self.head.step(before, state, memory[rows])
            if self.threshold > 0:
                sure[rows, depth] = self.head.confident(before, state).float()
            previous = previous.clone()
            previous[rows] = drawing.next(net.over_target(base[rows, depth] + bias, self.pen.vocab), depth)
        if self.threshold == 0:
            return drawing.draft()
        return drawing.draft(self._cut(drawing.lengths, sure))

    def _cut(self, lengths: tuple[int, ...], sure: Tensor) -> list[int]:
        """How many proposals each request keeps: those before the first unsure slot."""
        kept = iter((sure >= self.threshold).long().cumprod(-1).sum(-1).tolist())
        return [min(n, next(kept)) if n else 0 for n in lengths]

    def describe(self) -> dict[str, object]:
        """The block's facts, the head's kind and rank, and the gate."""
        gate = f"stops before the first slot with confidence below {self.threshold}" if self.threshold else "off"
        facts = {"mechanism": "DSpark", "markov_head": self.head.shape.kind, "rank": self.head.shape.rank, "gate": gate}
        return {**super().describe(), **facts}


def load(
    target: Target, source: Any, greedy: bool = False, default_k: int | None = None, threshold: float = 0.0
) -> DSparkDrafter:
    """Load a checkpoint (folder or hub name) for a target, on its device and in its dtype.

    Raises ModelError for a bad checkpoint, ModelError or PairMismatch for one that does not fit the target.
    """
    checkpoint = open_checkpoint(source)
    facts = Facts(checkpoint.config, checkpoint.where)
    shape = block_shape(facts, target, checkpoint.shapes, anchor_predicts=True)
    problems = misfits(target, shape.decoder.hidden, shape.vocab, shape.target_layers, shape.mask)
    require_fit(target, problems, checkpoint.where)
    head = head_shape(facts, checkpoint.shapes)
    wanted = shape.tensors() | head.tensors(shape.decoder.hidden, shape.vocab, shape.draft_vocab)
    tensors = checkpoint.load(wanted, target.device, target.dtype, ignored=_unread(shape, head))
    net = BlockNet(shape, tensors, *ends_for(shape, target), checkpoint.where)
    absent = None if target.absent is None else target.absent.to(target.device)
    pen = Pen(greedy, target.vocab, absent, target.device)
    return DSparkDrafter(net, MarkovHead(head, tensors), pen, default_k, threshold)


def head_shape(facts: Facts, present: Mapping[str, Any]) -> HeadShape:
    """The heads that a config describes; an unmentioned confidence head is there if its tensors are."""
    kind, rank = facts.get("markov_head_type", "vanilla"), facts.get("markov_rank", 256)
    if kind not in KINDS:
        raise ModelError(f"{facts.where}: markov_head_type {kind!r}, wanted one of {', '.join(KINDS)}")
    stored = "confidence_head.proj.weight" in present
    confident = bool(facts.get("enable_confidence_head", stored))
    bias = "confidence_head.proj.bias" in present or not stored
    return HeadShape(kind, rank, confident, bool(facts.get("confidence_head_with_markov", True)), bias)


def _unread(shape: BlockShape, head: HeadShape) -> tuple[str, ...]:
    """Tensors that may be there all the same: those of a confidence head that the config switches off, too."""
    return may_be_left(shape.layout) + (() if head.confident else ("confidence_head.",))
