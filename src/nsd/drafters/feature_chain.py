"""What EAGLE-3 and MTP share: a chain of tokens, each step fed with a feature and the token that came after it.

    position        0        1       ...     n-1    |   n        n+1
    feature       f(h_0)   f(h_1)         f(h_n-1)  |  s_n-1     s_n       h: the target's states, s: the chain's own
    token          x_1      x_2             x_n     |   d_1      d_2       x_n the anchor, d drafted
    step           ------- extension ------------   |  -- chain --
    proposes                                d_1     |   d_2      d_3

The extension feeds what was committed since the last block, with the target's true states, and its last step already
proposes. Then the chain goes on from its own states. These draft steps leave the cache again at once: after
verification the accepted tokens come back with true states in the next extension, so it never holds anything else.

Each q_i is conditional on the drafts before it: an ordinary chain, whose law is the product of the returned rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.drafters.checkpoint import spread
from nsd.drafters.drawing import Drawing, Pen
from nsd.errors import ConfigError
from nsd.nn import Decoder, KVCache, Rows
from nsd.targets.base import FINAL_NORM
from nsd.verification import Draft


class ChainNet(ABC):
    """The network of a chain: its own copy of weights, no state. parameters counts the checkpoint's own numbers."""

    decoder: Decoder
    parameters: int
    ids: Tensor | None = None
    """Ids of a reduced vocabulary [n], ascending; None where it drafts over the whole one."""

    @abstractmethod
    def features(self, taps: Tensor) -> Tensor:
        """Target states [M, n, hidden of the target] -> features [M, hidden]."""

    @abstractmethod
    def step(self, features: Tensor, tokens: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        """Features [M, hidden], each with the token after it [M] -> states [M, hidden], the next step's features."""

    @abstractmethod
    def narrow_logits(self, states: Tensor, vocab: int) -> Tensor:
        """Logits of what follows those tokens, over `ids` where it has them: states [N, hidden] -> [N, n or vocab]."""

    def logits(self, states: Tensor, vocab: int) -> Tensor:
        """The same over the whole vocabulary: [N, vocab], -inf at ids it cannot draft."""
        narrow = self.narrow_logits(states, vocab)
        return narrow if self.ids is None else spread(narrow, self.ids, vocab)


class ChainDrafter(Drafter):
    """Drafts token after token with one small network; facts are what `nsd doctor` prints of the checkpoint."""

    def __init__(
        self,
        name: str,
        net: ChainNet,
        pen: Pen,
        taps: tuple[int, ...],
        default_k: int,
        max_k: int | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        self.name, self.net, self.pen, self.law, self.taps = name, net, pen, pen.law, taps
        self.default_k, self.max_k, self.facts = default_k, max_k, facts or {}
        self.require(default_k)

    def require(self, k: int) -> None:
        """Refuse a number of proposals outside the limit."""
        if k < 0 or (self.max_k is not None and k > self.max_k):
            limit = "or more" if self.max_k is None else f"to {self.max_k} (its checkpoint's steps)"
            raise ConfigError(f"{self.name} drafts {k} tokens per block, wanted 0 {limit}; try -k {self.max_k or 1}")

    def block_unit(self, k: int) -> int:
        """A chain counts its proposals: k for k."""
        return k

    @torch.no_grad()
    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> ChainSession:
        """Start a batch; the first extension covers the prompts."""
        longest = max(map(len, prompts)) + room + (self.max_k or self.default_k)
        session = ChainSession(self, self.net.decoder.cache(len(prompts), longest))
        session.learn([len(prompt) for prompt in prompts], taps)
        return session

    def _layers(self) -> list[object]:
        return ["final norm" if tap == FINAL_NORM else tap for tap in self.taps]

    def describe(self) -> dict[str, object]:
        """The common facts, the block's unit, taps, parameters, and the checkpoint's own."""
        unit = {"block_length": self.block_unit(self.default_k), "target_layers": self._layers()}
        return {**super().describe(), **unit, "parameters": self.net.parameters, **self.facts}


class ChainSession(DraftSession):
    """One batch. The cache holds true features only; features[b] are those of request b still to be fed [m, hidden]."""

    def __init__(self, drafter: ChainDrafter, cache: KVCache) -> None:
        self._drafter, self.cache = drafter, cache
        self.features: list[list[Tensor]] = [[] for _ in cache.lengths]

    @torch.no_grad()
    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """Extend by what was committed, then draft depth by depth: u [B, max k]. Requests with k = 0 sit it out."""
        net = self._drafter.net
        drawing = Drawing(self._drafter.pen, asks, [ask.k for ask in asks], u)
        self._drafter.require(drawing.depths)
        if not drawing.depths:
            return drawing.draft()
        going = drawing.going(0)
        states = self._extend(asks, going)
        true = list(self.cache.lengths)
        tokens = drawing.next(net.narrow_logits(states, self._drafter.pen.vocab), 0)
        for depth in range(1, drawing.depths):
            still = [i for i, b in enumerate(going) if drawing.lengths[b] > depth]
            going = [going[i] for i in still]
            states = self._feed([int(b in going) for b in range(len(asks))], states[still], tokens[still])
            tokens = drawing.next(net.narrow_logits(states, self._drafter.pen.vocab), depth)
        self.cache.lengths = true
        return drawing.draft()

    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Take the target's states at the inputs that were kept; the next extension feeds them."""
        self.learn([len(ids) for ids in tokens], taps)

    @torch.no_grad()
    def learn(self, counts: Sequence[int], taps: Tensor | None) -> None:
        """Note features of target states [sum counts, n, hidden], the first counts[0] of them for request 0."""
        assert taps is not None, f"{self._drafter.name} reads the target's hidden states: open the target with its taps"
        decoder = self._drafter.net.decoder
        features = self._drafter.net.features(taps.to(decoder.device, decoder.dtype))
        for mine, new in zip(self.features, torch.split(features, list(counts)), strict=True):
            mine.append(new)

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with some requests."""
        self.cache.retain(requests)
        self.features = [self.features[b] for b in requests]

    def _extend(self, asks: Sequence[Ask], going: Sequence[int]) -> Tensor:
        """Feed the true features of the requests going, with the committed tokens after them -> their last states."""
        counts, tokens, features, last = [0] * len(asks), [], [], []
        for b in going:
            mine = torch.cat(self.features[b])
            counts[b], self.features[b] = len(mine), []
            first = self.cache.lengths[b] + 1
            tokens += _committed(asks[b], first)
            features.append(mine)
            last.append(sum(counts) - 1)
        assert len(tokens) == sum(counts), "every committed token but the first has the feature of the one before it"
        ids = torch.tensor(tokens, dtype=torch.long, device=features[0].device)
        return self._feed(counts, torch.cat(features), ids)[last]

    def _feed(self, counts: list[int], features: Tensor, tokens: Tensor) -> Tensor:
        """One pass of the network behind the cache -> states of all its rows."""
        rows = self.cache.rows(counts)
        states = self._drafter.net.step(features, tokens, rows, self.cache)
        self.cache.append(rows)
        self.positions += len(tokens)
        return states


def _committed(ask: Ask, first: int) -> list[int]:
    """Committed ids of a request from position `first` on, the anchor last."""
    start = first - len(ask.prompt)
    return list(ask.output[start:]) if start >= 0 else [*ask.prompt[first:], *ask.output]
