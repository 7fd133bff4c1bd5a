"""Writes tiny Nemotron-Labs-Diffusion folders, and computes them a second time: plainly, from scratch, without a cache.

Names, shapes and config keys are literal, from the released 8B text model; the sizes are small, and no two are equal.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTER, VOCAB, MASK, RANK = 40, 3, 6, 2, 10, 56, 37, 5, 4

CONFIG = {
    "architectures": ["NemotronLabsDiffusionModel"],
    "model_type": "nemotron_labs_diffusion",
    "auto_map": {"AutoModel": "modeling_nemotron_labs_diffusion.NemotronLabsDiffusionModel"},
    "attn_implementation": "sdpa",
    "attention_bias": False,
    "mlp_bias": False,
    "block_size": 32,
    "mask_token_id": 5,
    "dlm_paradigm": "bidirectional",
    "dlm_loss_weight": None,
    "ar_loss_weight": 1.0,
    "dp_varying_mask_ratio": False,
    "bos_token_id": 1,
    "eos_token_id": 11,
    "hidden_act": "silu",
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 56,
    "vocab_size": 37,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-05,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": False,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}

SHAPES = {
    "diffusion_head.weight": [37, 40],
    "encoder.embed_tokens.weight": [37, 40],
    "encoder.norm.weight": [40],
    "encoder.layers.{i}.input_layernorm.weight": [40],
    "encoder.layers.{i}.mlp.down_proj.weight": [40, 56],
    "encoder.layers.{i}.mlp.gate_proj.weight": [56, 40],
    "encoder.layers.{i}.mlp.up_proj.weight": [56, 40],
    "encoder.layers.{i}.post_attention_layernorm.weight": [40],
    "encoder.layers.{i}.self_attn.k_proj.weight": [20, 40],
    "encoder.layers.{i}.self_attn.o_proj.weight": [40, 60],
    "encoder.layers.{i}.self_attn.q_proj.weight": [60, 40],
    "encoder.layers.{i}.self_attn.v_proj.weight": [20, 40],
}

LORA_CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "nvidia/Nemotron-Labs-Diffusion-8B",
    "target_modules": ["o_proj"],
    "r": 4,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
}

LORA_SHAPES = {
    "base_model.model.encoder.layers.{i}.self_attn.o_proj.lora_A.weight": [4, 60],
    "base_model.model.encoder.layers.{i}.self_attn.o_proj.lora_B.weight": [40, 4],
}


def random_tensors(shapes, seed, vocab=VOCAB, spread=0.25):
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        for i in range(LAYERS if "{i}" in name else 1):
            full = [vocab if n == VOCAB else n for n in shape]
            mean = 0.7 if len(full) == 1 else 0.0
            tensors[name.format(i=i)] = torch.randn(full, generator=g) * spread + mean
    return tensors


def write_tokenizer(folder: Path, entries: int):
    """A word for every id below `entries`; the mask and the end of a text are special."""
    words = {f"w{i}": i for i in range(entries)}
    added = [
        {"id": i, "content": f"w{i}", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i in (MASK, min(11, entries - 1))
    ]  # fmt: skip
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": f"w{min(11, entries - 1)}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_folder(folder: Path, vocab=VOCAB, lora=False, seed=1, spread=0.25, **changes):
    """A complete folder; `changes` go into config.json (None removes a key)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "vocab_size": vocab, **changes}
    config = {key: value for key, value in config.items() if value is not None or key in ("sliding_window",)}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(SHAPES, seed, vocab, spread), folder / "model.safetensors")
    write_tokenizer(folder, vocab - 1 if vocab == VOCAB else vocab)
    if lora:
        write_lora(folder)
    return folder


def write_lora(folder: Path, shapes=None, **changes):
    inside = folder / "linear_spec_lora"
    inside.mkdir(exist_ok=True)
    (inside / "adapter_config.json").write_text(json.dumps({**LORA_CONFIG, **changes}))
    save_file(random_tensors(shapes or LORA_SHAPES, 9), inside / "adapter_model.safetensors")


class Plain:
    """The model once more: one sequence, one dense pass, complex rotations, a full matrix of who sees whom."""

    def __init__(self, folder: Path):
        from safetensors.torch import load_file
        from transformers import Ministral3Config
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        self.w = load_file(folder / "model.safetensors")
        lora = folder / "linear_spec_lora" / "adapter_model.safetensors"
        self.lora = load_file(lora) if lora.is_file() else None
        self.config = json.loads((folder / "config.json").read_text())
        keys = ("rope_parameters", "head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings")
        theirs = Ministral3Config(**{key: self.config[key] for key in keys})
        self.frequency, self.factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, torch.device("cpu"))

    def logits(self, ids, sees, lora_from=None):
        """Logits [n, V] of all rows; sees [n, n] bool: row i reads row j; rows from lora_from on have the addition."""
        x = self.w["encoder.embed_tokens.weight"][torch.tensor(ids)]
        for i in range(LAYERS):
            x = x + self._attention(i, self._norm(x, f"encoder.layers.{i}.input_layernorm.weight"), sees, lora_from)
            y = self._norm(x, f"encoder.layers.{i}.post_attention_layernorm.weight")
            up, gate = (y @ self.w[f"encoder.layers.{i}.mlp.{n}_proj.weight"].T for n in ("up", "gate"))
            x = x + (gate / (1 + torch.exp(-gate)) * up) @ self.w[f"encoder.layers.{i}.mlp.down_proj.weight"].T
        return self._norm(x, "encoder.norm.weight") @ self.w["diffusion_head.weight"].T

    def causal(self, ids):
        """Next-token logits at every position: [n, V]."""
        return self.logits(ids, torch.ones(len(ids), len(ids)).tril().bool())

    def block(self, prefix, k, lora=False):
        """Draft logits [k, V] behind a prefix that ends with the anchor: causal before it, all see all from it on."""
        n = len(prefix) - 1
        sees = torch.ones(n + 1 + k, n + 1 + k).tril().bool()
        sees[n:, n:] = True
        return self.logits([*prefix, *[MASK] * k], sees, n if lora else None)[n + 1 :]

    def _norm(self, x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]).sqrt() * self.w[name]

    def _attention(self, i, x, sees, lora_from):
        name = f"encoder.layers.{i}.self_attn"
        position = torch.arange(len(x))
        turn = torch.polar(torch.full((len(x), HEAD_DIM // 2), self.factor), position[:, None] * self.frequency)
        q, k, v = (x @ self.w[f"{name}.{m}_proj.weight"].T for m in "qkv")
        rope = self.config["rope_parameters"]
        scale = 1 + rope["llama_4_scaling_beta"] * (1 + position // rope["original_max_position_embeddings"]).log()
        heads = []
        for h in range(HEADS):
            at, kv = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM), h // (HEADS // KV_HEADS)
            there = slice(kv * HEAD_DIM, (kv + 1) * HEAD_DIM)
            score = (_turned(q[:, at], turn) * scale[:, None]) @ _turned(k[:, there], turn).T
            heads.append((score / HEAD_DIM**0.5).masked_fill(~sees, -torch.inf).softmax(-1) @ v[:, there])
        mixed = torch.cat(heads, -1)
        out = mixed @ self.w[f"{name}.o_proj.weight"].T
        if lora_from is not None:
            prefix = f"base_model.model.{name}.o_proj"
            product = self.lora[f"{prefix}.lora_B.weight"] @ self.lora[f"{prefix}.lora_A.weight"]
            out[lora_from:] += LORA_CONFIG["lora_alpha"] / LORA_CONFIG["r"] * mixed[lora_from:] @ product.T
        return out


def _turned(x, turn):
    z = torch.complex(x[:, : HEAD_DIM // 2], x[:, HEAD_DIM // 2 :]) * turn
    return torch.cat((z.real, z.imag), -1)
