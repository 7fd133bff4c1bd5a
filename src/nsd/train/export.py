"""Writing a trained drafter: in float for every engine that reads EAGLE-3, and packed to bytes for shipping.

Float: the layout of SafeAILab/EAGLE (SpecForge writes it too), with the gain folded into the head's rows. vLLM's
`eagle3` reads these names, `draft_vocab_size`, d2t and `eagle_aux_hidden_state_layer_ids` (inputs of target layers).
Source: vllm-project/vllm vllm/model_executor/models/llama_eagle3.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nsd.drafters.checkpoint import SINGLE
from nsd.drafters.packed import PACKING, pack
from nsd.nn import DecoderConfig, Rope
from nsd.train.net import DraftLayer

FLOAT, INT8, SUM = "float32", "int8", "SHA256"
"""Folders of a run that hold a drafter, and the file beside weights that holds their checksum."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the drafter belongs to: its ids [n], the target's vocabulary, head rows [n, H], taps, context and name."""

    ids: Tensor
    vocab: int
    head: Tensor
    taps: tuple[int, ...]
    context: int
    target: str


def export(net: DraftLayer, origin: Origin, folder: Path) -> None:
    """Write `float32/` and `int8/` under a folder, each with config.json, model.safetensors and its checksum."""
    tensors = {name: tensor for name, tensor in net.tensors().items() if name != "log_gain"}
    gain = float(net["log_gain"].detach().exp())
    tensors["lm_head.weight"] = origin.head.float() * gain
    tensors["d2t"] = origin.ids - torch.arange(len(origin.ids))
    tensors["t2d"] = torch.zeros(origin.vocab, dtype=torch.bool).index_fill_(0, origin.ids, True)
    config = _config(net.config, origin)
    write(folder / FLOAT, tensors, config)
    write(folder / INT8, pack(tensors, gain), config | {"packing": PACKING})


def write(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], weights: str = SINGLE,
    settings: str = "config.json",
) -> None:  # fmt: skip
    """Write one folder of a drafter: its settings, its weights and their checksum."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(plain, folder / weights, metadata={"format": "pt"})
    (folder / weights).chmod(0o644)  # safetensors writes files that only their owner can read
    (folder / settings).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    digest = hashlib.sha256((folder / weights).read_bytes()).hexdigest()
    (folder / SUM).write_text(f"{digest}  {weights}\n", encoding="utf-8")


def rope_parameters(rope: Rope) -> dict[str, Any]:
    """Rotary settings under the names that transformers gives them."""
    keys: dict[str, Any] = {"rope_type": rope.kind, "rope_theta": rope.theta}
    if rope.rotary != 1:
        keys["partial_rotary_factor"] = rope.rotary
    if rope.kind != "default":
        keys |= {"factor": rope.factor, "original_max_position_embeddings": rope.original_context}
    if rope.kind == "llama3":
        keys |= {"low_freq_factor": rope.low, "high_freq_factor": rope.high}
    if rope.kind == "yarn":
        keys |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow, "truncate": rope.truncate}
        names = ("mscale", "mscale_all_dim", "attention_factor")
        keys |= {name: getattr(rope, name) for name in names if getattr(rope, name) is not None}
    return keys


def _config(config: DecoderConfig, origin: Origin) -> dict[str, Any]:
    rope = rope_parameters(config.rope)
    layers = list(origin.taps)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "qwen3" if config.qk_norm else "llama",
        "target": origin.target,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "draft_num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "rope_theta": config.rope.theta,
        "rope_parameters": rope,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "max_position_embeddings": origin.context,
        "vocab_size": origin.vocab,
        "draft_vocab_size": len(origin.ids),
        "tie_word_embeddings": False,
        "dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": layers,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True},
    }
