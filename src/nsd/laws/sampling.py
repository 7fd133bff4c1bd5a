"""From logits to the processed law: what p and q mean everywhere in this project.

Order: missing ids, penalties, banned ids, given processors, temperature, top-k, top-p, min-p, softmax. Temperature 0 is
the point mass at the argmax (lowest id among equals). The same function makes p and q, in the autoregressive arm too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.laws.rows import argmax, one_hot, row_sum

_LARGE = 1e6
_COLDEST = 1e-5
"""Below this, and beyond _LARGE, scores leave the range of float32; 0 has its own path."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""A transformers-style logits processor: (input_ids [1, n], scores [1, V]) -> scores [1, V]."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request turns logits into a law.

    temperature 0 (argmax) or in [1e-5, 1e6]; top_k >= 0 (0 = off); top_p in (0, 1]; min_p in [0, 1]; repetition_penalty
    in [1e-5, 1e6] (1 = off, prompt and output); presence_penalty and frequency_penalty in [-1e6, 1e6] (0 = off, output
    only); banned ids never drawn; processors are called position by position with the tokens before it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    banned: tuple[int, ...] = ()
    processors: tuple[Processor, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        warm = self.temperature == 0 or _COLDEST <= self.temperature <= _LARGE
        cold = "--temperature 0 for the argmax" if 0 < self.temperature < _COLDEST else None
        _require("temperature", self.temperature, warm, "0 or a number in [1e-5, 1e6]", cold)
        _require("top_k", self.top_k, self.top_k >= 0 and self.top_k % 1 == 0, "an integer >= 0 (0 = off)")
        _require("top_p", self.top_p, 0 < self.top_p <= 1, "a number in (0, 1]")
        _require("min_p", self.min_p, 0 <= self.min_p <= 1, "a number in [0, 1]")
        factor = self.repetition_penalty
        _require("repetition_penalty", factor, _COLDEST <= factor <= _LARGE, "a number in [1e-5, 1e6] (1 = off)")
        for name in ("presence_penalty", "frequency_penalty"):
            shift = getattr(self, name)
            _require(name, shift, abs(shift) <= _LARGE, "a number in [-1e6, 1e6] (0 = off)")

    @property
    def needs_history(self) -> bool:
        """Whether the law depends on the tokens before the position."""
        return bool(self.processors) or (
            self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )


@dataclass(frozen=True, slots=True)
class History:
    """The tokens before one position: those of the prompt, and those emitted or drafted after it."""

    prompt: Sequence[int]
    output: Sequence[int]


def _require(name: str, got: float, holds: bool, wanted: str, instead: str | None = None) -> None:
    if not (holds and math.isfinite(got)):
        instead = instead or f"--{name.replace('_', '-')} with such a value"
        raise ConfigError(f"{name} is {got}, wanted {wanted}; try {instead}")


def laws(
    logits: Tensor,
    samplings: Sequence[Sampling],
    histories: Sequence[History] | None = None,
    absent: Tensor | None = None,
) -> Tensor:
    """Processed laws: logits [N, V] with one sampling (and history, where needed) per row -> [N, V] float32 or wider.

    absent [V] bool marks ids without a tokenizer entry: they get probability 0. A row without a finite law (NaN, +inf
    or nothing left) comes back as NaN throughout.
    """
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    if absent is not None:
        scores = scores.masked_fill(absent, -torch.inf)
    scores = _with_history(scores, samplings, histories)
    if any(s.banned for s in samplings):
        scores = scores.clone()
        for row, sampling in enumerate(samplings):
            _check_ids(sampling.banned, scores.shape[-1])
            scores[row, list(sampling.banned)] = -torch.inf
    temperatures = [s.temperature for s in samplings]
    if any(t not in (0.0, 1.0) for t in temperatures):
        scores = scores / scores.new_tensor([t or 1.0 for t in temperatures]).unsqueeze(-1)
    scores = _truncated(scores, samplings)
    law = torch.softmax(scores, -1)
    # A float32 softmax over 50,000 ids sums to 1 within 2e-5 only, which a float64 audit would see.
    law.mul_(row_sum(law).reciprocal_().to(law).unsqueeze(-1))
    if 0.0 in temperatures:
        cold = scores.new_tensor([t == 0.0 for t in temperatures], dtype=torch.bool).unsqueeze(-1)
        point = one_hot(argmax(scores), law).masked_fill_(~law[:, :1].isfinite(), torch.nan)
        law = torch.where(cold, point, law)
    return law


def _check_ids(banned: tuple[int, ...], vocab: int) -> None:
    outside = [i for i in banned if not 0 <= i < vocab]
    if outside:
        raise ConfigError(
            f"banned id {outside[0]} is not in the vocabulary, wanted ids in 0..{vocab - 1}; leave it out"
        )


def _with_history(scores: Tensor, samplings: Sequence[Sampling], histories: Sequence[History] | None) -> Tensor:
    """Penalties and processors, one position at a time, since each sees its own prefix."""
    if not any(s.needs_history for s in samplings):
        return scores
    if histories is None:
        raise ConfigError("penalties and processors need the tokens before each position; got none")
    rows = []
    for row, (sampling, history) in enumerate(zip(samplings, histories, strict=True)):
        one = scores[row : row + 1]
        rows.append(_one_with_history(one, sampling, history) if sampling.needs_history else one)
    return torch.cat(rows)


def _one_with_history(scores: Tensor, sampling: Sampling, history: History) -> Tensor:
    seen = torch.tensor(sorted({*history.prompt, *history.output}), dtype=torch.long, device=scores.device)
    if sampling.repetition_penalty != 1.0:
        # Source: the CTRL paper's penalty, as transformers' RepetitionPenaltyLogitsProcessor defines it.
        old = scores[0, seen]
        factor = sampling.repetition_penalty
        scores = scores.clone()
        scores[0, seen] = torch.where(old > 0, old / factor, old * factor)
    if sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0:
        output = torch.tensor(list(history.output), dtype=torch.long, device=scores.device)
        counts = torch.bincount(output, minlength=scores.shape[-1]).to(scores)
        scores = scores - sampling.presence_penalty * (counts > 0) - sampling.frequency_penalty * counts
    if sampling.processors:
        ids = torch.tensor([[*history.prompt, *history.output]], dtype=torch.long, device=scores.device)
        for processor in sampling.processors:
            scores = processor(ids, scores.clone())
    return scores


def _truncated(scores: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """top-k, then top-p, then min-p, by setting what falls out to -inf; ties with the k-th score stay."""
    vocab = scores.shape[-1]
    if any(s.top_k for s in samplings):
        ks = [min(s.top_k, vocab) if s.top_k else vocab for s in samplings]
        widest = max(k for k in ks if k < vocab) if any(k < vocab for k in ks) else 1
        top = scores.topk(widest, -1).values
        kth = torch.tensor([min(k, widest) - 1 for k in ks], device=scores.device).unsqueeze(-1)
        unlimited = torch.tensor([k >= vocab for k in ks], device=scores.device).unsqueeze(-1)
        scores = scores.masked_fill((scores < top.gather(-1, kth)) & ~unlimited, -torch.inf)
    if any(s.top_p < 1.0 for s in samplings):
        limit = torch.tensor([s.top_p for s in samplings], dtype=torch.float64, device=scores.device).unsqueeze(-1)
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        mass = torch.softmax(ordered, -1).double()
        beyond = (mass.cumsum(-1) - mass >= limit) & (limit < 1.0)
        beyond[:, 0] = False
        scores = scores.masked_fill(torch.zeros_like(beyond).scatter_(-1, order, beyond), -torch.inf)
    if any(s.min_p > 0.0 for s in samplings):
        least = scores.new_tensor([s.min_p for s in samplings]).unsqueeze(-1)
        law = torch.softmax(scores, -1)
        scores = scores.masked_fill(law < least * law.amax(-1, keepdim=True), -torch.inf)
    return scores
