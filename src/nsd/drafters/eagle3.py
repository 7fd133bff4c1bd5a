"""EAGLE-3 as a chain: one decoder layer that reads a token's embedding beside a feature of three to five target layers.

    feature = fc([h_a, h_b, h_c])      true ones; later steps take the layer's own output, before the final norm
    layer   : attention over [norm(embedding), norm(feature)], added to the raw feature; gated MLP
    q       = softmax(head(norm(output)) / T), over the whole vocabulary or a part of it

Ids outside a reduced vocabulary have q = 0; the target can still emit them, as a replacement or bonus.

Layer ids differ by one between layouts. A tap here is the residual stream after so many layers:

    DeepSpec               target_layer_ids: id i names layer i (from 0), its output is tap i + 1
    SafeAILab, SpecForge   none: taps 2, n // 2, n - 3; under eagle_config, a list that begins with 1 names outputs
                           (tap i + 1), any other names inputs (tap i)
    speculators            eagle_aux_hidden_state_layer_ids: id i already is the tap

RoPE positions count from 0 at the first pair. speculators counts from 1: every rotary form here is relative, so the two
agree.

Source: Li et al., "EAGLE-3" (arXiv 2503.01840); SafeAILab/EAGLE eagle/model/cnets.py; deepseek-ai/DeepSpec
deepspec/modeling/eagle3; speculators src/speculators/models/eagle3/core.py; sgl-project/sglang pull request 25454.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nsd.drafters.checkpoint import (
    Checkpoint,
    Map,
    full_config,
    lent_ends,
    misfits,
    open_checkpoint,
    reduced_ids,
    require_fit,
    required,
    tap_ids,
)
from nsd.drafters.drawing import Pen
from nsd.drafters.feature_chain import ChainDrafter, ChainNet
from nsd.drafters.packed import Packed, unpacked
from nsd.drafters.recognise import architectures, is_eagle3
from nsd.errors import ModelError
from nsd.nn import (
    Decoder,
    DecoderConfig,
    Dense,
    KVCache,
    Projection,
    Rows,
    Shapes,
    decoder_config,
    layer_shapes,
    layer_weights,
    rms_norm,
)
from nsd.nn.quantised import FORMS
from nsd.targets.base import Target

recognises = is_eagle3

TRAINED_STEPS = 7
"""Steps that trainers unroll unless told otherwise, hence the default k of layouts that do not say."""


class Layout(Enum):
    """Who wrote the checkpoint."""

    DEEPSPEC = "DeepSpec"
    SAFEAI = "SafeAILab/SpecForge"
    SPECULATORS = "speculators"


_LAST = {Layout.DEEPSPEC: "none", Layout.SAFEAI: "raw", Layout.SPECULATORS: "raw"}
"""What the state after the target's last layer would be; DeepSpec forbids it."""


@dataclass(frozen=True, slots=True)
class EagleShape:
    """An EAGLE-3 head as its config describes it.

    target_hidden is the width of a target state; vocab the target's, draft_vocab the head's; first_prefix names the
    first layer. input_norm: one norm over all target states before fc; fc_norm: one for each; norm_output: the normed
    output is the next feature. default_k and max_k: proposals per block (None = no limit).
    """

    layout: Layout
    decoder: DecoderConfig
    taps: tuple[int, ...]
    target_hidden: int
    vocab: int
    draft_vocab: int
    target_layers: int | None
    first_prefix: str
    own_embedding: bool
    has_t2d: bool
    input_norm: bool
    fc_norm: bool
    norm_output: bool
    default_k: int
    max_k: int | None

    @property
    def reduced(self) -> bool:
        """Whether its logits are over a part of the vocabulary."""
        return self.draft_vocab != self.vocab

    def layers(self) -> list[tuple[DecoderConfig, str]]:
        """Shape and name prefix of each layer; those behind the first are ordinary ones."""
        rest = replace(self.decoder, sources=1, normed_residual=False)
        names = [self.first_prefix, *(f"layers.{i}." for i in range(1, self.decoder.layers))]
        return [(self.decoder if i == 0 else rest, name) for i, name in enumerate(names)]

    def tensors(self) -> Shapes:
        """Names and shapes of all tensors."""
        hidden, wide = self.decoder.hidden, self.target_hidden * len(self.taps)
        head = (self.draft_vocab, hidden)
        shapes: Shapes = {"fc.weight": (hidden, wide), "norm.weight": (hidden,), "lm_head.weight": head}
        for config, prefix in self.layers():
            shapes |= layer_shapes(config, prefix)
        if self.own_embedding:
            shapes["embed_tokens.weight"] = (self.vocab, hidden)
        if self.input_norm:
            shapes["input_norm.weight"] = (wide,)
        if self.fc_norm:
            shapes |= {f"fc_norm.{i}.weight": (self.target_hidden,) for i in range(len(self.taps))}
        if self.reduced:
            shapes["d2t"] = (self.draft_vocab,)
            if self.has_t2d:
                shapes["t2d"] = (self.vocab,)
        return shapes


class EagleNet(ChainNet):
    """The network. embed takes ids [N] to [N, hidden]: the checkpoint's own table where it has one.

    form, if given, is how its matrices are kept (see `nsd.nn.quantised`), and dtype what it computes in; else both are
    as the tensors are.
    """

    def __init__(
        self,
        shape: EagleShape,
        tensors: Mapping[str, Tensor],
        embed: Map,
        where: str,
        form: Callable[[Dense], Projection] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        layers = [layer_weights(config, tensors, prefix) for config, prefix in shape.layers()]
        dtype = dtype or tensors["norm.weight"].dtype
        small = {name: t.to(dtype) for name, t in tensors.items() if "norm" in name}
        self.ids, head_rows = None, tensors["lm_head.weight"]
        if shape.reduced:
            self.ids, order = reduced_ids(tensors["d2t"], tensors.get("t2d"), shape.vocab, where).sort()
            head_rows = head_rows[order]  # in the order of ids, in which draws run through a law
        fuse, head = Dense(tensors["fc.weight"]), Dense(head_rows)
        self.fuse: Projection = fuse if form is None else form(fuse)
        self.head: Projection = head if form is None else form(head)
        if form is not None:
            layers = [layer.mapped(form, dtype) for layer in layers]
        self.shape, self.embed = shape, embed
        self.decoder = Decoder(shape.decoder, layers, small["norm.weight"], dtype)
        if shape.own_embedding:
            table = tensors["embed_tokens.weight"].to(dtype)
            self.embed = lambda ids: functional.embedding(ids, table)
        self.input_norm = small.get("input_norm.weight")
        self.fc_norms = [small[f"fc_norm.{i}.weight"] for i in range(len(shape.taps))] if shape.fc_norm else None
        self.parameters = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())

    def features(self, taps: Tensor) -> Tensor:
        """fc of the target states side by side, normed before it where the checkpoint does so."""
        eps = self.shape.decoder.eps
        if self.fc_norms is not None:
            taps = torch.stack([rms_norm(taps[:, i], norm, eps) for i, norm in enumerate(self.fc_norms)], 1)
        wide = taps.flatten(1)
        return self.fuse(wide if self.input_norm is None else rms_norm(wide, self.input_norm, eps))

    def step(self, features: Tensor, tokens: Tensor, rows: Rows, cache: KVCache) -> Tensor:
        """One pass of the layers: the feature is the stream, the token's embedding stands beside it."""
        x, _ = self.decoder.run(features, rows, cache, side=self.embed(tokens).to(features.dtype))
        return self.decoder.normed(x) if self.shape.norm_output else x

    def narrow_logits(self, states: Tensor, vocab: int) -> Tensor:
        """Final norm (unless it was applied) and head."""
        return self.head(states if self.shape.norm_output else self.decoder.normed(states))


def eagle_shape(checkpoint: Checkpoint, target: Target, tap_shift: int | None = None) -> EagleShape:
    """Read a config. tap_shift overrides what is added to its layer ids. Raises ModelError for what it lacks."""
    config, where, present = checkpoint.config, checkpoint.where, checkpoint.shapes
    layout = _layout(config)
    layers: Mapping[str, Any] = config
    if layout is Layout.SPECULATORS:
        layers = full_config(required(config, "transformer_layer_config", where), where)
    decoder = _decoder(config, layers, layout, where)
    vocab = required(layers, "vocab_size", where)
    steps = _steps(config, layout, where)
    return EagleShape(
        layout=layout,
        decoder=decoder,
        taps=_taps(config, layout, target.layers, where, tap_shift),
        target_hidden=config.get("target_hidden_size") or decoder.hidden,
        vocab=vocab,
        draft_vocab=vocab if layout is Layout.DEEPSPEC else config.get("draft_vocab_size") or vocab,
        target_layers=config.get("num_target_layers") if layout is Layout.DEEPSPEC else None,
        first_prefix="midlayer." if any(name.startswith("midlayer.") for name in present) else "layers.0.",
        own_embedding=layout is Layout.DEEPSPEC or "embed_tokens.weight" in present,
        has_t2d="t2d" in present,
        input_norm=bool(config.get("norm_before_fc")),
        fc_norm=bool(config.get("fc_norm")),
        norm_output=bool(config.get("norm_output")),
        default_k=steps,
        max_k=steps if layout is Layout.DEEPSPEC else None,
    )


def _layout(config: Mapping[str, Any]) -> Layout:
    if config.get("speculators_model_type") is not None:
        return Layout.SPECULATORS
    deepspec = architectures(config) & {"Qwen3Eagle3Model", "Eagle3DraftModel"}
    return Layout.DEEPSPEC if deepspec else Layout.SAFEAI


def _decoder(config: Mapping[str, Any], layers: Mapping[str, Any], layout: Layout, where: str) -> DecoderConfig:
    stacked = layout is Layout.SPECULATORS
    depth = layers.get("num_hidden_layers") if stacked else config.get("draft_num_hidden_layers", 1)
    if type(depth) is not int or depth < 1 or (layout is Layout.DEEPSPEC and depth != 1):
        raise ModelError(f"{where}: {depth} draft layers, wanted one; this checkpoint is not supported")
    return decoder_config(
        {**layers, "num_hidden_layers": depth},
        where,
        sources=2,
        qk_norm=layout is Layout.DEEPSPEC or layers.get("model_type") == "qwen3",
        normed_residual=bool(config.get("norm_before_residual")),
    )


def _taps(config: Mapping[str, Any], layout: Layout, layers: int, where: str, tap_shift: int | None) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    if layout is Layout.DEEPSPEC:
        ids, shift = required(config, "target_layer_ids", where), 1
    else:
        ids, shift = config.get(key) or (config.get("eagle_config") or {}).get(key), 0
        if ids is None:
            return tap_ids([2, layers // 2, layers - 3], 0, layers, where, _LAST[layout])
        if layout is Layout.SAFEAI and isinstance(ids, list) and ids and ids[0] == 1:
            shift = 1
    return tap_ids(ids, shift if tap_shift is None else tap_shift, layers, where, _LAST[layout])


def _steps(config: Mapping[str, Any], layout: Layout, where: str) -> int:
    """Proposals per block that the checkpoint was made for."""
    steps: Any = TRAINED_STEPS
    if layout is Layout.DEEPSPEC:
        steps = required(config, "ttt_length", where)
    elif layout is Layout.SPECULATORS:
        methods = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        steps = methods[0].get("speculative_tokens") or TRAINED_STEPS
    if type(steps) is not int or steps < 1:
        raise ModelError(f"{where}: {steps!r} steps per block, wanted a whole number of at least 1")
    return steps


_IGNORED = ("verifier_lm_head.weight", "verifier_norm.weight", "d2t", "t2d", "midlayer.self_attn.rotary_emb.inv_freq")
"""Copies of the target's tensors, maps that are the identity, and tables that follow from the config."""


def load(
    target: Target, source: Any, greedy: bool = False, default_k: int | None = None, tap_shift: int | None = None
) -> ChainDrafter:
    """Load a checkpoint (folder or hub name) for a target, on its device and in its dtype.

    tap_shift (0 or 1) settles what the checkpoint's layer ids mean where its layout is unclear. Raises ModelError for
    what is wrong with the checkpoint, ModelError or PairMismatch for what does not fit the target.
    """
    checkpoint = unpacked(open_checkpoint(source), target)
    shape = eagle_shape(checkpoint, target, tap_shift)
    require_fit(target, misfits(target, shape.target_hidden, shape.vocab, shape.target_layers, None), checkpoint.where)
    if not shape.own_embedding and shape.decoder.hidden != target.hidden:
        width = f"width {shape.decoder.hidden} is not the target's"
        raise ModelError(f"{checkpoint.folder} lacks embed_tokens.weight, and its {width}; fetch it again")
    form = _form(checkpoint, target)
    stored = target.dtype if form is None else torch.float32
    tensors = checkpoint.load(shape.tensors(), target.device, stored, ignored=_IGNORED)
    embed = _own if shape.own_embedding else lent_ends(target)[0]
    facts = {
        "mechanism": "EAGLE-3",
        "layout": shape.layout.value,
        "mode": "greedy" if greedy else "sampled",
        "embedding": "own" if shape.own_embedding else "the target's",
        "draft_vocab": shape.draft_vocab,
    }
    net = EagleNet(shape, tensors, embed, checkpoint.where, form, target.dtype)
    pen = Pen(greedy, target.vocab, target.absent, target.device, net.ids)
    k = shape.default_k if default_k is None else default_k
    return ChainDrafter("eagle3", net, pen, shape.taps, k, shape.max_k, facts)


def _form(checkpoint: Checkpoint, target: Target) -> Callable[[Dense], Projection] | None:
    """Rows of bytes stay bytes where there is a kernel for them, bfloat16 on a CPU; all else is computed as it is read.

    The codes are those of the file, since a scale rounded to bfloat16 moves none of them by half a step.
    """
    fits = isinstance(checkpoint, Packed) and target.device.type == "cpu" and target.dtype == torch.bfloat16
    return FORMS["int8"] if fits else None


def _own(_: Tensor) -> Tensor:
    raise AssertionError("the checkpoint has its own embedding")
