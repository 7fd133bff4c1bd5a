"""Reading a decoder's shape from config.json, and what is refused."""

import pytest

from nsd.errors import ModelError
from nsd.nn import DecoderConfig, Rope, attention_factor, decoder_config, layer_shapes

LEAST = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def test_defaults_and_derived_sizes():
    shape = decoder_config(LEAST)
    assert (shape.kv_heads, shape.head_dim, shape.groups, shape.q_size, shape.kv_size) == (4, 8, 1, 32, 32)
    gated = decoder_config({**LEAST, "num_key_value_heads": 2, "head_dim": 12}, gated=True, qk_norm=True)
    assert (gated.groups, gated.q_size, gated.kv_size, gated.qk_norm) == (2, 96, 24, True)


def test_old_and_new_places_of_rope_settings():
    old = decoder_config({**LEAST, "rope_theta": 7.0, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = decoder_config({**LEAST, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}})
    assert old.rope == new.rope == Rope(kind="linear", theta=7.0, factor=2.0)
    assert decoder_config({**LEAST, "rope_theta": 5.0, "rope_scaling": None}).rope.theta == 5.0


def test_the_attention_factor_of_yarn():
    assert attention_factor(Rope()) == 1.0
    yarn = Rope(kind="yarn", factor=16.0, original_context=16384)
    assert attention_factor(yarn) == pytest.approx(0.1 * 2.772588722239781 + 1)
    equal = Rope(kind="yarn", factor=16.0, original_context=16384, mscale=1.0, mscale_all_dim=1.0)
    assert attention_factor(equal) == 1.0
    assert attention_factor(Rope(kind="yarn", factor=16.0, original_context=9, attention_factor=1.25)) == 1.25


def test_missing_keys_are_all_named():
    with pytest.raises(ModelError, match="hidden_size, intermediate_size"):
        decoder_config({"num_hidden_layers": 2, "num_attention_heads": 4})


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"sliding_window": 128}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ({"num_key_value_heads": 3}, "multiple"),
    ],
)
def test_what_is_refused(extra, words):
    with pytest.raises(ModelError, match=words):
        decoder_config({**LEAST, **extra})


def test_a_window_that_no_layer_uses_is_fine():
    assert decoder_config({**LEAST, "sliding_window": 128, "use_sliding_window": False})
    assert decoder_config({**LEAST, "sliding_window": 128, "layer_types": ["full_attention"] * 2})


def test_names_and_shapes_of_a_layer():
    shape = DecoderConfig(hidden=10, layers=1, heads=6, kv_heads=3, head_dim=4, intermediate=14, qkv_bias=True,
                          qk_norm=True, gated=True, sources=2)  # fmt: skip
    assert layer_shapes(shape, "layers.3.") == {
        "layers.3.input_layernorm.weight": (10,),
        "layers.3.post_attention_layernorm.weight": (10,),
        "layers.3.hidden_norm.weight": (10,),
        "layers.3.self_attn.q_proj.weight": (48, 20),
        "layers.3.self_attn.k_proj.weight": (12, 20),
        "layers.3.self_attn.v_proj.weight": (12, 20),
        "layers.3.self_attn.o_proj.weight": (10, 24),
        "layers.3.self_attn.q_proj.bias": (48,),
        "layers.3.self_attn.k_proj.bias": (12,),
        "layers.3.self_attn.v_proj.bias": (12,),
        "layers.3.self_attn.q_norm.weight": (4,),
        "layers.3.self_attn.k_norm.weight": (4,),
        "layers.3.mlp.gate_proj.weight": (14, 10),
        "layers.3.mlp.up_proj.weight": (14, 10),
        "layers.3.mlp.down_proj.weight": (10, 14),
    }
