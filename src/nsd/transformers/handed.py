"""What `GenerationMixin.generate` hands to a custom callable, what it keeps for itself, and what is refused.

transformers passes a callable the arguments of its signature and drops `assistant_model`, `streamer` and `synced_gpus`,
which are arguments of `generate` itself. They are read from the running call of `generate`; a call that was not made by
it has none.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin

from nsd.errors import ConfigError, ModelError

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_KEPT = ("assistant_model", "streamer", "synced_gpus")

_OURS = {"attention_mask", "position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep", "cache_position"}
"""Model arguments that `generate` prepares by itself; their contents are checked."""

Modes = Callable[[Any], object]

REFUSED: dict[str, tuple[Modes, str]] = {
    "constraints": (lambda c: c.constraints or c.force_words_ids, "constrained beam search has no single next token"),
    "num_beams": (lambda c: (c.num_beams or 1) > 1, "beam search keeps several texts; leave num_beams at 1"),
    "num_beam_groups": (lambda c: (c.num_beam_groups or 1) > 1, "beam search keeps several texts"),
    "penalty_alpha": (lambda c: c.penalty_alpha, "contrastive search compares hidden states; drop penalty_alpha"),
    "dola_layers": (lambda c: c.dola_layers, "DoLa compares layers; drop dola_layers"),
    "assistant_early_exit": (lambda c: c.assistant_early_exit, "try drafter='layer-skip' of nsd.load instead"),
    "use_mtp": (lambda c: c.use_mtp, "load the MTP layer with nsd.load and pass drafter=pair.drafter"),
    "speculation_type": (lambda c: c.speculation_type, "load the drafter with nsd.load and pass drafter=pair.drafter"),
    "assistant_ensemble_weight": (lambda c: c.assistant_ensemble_weight is not None, "take a rule of nsd list rules"),
    "guidance_scale": (lambda c: (c.guidance_scale or 1) != 1, "its processor runs a cache of its own"),
    "output_attentions": (lambda c: c.output_attentions, "attention weights are not kept; drop it"),
    "output_hidden_states": (lambda c: c.output_hidden_states, "hidden states are not kept; drop it"),
    "use_cache": (lambda c: c.use_cache is False, "this loop always keeps a cache; leave use_cache at True"),
    "cache_implementation": (
        lambda c: c.cache_implementation not in (None, "dynamic"),
        "this loop brings a cache of its own; drop cache_implementation",
    ),
    "prefill_chunk_size": (lambda c: c.prefill_chunk_size, "prompts are read in one pass; drop it"),
}
"""Options of a generation config that cannot be honoured: when they are on, and why or what instead."""


def kept_by_generate() -> dict[str, Any]:
    """Arguments of the innermost running `generate` that it does not pass on; empty outside of one."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back  # type: ignore[assignment]  # None at the bottom of the stack ends the loop
    if frame is None:
        return {}
    missing = [name for name in _KEPT if name not in frame.f_locals]
    if missing:
        raise ConfigError(
            f"transformers has no {missing[0]} in generate, wanted release 5.19 or a later 5; pass drafter= instead"
        )
    return {name: frame.f_locals[name] for name in _KEPT}


def check_config(config: Any) -> None:
    """Refuse what a generation config asks for and this loop cannot do. Raises ConfigError."""
    known = _Known(config)
    for name, (asked, why) in REFUSED.items():
        if asked(known):
            raise ConfigError(f"{name} is {getattr(config, name, None)!r}, which NSD cannot honour: {why}")


class _Known:
    """A config in which an option that this release of transformers does not have reads as None."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name, None)


def check_processors(processors: Any) -> None:
    """Refuse processors that remember their calls: positions are judged several at a time, some of them in vain."""
    stateful = [type(p).__name__ for p in processors if hasattr(p, "state") or "Guidance" in type(p).__name__]
    if stateful:
        raise ConfigError(f"{stateful[0]} keeps a state between calls, which NSD cannot honour; drop it")


def check_inputs(model: Any, input_ids: Tensor, arguments: Mapping[str, Any]) -> None:
    """Refuse model inputs other than token ids and their mask. Raises ConfigError or ModelError."""
    if getattr(model.config, "is_encoder_decoder", False):
        kind = model.config.model_type
        raise ModelError(
            f"{kind} is an encoder-decoder, wanted a decoder-only model; call generate without custom_generate"
        )
    other = [name for name, value in arguments.items() if name not in _OURS and value is not None]
    if other:
        raise ConfigError(
            f"got {other[0]}, wanted token ids and attention_mask alone; drop it or call generate without NSD"
        )
    if input_ids.dim() != 2 or not input_ids.shape[1]:
        raise ConfigError(f"input_ids have shape {tuple(input_ids.shape)}, wanted [batch, length >= 1]; give token ids")
    for name in ("cache", "past_key_values"):
        cache = arguments.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
            raise ConfigError("got a cache of your own, which NSD cannot continue; give the whole text as input_ids")
    kept, positions = shown(input_ids, arguments.get("attention_mask")), arguments.get("position_ids")
    if positions is not None:
        given = positions.to(input_ids.device).expand_as(input_ids)
        if not torch.equal(given[kept], (kept.long().cumsum(-1) - 1)[kept]):
            raise ConfigError("got position_ids of your own, wanted those of the attention mask; drop position_ids")


def shown(input_ids: Tensor, mask: Tensor | None) -> Tensor:
    """Which ids the model sees: [B, n] bool. A mask hides padding; without one everything is seen."""
    if mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    return mask.to(input_ids.device) != 0
