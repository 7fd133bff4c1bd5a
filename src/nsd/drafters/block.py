"""What DFlash and DSpark share: a small decoder that reads the target's hidden states as ready-made keys and values.

    target states at committed positions   c_0 c_1 ... c_n-1        -> fc, norm -> keys and values of every layer
    block at positions n, n+1, ...         anchor MASK MASK ... MASK -> queries (and keys) of every layer

A block sees the whole context and all of itself, in one pass that leaves the cache as it was. The context grows only by
`commit`, with the states of inputs the target kept, so there is nothing to roll back.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.drafters.block_shape import BlockShape
from nsd.drafters.checkpoint import Map, lent_ends, reduced_ids, spread
from nsd.drafters.draft_model import over_vocabulary
from nsd.drafters.drawing import Drawing, Pen
from nsd.errors import ConfigError
from nsd.nn import Decoder, Dense, KVCache, Sight, layer_weights, rms_norm
from nsd.targets.base import Target
from nsd.verification import Draft


class BlockNet:
    """The network: fuses target states into a context, runs blocks over it, and gives logits over the target's ids.

    embed takes ids [N] to [N, hidden], head states [N, hidden] to logits: the target's, or the checkpoint's own.
    """

    def __init__(self, shape: BlockShape, tensors: Mapping[str, Tensor], embed: Map, head: Map, where: str) -> None:
        c = shape.decoder
        layers = [layer_weights(c, tensors, f"layers.{i}.") for i in range(c.layers)]
        self.shape = shape
        self.decoder = Decoder(c, layers, tensors["norm.weight"], tensors["norm.weight"].dtype)
        self.fuse, self.fuse_norm = Dense(tensors["fc.weight"]), tensors["hidden_norm.weight"]
        self.embed, self.head = embed, head
        if "embed_tokens.weight" in tensors:
            table = tensors["embed_tokens.weight"]
            self.embed = lambda ids: torch.nn.functional.embedding(ids, table)
        if "lm_head.weight" in tensors:
            self.head = Dense(tensors["lm_head.weight"])
        self.ids = reduced_ids(tensors["d2t"], tensors["t2d"], shape.vocab, where) if shape.reduced else None
        own = [tensors[name] for name in ("embed_tokens.weight", "lm_head.weight") if name in tensors]
        self.parameters = self.decoder.parameters + self.fuse.parameters + c.hidden + sum(t.numel() for t in own)

    def context(self, taps: Tensor) -> Tensor:
        """Target states [M, n, hidden] -> what every layer makes keys and values of [M, hidden]."""
        states = taps.to(self.decoder.device, self.decoder.dtype).flatten(1)
        return rms_norm(self.fuse(states), self.fuse_norm, self.shape.decoder.eps)

    def block(self, anchors: Sequence[int], going: Sequence[bool], cache: KVCache) -> Tensor:
        """Normed states of the full blocks of the requests that are going, [their number, block, hidden]."""
        size, mask = self.shape.block, self.shape.mask
        ids = [[anchor] + [mask] * (size - 1) for anchor, goes in zip(anchors, going, strict=True) if goes]
        flat = torch.tensor(ids, dtype=torch.long, device=self.decoder.device).flatten()
        rows = cache.rows([size if goes else 0 for goes in going], Sight.BLOCK)
        embedded = self.embed(flat).to(self.decoder.dtype) * self.shape.embed_scale
        x, _ = self.decoder.run(embedded, rows, cache)
        return self.decoder.normed(x).view(len(ids), size, -1)

    def logits(self, states: Tensor) -> Tensor:
        """Logits of normed states [N, hidden] over the checkpoint's own vocabulary [N, draft_vocab]."""
        logits = self.head(states) * self.shape.output_scale
        cap = self.shape.softcap
        return torch.tanh(logits / cap) * cap if cap > 0 else logits

    def over_target(self, logits: Tensor, vocab: int) -> Tensor:
        """The same over the target's vocabulary [N, vocab]: -inf at ids the checkpoint lacks."""
        return over_vocabulary(logits, vocab) if self.ids is None else spread(logits, self.ids, vocab)


class BlockDrafter(Drafter):
    """A drafter that proposes a whole block from one pass; `fill` turns the block's states into tokens."""

    def __init__(self, name: str, net: BlockNet, pen: Pen, default_k: int | None = None) -> None:
        self.name, self.net, self.pen = name, net, pen
        self.law, self.taps, self.max_k = pen.law, net.shape.taps, net.shape.limit
        self.default_k = net.shape.limit if default_k is None else default_k
        if not 0 <= self.default_k <= self.max_k:
            raise ConfigError(self._too_many(self.default_k))

    def _too_many(self, k: int) -> str:
        most = self.max_k
        return f"k is {k}, wanted 0..{most}: {self.name}'s checkpoint drafts {most} tokens a block; try -k {most}"

    def block_unit(self, k: int) -> int:
        """The block length for k proposals: the anchor counts where its slot predicts nothing."""
        return k + self.net.shape.first

    @property
    def parameters(self) -> int:
        """Numbers in the checkpoint; a borrowed embedding and head are the target's."""
        return self.net.parameters

    @abstractmethod
    def fill(self, drawing: Drawing, states: Tensor, anchors: Tensor) -> Draft:
        """Draw from the states [n, block, hidden] of the n requests with a draft, in order; anchors [n] their ids."""

    @torch.no_grad()
    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> BlockSession:
        """Start a batch; the context becomes the target's states at all prompt positions."""
        assert taps is not None, f"{self.name} reads the target's hidden states: open the target with its taps"
        cache = self.net.decoder.cache(len(prompts), max(map(len, prompts)) + room + self.net.shape.block)
        session = BlockSession(self, cache)
        session.extend(taps, [len(prompt) for prompt in prompts])
        return session

    def describe(self) -> dict[str, object]:
        """The common facts and the block's: its length, layout, taps, mask id, parameters, whose ends it uses."""
        shape = self.net.shape
        return {
            **super().describe(),
            "block_length": self.block_unit(self.default_k),
            "max_block_length": shape.block,
            "layout": shape.layout.value,
            "target_layers": list(self.taps),
            "mask_id": shape.mask,
            "parameters": self.parameters,
            "embedding": "own" if "embed_tokens.weight" in shape.ends else "the target's",
            "head": "own" if "lm_head.weight" in shape.ends else "the target's",
            "draft_vocab": shape.draft_vocab,
        }


class BlockSession(DraftSession):
    """The context of one batch: the cache holds the target's states at committed inputs, the anchor not among them."""

    def __init__(self, drafter: BlockDrafter, cache: KVCache) -> None:
        self._drafter, self.cache = drafter, cache

    @torch.no_grad()
    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """One pass over full blocks, then draws for the first k proposals of each: u [B, max k].

        The block is as long as the checkpoint was trained with, whatever k is; k only says how many slots are used.
        """
        drafter = self._drafter
        above = max((ask.k for ask in asks), default=0)
        if above > drafter.net.shape.limit:
            raise ConfigError(drafter._too_many(above))
        drawing = Drawing(drafter.pen, asks, [ask.k for ask in asks], u)
        if not drawing.depths:
            return drawing.draft()
        going = [ask.k > 0 for ask in asks]
        anchors = [ask.anchor for ask in asks]
        states = drafter.net.block(anchors, going, self.cache)
        self.positions += states.shape[0] * states.shape[1]
        live = [anchor for anchor, goes in zip(anchors, going, strict=True) if goes]
        return drafter.fill(drawing, states, torch.tensor(live, dtype=torch.long, device=states.device))

    @torch.no_grad()
    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Extend the context by the states of the inputs that were kept: the old anchor and the accepted drafts."""
        assert taps is not None, f"{self._drafter.name} reads the target's hidden states after every block"
        self.extend(taps, [len(ids) for ids in tokens])

    def extend(self, taps: Tensor, counts: Sequence[int]) -> None:
        """Append target states [sum counts, n, hidden] to the context."""
        net = self._drafter.net
        net.decoder.inject(net.context(taps), self.cache.rows(counts), self.cache)
        self.positions += sum(counts)

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with some requests."""
        self.cache.retain(requests)


def ends_for(shape: BlockShape, target: Target) -> tuple[Map, Map]:
    """The target's embedding and head, asked for only where the checkpoint lacks one of them."""
    if len(shape.ends) == 2:
        return _no_end, _no_end
    return lent_ends(target)


def _no_end(_: Tensor) -> Tensor:
    raise AssertionError("the checkpoint has its own embedding and head")
