"""Tiny random checkpoints with the tensors, names and config keys of the paper's, so that its pipeline runs on a CPU.

Widths shrink and numbers of layers stay, so that the layers a drafter reads exist. Texts are noise, scores mean
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nsd.bench.footprint import drafter_part, target_part
from nsd.nn import Shapes

VOCAB, END, MASK = 320, 11, 319
WIDTHS = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 4096,
    "markov_rank": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def shrunk(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same config at small widths."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in WIDTHS:
            found[key] = WIDTHS[key]
        elif key == "mask_token_id":
            found[key] = MASK
        elif key == "linear_spec_lora":
            found[key] = {"r": 3}
        elif isinstance(value, dict):
            found[key] = shrunk(value)
        elif key == "mrope_section":
            found[key] = [2, 1, 1]
        elif key == "partial_rotary_factor":
            found[key] = 0.5
        elif key != "source":
            found[key] = value
    return found | ({"eos_token_id": END} if "vocab_size" in config else {})


def write_target(folder: Path, config: Mapping[str, Any]) -> Path:
    """A complete target: config, random weights, tokenizer; the low-rank part or the MTP layer where it has one."""
    small = shrunk(config)
    inside = small.pop("text_config", None)
    if inside is not None:
        small = {**inside, "architectures": ["Qwen3_5ForCausalLM"]}
    rank = int((small.pop("linear_spec_lora", None) or {}).get("r", 0))
    tensors = _filled(target_part(small).shapes)
    if "mtp_num_hidden_layers" in small:
        tensors |= _filled(drafter_part(small, small).shapes)
    _write(folder, small, tensors)
    _write_tokenizer(folder)
    if rank:
        lora = {"target_modules": ["o_proj"], "r": rank, "lora_alpha": 4 * rank, "peft_type": "LORA"}
        _write(folder / "linear_spec_lora", lora, _filled(drafter_part(small, small, rank).shapes), "adapter_")
    return folder


def write_drafter(folder: Path, config: Mapping[str, Any], target: Mapping[str, Any]) -> Path:
    """A drafter with random weights for a target of `write_target`."""
    small = shrunk(config)
    _write(folder, small, _filled(drafter_part(small, shrunk(target)).shapes))
    return folder


def _write(folder: Path, config: Mapping[str, Any], tensors: dict[str, torch.Tensor], prefix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(tensors, str(folder / f"{prefix}model.safetensors"))


def _filled(shapes: Shapes) -> dict[str, torch.Tensor]:
    """Random numbers: norms around 1, maps scaled by their width, heads weak, so that drafts are kept."""
    g = torch.Generator().manual_seed(len(shapes))
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=g)
        if len(shape) == 1:
            # Zero-centred norms and gates take this as it is; others are scaled by about 1.
            tensors[name] = 0.1 * noise + ("norm" in name)
        elif "embed" in name or "w1" in name:
            tensors[name] = noise
        else:
            tensors[name] = noise * (0.5 if "head" in name else 1.0) / shape[-1] ** 0.5
    return tensors


def _write_tokenizer(folder: Path) -> None:
    """Bytes as tokens; what is left of the ids are names, the end and the mask among them."""
    letters = iter(sorted(pre_tokenizers.ByteLevel.alphabet()))
    special = {END: "<end>", MASK: "<mask>", 1: "<begin>"}
    vocab = {special.get(i) or next(letters, f"<{i}>"): i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
