"""Weights laid out for oneDNN: the same numbers as plain products, and rows that do not depend on their neighbours."""

import pytest
import torch
from torch.nn import functional

from nsd.errors import ConfigError
from nsd.nn import Decoder, Dense, decoder_config, layer_shapes, layer_weights, onednn
from nsd.nn.calibrate import LENGTH, TEXTS, Watched, calibrated, random_ids
from nsd.nn.onednn import W8A8, Packed, Spread, Table, lacks_w8a8, packed, packs_bfloat16
from nsd.targets.dtypes import choose_format

CPU = torch.device("cpu")
needs_w8a8 = pytest.mark.skipif(lacks_w8a8() is not None, reason=f"w8a8 is not to be had: {lacks_w8a8()}")
needs_packed = pytest.mark.skipif(not packs_bfloat16(), reason="torch cannot lay out bfloat16 weights on this CPU")

SHAPE = decoder_config(
    {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "hidden_act": "silu",
    },
    "here",
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layers():
    tensors = {}
    for i in range(2):
        for j, (name, shape) in enumerate(layer_shapes(SHAPE, f"layers.{i}.").items()):
            tensors[name] = random(*shape, seed=9 * i + j) / (4 if len(shape) > 1 else 8) + (len(shape) == 1)
    return [layer_weights(SHAPE, tensors, f"layers.{i}.") for i in range(2)]


@needs_packed
@pytest.mark.parametrize("rows", [0, 1, 3, 5, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_laid_out_bfloat16_computes_what_a_plain_product_does(rows, bias):
    dense = Dense(random(40, 33).bfloat16(), random(40, seed=1).bfloat16() if bias else None)
    form, x = packed(dense), random(rows, 33, seed=2).bfloat16()
    assert isinstance(form, Packed) and packed(form) is form and form.parameters == dense.parameters
    torch.testing.assert_close(form(x), dense(x), rtol=0.01, atol=0.01)
    torch.testing.assert_close(form.part(8, 24)(x), dense(x)[:, 8:24], rtol=0.01, atol=0.01)
    ids = torch.tensor([5, 0, 5])
    assert torch.equal(form.rows(ids), dense.rows(ids))


def test_only_bfloat16_is_laid_out(monkeypatch):
    wide = Dense(random(8, 8))
    assert packed(wide) is wide
    monkeypatch.setattr(onednn, "packs_bfloat16", lambda: False)
    narrow = Dense(random(8, 8).bfloat16())
    assert packed(narrow) is narrow


@needs_packed
def test_a_decoder_lays_out_its_layers_and_injects_as_before(monkeypatch):
    context = random(3, 32, seed=3).bfloat16()
    kept = []
    for lays in (True, False):
        monkeypatch.setattr(onednn, "packs_bfloat16", lambda lays=lays: lays)
        narrow = [layer.mapped(lambda d: Dense(d.weight.bfloat16()), torch.bfloat16) for layer in layers()]
        decoder = Decoder(SHAPE, narrow, None, torch.bfloat16)
        assert isinstance(decoder.layers[0].down, Packed if lays else Dense)
        cache = decoder.cache(1, 8)
        decoder.inject(context, cache.rows([3]), cache)
        x, _ = decoder.run(context, cache.rows([3]), cache)
        kept.append(x)
    torch.testing.assert_close(*kept, rtol=0.02, atol=0.02)


def test_copies_go_to_the_largest_inputs_and_sum_to_one():
    spread = Spread.of(torch.tensor([1.0, 8.0, 2.0, 3.0]), copies=4)
    assert spread.source.tolist() == [0, 1, 1, 1, 1, 2, 3, 3]
    assert torch.equal(torch.zeros(4).index_add_(0, spread.source, spread.share), torch.ones(4))


@needs_w8a8
@pytest.mark.parametrize("peaked", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_w8a8_is_its_own_codes_times_rounded_rows(peaked, bias):
    """Against float64 on the rows it reports: what is left is half a level of each activation."""
    inputs, outputs = 96, 48
    dense = Dense(random(outputs, inputs), random(outputs, seed=1) if bias else None)
    x = random(7, inputs, seed=2)
    x[:, 3] *= 30
    form = W8A8.of(dense, x.abs().amax(0) if peaked else None)
    matrix = form.rows(torch.arange(outputs)).double()
    step = dense.weight.abs().amax(1, keepdim=True) / 127
    assert ((matrix - dense.weight).abs() <= 0.51 * step + 0.005 * dense.weight.abs()).all()
    assert form.parameters == dense.parameters and form.part(8, 16).parameters == 8 * inputs + 8 * bias
    expected = functional.linear(x.double(), matrix, None if form.bias is None else form.bias.double())
    error = (form(x).double() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    assert error < (0.01 if peaked else 0.03), float(error)
    assert torch.equal(form.part(8, 16)(x), form(x)[:, 8:16])
    assert torch.equal(form.part(8, 16).rows(torch.tensor([1])), form.rows(torch.tensor([9])))


@needs_w8a8
def test_copies_make_large_channels_harmless():
    dense, x = Dense(random(64, 128)), random(50, 128, seed=3)
    x[:, [5, 77]] *= 60
    exact = dense(x)
    far = [float((W8A8.of(dense, peaks)(x) - exact).square().mean()) for peaks in (None, x.abs().amax(0))]
    assert far[1] < far[0] / 5, far


@needs_w8a8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [576, 100])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(dtype, inputs):
    """Alone, in a block, among larger rows, in a long pass: one scale for the tensor would fail every one of these."""
    x = random(300, inputs, seed=4).to(dtype)
    x[1::2] *= 50
    form = W8A8.of(Dense(random(200, inputs)), x.abs().amax(0).float())
    whole = form(x)
    assert whole.dtype is dtype
    for row in (0, 1, 150, 299):
        assert torch.equal(form(x[row : row + 1])[0], whole[row])
    for size in (2, 4, 5, 8, 33):
        assert torch.equal(form(x[:size]), whole[:size])
    others = x[:5].clone()
    others[3:] *= 1e4
    assert torch.equal(form(others)[:3], whole[:3])


@needs_w8a8
def test_rows_of_zeros_give_zeros():
    x = torch.zeros(2, 32)
    x[1] = random(1, 32)[0]
    weight = random(16, 32)
    weight[4] = 0
    form = W8A8.of(Dense(weight))
    assert (form(x)[0] == 0).all() and (form(x)[:, 4] == 0).all() and form(x).isfinite().all()


@needs_w8a8
def test_a_table_looks_up_in_one_form_and_applies_the_other():
    dense = Dense(random(16, 32))
    table = Table(dense, W8A8.of(dense))
    ids, x = torch.tensor([3, 1]), random(2, 32, seed=5)
    assert torch.equal(table.rows(ids), dense.weight[ids]) and torch.equal(table(x), table.product(x))
    assert table.parameters == dense.parameters and torch.equal(table.part(2, 5)(x), table(x)[:, 2:5])


@needs_w8a8
def test_calibration_keeps_the_float_stream_and_gives_nearly_the_same_decoder():
    dense = layers()
    x = random(TEXTS * LENGTH, 32, seed=6)
    found, stream = calibrated(SHAPE, iter(dense), x, torch.float32)
    whole = Decoder(SHAPE, dense, None, torch.float32)
    cache = whole.cache(TEXTS, LENGTH)
    expected, _ = whole.run(x, cache.rows([LENGTH] * TEXTS), cache)
    torch.testing.assert_close(stream, expected, atol=1e-5, rtol=1e-5)
    assert all(isinstance(p, W8A8) for layer in found for p in (layer.qkv, layer.o, layer.gate_up, layer.down))
    assert found[0].qkv.spread is not None and found[0].o.spread is None
    narrow = Decoder(SHAPE, found, None, torch.float32)
    cache = narrow.cache(TEXTS, LENGTH)
    got, _ = narrow.run(x, cache.rows([LENGTH] * TEXTS), cache)
    assert (got - expected).square().mean().sqrt() < 0.05 * expected.square().mean().sqrt()


def test_watching_remembers_the_largest_size():
    watched = Watched(Dense(torch.eye(2)))
    watched(torch.tensor([[1.0, -3.0]]))
    watched(torch.tensor([[-2.0, 1.0]]))
    assert watched.peaks.tolist() == [2, 3] and watched.parameters == 4
    assert torch.equal(random_ids(100), random_ids(100)) and random_ids(7).max() < 7


def test_a_cpu_without_the_kernel_is_told_what_it_lacks(monkeypatch):
    def missing(*_):
        raise AttributeError("no such operator")

    def cut_off(codes, packed, scale, zero):
        return ((codes.double() - 128) @ torch.full((64, 16), 100.0).double()).float()

    for instead, words in ((missing, r"has no onednn::qlinear_pointwise"), (cut_off, r"has no VNNI")):
        monkeypatch.setattr(onednn, "_product", instead)
        reason = lacks_w8a8.__wrapped__()
        monkeypatch.setattr("nsd.targets.dtypes.lacks_w8a8", lambda reason=reason: reason)
        with pytest.raises(ConfigError, match=rf"got dtype 'w8a8', but .*{words}.*; try --dtype int8"):
            choose_format("w8a8", CPU)
        assert choose_format("int8", CPU).weights == "int8"
