"""Training on given texts: the target reads answers that it did not write, and the text itself may be learned."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from nsd.errors import ConfigError
from nsd.targets.toy import tiny_llama
from nsd.train.corpus import Shard
from nsd.train.losses import text_law
from nsd.train.prompts import read_texts, responses_of
from nsd.train.run import Options, default_taps, train
from nsd.train.text import ANSWERED
from tests.train.test_run import OPTIONS, Recorder

WORDS = ("red", "blue", "green", "white")
GIVEN = [(f"name colour {i}", f"It is {WORDS[i % 4]}, {WORDS[i % 4]} and {WORDS[i % 4]}.") for i in range(60)]


def written(path, rows=GIVEN):
    """A file of prompts with responses."""
    path.write_text("".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def target():
    return tiny_llama(layers=6, scale=0.15)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    given = {"prompts": written(folder / "p.jsonl"), "labels": "text", "temperatures": (1.0,), "one_turn": True}
    return Options("tiny", folder / "run", **{**OPTIONS, "positions": 96}, **given)


@pytest.fixture(scope="module")
def whole(options, target):
    """An uninterrupted run on given texts."""
    watcher = Recorder()
    return watcher, train(options, target, watcher)


def test_stored_text_is_what_was_given(options, whole, target):
    shard = Shard.open(options.out / "text" / "0000.json")
    answers = dict(GIVEN)
    for row in range(shard.tokens.shape[1]):
        told = shard.tokens[1:, row][shard.kinds[:, row] == ANSWERED].tolist()
        text = target.tokenizer.decode(shard.tokens[:, row].tolist())
        prompt = next(p for p in sorted(answers, key=len, reverse=True) if p in text)
        assert told == [*target.tokenizer.encode(answers[prompt]), min(target.eos)]


def test_states_are_those_of_one_pass_over_the_text(options, whole, target):
    shard = Shard.open(options.out / "text" / "0000.json")
    ids = shard.tokens[:90, 0].tolist()
    _, scores = target.open([ids], 1, default_taps(6))
    stored = torch.from_numpy(np.ascontiguousarray(shard.states[:90, 0, :3])).view(torch.int16).view(torch.bfloat16)
    assert (stored.float() - scores.taps.float()).abs().max() < 0.05  # stored in bfloat16


def test_the_text_is_learned_and_not_the_targets_law(options, whole, target, tmp_path):
    watcher, _ = whole
    # kept is q of the text's own token here: of 120 ids it starts near 1/120
    assert watcher.kept[0] < 0.05 and sum(watcher.kept[-4:]) / 4 > 2 * sum(watcher.kept[:4]) / 4
    assert watcher.losses[-1] < watcher.losses[0]
    law = Recorder()
    train(replace(options, out=tmp_path, text=options.out, labels="target"), target, law)
    assert law.kept[-1] > 0.3  # the random target's law is flat, and near what a fresh drafter says


def test_a_killed_run_on_given_texts_ends_as_an_uninterrupted_one(options, whole, target, tmp_path, monkeypatch):
    monkeypatch.setattr("nsd.train.trainer.SAVE_EVERY", 5)
    again = replace(options, out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(again, target, Recorder(8))
    watcher = Recorder()
    train(again, target, watcher)
    assert any(line == "resumed at step 5" for line in watcher.lines)
    assert watcher.losses == whole[0].losses[5:]
    for name in ("float32/model.safetensors", "figures.json", "plan.json"):
        assert (tmp_path / name).read_bytes() == (options.out / name).read_bytes(), name


def test_other_answers_or_labels_are_another_run(options, whole, target, tmp_path):
    with pytest.raises(ConfigError, match="labels text, got target"):
        train(replace(options, labels="target"), target, Recorder())
    other = written(tmp_path / "p.jsonl", [(p, r.upper()) for p, r in GIVEN])
    with pytest.raises(ConfigError, match="was made with prompts file"):
        train(replace(options, prompts=other), target, Recorder())


def test_the_guard_reads_answers_too(options, target, tmp_path):
    secret = "one two three four five six seven eight nine ten eleven twelve thirteen"
    (tmp_path / "bench.txt").write_text(secret, encoding="utf-8")
    prompts = written(tmp_path / "p.jsonl", [*GIVEN, *((f"say {i}", f"Well, {secret}.") for i in range(20))])
    with pytest.raises(ConfigError, match="shares 'one two three"):
        train(
            replace(options, out=tmp_path / "run", prompts=prompts, exclude=(tmp_path / "bench.txt",)),
            target,
            Recorder(),
        )


def test_refusals_are_one_line(options, target, tmp_path):
    with pytest.raises(ConfigError, match="--labels is 'both'"):
        train(replace(options, out=tmp_path, labels="both"), target, Recorder())
    with pytest.raises(ConfigError, match=r"got --temperatures 1,0\.7, wanted 1"):
        train(replace(options, out=tmp_path, temperatures=(1.0, 0.7)), target, Recorder())
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a", "response": " "}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="empty response"):
        read_texts(file)
    with pytest.raises(ConfigError, match="in two ways"):
        responses_of([("a", "x"), ("a", "y")], file)
    assert responses_of([("a", "x"), ("b", None), ("a", "x")], file) == {"a": "x"}


def test_the_law_of_a_text_is_its_next_token():
    law = text_law(torch.tensor([[5, 2, 9, 7]]), torch.tensor([2, 7, 8]))
    assert law.tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]
