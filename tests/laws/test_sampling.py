"""From logits to laws: against transformers' own processors, and at the edges."""

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from nsd.errors import ConfigError
from nsd.laws import History, Sampling, laws
from tests.strategies import random_laws

NAN, INF = float("nan"), float("inf")


def logits(rows=6, vocab=300, seed=0, spread=3.0):
    return random_laws(seed, rows, vocab, spread, torch.float64).log().float()


def theirs(scores, *processors, ids=None):
    for processor in processors:
        scores = processor(ids, scores.clone())
    return torch.softmax(scores, -1)


@pytest.mark.parametrize(
    ("sampling", "processors"),
    [
        (Sampling(temperature=0.6), [TemperatureLogitsWarper(0.6)]),
        (Sampling(top_k=7), [TopKLogitsWarper(7)]),
        (Sampling(top_k=10_000), [TopKLogitsWarper(10_000)]),
        (Sampling(top_p=0.8), [TopPLogitsWarper(0.8)]),
        (Sampling(top_p=1e-6), [TopPLogitsWarper(1e-6)]),
        (Sampling(min_p=0.1), [MinPLogitsWarper(0.1)]),
        (
            Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02),
            [TemperatureLogitsWarper(0.7), TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)],
        ),
    ],
    ids=["temperature", "top-k", "top-k beyond", "top-p", "top-p tiny", "min-p", "all in order"],
)
def test_truncation_equals_transformers(sampling, processors):
    scores = logits()
    ours = laws(scores, [sampling] * len(scores))
    expected = theirs(scores, *processors)
    assert torch.equal(ours > 0, expected > 0)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_repetition_penalty_equals_transformers():
    scores = logits(3) + 4.0
    prompt, output = [5, 5, 17], [200, 3]
    ours = laws(scores, [Sampling(repetition_penalty=1.3)] * 3, [History(prompt, output)] * 3)
    ids = torch.tensor([prompt + output] * 3)
    torch.testing.assert_close(ours, theirs(scores, RepetitionPenaltyLogitsProcessor(1.3), ids=ids))


def test_presence_and_frequency_count_the_output_only():
    scores = torch.zeros(1, 4)
    law = laws(scores, [Sampling(presence_penalty=1.0, frequency_penalty=0.5)], [History([3], [1, 1, 2])])
    torch.testing.assert_close(law, torch.softmax(torch.tensor([[0.0, -2.0, -1.5, 0.0]]), -1))


def test_a_given_processor_sees_the_tokens_before_its_position():
    seen = []

    def spy(ids, scores):
        seen.append(ids.tolist())
        scores[:, 0] = -torch.inf
        return scores

    scores = logits(2)
    before = scores.clone()
    law = laws(scores, [Sampling(processors=(spy,))] * 2, [History([1], []), History([1], [9])])
    assert seen == [[[1]], [[1, 9]]]
    assert (law[:, 0] == 0).all()
    assert torch.equal(scores, before)


def test_penalties_without_history_are_refused():
    with pytest.raises(ConfigError, match="tokens before"):
        laws(logits(1), [Sampling(repetition_penalty=2.0)])


def test_every_row_has_its_own_sampling():
    scores = logits(5)
    samplings = [
        Sampling(temperature=0.0),
        Sampling(temperature=0.5, top_k=3),
        Sampling(),
        Sampling(top_p=0.5),
        Sampling(temperature=2.0, min_p=0.2, banned=(4, 7)),
    ]
    together = laws(scores, samplings)
    for row, sampling in enumerate(samplings):
        assert torch.equal(together[row : row + 1], laws(scores[row : row + 1], [sampling]))
    assert (together[4, [4, 7]] == 0).all()


def test_temperature_zero_is_the_lowest_argmax():
    scores = torch.tensor([[1.0, 3.0, 3.0, -5.0]])
    assert laws(scores, [Sampling(temperature=0.0)]).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_absent_ids_get_nothing_at_every_temperature():
    scores = torch.tensor([[1.0, 9.0, 2.0]]).repeat(2, 1)
    absent = torch.tensor([False, True, False])
    law = laws(scores, [Sampling(), Sampling(temperature=0.0)], absent=absent)
    assert (law[:, 1] == 0).all()
    assert law[1].tolist() == [0.0, 0.0, 1.0]
    torch.testing.assert_close(law.sum(-1), torch.ones(2))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.0), Sampling(top_k=2, top_p=0.9, min_p=0.1)])
def test_a_row_without_a_finite_law_is_nan_throughout_and_alone(bad, sampling):
    scores = logits(3, 50)
    healthy = laws(scores, [sampling] * 3)
    broken = scores.clone()
    broken[1, 7] = bad
    law = laws(broken, [sampling] * 3)
    assert law[1].isnan().all()
    assert torch.equal(law[[0, 2]], healthy[[0, 2]])


def test_nothing_left_is_nan():
    assert laws(torch.zeros(1, 3), [Sampling(banned=(0, 1, 2))]).isnan().all()


def test_half_precision_logits_give_float32_laws():
    scores = logits(2).bfloat16()
    law = laws(scores, [Sampling(temperature=0.8)] * 2)
    assert law.dtype == torch.float32
    torch.testing.assert_close(law, torch.softmax(scores.float() / 0.8, -1))
    assert laws(scores.double(), [Sampling()] * 2).dtype == torch.float64


@pytest.mark.parametrize(
    "numbers",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-45},
        {"top_k": 2.5},
        {"temperature": 1e-45},
        {"temperature": 1e300},
        *({name: bad} for name in ("presence_penalty", "frequency_penalty") for bad in (NAN, INF, -INF, 1e300)),
    ],
    ids=str,
)
def test_bad_numbers_are_refused_by_name(numbers):
    with pytest.raises(ConfigError, match=f"{next(iter(numbers))} is .* wanted .* try --") as refusal:
        Sampling(**numbers)
    assert "\n" not in str(refusal.value)


def test_a_temperature_too_small_to_divide_by_is_told_from_the_argmax():
    with pytest.raises(ConfigError, match=r"temperature is 1e-45, .* try --temperature 0 for the argmax"):
        Sampling(temperature=1e-45)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1e-5),
        Sampling(temperature=1e6),
        Sampling(repetition_penalty=1e-5),
        Sampling(repetition_penalty=1e6),
        Sampling(presence_penalty=-1e6, frequency_penalty=1e6),
    ],
    ids=["coldest", "hottest", "most repetition", "least repetition", "shifts"],
)
def test_whatever_is_let_in_has_a_law(sampling):
    scores = logits(4, spread=100.0)
    absent = torch.arange(300) == 7
    law = laws(scores, [sampling] * 4, [History([1, 2], [3] * 1000)] * 4, absent)
    torch.testing.assert_close(law.sum(-1), torch.ones(4))
    assert (law[:, 7] == 0).all()


@pytest.mark.parametrize("banned", [(3, 300), (-1,)])
def test_banned_ids_outside_the_vocabulary_are_refused(banned):
    with pytest.raises(ConfigError, match=f"banned id {banned[-1]} is not in the vocabulary, wanted ids in 0..299"):
        laws(logits(2), [Sampling(), Sampling(banned=banned)])
