"""State of a Gated DeltaNet layer, and how it is taken back: a record of each pass, and a replay of its recurrence.

A layer keeps no keys and values but a short window of convolution inputs and one matrix per head,

    S_t = exp(g_t) S_t-1 + k_t (beta_t (v_t - exp(g_t) S_t-1^T k_t))^T

which cannot be cut back. So each pass leaves a record: the state before it, and what k, v, g and beta were computed
from. To go back into the middle of a pass, the recurrence alone is replayed over its first inputs, for all layers at
once: a few small products, no large projection, no attention, no head.

Rows of a ragged pass are padded on the right. Padding writes nothing (beta = 0) and forgets nothing (g = 0), so the
state a pass ends with is each row's own; the convolution window is taken at each row's own end.

Uses of transformers (>= 5.19): `LinearAttentionCacheLayerMixin`; of a mixer the modules in_proj_a, in_proj_b, conv1d,
the parameters A_log and dt_bias, and its head counts and sizes.
Source: transformers src/transformers/models/qwen3_5/modeling_qwen3_5.py; Yang et al., "Gated Delta Networks"
(arXiv 2412.06464), equation 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import LinearAttentionCacheLayerMixin

Mixer = Any
"""A DeltaNet module of transformers, whose classes carry no types; what is read of it is checked at loading."""

_SIZES = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
PARTS = ("in_proj_a", "in_proj_b", "conv1d", "A_log", "dt_bias", *_SIZES)
"""What is read of a mixer."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one pass of one layer leaves behind, so that a part of it can be replayed.

    inputs [B, channels, kernel + n] the convolution window and the new inputs; state [B, heads, k, v] before the pass;
    a, b [B, n, heads] raw decay and write strength, padding silenced.
    """

    inputs: Tensor
    state: Tensor
    a: Tensor
    b: Tensor

    def rows(self, at: Tensor) -> Record:
        """The same for some rows."""
        return Record(self.inputs[at], self.state[at], self.a[at], self.b[at])


class DeltaLayer(LinearAttentionCacheLayerMixin):  # type: ignore[misc]  # transformers classes are untyped
    """Window and matrix of one layer, after everything fed so far, and the records since the last `keep`."""

    is_sliding = False

    def __init__(self, mixer: Mixer, batch: int) -> None:
        super().__init__()
        self.record_past = True  # keeps transformers on the path that asks this object for the window
        weight: Tensor = mixer.conv1d.weight
        self.kernel = weight.shape[-1]
        self.conv_states[0] = weight.new_zeros(batch, weight.shape[0], self.kernel)
        shape = (batch, mixer.num_v_heads, mixer.head_k_dim, mixer.head_v_dim)
        self.recurrent_states[0] = weight.new_zeros(shape, dtype=torch.float32)
        self.records: list[Record] = []
        self.counts: Tensor | None = None
        self.silent: Tensor | None = None
        self.recording = False
        self._raw: dict[str, Tensor] = {}
        self._inputs: Tensor | None = None

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """Nothing: the storage is there from the start."""

    @property
    def is_initialized(self) -> bool:
        """Whether a pass has gone through the layer."""
        return bool(self.has_previous_state[0])

    def begin(self, counts: Tensor, silent: Tensor | None, recording: bool) -> None:
        """Announce a pass: counts [B] real inputs per row, silent [B, n] marks padding (None if there is none)."""
        self.counts, self.silent, self.recording = counts, silent, recording

    def heard(self, name: str, raw: Tensor) -> Tensor:
        """Take the raw decay or write strength [B, n, heads] of this pass -> the same with padding silenced."""
        if self.silent is not None:
            raw = raw.masked_fill(self.silent.unsqueeze(-1), -torch.inf)
        if self.recording:
            self._raw[name] = raw
        return raw

    def update_conv_state(self, conv_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Take new convolution inputs [B, channels, n] -> window and inputs; each row's window moves to its own end."""
        assert self.counts is not None
        self._inputs = torch.cat([self.conv_states[0], conv_states], -1)
        self.conv_states[0] = window(self._inputs, self.counts, self.kernel)
        return self._inputs

    def update_recurrent_state(self, recurrent_states: Tensor, *_: Any, **__: Any) -> Tensor:
        """Take the state that the pass ended with, and note how it came about."""
        if self.recording:
            assert self._inputs is not None
            self.records.append(Record(self._inputs, self.recurrent_states[0], self._raw["a"], self._raw["b"]))
        self._raw, self._inputs = {}, None
        self.recurrent_states[0] = recurrent_states
        self.has_previous_state[0] = True
        return recurrent_states

    def select(self, requests: Tensor) -> None:
        """Keep these rows."""
        at = requests.to(self.conv_states[0].device)
        self.conv_states[0] = self.conv_states[0][at]
        self.recurrent_states[0] = self.recurrent_states[0][at]
        self.records = [record.rows(at) for record in self.records]


def window(inputs: Tensor, steps: Tensor, kernel: int) -> Tensor:
    """Convolution inputs [B, channels, kernel + n] -> the last ones after steps[b] new ones [B, channels, kernel]."""
    at = steps.unsqueeze(-1) + torch.arange(kernel, device=inputs.device)
    return inputs.gather(-1, at.unsqueeze(1).expand(-1, inputs.shape[1], -1))


def replay(mixers: Sequence[Mixer], records: Sequence[Record], steps: Tensor, most: int) -> Tensor:
    """States of all layers after the first steps[b] <= most inputs of a pass: [layers, B, heads, k, v] float32."""
    state = torch.stack([record.state for record in records])
    if not most:
        return state
    live = (torch.arange(most, device=steps.device) < steps.unsqueeze(-1)).unsqueeze(-1)
    raw_a, raw_b = (torch.stack([getattr(record, name)[:, :most] for record in records]) for name in ("a", "b"))
    rate = torch.stack([mixer.A_log.float().exp() for mixer in mixers])[:, None, None]
    bias = torch.stack([mixer.dt_bias for mixer in mixers])[:, None, None]
    decay = torch.where(live, -rate * functional.softplus(raw_a.float() + bias), 0.0).exp()
    strength = torch.where(live, raw_b.sigmoid().float(), 0.0)
    keys, values = _keys_values(mixers, records, most)
    for t in range(most):
        key, value = keys[:, :, t], values[:, :, t]
        state = state * decay[:, :, t, :, None, None]
        held = (state * key.unsqueeze(-1)).sum(-2)
        state = state + key.unsqueeze(-1) * (strength[:, :, t, :, None] * (value - held)).unsqueeze(-2)
    return state


def _keys_values(mixers: Sequence[Mixer], records: Sequence[Record], most: int) -> tuple[Tensor, Tensor]:
    """Normalised keys, and values, of the first inputs of a pass: [layers, B, most, value heads, size] float32 each."""
    first = mixers[0]
    kernel, width = first.conv1d.weight.shape[-1], first.num_k_heads * first.head_k_dim
    weight = torch.stack([mixer.conv1d.weight[width:, 0] for mixer in mixers])[:, None, :, None]
    inputs = torch.stack([record.inputs[:, width:, 1 : kernel + most] for record in records]).unfold(-1, kernel, 1)
    mixed = (inputs.float() * weight.float()).sum(-1).to(weight.dtype)
    mixed = functional.silu(mixed).transpose(-1, -2).float()
    keys, values = torch.split(mixed, [width, mixed.shape[-1] - width], -1)
    keys = torch.unflatten(keys, -1, (first.num_k_heads, -1))
    keys = keys * torch.rsqrt(keys.square().sum(-1, keepdim=True) + 1e-6)
    keys = keys.repeat_interleave(first.num_v_heads // first.num_k_heads, -2)
    return keys, torch.unflatten(values, -1, (first.num_v_heads, -1))
