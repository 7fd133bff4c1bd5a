"""Ragged batches on a cache: every score equals a fresh forward, whatever was kept and rolled back before."""

import random

import pytest
import torch

from nsd.errors import ConfigError, PromptError
from tests.targets.zoo import FAMILIES, VOCAB, plain_logits, target_of


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def target(request):
    return target_of(request.param)


def tokens(rng: random.Random, n: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(n)]


def assert_rows(target, logits, histories, inputs):
    """Row by row: the logits after each new token of each request."""
    at = 0
    for history, new in zip(histories, inputs, strict=True):
        if new:
            whole = plain_logits(target, [*history, *new])
            torch.testing.assert_close(logits[at : at + len(new)], whole[len(history) :], atol=1e-5, rtol=1e-5)
        at += len(new)
    assert at == len(logits)


def test_scores_equal_a_fresh_forward_after_any_history(target):
    rng = random.Random(7)
    histories = [tokens(rng, n) for n in (9, 1, 4, 6)]
    session, scores = target.open(histories, room=12)
    torch.testing.assert_close(
        scores.logits, torch.stack([plain_logits(target, h)[-1] for h in histories]), atol=1e-5, rtol=1e-5
    )
    fed, calls = sum(map(len, histories)), 1
    for step in range(10):
        pending = [[] for _ in histories]
        for _ in range(rng.choice((1, 1, 2, 3))):
            inputs = [tokens(rng, rng.randrange(0, 5)) for _ in histories]
            inputs[rng.randrange(len(inputs))] = tokens(rng, 2)
            logits = session.score(inputs).logits
            assert_rows(target, logits, [h + p for h, p in zip(histories, pending, strict=True)], inputs)
            pending = [p + new for p, new in zip(pending, inputs, strict=True)]
            fed, calls = fed + sum(map(len, inputs)), calls + 1
        counts = [rng.randint(0, len(p)) for p in pending]
        session.keep(counts)
        histories = [h + p[:c] for h, p, c in zip(histories, pending, counts, strict=True)]
        if step in (4, 7):
            gone = rng.randrange(len(histories))
            staying = [b for b in range(len(histories)) if b != gone]
            session.retain(staying)
            histories = [histories[b] for b in staying]
        assert session.ledger.lengths == [len(h) for h in histories]
    assert (session.positions, session.calls) == (fed, calls), "a position was fed twice"


def test_one_request_rolls_back_to_the_bit(target):
    session, _ = target.open([[5, 6, 7, 8, 9, 10, 11]], room=20)
    first = session.score([[3, 4, 5, 6]]).logits
    session.keep([0])
    session.score([[9, 9, 9]])
    session.keep([0])
    again = session.score([[3, 4, 5, 6]]).logits
    assert torch.equal(first, again)
    session.keep([2])
    assert_rows(target, session.score([[1]]).logits, [[5, 6, 7, 8, 9, 10, 11, 3, 4]], [[1]])


def test_the_model_sees_new_positions_only():
    target = target_of("llama")
    shapes = []
    hook = target.model.register_forward_pre_hook(
        lambda m, a, k: shapes.append(tuple(k["input_ids"].shape)), with_kwargs=True
    )
    session, _ = target.open([[1, 2, 3], [4]], room=10)
    session.score([[5, 6, 7], [8]])
    session.keep([2, 1])
    session.score([[5], [8, 9]])
    hook.remove()
    assert shapes == [(2, 3), (2, 3), (2, 2)]
    assert session.positions == 4 + 4 + 3


def test_the_head_computes_only_rows_that_are_asked_for():
    target = target_of("llama")
    rows = []
    hook = target.model.lm_head.register_forward_hook(lambda m, a, out: rows.append(out.shape[:-1].numel()))
    session, _ = target.open([[1, 2, 3], [4, 5]], room=10)
    session.score([[5, 6, 7], [8]])
    session.score([[5], [8]])
    hook.remove()
    assert rows == [2, 4, 2]


def test_storage_is_allocated_once_and_keeps_what_a_window_hides():
    target = target_of("mistral")
    prompt = list(range(1, 21))
    session, _ = target.open([prompt], room=30)
    layers = session.cache.layers
    places = [layer.keys.data_ptr() for layer in layers]
    for _ in range(10):
        session.score([[1, 2, 3]])
        session.keep([3])
    assert [layer.keys.data_ptr() for layer in layers] == places
    assert all(layer.keys[0, :, :50].abs().sum(dim=(0, 2)).gt(0).all() for layer in layers)


def test_more_than_the_room_still_decodes_exactly():
    target = target_of("qwen3")
    rng = random.Random(1)
    histories = [tokens(rng, 3), tokens(rng, 8)]
    session, _ = target.open(histories, room=0)
    for _ in range(9):
        inputs = [tokens(rng, 6), tokens(rng, 5)]
        assert_rows(target, session.score(inputs).logits, histories, inputs)
        session.keep([6, 5])
        histories = [h + new for h, new in zip(histories, inputs, strict=True)]


def test_padding_may_reach_past_the_context():
    target = target_of("gpt2")
    long, short = [3] * 250, [4, 5]
    session, _ = target.open([long, short], room=6)
    inputs = [[1], [6, 7, 8, 9, 1, 2, 3, 4]]
    assert_rows(target, session.score(inputs).logits, [long, short], inputs)


def test_mistakes_of_the_caller_are_named():
    target = target_of("llama")
    with pytest.raises(PromptError, match="empty prompt"):
        target.open([[1], []], room=4)
    with pytest.raises(PromptError, match="no prompts"):
        target.open([], room=4)
    with pytest.raises(PromptError, match="context of 256"):
        target.open([[1] * 256], room=4)
    with pytest.raises(PromptError, match="token id 48"):
        target.open([[VOCAB]], room=4)
    session, _ = target.open([[1], [2]], room=4)
    with pytest.raises(ConfigError, match="keep"):
        session.keep([1, 1])
    session.score([[1], [2, 3]])
    with pytest.raises(ConfigError, match="keep"):
        session.keep([2, 0])
    with pytest.raises(ConfigError, match="inputs for 1"):
        session.score([[1]])
    with pytest.raises(ConfigError, match="without any input"):
        session.score([[], []])
    with pytest.raises(ConfigError, match="retain"):
        session.retain([1, 0])


def test_what_leaves_a_session_is_an_ordinary_tensor():
    session, scores = target_of("llama").open([[1, 2, 3], [4]], 5, (2,))
    for got in (scores, session.score([[1], [2, 3]])):
        got.logits[0, 0] = 0.0
        weight = torch.ones(32, requires_grad=True)
        (got.taps * weight).sum().backward()
        assert weight.grad.isfinite().all()
