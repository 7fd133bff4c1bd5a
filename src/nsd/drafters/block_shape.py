"""What a DFlash or DSpark checkpoint says about itself, in each of the layouts it comes in.

Layer ids differ by one between layouts. A tap here is the residual stream after so many layers:

    z-lab, DeepSpec, SpecForge/SGLang   id i names layer i (from 0), its output is tap i + 1
    speculators                         id i already is the tap

Source: z-lab/dflash dflash/model.py; deepseek-ai/DeepSpec deepspec/modeling/dspark/qwen3/modeling.py;
speculators src/speculators/models/dflash/core.py, src/speculators/convert/dflash/converter.py; sgl-project/sglang
python/sglang/srt/models/dspark.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nsd.drafters.checkpoint import full_config, required, tap_ids
from nsd.drafters.recognise import architectures
from nsd.errors import ModelError
from nsd.nn import DecoderConfig, Shapes, decoder_config, layer_shapes
from nsd.targets.base import Target


class Layout(Enum):
    """Who wrote the checkpoint."""

    ZLAB = "z-lab"
    DEEPSPEC = "DeepSpec"
    NESTED = "SpecForge/SGLang"
    SPECULATORS = "speculators"


_LAST = {Layout.ZLAB: "normed", Layout.DEEPSPEC: "none", Layout.NESTED: "none", Layout.SPECULATORS: "raw"}
"""What the state after the target's last layer would be: transformers reports it after the final norm, which is what
z-lab's code reads; DeepSpec forbids it; speculators stores it before the norm."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """A block drafter: its decoder, block geometry, the target layers it reads, and where its ends come from.

    block counts input slots, the anchor and the masks. from_anchor: the anchor's slot already predicts, so there are
    block proposals, otherwise block - 1. draft_vocab < vocab needs the tensors d2t and t2d. ends are the names of the
    checkpoint's own embedding and head; what is not there is the target's. The last three scale the embedding, scale
    the logits, and bound them by a soft cap (0 = off).
    """

    layout: Layout
    decoder: DecoderConfig
    block: int
    from_anchor: bool
    mask: int
    taps: tuple[int, ...]
    vocab: int
    draft_vocab: int
    target_layers: int | None
    ends: frozenset[str]
    embed_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float = 0.0

    @property
    def limit(self) -> int:
        """The most proposals per block."""
        return self.block if self.from_anchor else self.block - 1

    @property
    def first(self) -> int:
        """The first slot that predicts."""
        return self.block - self.limit

    @property
    def reduced(self) -> bool:
        """Whether its logits are over a part of the vocabulary."""
        return self.draft_vocab != self.vocab

    def tensors(self) -> Shapes:
        """Names and shapes of the backbone's tensors, ends included."""
        c = self.decoder
        shapes: Shapes = {
            "fc.weight": (c.hidden, c.hidden * len(self.taps)),
            "hidden_norm.weight": (c.hidden,),
            "norm.weight": (c.hidden,),
        }
        for i in range(c.layers):
            shapes |= layer_shapes(c, f"layers.{i}.")
        if "embed_tokens.weight" in self.ends:
            shapes["embed_tokens.weight"] = (self.vocab, c.hidden)
        if "lm_head.weight" in self.ends:
            shapes["lm_head.weight"] = (self.draft_vocab, c.hidden)
        if self.reduced:
            shapes |= {"d2t": (self.draft_vocab,), "t2d": (self.vocab,)}
        return shapes


class Facts:
    """A config whose drafter settings may stand at the top or nested, whose layer settings may stand one level down."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.layout = _layout(config)
        self._top = config
        self._nested: Mapping[str, Any] = config.get("dflash_config") or {}
        self.layers: Mapping[str, Any] = config
        if self.layout is Layout.SPECULATORS:
            self.layers = full_config(required(config, "transformer_layer_config", where), where)

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, nested or at the top; None counts as not set."""
        for place in (self._nested, self._top):
            if place.get(key) is not None:
                return place[key]
        return default

    def need(self, key: str) -> Any:
        """A setting that must be there."""
        return required({key: self.get(key)}, key, self.where)


def _layout(config: Mapping[str, Any]) -> Layout:
    if config.get("speculators_model_type") is not None:
        return Layout.SPECULATORS
    names = architectures(config)
    if "Qwen3DSparkModel" in names:
        return Layout.DEEPSPEC
    return Layout.NESTED if "DSparkDraftModel" in names else Layout.ZLAB


def block_shape(facts: Facts, target: Target, present: Mapping[str, Any], anchor_predicts: bool) -> BlockShape:
    """Read a config: `present` names the checkpoint's tensors, anchor_predicts is what the mechanism does by default.

    Raises ModelError for missing keys, target layers that do not exist, rotary forms that are not supported.
    """
    where, layout = facts.where, facts.layout
    if facts.get("rope_is_neox_style", True) is False:
        raise ModelError(f"{where}: rotary channels interleaved, wanted halves; this checkpoint is not supported")
    if facts.get("is_causal", False):
        raise ModelError(f"{where}: causal blocks, wanted bidirectional ones; this checkpoint is not supported")
    decoder = decoder_config(facts.layers, where, qk_norm=True)
    vocab = required(facts.layers, "vocab_size", where)
    target_layers = facts.get("num_target_layers")
    block = facts.need("block_size")
    from_anchor = bool(facts.get("sample_from_anchor", anchor_predicts))
    if type(block) is not int or block < 2 - from_anchor:
        raise ModelError(f"{where}: block_size {block!r}, wanted a whole number of at least {2 - from_anchor}")
    key = "aux_hidden_state_layer_ids" if layout is Layout.SPECULATORS else "target_layer_ids"
    layer_ids = facts.get(key)
    if layer_ids is None and layout is Layout.ZLAB:
        layer_ids = spread_layers(target_layers or target.layers, decoder.layers)
    shift = 0 if layout is Layout.SPECULATORS else 1
    return BlockShape(
        layout=layout,
        decoder=decoder,
        block=block,
        from_anchor=from_anchor,
        mask=facts.need("mask_token_id"),
        taps=tap_ids(layer_ids, shift, target.layers, where, _LAST[layout]),
        vocab=vocab,
        draft_vocab=facts.get("draft_vocab_size", vocab) if layout is Layout.SPECULATORS else vocab,
        target_layers=target_layers,
        ends=_ends(facts, vocab, present),
        embed_scale=float(facts.get("input_embedding_scale", 1.0)),
        output_scale=float(facts.get("output_multiplier", 1.0)),
        softcap=float(facts.get("final_logit_softcapping", 0.0)),
    )


def _ends(facts: Facts, vocab: int, present: Mapping[str, Any]) -> frozenset[str]:
    """Which of embedding and head the checkpoint has to bring itself."""
    both = frozenset({"embed_tokens.weight", "lm_head.weight"})
    if facts.layout is Layout.DEEPSPEC:
        return both
    if facts.layout is not Layout.SPECULATORS:
        return frozenset()
    must = {"lm_head.weight"} if facts.get("draft_vocab_size", vocab) != vocab else set()
    return frozenset(must | (both & present.keys()))


def spread_layers(target_layers: int, count: int) -> list[int]:
    """z-lab's default target layers: evenly from layer 1 to the fourth last, the middle one if only one is read."""
    if count == 1:
        return [target_layers // 2]
    last = target_layers - 3
    return [round(1 + i * (last - 1) / (count - 1)) for i in range(count)]


SURPLUS = ("verifier_lm_head.weight", "verifier_norm.weight")
"""Copies of the target's own tensors that speculators may store; they are the target's to use."""


def may_be_left(layout: Layout) -> tuple[str, ...]:
    """Tensors that a checkpoint of this layout may hold without their being read."""
    if layout is Layout.SPECULATORS:
        return (*SURPLUS, "d2t", "t2d")
    return ("embed_tokens.weight", "lm_head.weight") if layout is Layout.NESTED else ()
