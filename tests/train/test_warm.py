"""Starting from a trained drafter, two layers, the shape of the schedule: right weights, fresh everything else."""

import hashlib
import json
import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from nsd.drafters.load import load_drafter
from nsd.errors import ConfigError, ModelError
from nsd.targets.toy import tiny_llama
from nsd.train.kinds import new_net, target_ends
from nsd.train.plan import load
from nsd.train.run import Options, Watcher, default_taps, train
from nsd.train.schedule import Schedule, Stage, depth_shares, stages_of
from nsd.train.warm import read_warm, weights_file

OPTIONS = {"text_tokens": 1_000, "steps": 8, "rows": 16, "positions": 72, "draft_vocab": 120, "batch": 4}


class Stop(Watcher):
    """Notes what it is told; stops the run at a step."""

    def __init__(self, stop=None):
        self.stop, self.kept, self.lines = stop, [], []

    def note(self, line):
        self.lines.append(line)

    def step(self, progress):
        self.kept.append(progress.kept)
        if progress.step == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def target():
    return tiny_llama(layers=6, scale=0.15)


@pytest.fixture(scope="module")
def first(target, tmp_path_factory):
    """A finished run."""
    options = replace(Options("tiny", tmp_path_factory.mktemp("first"), **OPTIONS), steps=40)
    train(options, target, Watcher())
    return options


def weights(net):
    return {name: tensor.clone() for name, tensor in net.tensors().items()}


@pytest.mark.parametrize("place", ["", "checkpoint.pt", "float32"])
def test_weights_come_back_from_checkpoint_and_export(first, target, place):
    taps, stored = default_taps(target.layers), torch.load(first.out / "checkpoint.pt", weights_only=True)["weights"]
    net = new_net(target, taps, 1, first.out / place)
    for name, tensor in weights(net).items():
        assert (tensor - stored[name]).abs().max() <= (0 if place != "float32" else 1e-6), name
    assert float(stored["log_gain"]) != 0


def test_a_warm_start_is_better_from_its_first_step_and_says_so(first, target, tmp_path):
    first = replace(first, steps=8)
    warm = replace(first, out=tmp_path, init=first.out / "float32", depth_shares=(0, 0.2, 0.8), warm_up_share=0.0)
    watcher, cold = Stop(), Stop(3)
    train(warm, target, watcher)
    plan = load(tmp_path)
    file = first.out / "float32" / "model.safetensors"
    assert plan.init == "float32/model.safetensors"
    assert plan.init_digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert [stage.depths for stage in plan.stages] == [2, 3] and plan.schedule.steps == 8
    assert plan.schedule.mix(0).total_variation == 1.0
    with pytest.raises(KeyboardInterrupt):
        train(replace(first, out=tmp_path / "cold", seed=first.seed), target, cold)
    assert watcher.kept[0] > cold.kept[0] + 0.02


def test_a_warm_run_that_was_killed_ends_with_the_same_bits(first, target, tmp_path, monkeypatch):
    monkeypatch.setattr("nsd.train.trainer.SAVE_EVERY", 2)
    warm = replace(first, init=first.out, layers=2, draft_vocab=60)
    train(replace(warm, out=tmp_path / "whole"), target, Watcher())
    killed = replace(warm, out=tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        train(killed, target, Stop(5))
    watcher = Stop()
    train(killed, target, watcher)
    assert "resumed at step 4" in watcher.lines
    for name in ("float32/model.safetensors", "int8/model.safetensors", "plan.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


def test_two_layers_begin_as_one(first, target):
    """The second layer adds nothing at first, so outputs are those of the drafter it started from."""
    taps = default_taps(target.layers)
    one, two = (new_net(target, taps, layers, first.out) for layers in (1, 2))
    generator = torch.Generator().manual_seed(0)
    features, embedded = (torch.randn(2, n, target.hidden, generator=generator) for n in (9, 11))
    with torch.no_grad():
        for a, b in zip(one.unroll(features, embedded, 3), two.unroll(features, embedded, 3), strict=True):
            assert torch.equal(a, b)
    assert two["layers.1.mlp.gate_proj.weight"].abs().max() > 0


def test_a_start_from_other_shapes_is_refused(first, target, tmp_path):
    taps = default_taps(target.layers)
    with pytest.raises(ModelError, match=r"of shape \[32, 96\], wanted \[16, 48\]; start from a drafter of this"):
        new_net(tiny_llama(layers=6, hidden=16), taps, 1, first.out)
    with pytest.raises(ModelError, match=r"reads target layers \[2, 3, 5\], wanted \[1, 3, 5\]"):
        new_net(target, (1, 3, 5), 1, first.out / "float32")
    with pytest.raises(ModelError, match="is packed to bytes, wanted float weights; take the float32"):
        new_net(target, taps, 1, first.out / "int8")
    with pytest.raises(ModelError, match=re.escape("holds no checkpoint.pt and no model.safetensors")):
        train(replace(first, out=tmp_path / "run", init=tmp_path / "none"), target, Watcher())
    with pytest.raises(ModelError, match="is not the target's times a gain"):
        read_warm(first.out / "float32", target_ends(tiny_llama(seed=3, layers=6, scale=0.15))[1])
    train(replace(first, out=tmp_path / "two", layers=2, steps=1), target, Watcher())
    with pytest.raises(ModelError, match=r"has layers\.1\.\S+ and other layers too many; raise --layers"):
        new_net(target, taps, 1, tmp_path / "two")
    (tmp_path / "checkpoint.pt").write_bytes(b"no archive")
    with pytest.raises(ModelError, match="is unreadable"):
        new_net(target, taps, 1, tmp_path / "checkpoint.pt")
    assert weights_file(tmp_path / "two") == tmp_path / "two" / "checkpoint.pt"


@pytest.mark.parametrize(("changed", "words"), [({"init": "first"}, "made with weights to start from None, got"),
                                                ({"layers": 2}, "made with layers 1, got 2")])  # fmt: skip
def test_another_start_needs_another_folder(first, target, changed, words):
    changed = {key: first.out if value == "first" else value for key, value in changed.items()}
    with pytest.raises(ConfigError, match=words):
        train(replace(first, **changed), target, Watcher())


def test_plans_of_before_are_still_read(first, tmp_path):
    values = json.loads((first.out / "plan.json").read_text(encoding="utf-8"))
    for name in ("layers", "warm_up_share", "init", "init_digest"):
        del values[name]
    (tmp_path / "plan.json").write_text(json.dumps(values), encoding="utf-8")
    assert load(tmp_path) == load(first.out)


def test_shares_choose_depths():
    assert depth_shares((0, 1, 4)) == {2: 0.2, 3: 0.8}
    for bad in ((), (0, 0), (-1, 2), (float("nan"),), (float("inf"),)):
        with pytest.raises(ConfigError, match=r"wanted shares of at least 0, one above"):
            depth_shares(bad)
    assert sum(stage.steps for stage in stages_of(700, depth_shares((0, 0.2, 0.8)))) == 700
    assert [s.depths for s in stages_of(9, depth_shares((0, 0, 0, 1)))] == [4]
    assert Schedule((Stage(1, 10, 1.0),), 1e-3, 0.0).mix(0).cross_entropy < 1
    assert Schedule((Stage(1, 10, 1.0),), 1e-3, 1.0).mix(9).total_variation == 0


def test_two_layers_come_through_the_export(target, tmp_path):
    options = replace(Options("tiny", tmp_path, **OPTIONS), layers=2, steps=3)
    train(options, target, Watcher())
    drafter = load_drafter(tmp_path / "float32", target)
    assert len(drafter.net.decoder.layers) == 2 and len(load_drafter(tmp_path / "int8", target).net.decoder.layers) == 2
    stored = load_file(tmp_path / "float32" / "model.safetensors")
    assert stored["layers.1.self_attn.o_proj.weight"].abs().max() > 0
