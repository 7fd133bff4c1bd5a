"""A separate, smaller model drafts a chain of tokens through a session of its own.

Each block first feeds the committed tokens that the drafter's cache lacks (the anchor; after full acceptance also the
last draft, which was drawn but never fed), then one token per depth. Requests that want fewer tokens sit the later
depths out. The cache is rolled back to committed tokens when the verdict is known.

q is the drafter's processed law over the target's vocabulary, the very tensor the token is drawn from. Ids that the
drafter lacks have q = 0; p is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nsd.drafters.base import Ask, Drafter, DraftSession
from nsd.errors import ConfigError
from nsd.laws import Sampling, argmax, draw, laws
from nsd.targets.base import Target, TargetSession
from nsd.verification import Draft, DraftLaw

DEFAULT_K = 4
"""Every proposal costs a pass of the drafter, and acceptance compounds: at 0.7 each, the fifth adds 0.17 of a token."""

_STAND_IN = 0
"""What the drafter reads in place of an id beyond its embedding: a poorer context, still an honest q."""


@dataclass(frozen=True, slots=True)
class ChainSettings:
    """How logits become drafts: argmax or sampled, over `vocab` ids of which `absent` [vocab] can never be drawn.

    known ids are those that the drafter's embedding has.
    """

    greedy: bool
    vocab: int
    known: int
    absent: Tensor | None
    device: torch.device


class ChainSession(DraftSession):
    """Drafts one token after another through a model session.

    held[b] counts the committed positions in the cache of request b, lead[b] and fed[b] the committed and all tokens
    fed since the last roll-back; end[b] is the length at which its cache is full, beyond which nothing is drafted.
    """

    def __init__(self, session: TargetSession, settings: ChainSettings, held: list[int], end: list[int]) -> None:
        self._session, self._settings = session, settings
        self._held, self._end = held, end
        self._lead, self._fed = [0] * len(held), [0] * len(held)
        self.positions = session.positions

    def propose(self, asks: Sequence[Ask], u: Tensor) -> Draft:
        """Feed what the cache lacks, then draw depth by depth: u [B, max k]."""
        lengths = tuple(self._length(b, ask) for b, ask in enumerate(asks))
        starts = [sum(lengths[:b]) for b in range(len(lengths))]
        inputs: list[list[int]] = [self._missing(b, ask) if lengths[b] else [] for b, ask in enumerate(asks)]
        self._lead, self._fed = [len(ids) for ids in inputs], [0] * len(asks)
        drafted: list[list[int]] = [[] for _ in asks]
        q: Tensor | None = None
        for depth in range(max(lengths, default=0)):
            going = [b for b, k in enumerate(lengths) if k > depth]
            law = self._laws(self._feed(inputs), [asks[b] for b in going], [drafted[b] for b in going])
            if self._settings.greedy:
                picked = argmax(law)
            else:
                q = law.new_empty(sum(lengths), law.shape[-1]) if q is None else q
                q[[starts[b] + depth for b in going]] = law
                picked = draw(law, u[going, depth])
            inputs = [[] for _ in asks]
            for b, token in zip(going, picked.tolist(), strict=True):
                drafted[b].append(token)
                inputs[b] = [token] if lengths[b] > depth + 1 else []
        return self._draft(drafted, lengths, q)

    def commit(self, tokens: Sequence[Sequence[int]], taps: Tensor | None) -> None:
        """Keep the committed tokens that were fed: the accepted ones, without a last draft that never was."""
        counts = [min(fed, lead + len(ids) - 1) for fed, lead, ids in zip(self._fed, self._lead, tokens, strict=True)]
        if any(self._fed):
            self._session.keep(counts)
            self._held = [held + count for held, count in zip(self._held, counts, strict=True)]
        self._lead, self._fed = [0] * len(counts), [0] * len(counts)

    def retain(self, requests: Sequence[int]) -> None:
        """Go on with some requests, in the cache and in the counts."""
        self._session.retain(requests)
        for counts in (self._held, self._end, self._lead, self._fed):
            counts[:] = [counts[b] for b in requests]

    def _length(self, b: int, ask: Ask) -> int:
        """k, or what fits: committed tokens and all drafts but the last one go into the cache."""
        return max(0, min(ask.k, self._end[b] - len(ask.prompt) - len(ask.output) + 1))

    def _missing(self, b: int, ask: Ask) -> list[int]:
        """Committed tokens that the cache of request b lacks, the anchor last; the prompt is in it."""
        return list(ask.output[self._held[b] - len(ask.prompt) :])

    def _feed(self, inputs: list[list[int]]) -> Tensor:
        """Feed these tokens -> logits after the last token of each request that had any."""
        scores = self._session.score([readable(ids, self._settings.known) for ids in inputs])
        self.positions = self._session.positions
        last, total = [], 0
        for b, ids in enumerate(inputs):
            self._fed[b] += len(ids)
            total += len(ids)
            if ids:
                last.append(total - 1)
        return scores.logits[last]

    def _laws(self, logits: Tensor, asks: list[Ask], drafted: list[list[int]]) -> Tensor:
        """The processed laws of the next draft of some requests: [n, V]."""
        samplings = [coldest(ask.sampling) if self._settings.greedy else ask.sampling for ask in asks]
        histories = None
        if any(sampling.needs_history for sampling in samplings):
            histories = [ask.history(ids) for ask, ids in zip(asks, drafted, strict=True)]
        return laws(over_vocabulary(logits, self._settings.vocab), samplings, histories, self._settings.absent)

    def _draft(self, drafted: list[list[int]], lengths: tuple[int, ...], q: Tensor | None) -> Draft:
        settings = self._settings
        tokens = torch.tensor([token for ids in drafted for token in ids], dtype=torch.long, device=settings.device)
        if settings.greedy:
            return Draft(tokens, lengths, DraftLaw.POINT)
        if q is None:
            q = torch.empty(0, settings.vocab, device=settings.device)
        return Draft(tokens, lengths, DraftLaw.SAMPLED, q)


def readable(ids: Sequence[int], known: int) -> list[int]:
    """Ids with those beyond the drafter's embedding replaced by a stand-in."""
    return [token if token < known else _STAND_IN for token in ids]


def coldest(sampling: Sampling) -> Sampling:
    """The same penalties, bans and processors at temperature 0, where truncation changes nothing."""
    return replace(sampling, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)


def over_vocabulary(logits: Tensor, vocab: int) -> Tensor:
    """Logits [n, V'] over ids 0..vocab-1: missing ids -inf, surplus ids cut before any law is made."""
    if logits.shape[-1] >= vocab:
        return logits[:, :vocab]
    missing = logits.new_full((logits.shape[0], vocab - logits.shape[-1]), -torch.inf)
    return torch.cat([logits, missing], -1)


class ModelDrafter(Drafter):
    """A causal language model drafts for a target with the same tokenizer.

    vocab is the target's (None = the drafter's own); absent [vocab] marks ids the target has no tokenizer entry for.
    greedy takes the argmax: a point mass. Otherwise tokens are sampled from q; at temperature 0 its rows are one-hot.
    """

    def __init__(
        self,
        model: Target,
        name: str,
        greedy: bool = False,
        default_k: int = DEFAULT_K,
        vocab: int | None = None,
        absent: Tensor | None = None,
    ) -> None:
        self.model, self.name, self.default_k = model, name, default_k
        self.law = DraftLaw.POINT if greedy else DraftLaw.SAMPLED
        vocab = model.vocab if vocab is None else vocab
        absent = _absent_from_either(model, vocab, absent)
        self.settings = ChainSettings(greedy, vocab, model.vocab, absent, model.device)

    def open(self, prompts: Sequence[Sequence[int]], taps: Tensor | None, room: int) -> ChainSession:
        """Prefill the drafter.

        A prompt that leaves no room in the drafter's context is not read beyond its first token, and nothing is drafted
        for it; the target goes on without.
        """
        context = self.model.context
        fits = [len(prompt) < context for prompt in prompts]
        read = [prompt if fit else prompt[:1] for prompt, fit in zip(prompts, fits, strict=True)]
        room = min(room, context - max(len(prompt) for prompt in read))
        session, _ = self.model.open([readable(ids, self.model.vocab) for ids in read], room)
        end = [len(prompt) + room if fit else 0 for prompt, fit in zip(prompts, fits, strict=True)]
        return ChainSession(session, self.settings, [len(ids) for ids in read], end)

    def describe(self) -> dict[str, object]:
        """The common facts, the model, its vocabulary beside the target's, its context."""
        return {
            **super().describe(),
            "model": self.model.name,
            "vocab": self.model.vocab,
            "target_vocab": self.settings.vocab,
            "context": self.model.context,
        }


def _absent_from_either(model: Target, vocab: int, absent: Tensor | None) -> Tensor | None:
    """Ids without a tokenizer entry on either side, over the target's vocabulary: [vocab] or None."""
    if absent is not None and absent.shape != (vocab,):
        raise ConfigError(f"absent marks {tuple(absent.shape)} ids, wanted ({vocab},); pass the target's own")
    if model.absent is None:
        return None if absent is None else absent.to(model.device)
    mine = torch.zeros(vocab, dtype=torch.bool, device=model.device)
    shared = min(vocab, len(model.absent))
    mine[:shared] = model.absent[:shared]
    return mine if absent is None else mine | absent.to(model.device)


def model_drafter(
    target: Target,
    source: Any,
    greedy: bool = False,
    default_k: int = DEFAULT_K,
    dtype: str = "auto",
) -> ModelDrafter:
    """Load a model (name, folder, or an object already loaded) on the target's device and check that the pair fits.

    Raises PairMismatch if the tokenizers differ.
    """
    from nsd.targets.load import load_target
    from nsd.targets.pairing import check_pair

    model = source if isinstance(source, Target) else load_target(source, dtype=dtype, device=str(target.device))
    check_pair(target, model)
    return ModelDrafter(model, model.name, greedy, default_k, target.vocab, target.absent)
