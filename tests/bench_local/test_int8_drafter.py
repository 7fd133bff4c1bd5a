"""The shipped drafter beside a bfloat16 or quantised target keeps its bytes: same codes, nearly the same law."""

import pytest
import torch

from nsd.drafters import shipped
from nsd.drafters.checkpoint import open_checkpoint
from nsd.drafters.load import load_drafter
from nsd.nn.quantised import Int8
from nsd.targets.load import load_target

TEXT = "A sundial tells the time by the shadow of a rod that points to the north. Hours lie around it like a fan."


@pytest.fixture(scope="module")
def targets():
    return {dtype: load_target("smollm2-135m", dtype, "cpu") for dtype in ("float32", "bfloat16")}


@pytest.mark.model
def test_codes_are_those_of_the_file(targets):
    net = load_drafter(shipped.NAME, targets["bfloat16"]).net
    raw = open_checkpoint(shipped.FOLDER)
    stored = raw.load(dict(raw.shapes), torch.device("cpu"), torch.float32)
    assert isinstance(net.fuse, Int8) and torch.equal(net.fuse.weight.float(), stored["fc.weight"])
    down = next(value for name, value in stored.items() if name.endswith("mlp.down_proj.weight"))
    assert isinstance(net.decoder.layers[0].down, Int8)
    assert torch.equal(net.decoder.layers[0].down.weight.float(), down)
    assert not isinstance(load_drafter(shipped.NAME, targets["float32"]).net.fuse, Int8)


@pytest.mark.model
@torch.no_grad()
def test_the_law_is_that_of_the_float_drafter_within_rounding(targets):
    laws = {}
    for dtype, target in targets.items():
        drafter = load_drafter(shipped.NAME, target)
        ids = target.tokenizer.chat([{"role": "user", "content": TEXT}])
        _, scores = targets["float32"].open([ids], 1, drafter.taps)
        net, taps = drafter.net, scores.taps.to(target.dtype)
        cache = net.decoder.cache(1, len(ids))
        rows = cache.rows([len(ids) - 1])
        states = net.step(net.features(taps[:-1]), torch.tensor(ids[1:]), rows, cache)
        laws[dtype] = torch.softmax(net.logits(states, drafter.pen.vocab).float(), -1)
    distance = (laws["float32"] - laws["bfloat16"]).abs().sum(-1) / 2
    assert distance.mean() < 0.03 and distance.max() < 0.15


@pytest.mark.model
def test_the_default_k_follows_the_format(targets):
    for dtype, target in targets.items():
        assert load_drafter(shipped.NAME, target).default_k == shipped.DEFAULT_KS[dtype]
    assert load_drafter(shipped.NAME, targets["bfloat16"], default_k=2).default_k == 2
