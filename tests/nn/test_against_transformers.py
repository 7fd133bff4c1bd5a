"""Our decoder against transformers' own modules, with distinct sizes, norms away from 1 and biases away from 0."""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaModel,
    Ministral3Config,
    Ministral3Model,
    Qwen2Config,
    Qwen2Model,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3Model,
)
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

from nsd.nn import Decoder, DecoderConfig, decoder_config, layer_weights, norm_weight

SIZES = {
    "hidden_size": 42,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 56,
    "vocab_size": 61,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
CASES = {
    "llama": (LlamaConfig, LlamaModel, {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": (
        LlamaConfig,
        LlamaModel,
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}},
    ),
    "llama3": (
        LlamaConfig,
        LlamaModel,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": (Qwen2Config, Qwen2Model, {"use_sliding_window": False}),
    "qwen3": (Qwen3Config, Qwen3Model, {"attention_bias": True}),
    "qwen3-yarn": (Qwen3Config, Qwen3Model, {"rope_parameters": YARN}),
    "qwen3-yarn-untruncated": (Qwen3Config, Qwen3Model, {"rope_parameters": YARN | {"truncate": False}}),
    "ministral3": (
        Ministral3Config,
        Ministral3Model,
        {
            "sliding_window": None,
            "rope_parameters": YARN
            | {
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 8,
            },
        },
    ),
    "qwen3.5": (
        Qwen3_5TextConfig,
        Qwen3_5TextModel,
        {
            "attention_bias": True,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e5,
                "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 1],
                "mrope_interleaved": True,
            },
        },
    ),
}


def built(name: str) -> tuple[torch.nn.Module, Decoder]:
    """A random model of transformers and our decoder with its weights."""
    config_class, model_class, extra = CASES[name]
    config = config_class(**(SIZES | extra))
    config._attn_implementation = "eager"
    torch.manual_seed(1 + sorted(CASES).index(name))
    model = model_class(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.6 if parameter.dim() == 1 else 0.0, std=0.15)
    return model, ours(name, config.to_dict(), model.state_dict())


def ours(name: str, config: dict, tensors: dict[str, torch.Tensor]) -> Decoder:
    extra = {"qk_norm": name.startswith("qwen3")}
    if name == "qwen2":
        extra |= {"qkv_bias": True}
    if name == "qwen3.5":
        extra |= {"gated": True, "zero_centred": True}
    shape: DecoderConfig = decoder_config(config, **extra)
    layers = [layer_weights(shape, tensors, f"layers.{i}.") for i in range(shape.layers)]
    return Decoder(shape, layers, norm_weight(tensors["norm.weight"], shape.zero_centred), torch.float32)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_layer_agrees(name):
    model, decoder = built(name)
    ids = torch.randint(61, (2, 150), generator=torch.Generator().manual_seed(5))
    theirs = model(ids, output_hidden_states=True, use_cache=False)
    cache = decoder.cache(2, 150)
    rows = cache.rows([150, 150])
    taps = tuple(range(decoder.config.layers + 1))
    stream, tapped = decoder.run(model.embed_tokens(ids).flatten(0, 1), rows, cache, taps)
    # transformers reports the last entry after the final norm
    for tap in taps[:-1]:
        torch.testing.assert_close(tapped[:, tap], theirs.hidden_states[tap].flatten(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(decoder.normed(stream), theirs.last_hidden_state.flatten(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tapped[:, -1], stream)


@torch.no_grad()
def test_the_comparison_would_notice_a_wrong_rope():
    model, decoder = built("llama3")
    plain = ours("llama3", {**model.config.to_dict(), "rope_parameters": {"rope_theta": 1e4}}, model.state_dict())
    ids = torch.randint(61, (1, 150), generator=torch.Generator().manual_seed(5))
    results = []
    for d in (decoder, plain):
        cache = d.cache(1, 150)
        results.append(d.run(model.embed_tokens(ids).flatten(0, 1), cache.rows([150]), cache)[0])
    assert (results[0] - results[1]).abs().max() > 1e-2
