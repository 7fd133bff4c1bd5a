"""What comes back: padded sequences, and by request scores, logits and this project's own account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from nsd.decoding import Completion
from nsd.errors import ConfigError


@dataclass
class NSDOutput(GenerateDecoderOnlyOutput):  # type: ignore[misc]  # transformers classes are untyped
    """`GenerateDecoderOnlyOutput` with a completion for every row: its blocks, statistics and fidelity.

    scores and logits have one tensor [B, V] for each new column. A row that has ended has, beyond its end, the point
    mass at the padding token in both: 0 there, -inf elsewhere. cache is None. The text of completions is empty, since
    `generate` knows no tokenizer; their ids are the row's new tokens.
    """

    completions: tuple[Completion, ...] | None = None


def sequences(input_ids: Tensor, outputs: Sequence[Sequence[int]], pad: int | None) -> Tensor:
    """Prompts as they came, new tokens after them, padding after those: [B, n + longest]."""
    longest = max(len(output) for output in outputs)
    rows = [[ids[t] if t < len(ids) else padding(pad) for t in range(longest)] for ids in outputs]
    return torch.cat([input_ids, input_ids.new_tensor(rows)], -1)


def columns(rows: Sequence[Sequence[Tensor]], pad: int | None) -> tuple[Tensor, ...]:
    """Rows of [1, V], one list for each request -> a tensor [B, V] for each column."""
    longest = max(len(row) for row in rows)
    return tuple(
        torch.cat([row[t] if t < len(row) else _ended(rows[0][0], pad) for row in rows]) for t in range(longest)
    )


def padding(pad: int | None) -> int:
    """The padding id. Raises ConfigError if there is none."""
    if pad is None:
        raise ConfigError("rows may end at different lengths and no padding id is known, wanted pad_token_id; pass one")
    return pad


def _ended(like: Tensor, pad: int | None) -> Tensor:
    scores = torch.full_like(like, -torch.inf)
    scores[0, padding(pad)] = 0.0
    return scores


class Streaming:
    """Feeds a transformers streamer column by column, as plain `generate` does, as soon as all rows have one."""

    def __init__(self, streamer: Any, batch: int, pad: int | None) -> None:
        self._streamer, self._pad = streamer, pad
        self._rows: list[list[int]] = [[] for _ in range(batch)]
        self._ended = [False] * batch
        self._shown = 0

    def add(self, row: int, tokens: Sequence[int], ended: bool) -> None:
        """New tokens of a row, and whether they are its last."""
        self._rows[row] += tokens
        self._ended[row] |= ended
        ready = [len(ids) for ids, over in zip(self._rows, self._ended, strict=True) if not over]
        upto = min(ready) if ready else max(len(ids) for ids in self._rows)
        for t in range(self._shown, upto):
            column = [ids[t] if t < len(ids) else padding(self._pad) for ids in self._rows]
            self._streamer.put(torch.tensor(column))
        self._shown = max(self._shown, upto)

    def end(self) -> None:
        """Nothing comes any more."""
        self._streamer.end()
