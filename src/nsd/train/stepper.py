"""The target, one position at a time for a whole batch: the fastest way at hand to write text and keep hidden states.

All rows have the same length, so no pass needs a mask. Llama-like checkpoints run on `nsd.nn`, fused and with a
preallocated cache; any other target runs through its own session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from nsd.errors import ModelError
from nsd.nn import Decoder, decoder_config, layer_shapes, layer_weights
from nsd.targets.base import FINAL_NORM, Target, TargetSession

LEAN = ("llama", "qwen3", "ministral3")
"""Model types whose decoder is exactly `nsd.nn`'s."""


class Stepper(Protocol):
    """One batch: states [B, n + 1, hidden] are the taps asked for and the state behind the final norm."""

    def start(self, prefix: Sequence[int], batch: int, room: int) -> tuple[Tensor, Tensor]:
        """Feed one prefix to all rows -> logits [B, V] after it, states of its positions [len(prefix), n + 1, H]."""

    def begin(self, tokens: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """As `start`, for rows that begin with a token each of their own [B] -> logits [B, V], states [B, n + 1, H]."""

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Feed a token to every row, tokens [B] -> logits [B, V], states [B, n + 1, H]."""


def stepper(target: Target, taps: Sequence[int]) -> Stepper:
    """The fast one where the model's type allows, else the general one."""
    try:
        return LeanStepper(target, taps)
    except ModelError:
        return SessionStepper(target, taps)


class LeanStepper:
    """`nsd.nn`'s decoder over the target's own weights. Raises ModelError for architectures it does not know."""

    def __init__(self, target: Target, taps: Sequence[int]) -> None:
        model: Any = getattr(target, "model", None)  # a transformers module, where the target is built on one
        kind = getattr(getattr(model, "config", None), "model_type", None)
        if kind not in LEAN:
            raise ModelError(f"{target.name} is of type {kind}, the lean decoder knows {', '.join(LEAN)}")
        config = decoder_config(model.config.to_dict(), target.name, qk_norm=kind == "qwen3")
        tensors = {name.removeprefix("model."): tensor.detach() for name, tensor in model.state_dict().items()}
        lacking = [n for i in range(config.layers) for n in layer_shapes(config, f"layers.{i}.") if n not in tensors]
        if lacking:
            raise ModelError(f"{target.name} lacks {lacking[0]}, which the lean decoder reads")
        layers = [layer_weights(config, tensors, f"layers.{i}.") for i in range(config.layers)]
        self.decoder = Decoder(replace(config), layers, tensors["norm.weight"], target.dtype)
        self.embedding = model.get_input_embeddings().weight.detach()
        self.head = model.get_output_embeddings().weight.detach()
        self.taps, self.batch = tuple(taps), 0

    @torch.inference_mode()
    def start(self, prefix: Sequence[int], batch: int, room: int) -> tuple[Tensor, Tensor]:
        """Feed the prefix once; every row gets a copy of its keys and values."""
        one, self.batch = self.decoder.cache(1, len(prefix)), 1
        self.cache = one
        states = self._run(torch.tensor(list(prefix)), [len(prefix)])
        self.cache, self.batch = self.decoder.cache(batch, len(prefix) + room), batch
        for mine, first in zip([*self.cache.keys, *self.cache.values], [*one.keys, *one.values], strict=True):
            mine[:, :, : len(prefix)] = first[:, :, : len(prefix)]
        self.cache.lengths = [len(prefix)] * batch
        return functional.linear(states[-1:, -1], self.head).expand(batch, -1), states

    @torch.inference_mode()
    def begin(self, tokens: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """Empty caches, then a step."""
        self.batch = len(tokens)
        self.cache = self.decoder.cache(self.batch, 1 + room)
        return self.step(tokens)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """One token for every row."""
        states = self._run(tokens, [1] * self.batch)
        return functional.linear(states[:, -1], self.head), states

    def _run(self, tokens: Tensor, counts: list[int]) -> Tensor:
        rows = self.cache.rows(counts)
        x, taps = self.decoder.run(functional.embedding(tokens, self.embedding), rows, self.cache, self.taps)
        self.cache.append(rows)
        self.cache.keep_all()
        assert taps is not None
        return torch.cat((taps, self.decoder.normed(x).unsqueeze(1)), 1)


class SessionStepper:
    """Any target, through the session that decoding uses. Ids that it never says are as impossible here as there."""

    def __init__(self, target: Target, taps: Sequence[int]) -> None:
        self.target, self.taps = target, (*taps, FINAL_NORM)
        self.session: TargetSession | None = None

    def start(self, prefix: Sequence[int], batch: int, room: int) -> tuple[Tensor, Tensor]:
        """Prefill all rows with the prefix."""
        self.session, scores = self.target.open([list(prefix)] * batch, room, self.taps)
        assert scores.taps is not None
        return self._said(scores.logits), scores.taps[: len(prefix)]

    def begin(self, tokens: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """Prefill every row with its token."""
        self.session, scores = self.target.open([[token] for token in tokens.tolist()], room, self.taps)
        assert scores.taps is not None
        return self._said(scores.logits), scores.taps

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """One token for every row."""
        assert self.session is not None
        scores = self.session.score([[token] for token in tokens.tolist()])
        self.session.keep([1] * len(tokens))
        assert scores.taps is not None
        return self._said(scores.logits), scores.taps

    def _said(self, logits: Tensor) -> Tensor:
        absent = self.target.absent
        return logits if absent is None else logits.masked_fill(absent, -torch.inf)
