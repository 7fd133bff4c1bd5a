"""Multi-token prediction: the one extra layer that came with the target, run again for every further token.

    x = fc([norm(embedding of the token), norm(state)])      one ordinary decoder layer, its final norm
    q = softmax(target's head(x) / T)

The state is the target's after its final norm, the one its head reads; later steps take the layer's own normed output.
Embedding and head are the target's. Tensors are read from the target's own safetensors files, since transformers leaves
them out when it loads (and when it saves) the model.

    Qwen3.5         mtp.*                     norms stored as w, applied as 1 + w; gated queries; q/k norms
    speculators     mtp_layers.0.*            a head taken out of its model
    MiMo            model.mtp_layers.0.*      state before embedding in fc; biases on q, k and v
    DeepSeek form   model.layers.<n>.*        enorm, hnorm, eh_proj, shared_head.norm around a dense GQA layer

Engines that zero the embedding at position 0 (vLLM does for MiMo and DeepSeek) differ there; nothing is zeroed here.

Source: vllm-project/vllm vllm/model_executor/models/qwen3_5_mtp.py, mimo_mtp.py, deepseek_mtp.py; speculators
src/speculators/models/mtp; ggml-org/llama.cpp issue 24025 (the state is the normed one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from nsd.drafters.checkpoint import (
    Checkpoint,
    Map,
    full_config,
    lent_ends,
    misfits,
    open_checkpoint,
    require_fit,
    required,
)
from nsd.drafters.draft_model import over_vocabulary
from nsd.drafters.drawing import Pen
from nsd.drafters.feature_chain import ChainDrafter, ChainNet
from nsd.drafters.recognise import is_mtp
from nsd.errors import ModelError
from nsd.nn import (
    Decoder,
    DecoderConfig,
    Dense,
    KVCache,
    Rows,
    Shapes,
    decoder_config,
    layer_shapes,
    layer_weights,
    norm_weight,
    rms_norm,
)
from nsd.targets.base import FINAL_NORM, Target

recognises = is_mtp

DEFAULT_K = 2
"""The paper's setting. The layer was trained for its first step; every further one reads its own output."""

ZERO_CENTRED = ("qwen3_5_text", "qwen3_next")


class Layout(Enum):
    """Whose names the tensors have."""

    QWEN = "Qwen3.5"
    SPECULATORS = "speculators"
    MIMO = "MiMo"
    DEEPSEEK = "DeepSeek form"


@dataclass(frozen=True, slots=True)
class Names:
    """Where a layout keeps its parts: layer is a prefix, the others are whole names."""

    layer: str
    fuse: str
    state_norm: str
    token_norm: str
    final_norm: str


@dataclass(frozen=True, slots=True)
class MtpShape:
    """An MTP head as its config describes it; state_first: fc reads [state, embedding], not [embedding, state]."""

    layout: Layout
    decoder: DecoderConfig
    names: Names
    vocab: int
    target_layers: int | None
    state_first: bool = False

    def tensors(self) -> Shapes:
        """Names and shapes of all tensors."""
        hidden, n = self.decoder.hidden, self.names
        norms = dict.fromkeys((n.state_norm, n.token_norm, n.final_norm), (hidden,))
        return {n.fuse: (hidden, 2 * hidden), **norms, **layer_shapes(self.decoder, n.layer)}


class MtpNet(ChainNet):
    """The network; embed and head are the target's."""

    def __init__(self, shape: MtpShape, tensors: Mapping[str, Tensor], embed: Map, head: Map) -> None:
        c, n = shape.decoder, shape.names
        self.shape, self.embed, self.head = shape, embed, head
        self.fuse = Dense(tensors[n.fuse])
        self.state_norm, self.token_norm, final = (
            norm_weight(tensors[name], c.zero_centred) for name in (n.state_norm, n.token_norm, n.final_norm)
        )
        self.decoder = Decoder(c, [layer_weights(c, tensors, n.layer)], final, tensors[n.fuse].dtype)
        self.parameters = sum(tensor.numel() for tensor in tensors.values())

    def features(self, taps: Tensor) -> Tensor:
        """The target's final state as it is."""
        return taps[:, 0]

    def step(self, features: Tensor, tokens: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        """Fuse, one layer, its norm."""
        eps = self.shape.decoder.eps
        state = rms_norm(features, self.state_norm, eps)
        token = rms_norm(self.embed(tokens).to(features.dtype), self.token_norm, eps)
        pair = (state, token) if self.shape.state_first else (token, state)
        x, _ = self.decoder.run(self.fuse(torch.cat(pair, -1)), rows, cache)
        return self.decoder.normed(x)

    def narrow_logits(self, states: Tensor, vocab: int) -> Tensor:
        """The target's head."""
        return over_vocabulary(self.head(states), vocab)


def mtp_shape(checkpoint: Checkpoint) -> MtpShape:
    """Read a config. Raises ModelError for another number of MTP layers than one, and for what it lacks."""
    config, where = checkpoint.config, checkpoint.where
    layout = _layout(config)
    text: Mapping[str, Any] = config.get("text_config") or config
    if layout is Layout.SPECULATORS:
        text = full_config(required(config, "transformer_layer_config", where), where)
    count = text.get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers") or 1
    if count != 1:
        raise ModelError(f"{where}: {count} MTP layers, wanted 1 that is run again; try --drafter ngram")
    names = _names(layout, text)
    kind = text.get("model_type")
    zero_centred = layout is Layout.QWEN or kind in ZERO_CENTRED
    extra: dict[str, Any] = {"gated": zero_centred, "zero_centred": zero_centred}
    extra["qk_norm"] = f"{names.layer}self_attn.q_norm.weight" in checkpoint.shapes or zero_centred or kind == "qwen3"
    if layout is Layout.DEEPSEEK:
        biased = {part: f"{names.layer}self_attn.{part[0]}_proj.bias" in checkpoint.shapes for part in ("qkv", "o")}
        extra |= {f"{part}_bias": there for part, there in biased.items()}
    if layout is Layout.MIMO:
        extra |= {"qkv_bias": True, "o_bias": False}
    return MtpShape(
        layout=layout,
        decoder=decoder_config({**text, "num_hidden_layers": 1}, where, **extra),
        names=names,
        vocab=required(text, "vocab_size", where),
        target_layers=None if layout is Layout.SPECULATORS else text.get("num_hidden_layers"),
        state_first=layout is Layout.MIMO,
    )


def _layout(config: Mapping[str, Any]) -> Layout:
    if config.get("speculators_model_type") is not None:
        return Layout.SPECULATORS
    kind = str(config.get("model_type"))
    if kind.startswith("qwen3_5"):
        return Layout.QWEN
    return Layout.MIMO if kind == "mimo" else Layout.DEEPSEEK


def _names(layout: Layout, text: Mapping[str, Any]) -> Names:
    if layout is Layout.QWEN:
        norms = ("mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.norm.weight")
        return Names("mtp.layers.0.", "mtp.fc.weight", *norms)
    if layout is Layout.DEEPSEEK:
        at = f"model.layers.{text.get('num_hidden_layers')}."
        norms = (f"{at}hnorm.weight", f"{at}enorm.weight", f"{at}shared_head.norm.weight")
        return Names(at, f"{at}eh_proj.weight", *norms)
    at = "model.mtp_layers.0." if layout is Layout.MIMO else "mtp_layers.0."
    norms = (f"{at}hidden_layernorm.weight", f"{at}token_layernorm.weight", f"{at}final_layernorm.weight")
    return Names(at, f"{at}input_proj.weight", *norms)


def _others(layout: Layout, names: Names, present: Mapping[str, Any]) -> list[str]:
    """Tensors of the checkpoint that are none of the head's business: the rest of the target, copies of its ends."""
    if layout is Layout.SPECULATORS:
        return ["embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"]
    mine = "mtp." if layout is Layout.QWEN else "model.mtp_layers." if layout is Layout.MIMO else names.layer
    copies = (f"{names.layer}embed_tokens.weight", f"{names.layer}shared_head.head.weight")
    return [name for name in present if not name.startswith(mine) or name in copies]


def load(target: Target, source: Any, greedy: bool = False, default_k: int = DEFAULT_K) -> ChainDrafter:
    """Load the head from a checkpoint (folder or hub name; mostly the target's own), on its device and in its dtype.

    Raises ModelError for what is wrong with the checkpoint, ModelError or PairMismatch for what does not fit.
    """
    checkpoint = open_checkpoint(source)
    shape = mtp_shape(checkpoint)
    if not any(name.startswith(shape.names.layer) for name in checkpoint.shapes):
        raise ModelError(
            f"{checkpoint.folder} has no tensors {shape.names.layer}*: transformers leaves MTP layers out when saving "
            "a model; take the original files, or --drafter ngram"
        )
    problems = misfits(target, shape.decoder.hidden, shape.vocab, shape.target_layers, None)
    require_fit(target, problems, checkpoint.where)
    ignored = _others(shape.layout, shape.names, checkpoint.shapes)
    tensors = checkpoint.load(shape.tensors(), target.device, target.dtype, ignored=ignored)
    facts = {
        "mechanism": "MTP",
        "layout": shape.layout.value,
        "mode": "greedy" if greedy else "sampled",
        "embedding": "the target's",
        "draft_vocab": shape.vocab,
    }
    pen = Pen(greedy, target.vocab, target.absent, target.device)
    return ChainDrafter("mtp", MtpNet(shape, tensors, *lent_ends(target)), pen, (FINAL_NORM,), default_k, None, facts)
