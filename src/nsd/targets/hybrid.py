"""Targets that mix attention with Gated DeltaNet layers (Qwen3.5): recurrent states rolled back without another pass.

A DeltaNet layer keeps no keys and values but a short window of convolution inputs and one matrix per head,

    S_t = exp(g_t) S_t-1 + k_t (beta_t (v_t - exp(g_t) S_t-1^T k_t))^T

which cannot be cut back. So each pass leaves a record: the state before it, and what k, v, g and beta were computed
from. After the verdict the recurrence alone is replayed over the kept inputs, for all layers at once: a few small
products, no large projection, no attention, no head, no token fed to the model twice. A request that kept everything
takes the state that the pass itself ended with.

Rows of a ragged pass are padded on the right. Padding writes nothing (beta = 0) and forgets nothing (g = 0), so the
state a pass ends with is each row's own; the convolution window is taken at each row's own end.

Uses of transformers (>= 5.19): `LinearAttentionCacheLayerMixin`; of a mixer the modules in_proj_a, in_proj_b, conv1d,
the parameters A_log and dt_bias, and its head counts and sizes.
Source: transformers src/transformers/models/qwen3_5/modeling_qwen3_5.py; Yang et al., "Gated Delta Networks"
(arXiv 2412.06464), equation 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from nsd.errors import ModelError
from nsd.targets.base import Scores
from nsd.targets.cache import RaggedCache, RaggedLayer
from nsd.targets.hf import HfSession, HfTarget
from nsd.targets.masks import FULL, LINEAR
from nsd.targets.taps import layer_list

Mixer = Any
"""A DeltaNet module of transformers, whose classes carry no types; what is read of it is checked at loading."""

_PARTS = ("in_proj_a", "in_proj_b", "conv1d", "A_log", "dt_bias")
_SIZES = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")


def is_hybrid(config: Any) -> bool:
    """Whether a transformers configuration mixes full attention with Gated DeltaNet layers of the kind read here."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    kinds = set(getattr(text, "layer_types", None) or ())
    return getattr(text, "model_type", "") == "qwen3_5_text" and LINEAR in kinds and kinds <= {FULL, LINEAR}


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


class HybridCache(RaggedCache):
    """Attention layers by length, DeltaNet layers by state and record."""

    def __init__(self, capacity: int, mixers: Sequence[Mixer | None], batch: int) -> None:
        super().__init__(capacity)
        self.layers = [RaggedLayer(self.plan) if mixer is None else DeltaLayer(mixer, batch) for mixer in mixers]
        self.deltas = [layer for layer in self.layers if isinstance(layer, DeltaLayer)]
        self.mixers = [mixer for mixer in mixers if mixer is not None]
        self.fed: list[list[int]] = []
        self.replayed = 0

    @contextmanager
    def passing(self, counts: Sequence[int], recording: bool, device: torch.device) -> Iterator[None]:
        """During one pass over counts[b] inputs of row b, listen to the DeltaNet layers, on record if asked."""
        width, real = max(counts), torch.tensor(list(counts), device=device)
        padded = min(counts) < width
        silent = torch.arange(width, device=device) >= real.unsqueeze(-1) if padded else None
        with ExitStack() as hooks:
            for layer, mixer in zip(self.deltas, self.mixers, strict=True):
                layer.begin(real, silent, recording)
                if padded or recording:
                    hooks.callback(mixer.in_proj_a.register_forward_hook(_listen(layer, "a")).remove)
                    hooks.callback(mixer.in_proj_b.register_forward_hook(_listen(layer, "b")).remove)
            yield
        if recording:
            self.fed.append(list(counts))

    def keep(self, counts: Sequence[int]) -> None:
        """Go back to the state after the first counts[b] inputs recorded for row b."""
        for number in reversed(range(len(self.fed))):
            widths, before = self.fed[number], [sum(column) for column in zip(*self.fed[:number], strict=True)]
            kept = [count - first for count, first in zip(counts, before or [0] * len(counts), strict=True)]
            cut = [n < whole for n, whole in zip(kept, widths, strict=True)]
            if any(cut):
                steps = [min(max(n, 0), whole) for n, whole in zip(kept, widths, strict=True)]
                self._put_back([layer.records[number] for layer in self.deltas], steps, cut)
        self.fed = []
        for layer in self.deltas:
            layer.records = []

    def retain(self, requests: Sequence[int], device: torch.device) -> None:
        """Keep these rows, in one copy."""
        super().retain(requests, device)
        self.fed = [[widths[b] for b in requests] for widths in self.fed]

    def _put_back(self, records: list[Record], steps: list[int], cut: list[bool]) -> None:
        """Set the cut rows of all layers to the state steps[b] inputs into this pass."""
        device = records[0].inputs.device
        count, rows = torch.tensor(steps, device=device), torch.tensor(cut, device=device)
        states = replay(self.mixers, records, count, max(steps))
        self.replayed += sum(n for n, is_cut in zip(steps, cut, strict=True) if is_cut)
        for layer, record, state in zip(self.deltas, records, states, strict=True):
            now = window(record.inputs, count, layer.kernel)
            layer.conv_states[0] = torch.where(rows[:, None, None], now, layer.conv_states[0])
            layer.recurrent_states[0] = torch.where(rows[:, None, None, None], state, layer.recurrent_states[0])


def _listen(layer: DeltaLayer, name: str) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def after(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return layer.heard(name, output)

    return after


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


class HybridTarget(HfTarget):
    """A loaded Qwen3.5 text model with its tokenizer. Raises ModelError for mixers of another kind."""

    mixers: list[Mixer | None]

    def require_supported(self, model: Any) -> None:
        """Find the DeltaNet mixers and check that they are of the kind that can be replayed."""
        text = model.config.get_text_config(decoder=True)
        if not is_hybrid(model.config):
            raise ModelError(f"{self.name} ({text.model_type}) has no Gated DeltaNet layers that can be replayed here")
        found = layer_list(model, text.num_hidden_layers)
        self.mixers = [] if found is None else [getattr(layer, "linear_attn", None) for layer in found[1]]
        present = [mixer for mixer in self.mixers if mixer is not None]
        lacking = sorted({name for mixer in present for name in (*_PARTS, *_SIZES) if not hasattr(mixer, name)})
        if len(present) != text.layer_types.count(LINEAR) or lacking:
            what = f"lacking {', '.join(lacking)}" if lacking else "in another place than layers[i].linear_attn"
            raise ModelError(f"{self.name} has DeltaNet layers {what}; install transformers >= 5.19, < 6")
        if text.hidden_act != "silu" or any(mixer.conv1d.bias is not None for mixer in present):
            kind = "silu without a bias"
            raise ModelError(f"{self.name} has DeltaNet layers with {text.hidden_act} or a bias, wanted {kind}")

    def new_session(self, batch: int, capacity: int, taps: tuple[int, ...]) -> HybridSession:
        """A session whose DeltaNet layers can be rolled back."""
        return HybridSession(self, HybridCache(capacity, self.mixers, batch), batch, taps)


class HybridSession(HfSession):
    """As for any transformers model; DeltaNet states follow `keep` by replay.

    replayed counts the inputs whose recurrence was replayed; positions and calls do not grow by a roll-back.
    """

    cache: HybridCache

    @property
    def replayed(self) -> int:
        """Inputs gone through again by the recurrence alone, over all roll-backs."""
        return self.cache.replayed

    def keep(self, counts: Sequence[int]) -> None:
        """Roll back to the first counts[b] inputs since the last keep: lengths for attention, replay for DeltaNet."""
        super().keep(counts)
        self.cache.keep(counts)

    def _run(self, inputs: Sequence[Sequence[int]], ends_only: bool) -> Scores:
        counts = [len(tokens) for tokens in inputs]
        if not any(counts):
            return super()._run(inputs, ends_only)  # which refuses it
        with self.cache.passing(counts, not ends_only, self.target.device):
            return super()._run(inputs, ends_only)
