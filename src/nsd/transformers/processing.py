"""transformers' logits processors as the processed law of this project.

A list of processors ends, for sampling, with temperature, top-k, top-p and min-p in that order; these become a
`Sampling`, which does the same for all positions at once. Whatever stands before them, or all of the list where its end
is another, is called position by position as `generate` would: with the padded ids of the row up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as known

from nsd.laws import Sampling

_WARPERS: tuple[tuple[type, str], ...] = (
    (known.TemperatureLogitsWarper, "temperature"),
    (known.TopKLogitsWarper, "top_k"),
    (known.TopPLogitsWarper, "top_p"),
    (known.MinPLogitsWarper, "min_p"),
)

_ROW_BLIND = frozenset(
    getattr(known, name)
    for name in (
        *("TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper", "TopHLogitsWarper"),
        *("TypicalLogitsWarper", "EpsilonLogitsWarper", "EtaLogitsWarper", "MinLengthLogitsProcessor"),
        *("MinNewTokensLengthLogitsProcessor", "NoRepeatNGramLogitsProcessor", "SequenceBiasLogitsProcessor"),
        *("NoBadWordsLogitsProcessor", "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor"),
        *("InfNanRemoveLogitsProcessor", "ExponentialDecayLengthPenalty", "LogitNormalization"),
        *("SuppressTokensAtBeginLogitsProcessor", "SuppressTokensLogitsProcessor"),
    )
)
"""Processors that treat every row alike; all others may look at the row's place in the batch."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a padded batch: its number among `batch`, its padded ids [n], and those that are its prompt."""

    number: int
    batch: int
    padded: Tensor
    prompt: tuple[int, ...]

    def ids(self, output: Sequence[int]) -> Tensor:
        """Padded prompt and output: [1, n + m]."""
        return torch.cat([self.padded, self.padded.new_tensor(list(output))]).unsqueeze(0)

    def apply(self, processors: Any, output: Sequence[int], scores: Tensor) -> Tensor:
        """Processed scores of the position after this output: [1, V] -> [1, V].

        Where a processor may look at the place of a row, it is shown a whole batch in which only this row counts.
        """
        ids = self.ids(output)
        at = slice(0, 1)
        if self.batch > 1 and any(type(processor) not in _ROW_BLIND for processor in processors):
            ids, scores = ids.repeat(self.batch, 1), scores.repeat(self.batch, 1)
            at = slice(self.number, self.number + 1)
        processed: Tensor = processors(ids, scores)[at]
        return processed


def sampling_of(processors: Any, do_sample: bool, row: Row) -> Sampling:
    """How the law of one row is made from its logits."""
    split, named = _split(processors) if do_sample else (len(processors), {"temperature": 0.0})
    before = type(processors)(processors[:split])
    if not before:
        return Sampling(**named)
    return Sampling(**named, processors=(_adapter(before, row),))


def _adapter(processors: Any, row: Row) -> Callable[[Tensor, Tensor], Tensor]:
    """(ids [1, prompt + output], scores [1, V]) -> scores, with the padding put back before the ids."""

    def processed(ids: Tensor, scores: Tensor) -> Tensor:
        return row.apply(processors, ids[0, len(row.prompt) :].tolist(), scores)

    return processed


def _split(processors: Any) -> tuple[int, dict[str, Any]]:
    """Where the run of plain warpers at the end begins, and their numbers."""
    named: dict[str, Any] = {}
    at, latest = len(processors), len(_WARPERS)
    while at:
        warper = processors[at - 1]
        place = next((i for i, (kind, _) in enumerate(_WARPERS) if type(warper) is kind), None)
        if place is None or place >= latest or not _is_plain(warper):
            break
        name = _WARPERS[place][1]
        named[name] = getattr(warper, name)
        at, latest = at - 1, place
    return at, named


def _is_plain(warper: Any) -> bool:
    """Whether it removes what it removes, and may leave a single id."""
    return getattr(warper, "min_tokens_to_keep", 1) == 1 and getattr(warper, "filter_value", -torch.inf) == -torch.inf
