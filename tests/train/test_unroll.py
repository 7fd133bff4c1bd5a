"""What training unrolls is what drafting does: the exported network, token by token, gives the same laws."""

import pytest
import torch
from torch.nn import functional

from nsd.drafters.load import load_drafter
from nsd.targets.toy import tiny_llama
from nsd.train.export import Origin, export
from nsd.train.kinds import ends, new_net, target_ends
from nsd.train.run import default_taps

DEPTHS = 4


@pytest.fixture(scope="module", params=[1, 2], ids=["one layer", "two layers"])
def trained(request, tmp_path_factory):
    """A target, a net with noise in every weight, and the folder it was exported to."""
    folder, target = tmp_path_factory.mktemp("unroll"), tiny_llama(layers=6)
    taps = default_taps(target.layers)
    net = new_net(target, taps, request.param)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in net.names:
            net[name].add_(torch.randn(net[name].shape, generator=generator) * 0.1)
    ids = torch.arange(20, 120)
    export(net, Origin(ids, target.vocab, ends(target, ids).head, taps, target.context, target.name), folder)
    return target, net, ids, folder


def unrolled(target, net, ids, tokens):
    """Laws of every depth over the whole vocabulary, by the training code in float32: [DEPTHS, T, V]."""
    _, scores = target.open([tokens[:-DEPTHS]], DEPTHS + 1, net_taps(target))
    embedding, head = target_ends(target)
    with torch.no_grad():
        features = net.features(scores.taps.unsqueeze(0))
        embedded = functional.embedding(torch.tensor([tokens[1:]]), embedding)
        outputs = net.unroll(features, embedded, DEPTHS)
        z = torch.stack([net.normed(out)[0] @ head[ids].T for out in outputs]) * net["log_gain"].exp()
    whole = torch.zeros(*z.shape[:2], target.vocab)
    whole[:, :, ids] = torch.softmax(z, -1)
    return scores.taps, whole


def net_taps(target):
    return default_taps(target.layers)


def drafted(drafter, taps, tokens, start):
    """Laws of a chain that starts at `start`, by the drafter's own network and cache: [DEPTHS, V]."""
    net = drafter.net
    cache, laws = net.decoder.cache(1, len(tokens)), []
    with torch.no_grad():
        rows = cache.rows([start + 1])
        x = net.step(net.features(taps[: start + 1]), torch.tensor(tokens[1 : start + 2]), rows, cache)[-1:]
        cache.append(rows)
        laws.append(torch.softmax(net.logits(x, drafter.pen.vocab), -1)[0])
        for depth in range(1, DEPTHS):
            rows = cache.rows([1])
            x = net.step(x, torch.tensor([tokens[start + 1 + depth]]), rows, cache)
            cache.append(rows)
            laws.append(torch.softmax(net.logits(x, drafter.pen.vocab), -1)[0])
    return torch.stack(laws)


def test_training_and_drafting_agree_at_every_depth(trained):
    target, net, ids, folder = trained
    tokens = torch.randint(0, 250, (24,), generator=torch.Generator().manual_seed(2)).tolist()
    taps, laws = unrolled(target, net, ids, tokens)
    drafter = load_drafter(folder / "float32", target)
    assert drafter.taps == net_taps(target)
    for start in (0, 7, len(tokens) - DEPTHS - 1):
        own = drafted(drafter, taps, tokens, start)
        for depth in range(DEPTHS):
            assert (own[depth] - laws[depth, start]).abs().max() < 1e-5
    spread = (laws[0, 7] - laws[1, 7]).abs().sum()
    assert spread > 0.01, "depths that agree anyway would prove nothing"


def test_export_and_import_give_the_weights_back(trained):
    _, net, _, folder = trained
    from safetensors.torch import load_file

    stored, own = load_file(folder / "float32" / "model.safetensors"), net.tensors()
    gain = own.pop("log_gain").exp()
    for name, tensor in own.items():
        assert (stored[name] - tensor).abs().max() <= 1e-6
    target, ids = trained[0], trained[2]
    assert (stored["lm_head.weight"] - ends(target, ids).head * gain).abs().max() <= 1e-6
    assert (torch.arange(len(ids)) + stored["d2t"]).equal(ids)
    assert stored["t2d"].nonzero().squeeze(-1).equal(ids)


def test_packed_rows_are_within_half_a_step(trained):
    target, _, _, folder = trained
    exact = load_drafter(folder / "float32", target).net
    packed = load_drafter(folder / "int8", target).net
    assert (packed.head.weight - exact.head.weight).abs().max() <= 1e-6
    for part in ("qkv", "o", "gate_up", "down"):
        a, b = (getattr(model.decoder.layers[0], part).weight for model in (exact, packed))
        step = a.abs().amax(-1, keepdim=True) / 127
        assert ((a - b).abs() <= step / 2 + 1e-7).all()
        assert not a.equal(b)
