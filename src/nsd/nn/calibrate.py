"""How large the inputs of every projection get: a short pass over random ids, made while a model is loaded.

Which channels are large is a property of the weights far more than of the text: on the embedded model a pass over real
text gives laws no nearer to the float ones. So it needs neither a tokenizer nor data, and the same checkpoint gives the
same weights every time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from nsd.nn.config import DecoderConfig
from nsd.nn.decoder import Decoder
from nsd.nn.onednn import W8A8
from nsd.nn.weights import Dense, LayerWeights, Projection

TEXTS, LENGTH = 8, 64


class Watched:
    """A projection that remembers the largest size of each of its inputs: peaks [in]."""

    def __init__(self, inner: Projection) -> None:
        self.inner = inner
        self.peaks: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to rows, and look at them."""
        peaks = x.abs().amax(0)
        self.peaks = peaks if self.peaks is None else torch.maximum(self.peaks, peaks)
        return self.inner(x)

    def part(self, first: int, last: int) -> Projection:
        """Outputs first..last - 1, unwatched."""
        return self.inner.part(first, last)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows ids [n] of the matrix."""
        return self.inner.rows(ids)

    @property
    def parameters(self) -> int:
        """How many numbers it holds."""
        return self.inner.parameters


def random_ids(vocab: int) -> Tensor:
    """Ids of a few short texts, the same ones every time: [TEXTS * LENGTH]."""
    return torch.randint(vocab, (TEXTS * LENGTH,), generator=torch.Generator().manual_seed(0))


def calibrated(
    config: DecoderConfig, layers: Iterable[LayerWeights], x: Tensor, dtype: torch.dtype
) -> tuple[list[LayerWeights], Tensor]:
    """The layers in w8a8, and the stream behind the last: x [TEXTS * LENGTH, hidden] is the embedded `random_ids`.

    One layer at a time, so that a float one is needed no longer than it takes.
    """
    single, finished = replace(config, layers=1), []
    for layer in layers:
        watched = [Watched(p) for p in (layer.qkv, layer.gate_up, layer.down)]
        qkv, gate_up, down = watched
        decoder = Decoder(single, [replace(layer, qkv=qkv, gate_up=gate_up, down=down)], None, x.dtype)
        cache = decoder.cache(TEXTS, LENGTH)
        x, _ = decoder.run(x, cache.rows([LENGTH] * TEXTS), cache)
        # Mixed values of many heads have no large channels: copies there gain nothing.
        spreading = replace(layer, qkv=spread(qkv), gate_up=spread(gate_up), down=spread(down))
        finished.append(spreading.mapped(W8A8.of, dtype))
    return finished, x


def spread(watched: Watched) -> Projection:
    """A watched map in w8a8, its large inputs spread over copies."""
    assert isinstance(watched.inner, Dense)
    return W8A8.of(watched.inner, watched.peaks)
