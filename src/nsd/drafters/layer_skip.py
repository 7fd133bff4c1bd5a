"""Self-speculation: the target drafts for itself with some of its layers left out.

The kept layers share the target's weights and have a cache of their own; what the shorter model says is sampled from
its own law q, so the draft is as typed as that of any model. No training is needed, and none is assumed: how often a
draft is accepted depends on the model.
Source: Draft & Verify (Zhang et al., 2023), which searches the skipped layers; here they are given or the default.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from nsd.drafters.draft_model import DEFAULT_K, ModelDrafter
from nsd.errors import ConfigError, ModelError
from nsd.targets.base import Target
from nsd.targets.hf import HfTarget
from nsd.targets.lean import LeanTarget
from nsd.targets.taps import layer_list


def default_skip(layers: int) -> tuple[int, ...]:
    """Every second layer of the middle half: 8, 10, ..., 22 of 30. First and last layers change the state most."""
    return tuple(range(layers // 4 + 1, layers - max(1, layers // 4), 2))


def skipped_target(target: Target, skip: Sequence[int]) -> Target:
    """The target without the layers `skip`: shared weights, own cache. Raises ConfigError for ids it does not have."""
    if isinstance(target, LeanTarget):
        _kept(skip, target.layers, target.name)
        return target.without(skip)
    if not isinstance(target, HfTarget):
        raise ModelError(
            f"layer skipping needs a transformers or lean model, {target.name} is none; take --drafter ngram"
        )
    kept = _kept(skip, target.layers, target.name)
    whole = layer_list(target.model, target.layers)
    if whole is None:
        raise ModelError(f"{target.name} has no list of {target.layers} layers to skip from; take --drafter ngram")
    holder, layers = whole
    model = _shallow(target.model)
    _at(model, _path(target.model, holder), copies=True)
    inner = _at(model, _path(target.model, holder))
    name = next(n for n, child in holder.named_children() if child is layers)
    inner._modules[name] = nn.ModuleList([layers[i] for i in kept])
    config = _shorter(target.model.config, kept)
    text = config.get_text_config(decoder=True)
    for module in (model, inner):
        module.config = config if module is model else text
    skipped = f"{target.name} without {target.layers - len(kept)} of {target.layers} layers"
    return HfTarget(model, target.tokenizer, skipped, target.dtype_reason)


def layer_skip_drafter(
    target: Target, skip: Sequence[int] | None = None, greedy: bool = False, default_k: int = DEFAULT_K
) -> ModelDrafter:
    """A drafter that is the target without some layers; skip None = `default_skip`."""
    chosen = default_skip(target.layers) if skip is None else tuple(skip)
    if skip is None and not chosen:
        raise ConfigError(
            f"{target.name} has {target.layers} layers, too few to skip any by default; name some in skip"
        )
    return ModelDrafter(skipped_target(target, chosen), "layer-skip", greedy, default_k, target.vocab, target.absent)


def _kept(skip: Sequence[int], layers: int, name: str) -> list[int]:
    wrong = [i for i in skip if not 0 <= i < layers]
    if wrong:
        raise ConfigError(
            f"got layer {wrong[0]} to skip, {name} has layers 0..{layers - 1}; leave skip out for the default"
        )
    if len(set(skip)) != len(skip):
        twice = next(i for i in skip if list(skip).count(i) > 1)
        raise ConfigError(f"got layer {twice} twice among those to skip, wanted each once")
    if len(skip) == layers:
        raise ConfigError(f"got all {layers} layers of {name} to skip, wanted at least one left")
    return [i for i in range(layers) if i not in set(skip)]


def _shallow(module: Any) -> Any:
    """A module with the same parameters and children, whose own attributes can be changed."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _path(model: nn.Module, inner: nn.Module) -> list[str]:
    name = next(name for name, module in model.named_modules() if module is inner)
    return name.split(".") if name else []


def _at(model: Any, path: list[str], copies: bool = False) -> Any:
    """The module at a path; with `copies` every module on the way is replaced by a shallow twin first."""
    for name in path:
        if copies:
            model._modules[name] = _shallow(model._modules[name])
        model = model._modules[name]
    return model


def _shorter(config: Any, kept: list[int]) -> Any:
    """The configuration of the kept layers: their number and their types."""
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    text.num_hidden_layers = len(kept)
    types = getattr(text, "layer_types", None)
    if types is not None:
        text.layer_types = [types[i] for i in kept]
    return config
