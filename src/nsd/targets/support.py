"""Which models can be a target, and the reason when one cannot.

What is needed: every layer's state is a key-value cache that a rejected token can be cut out of again, and attention
that takes a mask and a position for each row. Known families are refused from their configuration before any weight is
read; whatever remains proves itself on a few tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsd.errors import ModelError
from nsd.targets.masks import CHUNKED, FULL, SLIDING, STATELESS

ADVICE = "take a decoder-only model with attention layers, such as smollm2-135m"


def require_supported(config: Any, model_class: Any, name: str) -> None:
    """Refuse by configuration and class: encoder-decoders, recurrent or convolutional state, unknown layer types."""
    kind = getattr(config, "model_type", type(config).__name__)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} ({kind}) is an encoder-decoder, wanted a decoder-only model; {ADVICE}")
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    types = list(dict.fromkeys(getattr(text, "layer_types", None) or []))
    other = [t for t in types if t not in (FULL, SLIDING, CHUNKED, *STATELESS)]
    if other:
        raise ModelError(
            f"{name} ({kind}) has layers of type {', '.join(other)}, whose state cannot be rolled back after a "
            f"rejected token; {ADVICE}"
        )
    if getattr(model_class, "_is_stateful", False):
        raise ModelError(
            f"{name} ({kind}) keeps a recurrent state, which cannot be rolled back after a rejected token; {ADVICE}"
        )
    if not getattr(text, "is_causal", True):
        raise ModelError(f"{name} ({kind}) attends in both directions, wanted a causal model; {ADVICE}")


def require_masks(config: Any, name: str) -> str:
    """The attention implementation; only those that take a mask for each row are usable."""
    used = getattr(config, "_attn_implementation", None) or "eager"
    if used not in ("sdpa", "eager"):
        raise ModelError(f"{name} was loaded with attention '{used}', wanted attn_implementation='sdpa' or 'eager'")
    return str(used)


def self_test(target: Any) -> int:
    """Decode a few tokens in a ragged batch with a rollback and compare with a plain pass -> width of the logits.

    The error may not exceed eight times that of one request alone (rounding), nor a floor by dtype.
    """
    try:
        whole, alone, ragged = _three_ways(target)
    except ModelError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:160]
        raise ModelError(
            f"{target.name} cannot run on a cache with a length for each request "
            f"({type(error).__name__}: {reason}); {ADVICE}"
        ) from error
    scale = float(whole.abs().max())
    floor = 1e-3 if whole.dtype in (torch.float32, torch.float64) else 0.1
    rounding, off = (float((x.float() - whole.float()).abs().max()) for x in (alone, ragged))
    if off > max(8 * rounding, floor * scale):
        raise ModelError(
            f"{target.name} gives other logits in a ragged batch than alone (by {off:.3g} of {scale:.3g}): it does not "
            f"follow the mask or the positions it is given; {ADVICE}"
        )
    return int(whole.shape[-1])


def _three_ways(target: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Last logits [V] of the same six tokens: one pass without a cache, alone in steps, ragged with a rollback."""
    a, b = [5, 3, 8, 2, 7, 4], [6, 1, 9, 2, 7, 3]
    with torch.no_grad():
        ids = torch.tensor([a], device=target.device)
        whole = target.model(input_ids=ids, use_cache=False).logits[0, -1]
    session, _ = target.open([a[:4]], 4)
    alone = session.score([a[4:]]).logits[-1]
    if not session.cache.used_layers:
        raise ModelError(f"{target.name} does not use the cache it is given, so it cannot be rolled back; {ADVICE}")
    session, _ = target.open([b, a[:4]], 4)
    session.score([[2], [4, 9, 1]])
    session.keep([1, 0])
    ragged = session.score([[7, 7, 7], a[4:]]).logits[-1]
    return whole, alone, ragged
