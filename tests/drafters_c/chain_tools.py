"""Tiny EAGLE-3 and MTP checkpoints in every layout; chain_by_hand.py has both networks written anew.

Names, shapes and config keys are written out from what the layouts' own authors store. Sizes are distinct, norms are
not 1, biases not 0.
"""

import json

import torch
from safetensors.torch import save_file

from tests.drafters_c import block_tools as tools
from tests.drafters_c.block_tools import Made, filled
from tests.drafters_c.hybrid_models import TEXT_CONFIG

HIDDEN, VOCAB, DRAFT_VOCAB, TARGET_LAYERS = tools.HIDDEN, tools.VOCAB, tools.DRAFT_VOCAB, tools.TARGET_LAYERS


def layer_keys(prefix: str, reads: int, heads: int, kv: int, dim: int, inner: int, gate: int = 1, norms: bool = False):
    """One decoder layer as transformers names it; reads is the width that q, k and v read."""
    keys: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (heads * dim * gate, reads),
        "self_attn.k_proj.weight": (kv * dim, reads),
        "self_attn.v_proj.weight": (kv * dim, reads),
        "self_attn.o_proj.weight": (HIDDEN, heads * dim),
        "mlp.gate_proj.weight": (inner, HIDDEN),
        "mlp.up_proj.weight": (inner, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, inner),
    }
    if norms:
        keys |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    return {prefix + name: shape for name, shape in keys.items()}


def with_map(tensors, seed: int):
    """d2t and t2d of a random part of the vocabulary."""
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:DRAFT_VOCAB].sort().values
    tensors["d2t"] = ids - torch.arange(DRAFT_VOCAB)
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).scatter(0, ids, True)
    return tensors


def eagle_deepspec(seed: int = 0, **extra) -> Made:
    """DeepSpec's TTT7: five target layers, the whole vocabulary, ends of its own, q/k norms."""
    config = {
        **tools.qwen3_keys(layers=1),
        "architectures": ["Qwen3Eagle3Model"],
        "target_model_name_or_path": "Qwen/Qwen3-4B",
        "target_layer_ids": [0, 1, 3, 5, 6],
        "ttt_length": 7,
        "step_loss_decay": 0.8,
        "draft_num_hidden_layers": 1,
    }
    keys = {
        "embed_tokens.weight": (61, 36),
        "lm_head.weight": (61, 36),
        "fc.weight": (36, 180),
        "norm.weight": (36,),
        "layers.0.hidden_norm.weight": (36,),
        **layer_keys("layers.0.", 72, 6, 2, 10, 52, norms=True),
    }
    return Made(config | extra, filled(keys, seed))


def eagle_safeai(seed: int = 0, reduced: bool = True, **extra) -> Made:
    """SafeAILab's layout as SpecForge writes it: default target layers, no embedding, a reduced vocabulary."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 10,
        "hidden_act": "silu",
        "hidden_size": 36,
        "initializer_range": 0.02,
        "intermediate_size": 52,
        "max_position_embeddings": 4096,
        "max_window_layers": 36,
        "model_type": "llama",
        "num_attention_heads": 6,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 61,
        "draft_vocab_size": 23 if reduced else 61,
    }
    keys = {
        "fc.weight": (36, 108),
        "lm_head.weight": (23 if reduced else 61, 36),
        "norm.weight": (36,),
        "midlayer.hidden_norm.weight": (36,),
        **layer_keys("midlayer.", 72, 6, 2, 10, 52),
    }
    if extra.get("fc_norm"):
        keys |= {f"fc_norm.{i}.weight": (36,) for i in range(3)}
    if extra.get("norm_before_fc"):
        keys["input_norm.weight"] = (108,)
    tensors = filled(keys, seed)
    return Made(config | extra, with_map(tensors, seed) if reduced else tensors)


def eagle_speculators(seed: int = 0, layers: int = 2, **extra) -> Made:
    """speculators' layout: two layers, attention biases, ids that already are taps, a normed residual."""
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 23,
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 8],
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "attention_bias": True,
            "head_dim": 10,
            "hidden_size": 36,
            "intermediate_size": 52,
            "num_attention_heads": 6,
            "num_hidden_layers": layers,
            "num_key_value_heads": 2,
            "vocab_size": 61,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": None, "architectures": []},
        },
    }
    keys = {
        "embed_tokens.weight": (61, 36),
        "lm_head.weight": (23, 36),
        "fc.weight": (36, 108),
        "norm.weight": (36,),
        "layers.0.hidden_norm.weight": (36,),
    }
    for i in range(layers):
        keys |= layer_keys(f"layers.{i}.", 72 if i == 0 else 36, 6, 2, 10, 52)
        sizes = {"q": 60, "k": 20, "v": 20, "o": 36}
        keys |= {f"layers.{i}.self_attn.{part}_proj.bias": (size,) for part, size in sizes.items()}
    if extra.get("fc_norm"):
        keys |= {f"fc_norm.{i}.weight": (36,) for i in range(3)}
    if extra.get("norm_before_fc"):
        keys["input_norm.weight"] = (108,)
    return Made(config | extra, with_map(filled(keys, seed), seed))


def mtp_qwen(seed: int = 0) -> Made:
    """The 15 MTP tensors of a dense Qwen3.5, under the config of the whole model."""
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "text_config": TEXT_CONFIG | {"model_type": "qwen3_5_text", "full_attention_interval": 4},
    }
    keys = {
        "mtp.fc.weight": (36, 72),
        "mtp.norm.weight": (36,),
        "mtp.pre_fc_norm_hidden.weight": (36,),
        "mtp.pre_fc_norm_embedding.weight": (36,),
        "mtp.layers.0.input_layernorm.weight": (36,),
        "mtp.layers.0.post_attention_layernorm.weight": (36,),
        "mtp.layers.0.self_attn.q_proj.weight": (192, 36),
        "mtp.layers.0.self_attn.k_proj.weight": (32, 36),
        "mtp.layers.0.self_attn.v_proj.weight": (32, 36),
        "mtp.layers.0.self_attn.o_proj.weight": (36, 96),
        "mtp.layers.0.self_attn.q_norm.weight": (16,),
        "mtp.layers.0.self_attn.k_norm.weight": (16,),
        "mtp.layers.0.mlp.gate_proj.weight": (50, 36),
        "mtp.layers.0.mlp.up_proj.weight": (50, 36),
        "mtp.layers.0.mlp.down_proj.weight": (36, 50),
    }
    return Made(config, filled(keys, seed))


def dense_keys(kind: str, **extra) -> dict:
    """Config keys of a dense target around an MTP head."""
    return {
        "model_type": kind,
        "attention_bias": False,
        "head_dim": 10,
        "hidden_act": "silu",
        "hidden_size": 36,
        "intermediate_size": 52,
        "max_position_embeddings": 4096,
        "num_attention_heads": 6,
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "num_nextn_predict_layers": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": 640000,
        "vocab_size": 61,
        **extra,
    }


def mtp_mimo(seed: int = 0) -> Made:
    """MiMo: Qwen2 layer with biases on q, k and v."""
    config = dense_keys("mimo", architectures=["MiMoForCausalLM"], use_sliding_window=False, sliding_window=4096)
    at = "model.mtp_layers.0."
    keys = {
        "model.norm.weight": (36,),
        f"{at}input_proj.weight": (36, 72),
        f"{at}token_layernorm.weight": (36,),
        f"{at}hidden_layernorm.weight": (36,),
        f"{at}final_layernorm.weight": (36,),
        f"{at}self_attn.q_proj.bias": (60,),
        f"{at}self_attn.k_proj.bias": (20,),
        f"{at}self_attn.v_proj.bias": (20,),
        **layer_keys(at, 36, 6, 2, 10, 52),
    }
    return Made(config, filled(keys, seed))


def mtp_deepseek(seed: int = 0) -> Made:
    """DeepSeek's names around a dense GQA layer, with copies of embedding and head."""
    at = "model.layers.8."
    keys = {
        "model.norm.weight": (36,),
        f"{at}eh_proj.weight": (36, 72),
        f"{at}enorm.weight": (36,),
        f"{at}hnorm.weight": (36,),
        f"{at}shared_head.norm.weight": (36,),
        f"{at}shared_head.head.weight": (61, 36),
        f"{at}embed_tokens.weight": (61, 36),
        **layer_keys(at, 36, 6, 2, 10, 52),
    }
    return Made(dense_keys("dense_deepseek", architectures=["DenseForCausalLM"]), filled(keys, seed))


def mtp_speculators(seed: int = 0) -> Made:
    """speculators: a head of a Qwen3 taken out of its model."""
    layer = {k: v for k, v in dense_keys("qwen3").items() if k not in ("num_nextn_predict_layers", "rope_theta")}
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": layer | {"rope_parameters": {"rope_type": "default", "rope_theta": 640000.0}},
    }
    at = "mtp_layers.0."
    keys = {
        f"{at}input_proj.weight": (36, 72),
        f"{at}token_layernorm.weight": (36,),
        f"{at}hidden_layernorm.weight": (36,),
        f"{at}final_layernorm.weight": (36,),
        **layer_keys(at, 36, 6, 2, 10, 52, norms=True),
    }
    return Made(config, filled(keys, seed))


def write_sharded(made: Made, folder, others: dict[str, torch.Tensor]):
    """The tensors of a model and its MTP head over two files with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made.config))
    head = sorted(made.tensors)
    parts = {
        "model-00001-of-00002.safetensors": {**others, **{name: made.tensors[name] for name in head[:6]}},
        "model-00002-of-00002.safetensors": {name: made.tensors[name] for name in head[6:]},
    }
    for file, tensors in parts.items():
        save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, str(folder / file))
    where = {name: file for file, tensors in parts.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder
