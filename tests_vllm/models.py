"""Models for engine tests: SmolLM2's real weights, and drafters of every kind made from them in seconds.

Folders lie in the cache of built models under the names below, are made once and carry checksums (nsd.targets.store).
Heads with random weights draft gibberish: what they test is that each proposer's laws and ids reach the decision.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nsd.drafters.exported import exported_folder
from nsd.targets.smollm2 import smollm2_folder
from nsd.targets.store import cache_root, ensure

VERSION = "v1"
HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 576, 1536, 9, 3, 64, 49152, 30
TAPS = (5, 17, 29)
Tensors = dict[str, Tensor]


def target() -> Path:
    """SmolLM2-135M-Instruct in bfloat16, 270 MB."""

    def build(folder: Path) -> None:
        source = smollm2_folder()
        _copy(source, folder)
        _save(folder, {name: t.bfloat16() for name, t in load_file(source / "model.safetensors").items()})
        _config(folder, json.loads((source / "config.json").read_text("utf-8")) | {"dtype": "bfloat16"})

    return _made("target", build)


def first_layers(count: int = 20) -> Path:
    """A weak draft model: the target's first layers under its own head."""

    def build(folder: Path) -> None:
        source = target()
        _copy(source, folder)
        kept = {
            name: t
            for name, t in load_file(source / "model.safetensors").items()
            if not name.startswith("model.layers.") or int(name.split(".")[2]) < count
        }
        _save(folder, kept)
        _config(folder, json.loads((source / "config.json").read_text("utf-8")) | {"num_hidden_layers": count})

    return _made(f"first-{count}", build)


def mimo() -> Path:
    """The target's weights in MiMo's form (Qwen2 with zero biases), with a random MTP layer."""

    def build(folder: Path) -> None:
        source = target()
        _copy(source, folder)
        tensors = load_file(source / "model.safetensors")
        for layer in range(LAYERS):
            for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                name = f"model.layers.{layer}.self_attn.{part}_proj.bias"
                tensors[name] = torch.zeros(heads * HEAD_DIM, dtype=torch.bfloat16)
        own = "model.mtp_layers.0."
        tensors |= {own + name: t for name, t in _layer(bias=True).items()}
        tensors[own + "input_proj.weight"] = _random(HIDDEN, 2 * HIDDEN)
        for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
            tensors[f"{own}{name}.weight"] = _ones(HIDDEN)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()  # the draft side loads its own
        _save(folder, tensors)
        base = json.loads((source / "config.json").read_text("utf-8"))
        own_keys = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_nextn_predict_layers": 1}
        dropped = ("attention_bias", "mlp_bias", "pretraining_tp", "head_dim")
        kept = {key: value for key, value in base.items() if key not in dropped}
        _config(folder, kept | own_keys | {"tie_word_embeddings": False})

    return _made("mimo", build)


def eagle() -> Path:
    """A random EAGLE layer."""

    def build(folder: Path) -> None:
        tensors = {f"layers.0.{name}": t for name, t in _layer().items() if "input_layernorm" not in name}
        tensors["fc.weight"] = _random(HIDDEN, 2 * HIDDEN)
        _save(folder, tensors)
        _config(folder, _shape() | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})

    return _made("eagle", build)


def dflash() -> Path:
    """A random block drafter of DFlash's kind with two layers."""

    def build(folder: Path) -> None:
        tensors: Tensors = {"fc.weight": _random(HIDDEN, 3 * HIDDEN)}
        for layer in range(2):
            norms = {f"self_attn.{part}_norm.weight": _ones(HEAD_DIM) for part in "qk"}
            tensors |= {f"layers.{layer}.{name}": t for name, t in (_layer() | norms).items()}
        tensors |= {"hidden_norm.weight": _ones(HIDDEN), "norm.weight": _ones(HIDDEN)}
        _save(folder, tensors)
        own: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "num_hidden_layers": 2,
            "layer_types": ["full_attention"] * 2,
            "num_target_layers": LAYERS,
            "block_size": 8,
            "dflash_config": {"mask_token_id": 0, "target_layer_ids": list(TAPS)},
        }
        _config(folder, _shape() | own)

    return _made("dflash", build)


ALL: dict[str, Callable[[], Path]] = {
    "target": target,
    "first-20": first_layers,
    "mimo": mimo,
    "eagle": eagle,
    "dflash": dflash,
    "shipped": exported_folder,
}


def _made(name: str, build: Callable[[Path], None]) -> Path:
    def seeded(folder: Path) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            build(folder)

    return ensure(cache_root() / f"vllm-tests-{name}-{VERSION}", seeded)


def _layer(bias: bool = False) -> Tensors:
    """One decoder layer."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors = {
        "self_attn.q_proj.weight": _random(q, HIDDEN),
        "self_attn.k_proj.weight": _random(kv, HIDDEN),
        "self_attn.v_proj.weight": _random(kv, HIDDEN),
        "self_attn.o_proj.weight": _random(HIDDEN, q),
        "mlp.gate_proj.weight": _random(WIDE, HIDDEN),
        "mlp.up_proj.weight": _random(WIDE, HIDDEN),
        "mlp.down_proj.weight": _random(HIDDEN, WIDE),
        "input_layernorm.weight": _ones(HIDDEN),
        "post_attention_layernorm.weight": _ones(HIDDEN),
    }
    if bias:
        sizes = {"q": q, "k": kv, "v": kv}
        tensors |= {f"self_attn.{p}_proj.bias": torch.zeros(n, dtype=torch.bfloat16) for p, n in sizes.items()}
    return tensors


def _shape() -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        "max_position_embeddings": 8192,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    }


def _random(rows: int, columns: int) -> Tensor:
    return (torch.randn(rows, columns) * columns**-0.5).bfloat16()


def _ones(size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bfloat16)


def _copy(source: Path, folder: Path) -> None:
    """Everything but weights, config and checksums."""
    for path in source.iterdir():
        if path.suffix != ".safetensors" and path.name not in ("config.json", "manifest.json"):
            shutil.copy(path, folder / path.name)


def _save(folder: Path, tensors: Tensors) -> None:
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def _config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
