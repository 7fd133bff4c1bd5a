"""How many bytes a pair needs, from the shapes in config.json alone: weights, caches, drafter. Nothing is loaded.

The shapes are those that the loaders themselves check tensors against, so an estimate cannot drift from what is read.
Hybrid targets (Gated DeltaNet layers) are laid out by transformers on the meta device, which holds no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nsd.drafters.load import kind_of
from nsd.drafters.recognise import is_addition
from nsd.errors import ConfigError, ModelError
from nsd.nn import DecoderConfig, Shapes
from nsd.nn.checkpoint import Checkpoint

Config = Mapping[str, Any]

BYTES = {"float32": 4.0, "float64": 8.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5625, "w8a8": 1.0}
"""Of one number of a weight; int4 with its scales and zeros of four bytes for 64 codes. `auto` is bfloat16 here."""
ENDS = ("embed_tokens", "lm_head", "diffusion_head")


@dataclass(frozen=True, slots=True)
class Part:
    """A model's tensors by name, and what its cache holds: numbers per position, and bytes that do not grow.

    Of a drafter also k, its default proposals per block, and how many more its own unit counts.
    """

    shapes: Shapes
    per_position: int
    fixed: int = 0
    k: int = 0
    unit: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers the tensors hold."""
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def looked_up(self) -> int:
        """Numbers of an embedding table that is not the head too: a pass reads a few of its rows."""
        tables = [prod(shape) for name, shape in self.shapes.items() if "embed_tokens" in name]
        heads = [name for name in self.shapes if "lm_head" in name or "diffusion_head" in name]
        return sum(tables) if heads else 0

    def weights(self, dtype: str) -> int:
        """Bytes of the tensors; the two ends of an int4 model are int8."""
        ends = sum(prod(shape) for name, shape in self.shapes.items() if any(end in name for end in ENDS))
        size = BYTES["int8"] if dtype == "int4" else BYTES[dtype]
        return round((self.numbers - ends) * BYTES[dtype] + ends * size)

    def cache(self, dtype: str, positions: int) -> int:
        """Bytes of keys and values for so many positions, and of states beside them."""
        return round(self.per_position * positions * max(BYTES[dtype], 2.0)) + self.fixed


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a loaded pair while it answers one prompt; laws are the logits and laws of a block, float32."""

    target: int
    drafter: int
    cache: int
    laws: int

    @property
    def total(self) -> int:
        """Weights, drafter and caches: the tensors that stay."""
        return self.target + self.drafter + self.cache

    def as_json(self) -> dict[str, int]:
        """Bytes by name."""
        return {
            "target": self.target,
            "drafter": self.drafter,
            "cache": self.cache,
            "total": self.total,
            "laws_of_a_block": self.laws,
        }


def footprint(
    target: Config, drafter: Config | None, dtype: str, positions: int, k: int, lora_rank: int = 0
) -> Footprint:
    """Of a target's config.json and its drafter's (the same object: drafter and target are one; None: no weights)."""
    if dtype == "auto":
        dtype = "bfloat16"
    if dtype not in BYTES:
        raise ConfigError(f"dtype is '{dtype}', wanted auto or one of {', '.join(BYTES)}; try --dtype bfloat16")
    mine = target_part(target)
    own = None if drafter is None else drafter_part(drafter, target, lora_rank)
    vocab = int(_text(target)["vocab_size"])
    return Footprint(
        target=mine.weights(dtype),
        drafter=0 if own is None else own.weights(dtype),
        cache=mine.cache(dtype, positions) + (0 if own is None else own.cache(dtype, positions)),
        laws=3 * (k + 1) * vocab * 4,
    )


def target_part(config: Config) -> Part:
    """A target by its config. Raises ModelError for a model type whose tensors cannot be told from the config."""
    from nsd.targets.lean import KINDS as LEAN
    from nsd.targets.lean import shape_of, tensor_shapes
    from nsd.targets.nemotron import NemotronConfig
    from nsd.targets.recognise import is_nemotron

    where = str(config.get("_name_or_path", "config.json"))
    if is_nemotron(config):
        nemotron = NemotronConfig.of(config, where)
        return Part(nemotron.shapes, _kv(nemotron.decoder))
    if config.get("model_type") in LEAN:
        shape = shape_of(config, where)
        tied = bool(config.get("tie_word_embeddings"))
        return Part(tensor_shapes(shape, int(config["vocab_size"]), tied), _kv(shape))
    return _laid_out(_text(config), where)


def drafter_part(config: Config, target: Config, lora_rank: int = 0) -> Part:
    """A drafter by its config, beside the target's. Raises ModelError for a mechanism that is not known."""
    from nsd.drafters import dspark, eagle3, mtp
    from nsd.drafters.block_shape import Facts, Layout, block_shape
    from nsd.drafters.nemotron import lora_scale, lora_shapes
    from nsd.targets.nemotron import NemotronConfig

    where = str(config.get("_name_or_path", "config.json"))
    found = kind_of(config)
    kind = None if found is None else found.name
    checkpoint = Checkpoint(Path(where), dict(config), {}, {})
    # Of a target, reading a drafter's config needs the number of layers alone.
    beside: Any = SimpleNamespace(layers=int(_text(target)["num_hidden_layers"]), name="the target")
    if kind == "nemotron":
        if is_addition(config):
            lora_scale(config, where)  # refuses what no drafter takes
            config, lora_rank = target, int(config["r"])
        nemotron = NemotronConfig.of(config, where)
        shapes = lora_shapes(nemotron.decoder, lora_rank) if lora_rank else {}
        return Part(shapes, 0, k=nemotron.block - 1, unit=1)
    if kind == "mtp":
        shape = mtp.mtp_shape(checkpoint)
        return Part(shape.tensors(), _kv(shape.decoder), k=mtp.DEFAULT_K)
    if kind == "eagle3":
        eagle = eagle3.eagle_shape(checkpoint, beside)
        return Part(eagle.tensors(), _kv(eagle.decoder), k=eagle.default_k)
    if kind in ("dflash", "dspark"):
        facts = Facts(config, where)
        block = block_shape(facts, beside, {}, kind == "dspark" or facts.layout is Layout.DEEPSPEC)
        shapes = block.tensors()
        if kind == "dspark":
            head = dspark.head_shape(facts, {})
            shapes |= head.tensors(block.decoder.hidden, block.vocab, block.draft_vocab)
        return Part(shapes, _kv(block.decoder), k=block.limit, unit=block.first)
    if kind == "draft-model":
        own = target_part(config)
        return Part(own.shapes, own.per_position, own.fixed, k=4)
    raise ModelError(f"{where} is no drafter that is known here, wanted one of those in nsd list drafters; check it")


def _text(config: Config) -> Config:
    """The part of a config that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def _kv(decoder: DecoderConfig) -> int:
    """Keys and values per position, all layers."""
    return 2 * decoder.layers * decoder.kv_size


def _laid_out(config: Config, where: str) -> Part:
    """Any model that transformers knows, laid out without numbers; tied tensors count once."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    given = {key: value for key, value in config.items() if key not in ("model_type", "_name_or_path")}
    try:
        full = AutoConfig.for_model(str(config.get("model_type")), **given)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(full)
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        reason = str(problem).splitlines()[0][:160]
        raise ModelError(f"{where}: no model can be laid out from it ({reason}); check its config.json") from None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    kinds = list(getattr(full, "layer_types", None) or ["full_attention"] * full.num_hidden_layers)
    heads = full.num_key_value_heads
    size = getattr(full, "head_dim", None) or full.hidden_size // full.num_attention_heads
    linear = kinds.count("linear_attention")
    return Part(shapes, 2 * heads * size * (len(kinds) - linear), linear * _delta_state(full) if linear else 0)


def _delta_state(config: Any) -> int:
    """Bytes of a DeltaNet layer's state: one float32 matrix per head, and the window of its convolution."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    values = config.linear_num_value_heads * config.linear_value_head_dim
    matrix = config.linear_num_value_heads * config.linear_key_head_dim * config.linear_value_head_dim
    return int(4 * matrix + 4 * (2 * keys + values) * config.linear_conv_kernel_dim)
