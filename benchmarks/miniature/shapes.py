"""The models of the family: sizes, configurations as they stand in config.json, and how to build each for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nsd.miniature.tokens import END, MASK, PAD

CONTEXT = 512
BLOCK = 16
"""Block length of the Nemotron layout: an anchor and so many less one masks."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Width, depth and layout ("qwen3", "nemotron", "qwen3_5") of a model."""

    layout: str
    hidden: int
    layers: int
    heads: int
    intermediate: int


SHAPES: dict[str, Shape] = {
    "qwen3-3m": Shape("qwen3", 256, 4, 4, 640),
    "qwen3-7m": Shape("qwen3", 320, 6, 5, 864),
    "nemotron-3m": Shape("nemotron", 256, 4, 4, 640),
    "qwen35-3m": Shape("qwen3_5", 256, 4, 4, 576),
    "draft-02m": Shape("qwen3", 96, 1, 2, 256),
}
"""Targets, and the separate small model that drafts for them."""


def config(shape: Shape, vocabulary: dict[str, int]) -> dict[str, Any]:
    """config.json of a model over a vocabulary."""
    common: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": CONTEXT,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": vocabulary[END],
        "pad_token_id": vocabulary[PAD],
        "dtype": "bfloat16",
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    if shape.layout == "qwen3":
        return common | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_parameters": rope}
    if shape.layout == "nemotron":
        return common | {
            "model_type": "nemotron_labs_diffusion",
            "architectures": ["NemotronLabsDiffusionModel"],
            "mlp_bias": False,
            "mask_token_id": vocabulary[MASK],
            "block_size": BLOCK,
            "dlm_paradigm": "bidirectional",
            "rope_parameters": rope,
        }
    return common | {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "layer_types": ["linear_attention" if i % 4 < 3 else "full_attention" for i in range(shape.layers)],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "attn_output_gate": True,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": rope | {"partial_rotary_factor": 0.5, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
    }
