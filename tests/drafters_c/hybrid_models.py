"""A tiny random Qwen3.5 (Gated DeltaNet and attention layers) of transformers, and a tokenizer of bare ids."""

from collections.abc import Sequence

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from nsd.targets.hybrid import HybridTarget

VOCAB = 61
TEXT_CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": False,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 10,
    "linear_value_head_dim": 14,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "attn_output_gate": True,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


class Ids:
    """A tokenizer whose texts are its ids."""

    eos_token_id = None

    def encode(self, text: str) -> list[int]:
        return [int(part) for part in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return self.encode(messages[-1]["content"])

    def token_text(self, token: int) -> str | None:
        return str(token)


def randomised(model: torch.nn.Module, seed: int, spread: float = 0.16) -> torch.nn.Module:
    """Weights far enough from their start that every part matters: norms not 1, biases not 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.data.uniform_(-1.5, 0.5, generator=generator)
        elif parameter.dim() == 1:
            parameter.data.normal_(0.3, 0.3, generator=generator)
        else:
            parameter.data.normal_(0.0, spread, generator=generator)
    return model.eval()


def qwen35(seed: int = 3, dtype: torch.dtype = torch.float32, **changes) -> Qwen3_5ForCausalLM:
    """The transformers model."""
    config = Qwen3_5TextConfig(**(TEXT_CONFIG | changes))
    return randomised(Qwen3_5ForCausalLM(config), seed).to(dtype)


def hybrid_target(seed: int = 3, **changes) -> HybridTarget:
    """The model as a target."""
    return HybridTarget(qwen35(seed, **changes), Ids(), "tiny-qwen3.5")
