"""`nsd train` from the command line: a small model folder in, a drafter out; one line for what cannot be."""

import sys

import pytest
import torch

from nsd.cli import main
from nsd.targets.toy import tiny_llama


@pytest.fixture
def nsd(capsys, monkeypatch):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nsd", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code or 0, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "0"), "--steps is 0, wanted at least 1"),
        (("--workers", "-1"), "--workers is -1"),
        (("--temperatures", "1,cold"), "--temperatures got '1,cold', wanted positive numbers"),
        (("--temperatures", "0"), "wanted positive numbers"),
        (("--budget-minutes", "0"), "--budget-minutes is 0"),
        (("--layers", "0"), "--layers is 0, wanted at least 1"),
        (("--block", "0"), "--block is 0"),
        (("--depth-shares", "0,0"), "--depth-shares got '0,0', wanted shares of at least 0"),
        (("--depth-shares", "x"), "--depth-shares got 'x', wanted numbers with commas"),
        (("--warm-up-share", "1.5"), "--warm-up-share is 1.5, wanted a number in [0, 1]"),
        (("--peak", "0"), "--peak is 0, wanted a learning rate"),
    ],
)
def test_numbers_that_make_no_run_are_one_line(nsd, tmp_path, options, words):
    code, err = nsd("train", "--out", str(tmp_path / "run"), *options)
    assert code == 2 and words in " ".join(err.split())
    assert not (tmp_path / "run").exists()


def test_a_target_without_a_network_is_refused(nsd, tmp_path):
    code, err = nsd("train", "--out", str(tmp_path), "--model", "toy", "--text-tokens", "100", "--threads", "1")
    assert code == 2 and "wanted" in err and "Traceback" not in err


def test_a_prompt_file_that_is_missing(nsd, tmp_path):
    code, err = nsd("train", "--out", str(tmp_path), "--prompts", str(tmp_path / "none.jsonl"), "--model", "toy")
    assert code == 2 and "cannot read" in err


def test_workers_write_the_same_text(tmp_path):
    """Two processes against one, through the writer itself. Tokens are equal; states may differ in their last bit."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from nsd.targets.load import load_target
    from nsd.train.corpus import Corpus
    from nsd.train.text import ShardPlan
    from nsd.train.writing import Reopen, Source, Writer, write_all

    letters = {chr(97 + i): i for i in range(26)} | {"<eos>": 26, " ": 27}
    inner = Tokenizer(models.WordLevel(letters, unk_token=" "))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token=" ")
    folder = tmp_path / "model"
    tiny_llama(vocab=28).model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    reopen, plan = Reopen(str(folder), "float32", "cpu"), ShardPlan(4, 24, (1.0,), (0, 2, 3), 0)
    target, source = load_target(str(folder), dtype="float32", device="cpu"), Source(("abc", "hello"), 0.0)
    told = []
    for name, workers in (("one", 1), ("two", 2)):
        writer = Writer.open(target, plan.taps, tmp_path / name)
        write_all(writer, plan, 3, source, reopen, workers, lambda *seen: told.append(seen[:2]))
    assert told == [(1, 3), (2, 3), (3, 3)] * 2
    one, two = (Corpus.open(tmp_path / name / "text") for name in ("one", "two"))
    for row in range(12):
        assert one.ids(row) == two.ids(row)
        assert torch.allclose(one.batch([row]).taps.float(), two.batch([row]).taps.float(), rtol=0.02, atol=1e-3)
