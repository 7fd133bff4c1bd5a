"""The training net of the Qwen3.5 layout computes what transformers computes, by a rule that is exact."""

import pytest
import torch

from benchmarks.miniature.delta_net import DeltaNet, chunked, convolved
from benchmarks.miniature.net import normed
from benchmarks.miniature.optimiser import Optimiser
from tests.miniature.models import config, random_model


def step_by_step(q, k, v, g, beta):
    """The recurrence as it is written down, one position after another."""
    state, read = q.new_zeros(len(q), q.shape[2], q.shape[3], v.shape[3]), []
    for t in range(q.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        held = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        write = beta[:, t, :, None] * (v[:, t] - held)
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        read.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(read, 1)


def drawn(sizes, decay, alike=0.0):
    """q, k, v, g, beta of float64: decay is the largest -g, alike > 0 makes keys repeat each other."""
    rows, length, heads, key, value = sizes
    generator = torch.Generator().manual_seed(length)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k = normal(rows, length, heads, key), normal(rows, length, heads, key) + alike
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    g, beta = -decay * normal(rows, length, heads).sigmoid(), (2 * normal(rows, length, heads)).sigmoid()
    return [t.requires_grad_() for t in (q, k, normal(rows, length, heads, value), g, beta)]


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("decay", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("sizes", [(2, 1, 1, 4, 3), (2, 15, 2, 8, 5), (1, 16, 2, 4, 4), (3, 37, 2, 6, 10)])
def test_the_chunked_rule_is_the_recurrence(sizes, decay, size):
    given = drawn(sizes, decay)
    found, wanted = chunked(*given, size), step_by_step(*given)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(found, wanted, atol=1e-12)
    ours, theirs = (torch.autograd.grad((read * weight).sum(), given) for read in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("decay", "alike"), [(1e-3, 0.0), (1e-3, 5.0), (200.0, 0.0)])
def test_the_rule_is_finite_and_near_in_float32(decay, alike):
    given = drawn((2, 300, 2, 32, 64), decay, alike)
    halved = [t.detach().float().requires_grad_() for t in given]
    found, wanted = chunked(*halved), step_by_step(*given)
    assert torch.allclose(found.double(), wanted, atol=1e-4)
    both = ((found, halved), (wanted, given))
    ours, theirs = (torch.autograd.grad(read.square().sum(), inputs) for read, inputs in both)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-6  # of g nearly nothing is left at the strongest decay


def test_the_convolution_sees_no_later_position():
    x, weight = torch.randn(2, 9, 6, dtype=torch.float64), torch.randn(6, 1, 4, dtype=torch.float64)
    x, weight = x.requires_grad_(), weight.requires_grad_()
    found = convolved(x, weight)
    wanted = torch.stack([sum(x[:, t - i] * weight[:, 0, 3 - i] for i in range(min(4, t + 1))) for t in range(9)], 1)
    assert torch.allclose(found, wanted)
    grads = (torch.autograd.grad(y.pow(3).sum(), (x, weight)) for y in (found, wanted))
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other)


def test_the_norm_has_the_gradients_of_the_formula():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, generator=generator, dtype=torch.float64, requires_grad=True)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight
    assert torch.allclose(normed(x, weight, 1e-2), wanted)
    grads = (torch.autograd.grad(y.square().sum(), (x, weight)) for y in (normed(x, weight, 1e-2), wanted))
    for one, other in zip(*grads, strict=True):
        assert torch.allclose(one, other)


def theirs():
    """The same model as `ours`, of transformers."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    shape = {k: v for k, v in config("tiny-qwen35").items() if k not in ("architectures", "dtype")}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**shape)).float().eval()
    tensors = random_model("tiny-qwen35").tensors()
    model.load_state_dict({name: t for name, t in tensors.items() if not name.startswith("mtp.")})
    return model


def ours():
    """Random weights with every part away from its start, in float32."""
    net = DeltaNet(config("tiny-qwen35"), 0, torch.float32)
    net.load(random_model("tiny-qwen35").tensors())
    return net


def some(length):
    return torch.randint(
        0, config("tiny-qwen35")["vocab_size"], (3, length), generator=torch.Generator().manual_seed(2)
    )


@pytest.mark.parametrize("length", [1, 16, 45])
def test_the_net_is_the_qwen3_5_of_transformers(length):
    with torch.no_grad():
        net, ids = ours(), some(length)
        wanted = theirs()(input_ids=ids).logits
    assert wanted.std() > 0.5
    assert torch.allclose(net.logits(net(ids)), wanted, atol=1e-4)


def test_gradients_are_those_of_transformers():
    net, other, ids = ours(), theirs(), some(30)
    weight = torch.randn(net.config["vocab_size"], generator=torch.Generator().manual_seed(3)) / 100
    (net.logits(net(ids)) @ weight).sum().backward()
    (other(input_ids=ids).logits @ weight).sum().backward()
    checked = 0
    for name, wanted in other.named_parameters():
        found = net.weights[name.replace(".", "/")].grad
        assert (found - wanted.grad).norm() <= 2e-3 * wanted.grad.norm(), name
        checked += 1
    assert checked == sum(not name.startswith("mtp") for name in net.weights)


def test_the_head_is_a_layer_of_transformers_between_norms():
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

    net, model, ids = ours(), theirs(), some(21)
    tensors = {n.removeprefix("mtp."): t for n, t in net.tensors().items() if n.startswith("mtp.")}
    layer = Qwen3_5DecoderLayer(model.config, model.config.layer_types.index("full_attention"))
    layer.load_state_dict({n.removeprefix("layers.0."): t for n, t in tensors.items() if n.startswith("layers.")})

    def norm(name, x):
        module = Qwen3_5RMSNorm(x.shape[-1], model.config.rms_norm_eps)
        module.load_state_dict({"weight": tensors[f"{name}.weight"]})
        return module(x)

    with torch.no_grad():
        states = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        tokens = model.model.embed_tokens(ids[:, 1:])
        both = torch.cat((norm("pre_fc_norm_embedding", tokens), norm("pre_fc_norm_hidden", states)), -1)
        x = both @ tensors["fc.weight"].T
        mask = torch.full((20, 20), -torch.inf).triu(1)[None, None]
        places = model.model.rotary_emb(x, torch.arange(20).expand(3, 3, -1))
        wanted = norm("norm", layer(x, position_embeddings=places, attention_mask=mask))
        assert torch.allclose(net.ahead(net(ids[:, :-1]), ids[:, 1:]), wanted, atol=1e-4)


def test_starts_are_those_of_the_layout():
    net = DeltaNet(config("tiny-qwen35"), 5)
    for name, weight in net.tensors().items():
        if name.endswith("linear_attn.norm.weight"):
            assert weight.eq(1).all(), name
        elif name.endswith("norm.weight") or "_norm_" in name:
            assert weight.eq(0).all(), name
        elif name.endswith("A_log"):
            rate = weight.exp() * torch.nn.functional.softplus(net.tensors()[name.replace("A_log", "dt_bias")])
            assert (rate > 9e-4).all() and (rate < 1.7).all()  # a state lasts between one token and a thousand
        elif name.endswith("conv1d.weight"):
            assert weight.abs().max() <= 0.5 and weight.std() > 0.2
    again = DeltaNet(config("tiny-qwen35"), 5).tensors()
    assert all(torch.equal(t, again[name]) for name, t in net.tensors().items())


def test_matrices_inside_the_layers_go_to_muon():
    net = DeltaNet(config("tiny-qwen35"), 0)
    names = {id(p): name.removeprefix("weights.") for name, p in net.named_parameters()}
    parts = Optimiser(net.named_parameters())._parts
    muon, others = ([names[id(p)] for group in part.param_groups for p in group["params"]] for part in parts)
    assert all((name.endswith("/weight") and "proj" in name) or name == "mtp/fc/weight" for name in muon)
    assert {"lm_head/weight", "model/embed_tokens/weight", "model/layers/0/linear_attn/conv1d/weight"} <= set(others)
    assert not any("proj" in name for name in others)
