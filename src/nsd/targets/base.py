"""What decoding asks of a target model. A target is loaded once; each batch decodes in a session of its own.

A session holds the cache. It contains committed input tokens only; the newest emitted token (the anchor) has not been
fed yet. One step feeds anchor + drafts, and `keep` rolls back what was not accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

FINAL_NORM = -1
"""Tap of the hidden state after the target's final norm, the one its head reads."""


class Tokenizer(Protocol):
    """What this project needs of a tokenizer."""

    @property
    def prefix(self) -> Sequence[int]:
        """Special ids that stand before a text that is to be continued, such as a begin-of-text id."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out, bytes that form no character as U+FFFD."""

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a chat, ready for the assistant's answer."""

    def token_text(self, token: int) -> str | None:
        """The vocabulary entry of an id, None where there is none."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of one target pass, request after request.

    logits [M, V]; taps [M', n, H] hidden states in the order of the tap ids asked for, M' = M for `score` and every
    prompt position for `open`; None without taps.
    """

    logits: Tensor
    taps: Tensor | None = None


class TargetSession(ABC):
    """The cache of one batch. Counters let anyone check that nothing is computed twice."""

    positions: int = 0
    """Token positions fed so far, prompts included, over all requests (padding of ragged batches left out)."""
    calls: int = 0
    """Target passes so far, the prefill included."""

    @abstractmethod
    def score(self, inputs: Sequence[Sequence[int]]) -> Scores:
        """One pass over new tokens, inputs[b] for request b -> a row for each token, M = sum of lengths.

        inputs[b] may be empty: request b then sits this pass out (a drafting chain that is already long enough). At
        least one request has a token. `score` may be called several times before `keep`.
        """

    @abstractmethod
    def keep(self, counts: Sequence[int]) -> None:
        """Of the inputs scored since the last `keep`, keep the first counts[b] of request b; roll back the rest.

        Several `score` calls in a row count as one list of inputs per request, in the order they were fed. A `score`
        after another without `keep` between them builds on all of its inputs.
        """

    @abstractmethod
    def retain(self, requests: Sequence[int]) -> None:
        """Go on with these requests only (indices into the present batch, ascending)."""


class Target(ABC):
    """A causal language model.

    vocab V of the logits; absent [V] bool marks ids without a tokenizer entry, None if there are none; context the
    longest sequence; eos the ids that end a text; default_temperature from the model's generation config.
    """

    name: str
    vocab: int
    hidden: int
    layers: int
    context: int
    eos: frozenset[int]
    absent: Tensor | None
    device: torch.device
    dtype: torch.dtype
    dtype_reason: str
    default_temperature: float
    tokenizer: Tokenizer

    @property
    def dtype_name(self) -> str:
        """The number format in the words of the option that chooses it."""
        return str(self.dtype).removeprefix("torch.")

    def reference(self) -> Any | None:
        """The same model as a transformers module, to time its own `generate` beside this loop; None if there is none.

        It may be read from disk at the call.
        """
        return None

    @abstractmethod
    def open(
        self, prompts: Sequence[Sequence[int]], room: int, taps: Sequence[int] = ()
    ) -> tuple[TargetSession, Scores]:
        """Prefill: ragged prompts, room for so many positions after each -> session, logits [B, V] at their ends.

        Tap i in 0..layers is the residual stream after i layers (0 = embeddings), FINAL_NORM the state the head reads.
        """
