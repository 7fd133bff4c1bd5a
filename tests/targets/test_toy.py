"""The toys keep the same promises as real targets."""

import random

import pytest
import torch

from nsd.errors import ConfigError, ModelError, PromptError
from nsd.targets.base import FINAL_NORM
from nsd.targets.toy import ByteTokenizer, LetterTokenizer, TableTarget, tiny_llama


def test_the_law_is_a_function_of_the_last_tokens():
    target = TableTarget(6, order=2, seed=3)
    assert torch.equal(target.logits_after([1, 4, 5]), target.logits_after([0, 0, 4, 5]))
    assert not torch.equal(target.logits_after([4, 5]), target.logits_after([5, 4]))
    assert torch.equal(TableTarget(6, order=2, seed=3).table, target.table)
    assert not torch.equal(TableTarget(6, order=2, seed=4).table, target.table)
    assert target.table.shape == (36, 6) and target.table.dtype == torch.float64


def test_sessions_equal_the_table_after_any_history():
    target = TableTarget(5, order=3)
    rng = random.Random(0)
    histories = [[rng.randrange(5) for _ in range(n)] for n in (1, 4, 2)]
    session, scores = target.open(histories, 50)
    assert torch.equal(scores.logits, torch.stack([target.logits_after(h) for h in histories]))
    fed = 7
    for step in range(12):
        inputs = [[rng.randrange(5) for _ in range(rng.randrange(0, 4))] for _ in histories]
        inputs[0] = [1, 2]
        rows = [
            target.logits_after(h + x[: i + 1]) for h, x in zip(histories, inputs, strict=True) for i in range(len(x))
        ]
        assert torch.equal(session.score(inputs).logits, torch.stack(rows))
        counts = [rng.randint(0, len(x)) for x in inputs]
        session.keep(counts)
        fed += sum(map(len, inputs))
        histories = [h + x[:c] for h, x, c in zip(histories, inputs, counts, strict=True)]
        if step == 5:
            session.retain([0, 2])
            histories = [histories[0], histories[2]]
    assert session.tokens == histories
    assert (session.positions, session.calls) == (fed, 13)


def test_a_near_model_is_similar_but_not_the_same():
    target = TableTarget(8, seed=1)
    near, far = target.near(0.3, 5), target.near(3.0, 5)
    assert target.vocab == near.vocab and near.name != target.name
    laws = [t.table.softmax(-1) for t in (target, near, far)]
    assert 0 < (laws[0] - laws[1]).abs().sum() < (laws[0] - laws[2]).abs().sum()
    assert torch.equal(target.near(0.0, 5).table, target.table)


def test_taps():
    target = TableTarget(4)
    session, scores = target.open([[1, 2], [3]], 5, (1, FINAL_NORM))
    assert scores.taps.shape == (3, 2, 4)
    assert scores.taps[:, 0].argmax(-1).tolist() == [1, 2, 3]
    assert torch.equal(scores.taps[[1, 2], 1], scores.logits)
    assert torch.equal(
        session.score([[0], [1, 2]]).taps[:, 1], torch.stack([target.logits_after([t]) for t in (0, 1, 2)])
    )
    with pytest.raises(ModelError, match="taps"):
        target.open([[1]], 5, (3,))


def test_misuse_is_named():
    session, _ = TableTarget(4).open([[1], [2]], 5)
    with pytest.raises(ConfigError, match="keep"):
        session.keep([0, 1])
    with pytest.raises(PromptError, match="token id 4"):
        session.score([[1], [4]])
    with pytest.raises(PromptError, match="empty prompt"):
        TableTarget(4).open([[]], 5)
    with pytest.raises(ConfigError, match=r"1\.\.62"):
        LetterTokenizer(63)


def test_byte_text_comes_back_and_half_a_character_does_not():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("a€🙂")
    assert tokenizer.decode(ids) == "a€🙂" and tokenizer.decode([*ids[:3], 256]) == "a�"
    assert tokenizer.token_text(256) == "<eos>" and tokenizer.token_text(257) is None
    assert tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}])) == "user: hi\nassistant: "


def test_letters():
    tokenizer = LetterTokenizer(4)
    assert tokenizer.encode("adb") == [0, 3, 1] and tokenizer.decode([0, 3, 1]) == "adb"
    with pytest.raises(PromptError, match="'e'"):
        tokenizer.encode("ae")


def test_the_toy_over_bytes_speaks_letters():
    toy = TableTarget.over_bytes()
    law = toy.logits_after([104, 105]).softmax(-1)
    usual = [*range(97, 123), 32]
    assert law[usual].sum() > 0.9 and toy.eos == {256}


def test_tiny_llama_is_reproducible():
    first, second = tiny_llama(3), tiny_llama(3)
    ids = [first.tokenizer.encode("hello")]
    assert torch.equal(first.open(ids, 4)[1].logits, second.open(ids, 4)[1].logits)
    assert not torch.equal(first.open(ids, 4)[1].logits, tiny_llama(4).open(ids, 4)[1].logits)
    assert first.vocab == 257 and first.eos == {256} and first.layers == 4
