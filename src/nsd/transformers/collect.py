"""Gathers what a run commits into the form that `generate` returns, and streams it on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nsd.api import Run
from nsd.events import Block
from nsd.transformers.output import NSDOutput, Streaming, columns, sequences
from nsd.transformers.processing import Row
from nsd.transformers.taped import Taped


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `generate`, prepared by transformers: padded ids [B, n], processors, criteria and config."""

    input_ids: Tensor
    processors: Any
    criteria: Any
    config: Any

    @property
    def pad(self) -> int | None:
        """The padding id, if there is one."""
        pad = self.config._pad_token_tensor
        return None if pad is None else int(pad)

    @property
    def wants(self) -> tuple[bool, bool]:
        """Whether scores and raw logits are to be returned."""
        if not self.config.return_dict_in_generate:
            return False, False
        return bool(self.config.output_scores), bool(self.config.output_logits)

    def rows(self, kept: Tensor) -> list[Row]:
        """The rows of the batch; kept [B, n] marks the ids that the model sees."""
        batch = len(self.input_ids)
        return [
            Row(b, batch, ids, tuple(ids[seen].tolist()))
            for b, (ids, seen) in enumerate(zip(self.input_ids, kept, strict=True))
        ]

    def ends(self, row: Row) -> Callable[[Sequence[int]], bool]:
        """Whether a row's output is complete by the stopping criteria, which see this row alone and no scores."""

        def complete(output: Sequence[int]) -> bool:
            return bool(self.criteria(row.ids(output), None).all())

        return complete


class Collector:
    """Takes a run's blocks one by one."""

    def __init__(self, call: Call, rows: Sequence[Row], tape: Taped | None, streamer: Any) -> None:
        self.call, self.rows, self.tape = call, rows, tape
        self.outputs: list[list[int]] = [[] for _ in rows]
        self.scores: list[list[Tensor]] = [[] for _ in rows]
        self.logits: list[list[Tensor]] = [[] for _ in rows]
        self._streaming = None if streamer is None else Streaming(streamer, len(rows), call.pad)
        self._previous, self._place = len(rows), 0

    def take(self, block: Block) -> None:
        """One request's share of one step; the shares of a step come in ascending order."""
        b = block.request
        self._place = 0 if b <= self._previous else self._place + 1
        self._previous = b
        tokens = [committed.token for committed in block.committed]
        if self.tape is not None:
            self._keep_scores(self.tape, b, len(tokens), tokens)
        self.outputs[b] += tokens
        if self._streaming is not None:
            self._streaming.add(b, tokens, block.finish_reason is not None)

    def _keep_scores(self, tape: Taped, b: int, count: int, tokens: list[int]) -> None:
        wants_scores, wants_logits = self.call.wants
        for i in range(count):
            raw = tape.row(self._place, i)
            if wants_logits:
                self.logits[b].append(raw)
            if wants_scores:
                output = [*self.outputs[b], *tokens[:i]]
                self.scores[b].append(self.rows[b].apply(self.call.processors, output, raw.clone()))

    def result(self, run: Run) -> Any:
        """The tensor of sequences, or the output object where the config asks for one."""
        if self._streaming is not None:
            self._streaming.end()
        ids = sequences(self.call.input_ids, self.outputs, self.call.pad)
        if not self.call.config.return_dict_in_generate:
            return ids
        wants_scores, wants_logits = self.call.wants
        return NSDOutput(
            sequences=ids,
            scores=columns(self.scores, self.call.pad) if wants_scores else None,
            logits=columns(self.logits, self.call.pad) if wants_logits else None,
            completions=tuple(run.completions()),
        )
