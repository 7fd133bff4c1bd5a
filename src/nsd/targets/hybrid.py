"""Targets that mix attention with Gated DeltaNet layers (Qwen3.5), rolled back exactly and without another pass.

Attention layers are rolled back by lengths, as everywhere. DeltaNet states are replayed from the record of the last
pass (`nsd.targets.delta`), so no token is fed to the model twice. A request that kept all of its inputs takes the state
that the pass itself ended with, whatever became of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nsd.errors import ModelError
from nsd.targets.base import Scores
from nsd.targets.cache import RaggedCache, RaggedLayer
from nsd.targets.delta import PARTS, DeltaLayer, Mixer, Record, replay, window
from nsd.targets.hf import HfSession, HfTarget
from nsd.targets.masks import FULL, LINEAR
from nsd.targets.taps import layer_list


def is_hybrid(config: Any) -> bool:
    """Whether a transformers configuration mixes full attention with Gated DeltaNet layers of the kind read here."""
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    kinds = set(getattr(text, "layer_types", None) or ())
    return getattr(text, "model_type", "") == "qwen3_5_text" and LINEAR in kinds and kinds <= {FULL, LINEAR}


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
        lacking = sorted({name for mixer in present for name in PARTS if not hasattr(mixer, name)})
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
