"""A whole run on a tiny target: the loss falls, a killed run ends as an uninterrupted one, refusals are one line."""

import json
from dataclasses import replace

import pytest

from nsd.errors import ConfigError
from nsd.targets.toy import tiny_llama
from nsd.train.plan import load
from nsd.train.run import Options, Watcher, train

OPTIONS = {"text_tokens": 2_000, "steps": 24, "rows": 16, "positions": 72, "draft_vocab": 120, "batch": 8}


class Recorder(Watcher):
    """Keeps what it is told; stops the run at a step, as a kill would."""

    def __init__(self, stop=None):
        self.lines, self.losses, self.kept, self.stop = [], [], [], stop

    def note(self, line):
        self.lines.append(line)

    def step(self, progress):
        self.losses.append(progress.loss)
        self.kept.append(progress.kept)
        if progress.step == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def target():
    return tiny_llama(layers=6, scale=0.15)


@pytest.fixture(scope="module")
def whole(target, tmp_path_factory):
    """An uninterrupted run."""
    options, watcher = Options("tiny", tmp_path_factory.mktemp("whole"), **OPTIONS), Recorder()
    return options, watcher, train(options, target, watcher)


def test_the_loss_falls(whole):
    _, watcher, _ = whole
    # Steps 1..7 have one loss (cross-entropy at depth 1); later ones other losses, so only like is compared.
    assert watcher.losses[6] < watcher.losses[0]
    assert sum(watcher.kept[-4:]) > sum(watcher.kept[:4]) + 0.1


def test_a_run_leaves_everything_behind(whole):
    options, _, figures = whole
    assert [f.temperature for f in figures] == pytest.approx([1.0, 0.7])
    assert all(0 < value < 1 for f in figures for value in f.kept)
    assert all(n >= k for f in figures for n, k in zip(f.nucleus, f.kept, strict=True))
    assert all(1 <= f.tau_sd[3] <= f.tau_nsd[3] <= 4 for f in figures)
    for name in ("plan.json", "checkpoint.pt", "log.jsonl", "curve.svg", "figures.json", "float32", "int8"):
        assert (options.out / name).exists(), name
    picture = (options.out / "curve.svg").read_text(encoding="utf-8")
    assert picture.count("<polyline") == 6 and "depth 1" in picture
    (line,) = (options.out / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["step"] == 24


@pytest.mark.parametrize("stop", [7, 10])
def test_a_killed_run_ends_as_an_uninterrupted_one(whole, target, tmp_path, stop, monkeypatch):
    monkeypatch.setattr("nsd.train.trainer.SAVE_EVERY", 5)
    options = replace(whole[0], out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(options, target, Recorder(stop))
    watcher = Recorder()
    train(options, target, watcher)
    assert any(line == "resumed at step 5" for line in watcher.lines)
    assert watcher.losses == whole[1].losses[5:]
    for name in ("float32/model.safetensors", "int8/model.safetensors", "figures.json", "log.jsonl", "plan.json"):
        assert (tmp_path / name).read_bytes() == (whole[0].out / name).read_bytes(), name


def test_a_finished_run_is_passed_over(whole, target):
    options, _, figures = whole
    watcher = Recorder()
    assert train(options, target, watcher) == figures
    assert watcher.losses == []


def test_another_seed_is_another_run(whole, target, tmp_path):
    options = replace(whole[0], out=tmp_path, seed=1)
    train(options, target, Recorder())
    assert (tmp_path / "figures.json").read_bytes() != (whole[0].out / "figures.json").read_bytes()


def test_minutes_become_steps_at_the_start(target, tmp_path):
    options = replace(Options("tiny", tmp_path, **OPTIONS), budget_minutes=0.05)
    watcher = Recorder(stop=1)
    with pytest.raises(KeyboardInterrupt):
        train(options, target, watcher)
    plan = load(tmp_path)
    assert plan.budget_minutes == 0.05 and plan.schedule.steps >= 3 and plan.shards >= 1
    watcher = Recorder(stop=2)
    with pytest.raises(KeyboardInterrupt):
        train(options, target, watcher)
    assert load(tmp_path) == plan


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 5}, "was made with seed 0, got 5"),
        ({"temperatures": (1.0,)}, "was made with temperatures"),
    ],
)
def test_another_plan_needs_another_folder(whole, target, changed, words):
    with pytest.raises(ConfigError, match=words):
        train(replace(whole[0], **changed), target, Recorder())


def test_disk_use_is_bounded_before_anything_is_trained(target, tmp_path):
    options = replace(Options("tiny", tmp_path, **OPTIONS), text_tokens=500_000, max_disk=0.01)
    with pytest.raises(ConfigError, match=r"take 0\.\d GB, allowed are 0\.01; lower --text-tokens"):
        train(options, target, Recorder())
    assert not (tmp_path / "text").exists() and load(tmp_path) is None


def test_prompts_of_ones_own(target, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"Say {i}."}) for i in range(40)), encoding="utf-8")
    options = replace(Options("tiny", tmp_path / "run", prompts=file, **OPTIONS), steps=3)
    train(options, target, Recorder())
    plan = load(tmp_path / "run")
    assert plan.prompts_digest is not None and plan.held_out_digest
    benchmark = tmp_path / "benchmark.txt"
    benchmark.write_text("say 7", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"shares 'say 7' with held-out or excluded text"):
        train(replace(options, out=tmp_path / "other", exclude=(benchmark,)), target, Recorder())


def test_text_does_not_depend_on_what_was_written_before(whole, target, tmp_path):
    from nsd.train.corpus import Shard
    from nsd.train.text import ShardPlan
    from nsd.train.writing import Source, Writer

    plan = load(whole[0].out)
    shard = ShardPlan(plan.rows, plan.positions, plan.temperatures, plan.taps, plan.seed)
    Writer.open(target, plan.taps, tmp_path).training(shard, 1, Source())
    mine, theirs = (Shard.open(folder / "text" / "0001.json") for folder in (tmp_path, whole[0].out))
    assert (mine.tokens == theirs.tokens).all() and (mine.kinds == theirs.kinds).all()
    assert abs(mine.lse - theirs.lse).max() < 1e-4
    assert shard.bytes(target.hidden) >= (tmp_path / "text" / "0001.states").stat().st_size
