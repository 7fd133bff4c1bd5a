"""Writing trained drafters of the other kinds, each in a layout that `nsd.drafters` reads.

    dspark, dflash    speculators' layout, which alone knows a reduced vocabulary (d2t, t2d, own lm_head). The gain is
                      folded into the final norm. A whole vocabulary uses the target's head and stores none.
    mtp               Qwen3.5: the target's config beside the `mtp.*` tensors, ready to be put beside the target's own
                      files; any other target: speculators' `mtp_layers.0.*`
    nemotron          peft's layout, as released beside the model: put it into the target's own folder, or name it
    draft-model       an ordinary checkpoint of transformers, with the target's tokenizer where that can be saved

Source: speculators src/speculators/models/{dspark,dflash,mtp}; vllm-project/vllm
vllm/model_executor/models/qwen3_5_mtp.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.drafters.nemotron import ADAPTER, ADAPTER_WEIGHTS, LORA_FOLDER, LORA_SCALE
from nsd.nn import DecoderConfig
from nsd.targets.base import Target
from nsd.train.blank_net import BlankStudent
from nsd.train.block_net import W1, BlockStudent
from nsd.train.export import FLOAT, Origin, export, rope_parameters, write
from nsd.train.model_net import ModelStudent
from nsd.train.mtp_net import QWEN, MtpLayer
from nsd.train.net import DraftLayer
from nsd.train.student import Student


def export_student(student: Student, origin: Origin, target: Target, folder: Path) -> list[Path]:
    """Write a drafter under a run's folder -> the folders made, the exact one first."""
    if isinstance(student, DraftLayer):
        export(student, origin, folder)
        return [folder / FLOAT, folder / "int8"]
    place = folder / (LORA_FOLDER if isinstance(student, BlankStudent) else FLOAT)
    if isinstance(student, BlankStudent):
        _addition(student, origin, place)
    elif isinstance(student, BlockStudent):
        _block(student, origin, target, place)
    elif isinstance(student, MtpLayer):
        _mtp(student, origin, target, place)
    else:
        assert isinstance(student, ModelStudent)
        _model(student, target, place)
    return [place]


def _block(student: BlockStudent, origin: Origin, target: Target, folder: Path) -> None:
    tensors = student.tensors()
    tensors["norm.weight"] = tensors["norm.weight"] * tensors.pop("log_gain").exp()
    reduced = len(origin.ids) < origin.vocab
    if reduced:
        tensors["lm_head.weight"] = origin.head.float()
        tensors["d2t"] = origin.ids - torch.arange(len(origin.ids))
        tensors["t2d"] = torch.zeros(origin.vocab, dtype=torch.bool).index_fill_(0, origin.ids, True)
    config: dict[str, Any] = {
        "architectures": [f"{'DSpark' if student.kind == 'dspark' else 'DFlash'}DraftModel"],
        "speculators_model_type": student.kind,
        "target": origin.target,
        "num_target_layers": target.layers,
        "transformer_layer_config": _layers(student.config, origin),
        "draft_vocab_size": len(origin.ids),
        "block_size": (student.limit or 0) + student.first,
        "sample_from_anchor": student.first == 0,
        "mask_token_id": student.mask,
        "aux_hidden_state_layer_ids": list(origin.taps),
        "dtype": "float32",
    }
    if student.kind == "dspark":
        config |= {"markov_head_type": "vanilla", "markov_rank": student[W1].shape[1]}
        config |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    write(folder, tensors, config)


def _addition(student: BlankStudent, origin: Origin, folder: Path) -> None:
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": origin.target,
        "target_modules": ["o_proj"],
        "r": student.rank,
        "lora_alpha": int(LORA_SCALE * student.rank),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    write(folder, student.tensors(), config, ADAPTER_WEIGHTS, ADAPTER)


def _layers(config: DecoderConfig, origin: Origin) -> dict[str, Any]:
    """A Qwen3 configuration of a decoder."""
    return {
        "model_type": "qwen3" if config.qk_norm else "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.eps,
        "rope_parameters": rope_parameters(config.rope),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "max_position_embeddings": origin.context,
        "vocab_size": origin.vocab,
        "tie_word_embeddings": False,
    }


def _mtp(student: MtpLayer, origin: Origin, target: Any, folder: Path) -> None:
    tensors: dict[str, Tensor] = student.tensors()
    if student.parts is QWEN:
        config = target.model.config.get_text_config(decoder=True).to_dict()
        config |= {"mtp_num_hidden_layers": 1, "architectures": [type(target.model).__name__], "target": origin.target}
        write(folder, tensors, _plain(config))
        return
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "target": origin.target,
        "transformer_layer_config": _layers(student.config, origin),
        "num_nextn_predict_layers": 1,
        "dtype": "float32",
    }
    write(folder, tensors, config)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """What of a configuration is JSON already."""
    plain: dict[str, Any] = json.loads(json.dumps(config, default=str))
    return plain


def _model(student: ModelStudent, target: Target, folder: Path) -> None:
    student.model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)  # safetensors writes files that only their owner can read
    inner: Any = getattr(target.tokenizer, "inner", None)  # transformers' own, where the target has one
    if inner is not None:
        inner.save_pretrained(folder)
