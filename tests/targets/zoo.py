"""Tiny random models of several families, and the plain forward that everything is compared with."""

from collections.abc import Callable

import torch
import transformers as tr

from nsd.targets.hf import HfTarget
from nsd.targets.toy import LetterTokenizer

VOCAB = 48
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 5}

FAMILIES: dict[str, Callable[[], object]] = {
    "llama": lambda: tr.LlamaConfig(**BASE),
    "llama-eager": lambda: tr.LlamaConfig(**BASE, attn_implementation="eager"),
    "qwen3": lambda: tr.Qwen3Config(**BASE, head_dim=8),
    "qwen2-mixed": lambda: tr.Qwen2Config(**BASE, **WINDOW, use_sliding_window=True, max_window_layers=2),
    "mistral": lambda: tr.MistralConfig(**BASE, **WINDOW),
    "gemma2": lambda: tr.Gemma2Config(**BASE, **WINDOW, head_dim=8, query_pre_attn_scalar=8),
    "gemma3": lambda: tr.Gemma3TextConfig(
        **BASE, **WINDOW, head_dim=8, layer_types=["sliding_attention", "full_attention"] * 2
    ),
    "llama4-chunked": lambda: tr.Llama4TextConfig(
        **BASE, head_dim=8, attention_chunk_size=5, intermediate_size_mlp=48, num_local_experts=2
    ),
    "gpt2": lambda: tr.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
    ),
}


def model_of(config, seed: int = 0):
    """A model with weights large enough that every mistake shows in the logits."""
    model = tr.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.25, generator=generator)
    return model.eval()


def target_of(family: str) -> HfTarget:
    return HfTarget(model_of(FAMILIES[family]()), LetterTokenizer(VOCAB), family)


def plain_logits(target: HfTarget, ids: list[int]) -> torch.Tensor:
    """Logits at every position, without a cache: [n, V]."""
    with torch.no_grad():
        return target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
