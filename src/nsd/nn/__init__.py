"""One small decoder building block: every drafter's network, and any dense decoder that runs as a target.

How the pieces fit (all tensors flat over a ragged batch of B requests, M = sum of their new tokens):

    config  = decoder_config(json, qk_norm=True)           shape of the decoder, from config.json's keys
    shapes  = layer_shapes(config, "layers.0.")            names and shapes to expect in a checkpoint
    layer   = layer_weights(config, tensors, "layers.0.")  fused weights of one layer (qkv, gate-up)
    decoder = Decoder(config, layers, norm, dtype)
    cache   = decoder.cache(batch, room)                   empty; lengths per request

    rows = cache.rows(counts)                              a causal pass of counts[b] >= 0 new tokens
    x, taps = decoder.run(embedded, rows, cache)           writes keys and values behind the lengths
    cache.append(rows)                                     they belong to the cache now, and passes may go on
    cache.keep(counts)                                     of all appended since the last keep, the first counts[b]

    rows = cache.rows(counts, Sight.BLOCK)                 a bidirectional pass that reads the cache only:
    x, _ = decoder.run(embedded, rows, cache)              no append, so the next pass overwrites it

    decoder.inject(context, cache.rows(counts), cache)     append keys and values of outside features (DFlash, DSpark)
    decoder.normed(x)                                      the final norm; `run` returns the stream before it

`run(..., side=embedded)` serves layers with two sources (EAGLE-3: sources=2, x is the feature); `run(..., extra=True)`
switches the low-rank additions of output projections on (`LayerWeights.with_extra`). rows.position holds RoPE
positions; cache.rows(counts, shift=1) counts them from 1. Any mask among the new tokens goes in place of a Sight.
"""

from nsd.nn.cache import KVCache, Rows, Sight
from nsd.nn.config import DecoderConfig, Rope, decoder_config, rope_config
from nsd.nn.decoder import Decoder, attend, query_scale, rms_norm
from nsd.nn.rope import Rotary, attention_factor, frequencies, rotate
from nsd.nn.weights import (
    Dense,
    LayerWeights,
    LowRank,
    Projection,
    Shapes,
    layer_shapes,
    layer_weights,
    norm_weight,
)

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Dense",
    "KVCache",
    "LayerWeights",
    "LowRank",
    "Projection",
    "Rope",
    "Rotary",
    "Rows",
    "Shapes",
    "Sight",
    "attend",
    "attention_factor",
    "decoder_config",
    "frequencies",
    "layer_shapes",
    "layer_weights",
    "norm_weight",
    "query_scale",
    "rms_norm",
    "rope_config",
    "rotate",
]
