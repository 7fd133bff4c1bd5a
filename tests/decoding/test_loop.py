"""The loop on models whose laws are known exactly: order of work, cuts, caches, batches, counters."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nsd.api import Pair
from nsd.decoding import Decoder, Request
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.ngram import ngram_drafter
from nsd.errors import ConfigError, PromptError
from nsd.events import FinishReason, Origin
from nsd.laws import Sampling, argmax, laws
from nsd.rules import NSD, RULES, SD, Greedy, SampleAndMatch
from nsd.targets.toy import TableTarget
from nsd.verification import Accounting

TARGET = TableTarget(vocab=12, order=2, seed=1, sharpness=1.5)
DRAFT = TARGET.near(noise=1.0, seed=2)
PROMPTS = ((0, 1, 2), (5,), (3, 3, 3, 3, 3, 7))


def drafter(k=4, greedy=False, model=DRAFT):
    return ModelDrafter(model, "near", greedy=greedy, default_k=k)


def request(prompt=PROMPTS[0], rule=None, **changes):
    given_ = {"sampling": Sampling(), "k": 4, "max_new_tokens": 40, "seed": 3, "key": 0, "ignore_eos": True} | changes
    return Request(tuple(prompt), rule or NSD(0.9), **given_)


def decode(requests, drafts="default", accounting=Accounting.FULL, trace=False, target=TARGET):
    decoder = Decoder(target, drafter() if drafts == "default" else drafts, requests, accounting, trace)
    blocks = list(decoder)
    return decoder, blocks


def outputs(decoder):
    return [s.output for s in decoder.sequences]


def test_plain_decoding_is_the_draw_of_the_target():
    decoder, blocks = decode([request(rule=SD(), k=0)], None)
    assert [b.drawn.origin for b in blocks] == [Origin.TARGET] * 40
    assert decoder.session.calls == 40


@pytest.mark.parametrize("rule", [SampleAndMatch(), SD(), NSD(), Greedy()])
def test_a_target_that_drafts_for_itself_is_always_accepted(rule):
    greedy = isinstance(rule, Greedy)
    sampling = Sampling(temperature=0.0 if greedy else 1.0)
    ask = request(rule=rule, k=3, max_new_tokens=1 + 5 * 4, sampling=sampling)
    if isinstance(rule, SampleAndMatch):
        # Two independent draws from one law match only by chance, so this rule needs the point masses of temperature 0.
        ask = request(rule=rule, k=3, max_new_tokens=1 + 5 * 4, sampling=Sampling(temperature=0.0))
    _, blocks = decode([ask], drafter(3, model=TARGET))
    steps = [b for b in blocks if b.number]
    assert [len(b.committed) for b in steps] == [4] * 5
    assert all(b.drawn.origin is Origin.BONUS for b in steps)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_sample_and_match_equals_plain_decoding(temperature):
    sampling = Sampling(temperature=temperature)
    plain, _ = decode([request(rule=SD(), k=0, sampling=sampling)], None)
    matched, _ = decode([request(rule=SampleAndMatch(), sampling=sampling)])
    assert outputs(plain) == outputs(matched)


@pytest.mark.parametrize("name", [name for name in RULES if name != "cold-nucleus"])
def test_every_rule_is_greedy_decoding_at_temperature_0(name):
    cold = Sampling(temperature=0.0)
    decoder, _ = decode([request(rule=RULES[name](), sampling=cold)])
    ids = list(PROMPTS[0])
    for _ in range(40):
        law = laws(TARGET.logits_after(ids).unsqueeze(0), [cold])
        ids.append(int(argmax(law)))
    assert outputs(decoder)[0] == ids[3:]


def test_edge_case_11_the_untempered_nucleus_at_temperature_0_must_be_asked_for():
    cold, theta = Sampling(temperature=0.0), 0.7
    decoder, blocks = decode([request(rule=RULES["cold-nucleus"](theta), sampling=cold, max_new_tokens=80)])
    greedy, _ = decode([request(rule=NSD(theta), sampling=cold, max_new_tokens=80)])
    assert outputs(decoder) != outputs(greedy)
    tested = [t for b in blocks for t in b.tested]
    assert any(t.origin is Origin.RESCUED for t in tested)
    ids = list(PROMPTS[0])
    for block in blocks:
        for committed in block.committed:
            law = laws(TARGET.logits_after(ids).unsqueeze(0), [Sampling()])
            if committed.origin is Origin.RESCUED:
                assert NSD(theta).whole_set(law)[0, committed.token] and committed.token != int(argmax(law))
            else:
                assert committed.token == int(argmax(law))
            ids.append(committed.token)
    for t in tested:
        assert t.ES == (1.0 if t.origin is Origin.RESCUED else 0.0)
    answer = Pair(TARGET, drafter()).generate([0, 1, 2], rule="cold-nucleus", temperature=0.0, max_new_tokens=20)
    assert answer.fidelity.guarantee.value is None
    with pytest.raises(ConfigError, match="wanted 0"):
        request(rule=RULES["cold-nucleus"]())


@pytest.mark.parametrize("rule", [SD(), NSD(0.9), NSD(0.9, max_deviation=0.05)])
def test_edge_case_17_a_ragged_batch_decodes_as_one_by_one(rule):
    together = [request(p, rule, key=i, k=1 + i, max_new_tokens=25 + 7 * i) for i, p in enumerate(PROMPTS)]
    batch, _ = decode(together)
    alone = [outputs(decode([one])[0])[0] for one in together]
    assert outputs(batch) == alone


def test_rules_thresholds_and_temperatures_may_differ_within_a_batch():
    together = [
        request(PROMPTS[0], SD(), key=0),
        request(PROMPTS[1], NSD(0.5), key=1, sampling=Sampling(temperature=0.7)),
        request(PROMPTS[2], NSD(0.95, max_deviation=0.1), key=2),
        request(PROMPTS[0], RULES["typical"](), key=3, sampling=Sampling(top_p=0.9)),
        request(PROMPTS[1], NSD(0.9, ties="smallest"), key=4, agreement=0.9, policy="front"),
    ]
    batch, _ = decode(together)
    assert outputs(batch) == [outputs(decode([one])[0])[0] for one in together]


def test_edge_case_29_caches_see_each_token_once():
    decoder, blocks = decode([request()])
    steps = [b for b in blocks if b.number]
    fed = sum(len(b.drafted) + 1 for b in steps)
    assert decoder.session.positions == len(PROMPTS[0]) + fed
    assert decoder.session.calls == len(blocks)
    committed = sum(len(b.committed) for b in blocks)
    assert decoder._drafting.positions <= len(PROMPTS[0]) + committed + fed


@given(st.integers(0, 6), st.integers(1, 30), st.integers(0, 2**64 - 1))
@settings(max_examples=40)
def test_never_more_than_asked_for(k, length, seed):
    decoder, blocks = decode([request(k=k, max_new_tokens=length, seed=seed)], drafter(6))
    assert len(outputs(decoder)[0]) == length
    assert all(len(b.committed) <= k + 1 for b in blocks)
    position = 0
    for block in blocks:
        assert block.position == position
        # No proposal is made that could not be emitted beside its final token.
        assert len(block.drafted) <= max(length - position - 1, 0)
        position += len(block.committed)
    assert blocks[-1].finish_reason is FinishReason.LENGTH


def test_the_first_text_comes_before_the_second_target_call():
    decoder = Decoder(TARGET, drafter(), [request()])
    first = next(iter(decoder))
    assert len(first.committed) == 1
    assert decoder.session.calls == 1


def test_edge_case_12_eos_inside_a_block_ends_it_there():
    target = TableTarget(vocab=12, order=2, seed=1, sharpness=1.5, eos=(4,))
    seen = 0
    for seed in range(60):
        decoder, blocks = decode(
            [request(seed=seed, ignore_eos=False, max_new_tokens=60)], drafter(5, model=target), target=target
        )
        ids = outputs(decoder)[0]
        assert 4 not in ids[:-1]
        last = blocks[-1]
        if ids[-1] == 4:
            assert last.finish_reason is FinishReason.EOS
            assert last.committed[-1].token == 4 and last.committed[-1].text == ""
            cut = len(last.committed) <= len(last.tested) and last.drawn is None
            seen += cut
        assert sum(len(b.committed) for b in blocks) == len(ids)
        assert len(last.tested) <= len(last.committed)
    assert seen > 5


def test_edge_case_13_a_stop_string_cuts_ids_text_and_logprobs_alike():
    for seed in range(30):
        pair = Pair(TARGET, drafter())
        answer = pair.generate("abc", seed=seed, stop=("fg", "a"), max_new_tokens=60, logprobs="processed", k=4)
        assert "fg" not in answer.text and "a" not in answer.text
        assert len(answer.logprobs) == len(answer.token_ids)
        if answer.finish_reason == "stop":
            whole = TARGET.tokenizer.decode(answer.token_ids)
            assert whole.endswith(("fg", "a"))
            assert whole.startswith(answer.text)


def test_edge_case_16_greedy_requests_do_not_depend_on_the_seed():
    cold = Sampling(temperature=0.0)
    mixed = [
        request(key=0, seed=1, sampling=cold),
        request(key=1, seed=2),
        request(key=2, seed=99, sampling=cold),
    ]
    first, _, third = outputs(decode(mixed)[0])
    assert first == third


def test_edge_case_15_seeds_are_kept_apart_and_repeat():
    runs = [outputs(decode([request(seed=s)])[0])[0] for s in (1, 2, 1)]
    assert runs[0] == runs[2] != runs[1]
    keys = [outputs(decode([request(key=key)])[0])[0] for key in (0, 1)]
    assert keys[0] != keys[1]


def test_edge_case_18_penalties_see_the_prefix_and_the_proposals_before():
    sampling = Sampling(repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.3)
    plain, _ = decode([request(rule=SD(), k=0, sampling=sampling)], None)
    matched, _ = decode([request(rule=SampleAndMatch(), sampling=sampling)])
    assert outputs(plain) == outputs(matched)


def test_edge_case_19_processors_and_bans_apply_to_every_row():
    def only_even(ids, scores):
        scores[:, 1::2] = -torch.inf
        return scores

    sampling = Sampling(processors=(only_even,), banned=(2,), min_p=0.05)
    decoder, _ = decode([request(sampling=sampling)])
    assert set(outputs(decoder)[0]) <= {0, 4, 6, 8, 10}
    plain, _ = decode([request(rule=SD(), k=0, sampling=sampling)], None)
    matched, _ = decode([request(rule=SampleAndMatch(), sampling=sampling)])
    assert outputs(plain) == outputs(matched)


def test_edge_case_27_logprobs_are_the_targets_for_accepted_drafts_too():
    pair = Pair(TARGET, drafter())
    sampling = {"temperature": 0.8, "top_p": 0.9}
    for kind in ("processed", "raw"):
        answer = pair.generate([0, 1, 2], seed=5, max_new_tokens=30, logprobs=kind, k=4, **sampling)
        ids = [0, 1, 2]
        for token, logprob in zip(answer.token_ids, answer.logprobs, strict=True):
            logits = TARGET.logits_after(ids).unsqueeze(0)
            law = laws(logits, [Sampling(**sampling) if kind == "processed" else Sampling()])
            assert math.isclose(logprob, math.log(law[0, token]), rel_tol=1e-5, abs_tol=1e-6)
            ids.append(token)


def test_edge_case_28_the_first_proposal_is_judged_after_the_anchor():
    decoder, blocks = decode([request(k=1)], drafter(1), trace=True)
    ids = list(PROMPTS[0])
    for block in blocks:
        for tested in block.tested:
            law = laws(TARGET.logits_after(ids).unsqueeze(0), [Sampling()])[0]
            assert math.isclose(tested.p, float(law[tested.token]), rel_tol=1e-9)
        ids += [c.token for c in block.committed]
    assert ids[3:] == outputs(decoder)[0]


def test_a_budget_is_kept_on_every_path():
    for seed, policy in itertools.product(range(10), ("even", "greedy", "front")):
        pair = Pair(TARGET, drafter())
        answer = pair.generate([0, 1], seed=seed, agreement=0.8, policy=policy, max_new_tokens=50, k=4)
        assert answer.fidelity.Q >= 0.8
        assert answer.fidelity.guarantee.value == 0.8


@given(
    st.sampled_from(["sd", "nsd", "sample-and-match", "lenience", "typical", "cascade"]),
    st.integers(0, 5),
    st.integers(0, 1000),
    st.sampled_from(["off", "rescues", "full"]),
)
@settings(max_examples=60)
def test_counters_add_up(rule, k, seed, accounting):
    pair = Pair(TableTarget(vocab=12, order=2, seed=1, sharpness=1.5, eos=(4,)), drafter(5))
    answers = pair.generate([[0, 1, 2], [5]], rule=rule, k=k, seed=seed, max_new_tokens=30, accounting=accounting)
    total = sum((a.stats for a in answers), type(answers[0].stats)())
    for stats, count in [(a.stats, 1) for a in answers] + [(total, 2)]:
        assert stats.accepted == stats.by_ratio + stats.rescued
        assert stats.tested == stats.accepted + stats.rejected
        assert stats.output_tokens == stats.prefill_tokens_out + stats.accepted + stats.recovered + stats.bonus
        assert stats.prefill_tokens_out == count
        if stats.blocks:
            assert stats.tau == (stats.accepted + stats.recovered + stats.bonus) / stats.blocks
            assert sum(size * n for size, n in stats.histogram.items()) == stats.output_tokens - count
        values = stats.as_json()
        if accounting != "full" and stats.tested:
            assert values["max_ES"] is None
            assert values["reasons"]["max_ES"]
            exact, estimable = rule in ("sd", "sample-and-match"), rule in ("nsd", "lenience")
            if not exact and accounting == "rescues":
                assert values["mean_ES"] == (stats.rescue_rate if estimable else None)
                assert values["mean_ES_kind"] == ("estimated by the rescue rate" if estimable else None)
    assert total.output_tokens == sum(len(a.token_ids) for a in answers)
    if rule in ("sd", "sample-and-match"):
        assert total.rescued == 0


def test_leaving_early_marks_the_rest_as_interrupted():
    run = Pair(TARGET, drafter()).run([[0, 1, 2]], max_new_tokens=50)
    next(run)
    next(run)
    answer = run.completions()[0]
    assert answer.finish_reason == "interrupted"
    assert answer.token_ids


def test_the_context_ends_a_text_by_length():
    short = TableTarget(vocab=12, order=2, seed=1, context=20)
    decoder, blocks = decode([request(max_new_tokens=100)], drafter(4, model=short), target=short)
    assert len(outputs(decoder)[0]) == 17
    assert blocks[-1].finish_reason is FinishReason.LENGTH


def test_ngram_drafts_are_point_masses_with_their_price():
    repeating = TableTarget(vocab=6, order=1, seed=3, sharpness=6.0)
    pair = Pair(repeating, ngram_drafter(repeating))
    answer = pair.generate([0, 1, 0, 1, 0], rule="nsd", max_new_tokens=120, trace=True, seed=1)
    tested = [t for b in answer.blocks for t in b.tested]
    assert tested
    for t in tested:
        assert t.q == 1.0
        assert math.isclose(t.R, 1 - t.p, abs_tol=1e-12)
        assert math.isclose(t.ES, (1 - t.p) if t.member else 0.0, abs_tol=1e-12)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"k": -1}, ConfigError),
        ({"max_new_tokens": 0}, ConfigError),
        ({"prompt": ()}, PromptError),
        ({"seed": -1}, ConfigError),
        ({"seed": 2**64}, ConfigError),
        ({"stop": ("",)}, ConfigError),
        ({"agreement": 1.5}, ConfigError),
    ],
)
def test_a_request_out_of_range_is_refused(changes, error):
    with pytest.raises(error, match="wanted"):
        request(**changes)


def test_a_prompt_longer_than_the_context_is_refused():
    short = TableTarget(vocab=12, order=2, seed=1, context=5)
    with pytest.raises(PromptError, match="takes at most 4"):
        Decoder(short, None, [request(prompt=(1, 2, 3, 4, 5))])
