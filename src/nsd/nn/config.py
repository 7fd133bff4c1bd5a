"""The shape of a decoder as one small frozen value, and how to read it from a model folder's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nsd.errors import ModelError

ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions. rotary is the rotated share of head_dim (the first so many channels of a head).

    factor and original_context serve linear, llama3 and yarn; low and high are llama3's frequency factors; beta_fast,
    beta_slow, mscale, mscale_all_dim, truncate and attention_factor (None = from factor) belong to yarn.
    """

    kind: str = "default"
    theta: float = 10000.0
    rotary: float = 1.0
    factor: float = 1.0
    original_context: int = 0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Everything the math of a pre-norm decoder depends on.

    sources is how many vectors of width hidden the attention reads side by side (2 in EAGLE-3's layer: token embedding
    and feature); qk_norm puts an RMSNorm on every query and key head; gated packs an output gate beside each query head
    (Qwen3.5); zero_centred means that norms are stored as w and applied as 1 + w; query_beta and query_context scale
    queries by 1 + beta log(1 + floor(position / context)) (Llama 4, Ministral 3; beta 0 = off); normed_residual adds
    the normed feature instead of the raw one (sources = 2 only).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    gated: bool = False
    zero_centred: bool = False
    sources: int = 1
    normed_residual: bool = False
    query_beta: float = 0.0
    query_context: int = 1

    @property
    def groups(self) -> int:
        """Query heads per key head."""
        return self.heads // self.kv_heads

    @property
    def q_size(self) -> int:
        """Outputs of the query projection, the gates included."""
        return self.heads * self.head_dim * (2 if self.gated else 1)

    @property
    def kv_size(self) -> int:
        """Outputs of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim


def decoder_config(config: Mapping[str, Any], where: str = "config.json", **extra: Any) -> DecoderConfig:
    """A decoder's shape from the keys that transformers writes; `extra` sets what those keys do not say (qk_norm, ...).

    Raises ModelError for missing keys (all named), sliding windows, other activations and unknown RoPE kinds.
    """
    wanted = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    missing = [key for key in wanted if not isinstance(config.get(key), int)]
    if missing:
        raise ModelError(f"{where} lacks {', '.join(missing)}; wanted whole numbers, try another checkpoint folder")
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{where}: hidden_act is {config['hidden_act']!r}, wanted 'silu'; this model is not supported")
    if _has_window(config):
        raise ModelError(f"{where}: sliding-window attention, wanted full attention; this model is not supported")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    bias = bool(config.get("attention_bias", False))
    rope = rope_config(config, where)
    scale = _rope_keys(config)
    shape = DecoderConfig(
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        eps=config.get("rms_norm_eps", 1e-6),
        rope=rope,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        query_beta=scale.get("llama_4_scaling_beta") or 0.0,
        query_context=rope.original_context or 1,
    )
    if shape.heads % shape.kv_heads:
        raise ModelError(f"{where}: {shape.heads} query heads over {shape.kv_heads} key heads, wanted a multiple")
    return replace(shape, **extra)


def rope_config(config: Mapping[str, Any], where: str = "config.json") -> Rope:
    """RoPE from `rope_parameters`, or from the older `rope_theta` with `rope_scaling`.

    Source: transformers src/transformers/modeling_rope_utils.py (key names and defaults).
    """
    keys = _rope_keys(config)
    kind = keys.get("rope_type") or keys.get("type") or "default"
    kind = "default" if kind == "mrope" else kind  # equal to plain RoPE wherever all three position ids are equal
    if kind not in ROPE_KINDS:
        raise ModelError(f"{where}: rope type {kind!r}, wanted one of {', '.join(ROPE_KINDS)}")
    limit = config.get("max_position_embeddings") or 0
    original = keys.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or limit
    factor = keys.get("factor")
    if factor is None:
        factor = limit / original if kind == "yarn" and original else 1.0
    return Rope(
        kind=kind,
        theta=float(keys.get("rope_theta") or 10000.0),
        rotary=float(keys.get("partial_rotary_factor") or 1.0),
        factor=float(factor),
        original_context=int(original),
        low=float(keys.get("low_freq_factor") or 1.0),
        high=float(keys.get("high_freq_factor") or 4.0),
        beta_fast=float(keys.get("beta_fast") or 32.0),
        beta_slow=float(keys.get("beta_slow") or 1.0),
        mscale=keys.get("mscale"),
        mscale_all_dim=keys.get("mscale_all_dim"),
        attention_factor=keys.get("attention_factor"),
        truncate=bool(keys.get("truncate", True)),
    )


def _rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Old and new places of the RoPE settings as one flat dictionary."""
    flat = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if config.get(key) is not None}
    for place in ("rope_scaling", "rope_parameters"):
        flat |= config.get(place) or {}
    return flat


def _has_window(config: Mapping[str, Any]) -> bool:
    kinds = config.get("layer_types")
    if kinds:
        return "sliding_attention" in kinds
    return bool(config.get("sliding_window")) and bool(config.get("use_sliding_window", True))
