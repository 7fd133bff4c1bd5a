"""Telling drafter folders apart by their config.json; light, so that listing drafters loads nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def architectures(config: Mapping[str, Any]) -> frozenset[str]:
    """The class names a config claims."""
    names = config.get("architectures") or ()
    return frozenset(names if isinstance(names, list | tuple) else (names,))


def is_dspark(config: Mapping[str, Any]) -> bool:
    """DSpark: DeepSpec's own layout, the nested one of SpecForge and SGLang, or speculators'.

    DeepSpec stores plain DFlash drafters under DSpark's class name with markov_rank 0; those are not DSpark.
    """
    if config.get("speculators_model_type") is not None:
        return bool(config["speculators_model_type"] == "dspark")
    nested = config.get("dflash_config") or {}
    named = architectures(config) & {"Qwen3DSparkModel", "DSparkDraftModel"}
    if not named and nested.get("projector_type") != "dspark":
        return False
    return bool(nested.get("markov_rank", config.get("markov_rank", 256)) != 0)


def is_dflash(config: Mapping[str, Any]) -> bool:
    """DFlash: z-lab's layout, DeepSpec's (anchor predicts, no Markov head), or speculators'."""
    if config.get("speculators_model_type") is not None:
        return bool(config["speculators_model_type"] == "dflash")
    if is_dspark(config):
        return False
    return bool(architectures(config) & {"DFlashDraftModel", "Qwen3DSparkModel", "DSparkDraftModel"})


def is_nemotron(config: Mapping[str, Any]) -> bool:
    """Nemotron-Labs-Diffusion, which is a target and its own drafter, or a low-rank addition to its drafts."""
    from nsd.targets.recognise import is_nemotron as is_nemotron_target  # its package is heavy: asked for, not listed

    return is_nemotron_target(config) or is_addition(config)


def is_addition(config: Mapping[str, Any]) -> bool:
    """A low-rank addition in peft's layout, by its adapter_config.json."""
    return config.get("peft_type") == "LORA"


def is_eagle3(config: Mapping[str, Any]) -> bool:
    """EAGLE-3: DeepSpec's layout, SafeAILab's (SpecForge writes it too), or speculators'."""
    if config.get("speculators_model_type") is not None:
        return bool(config["speculators_model_type"] == "eagle3")
    return any("eagle3" in name.lower() for name in architectures(config)) or "eagle_config" in config


def is_mtp(config: Mapping[str, Any]) -> bool:
    """A multi-token prediction head: inside a model (Qwen3.5, MiMo, DeepSeek form), or speculators' on its own."""
    if config.get("speculators_model_type") is not None:
        return bool(config["speculators_model_type"] == "mtp")
    text = config.get("text_config") or config
    count = text.get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers")
    return isinstance(count, int) and count > 0 and not is_eagle3(config)
