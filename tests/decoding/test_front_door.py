"""The Python front door: what it takes, what it refuses, what it says of the result."""

import time

import numpy as np
import pytest
import torch

import nsd
from nsd.api import Pair
from nsd.compare import compare
from nsd.decoding import Decoder, Request
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.ngram import ngram_drafter
from nsd.errors import ConfigError, NonFiniteTarget, PromptError
from nsd.laws import Sampling
from nsd.targets.base import Scores
from nsd.targets.toy import TableTarget, tiny_llama

TARGET = TableTarget(vocab=12, order=2, seed=1, sharpness=1.5)
PAIR = Pair(TARGET, ModelDrafter(TARGET.near(1.0, seed=2), "near", default_k=4))


@pytest.mark.parametrize("rule", [nsd.SD, 5, None, object()])
def test_a_rule_that_is_no_rule_is_refused(rule):
    with pytest.raises(ConfigError, match="wanted a name or a Rule"):
        PAIR.generate([0, 1], rule=rule)


@pytest.mark.parametrize("beside", [{"theta": 0.1}, {"max_deviation": 0.01}, {"ties": "smallest"}])
def test_numbers_beside_a_whole_rule_are_refused_not_dropped(beside):
    with pytest.raises(ConfigError, match="beside it"):
        PAIR.generate([0, 1], rule=nsd.NSD(0.5), **beside)


def test_a_number_given_twice_is_refused():
    with pytest.raises(ConfigError, match="given twice"):
        PAIR.generate([0, 1], theta=0.5, rule_numbers={"theta": 0.6})


@pytest.mark.parametrize(
    "prompt", [[0, 1, 2], (0, 1, 2), np.array([0, 1, 2]), torch.tensor([0, 1, 2]), [np.int64(0), 1, np.int32(2)]]
)
def test_token_ids_of_every_integer_kind_are_one_prompt(prompt):
    plain = PAIR.generate([0, 1, 2], max_new_tokens=8)
    assert PAIR.generate(prompt, max_new_tokens=8).token_ids == plain.token_ids


def test_several_prompts_come_back_as_a_list():
    for prompts in (["abc", "b"], [[0, 1], [2]], np.array([[0, 1], [2, 3]])):
        answers = PAIR.generate(prompts, max_new_tokens=4)
        assert [len(a.token_ids) for a in answers] == [4, 4]


@pytest.mark.parametrize(
    "prompt",
    [None, 5, b"ab", {"a": 1}, [0.5], [True, False], ["a", 5], [[[1]]], (i for i in (1, 2)), [], [[]], "", [""]],
)
def test_other_prompts_are_refused_by_name(prompt):
    with pytest.raises(PromptError):
        PAIR.generate(prompt, max_new_tokens=4)


def test_unknown_settings_get_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean temperature"):
        PAIR.generate([0], temprature=1.0)


def test_processors_and_bans_are_settings():
    answer = PAIR.generate([0, 1], banned=(3, 4), processors=(lambda ids, scores: scores - 0.1,), max_new_tokens=30)
    assert not {3, 4} & set(answer.token_ids)


def test_where_nothing_is_drafted_the_guarantee_is_one():
    for pair, settings in ((Pair(TARGET, None), {}), (PAIR, {"k": 0})):
        answer = pair.generate([0, 1], rule="nsd", max_new_tokens=10, **settings)
        assert answer.fidelity.guarantee.value == 1.0


def test_what_a_cap_spends_stands_beside_what_it_did_not():
    answer = PAIR.generate([0, 1], max_deviation=0.05, max_new_tokens=60, seed=3)
    values = answer.stats.as_json()
    assert values["max_eps"] <= 0.05 + 1e-12 < values["max_ES"]
    assert values["mean_eps"] == pytest.approx(answer.fidelity.sum_eps / answer.stats.tested)


def test_a_capped_run_has_its_ledger_at_every_accounting_level():
    for level in ("off", "rescues", "full"):
        answer = PAIR.generate([0, 1], max_deviation=0.1, max_new_tokens=30, accounting=level)
        assert answer.fidelity.Q is not None
        assert answer.fidelity.weight is not None


def test_deviation_is_estimated_for_nothing_unless_the_exact_figure_is_asked_for():
    asked = {"rule": "nsd", "theta": 0.9, "max_new_tokens": 60, "seed": 3}
    plain, exact = PAIR.generate([0, 1], **asked), PAIR.generate([0, 1], **asked, accounting="full")
    assert plain.token_ids == exact.token_ids and plain.stats.rescued > 0
    values = plain.stats.as_json()
    assert values["mean_ES_kind"] == "estimated by the rescue rate"
    assert values["mean_ES"] == pytest.approx(plain.stats.rescued / plain.stats.tested)
    assert exact.stats.as_json()["mean_ES_kind"] == "exact"


def test_every_null_in_the_report_has_its_reason():
    def check(values):
        for name, value in values.items():
            if isinstance(value, dict) and name != "reasons" and "reasons" in value:
                check(value)
            elif value is None and name not in ("guarantee_window", "max_deviation", "mean_ES_kind", "ES_is"):
                assert values["reasons"].get(name), name

    for rule in ("sd", "nsd", "typical", "lenience"):
        for level in ("off", "rescues", "full"):
            answer = PAIR.generate([0, 1], rule=rule, accounting=level, max_new_tokens=12)
            check(answer.as_json())
    check(PAIR.generate([0, 1], max_new_tokens=1).as_json())


def test_time_to_first_token_starts_with_the_work():
    run = PAIR.run([[0, 1]], max_new_tokens=4)
    time.sleep(0.3)
    for _ in run:
        pass
    assert run.completions()[0].stats.ttft_s < 0.25


def test_a_law_that_is_not_finite_is_named_by_request_and_position():
    class Broken(TableTarget):
        def open(self, prompts, room, taps=()):
            session, scores = super().open(prompts, room, taps)
            score = session.score

            def poisoned(inputs):
                good = score(inputs)
                logits = good.logits.clone()
                if session.calls == 5:
                    logits[-1] = torch.nan
                return Scores(logits, good.taps)

            session.score = poisoned
            return session, scores

    target = Broken(vocab=12, order=2, seed=1)
    requests = [Request((0,), nsd.SD(), Sampling(), 0, length, key=i) for i, length in enumerate((2, 3, 30))]
    with pytest.raises(NonFiniteTarget, match="request 2 at output position 4"):
        list(Decoder(target, None, requests))


def test_a_huge_k_costs_no_memory():
    target = tiny_llama()
    pair = Pair(target, ngram_drafter(target))
    assert len(pair.generate("abab", k=10**9, max_new_tokens=5, ignore_eos=True).token_ids) == 5


def test_the_comparison_uses_one_baseline_for_figure_and_interval():
    target = tiny_llama(context=256)
    result = compare(
        Pair(target, ngram_drafter(target)), ["abc abc", "xyz"], repeats=3, max_new_tokens=12, top_p=0.9, min_p=0.01
    )
    assert set(result.arms) == {"ar", "sd", "nsd", "transformers"}
    assert result.transformers_reason is None
    assert [set(names) for names in result.order] == [set(result.arms)] * 6
    assert len({names for names in result.order}) == 4
    spans, ups = result.intervals(), result.speedups()
    for name, (low, high) in spans.items():
        assert low <= ups[name] <= high
    base = max(result.arms["ar"].rate, result.transformers_rate)
    assert ups["nsd_over_ar"] == pytest.approx(result.arms["nsd"].rate / base)
    few = compare(Pair(target, None), ["abc"], max_new_tokens=4, with_transformers=False)
    assert set(few.intervals().values()) == {None}
    assert "interval needs 5" in few.as_json()["reasons"]["speedup_interval_95"]


def test_a_comparison_without_prompts_or_repeats_is_refused():
    with pytest.raises(PromptError):
        compare(PAIR, [])
    with pytest.raises(ConfigError, match="repeats is 0"):
        compare(PAIR, [[0]], repeats=0)
    with pytest.raises(ConfigError, match="seeds below"):
        compare(PAIR, [[0]], repeats=2, seed=2**64 - 1)
