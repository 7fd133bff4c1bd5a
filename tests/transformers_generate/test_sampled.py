"""Sampling: the law that is verified is transformers' own, and chance follows the seed."""

from functools import partial

import pytest
import torch
import transformers as tr
from scipy.stats import chi2

import nsd
from nsd.events import Origin
from nsd.laws import History, laws
from nsd.transformers.processing import Row, sampling_of
from tests.transformers_generate.pairs import CUSTOM, MASK, PADDED, PROMPT, cut, llama

SAMPLED = {"do_sample": True, "top_k": 0, "max_new_tokens": 20, "return_dict_in_generate": True}


def _probabilities(completion):
    """(token, probability) of what a request committed, as verification saw it."""
    found = []
    for block in completion.blocks:
        found += [(t.token, t.p) for t in block.tested if t.origin is not Origin.REJECTED]
        if block.drawn is not None:
            found.append((block.drawn.token, block.drawn.p))
    return found


@pytest.mark.parametrize(
    "processing",
    [
        {},
        {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
        {"repetition_penalty": 1.3, "temperature": 1.3},
        {"typical_p": 0.8, "top_p": 0.95},
        {"epsilon_cutoff": 0.02, "renormalize_logits": True},
        {"prefix_allowed_tokens_fn": lambda row, ids: list(range(row, 48, 3)), "top_k": 9},
    ],
)
def test_verified_law_is_that_of_the_scores(processing):
    model = llama()
    options = {**SAMPLED, **processing, "output_scores": True, "attention_mask": MASK, "seed": 5}
    result = model.generate(PADDED, **options, **CUSTOM, assistant_model=cut(model, 3), theta=0.9)
    law = torch.stack(result.scores).softmax(-1)
    for b, completion in enumerate(result.completions):
        pairs = _probabilities(completion)
        assert [token for token, _ in pairs][: len(completion.token_ids)] == list(completion.token_ids)
        for t, (token, p) in enumerate(pairs[: len(completion.token_ids)]):
            assert p == pytest.approx(float(law[t, b, token]), rel=1e-4, abs=1e-6)


def test_warpers_at_the_end_are_decided_in_one_go():
    processors = tr.LogitsProcessorList(
        [
            tr.NoRepeatNGramLogitsProcessor(2),
            tr.TemperatureLogitsWarper(0.5),
            tr.TopKLogitsWarper(7),
            tr.TopPLogitsWarper(0.8),
        ]
    )
    ids = torch.tensor([3, 4, 3])
    row = Row(0, 1, ids, (3, 4, 3))
    sampling = sampling_of(processors, True, row)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, len(sampling.processors)) == (0.5, 7, 0.8, 1)
    logits = torch.randn(1, 48, generator=torch.Generator().manual_seed(0)) * 3
    ours = laws(logits, [sampling], [History((3, 4, 3), ())])
    theirs = processors(ids.unsqueeze(0), logits.clone()).softmax(-1)
    torch.testing.assert_close(ours, theirs)
    assert ours[0, 4] == 0
    backwards = tr.LogitsProcessorList([tr.TopKLogitsWarper(7), tr.TemperatureLogitsWarper(0.5)])
    kept = sampling_of(backwards, True, row)
    assert kept.temperature == 0.5 and kept.top_k == 0 and len(kept.processors) == 1


def test_standard_speculation_keeps_the_joint_law_of_two_tokens():
    """Chi-square over 3000 rows, false alarm 1e-4 for this seed."""
    model = llama()
    rows, prompt = 3000, torch.tensor([[5, 6, 7]])
    # Three tokens, so that the second one has been drafted: the first block drafts at most what may still be emitted.
    options = {"do_sample": True, "top_k": 6, "temperature": 0.9, "max_new_tokens": 3, "eos_token_id": None}
    ids = model.generate(
        prompt.repeat(rows, 1), **options, **CUSTOM, assistant_model=cut(model, 3), rule="sd", seed=1, k=2
    )
    first = _processed(model, prompt)[0]
    counts: dict[tuple[int, int], int] = {}
    for a, b in ids[:, 3:5].tolist():
        counts[a, b] = counts.get((a, b), 0) + 1
    statistic, cells, pooled = 0.0, 0, [0.0, 0]
    for a in first.nonzero().flatten().tolist():
        second = _processed(model, torch.tensor([[5, 6, 7, a]]))[0]
        for b in second.nonzero().flatten().tolist():
            expected, seen = float(first[a] * second[b]) * rows, counts.pop((a, b), 0)
            if expected < 5:
                pooled[0] += expected
                pooled[1] += seen
                continue
            statistic, cells = statistic + (seen - expected) ** 2 / expected, cells + 1
    assert not counts
    if pooled[0] >= 5:
        statistic, cells = statistic + (pooled[1] - pooled[0]) ** 2 / pooled[0], cells + 1
    assert cells > 10
    assert statistic < chi2.isf(1e-4, cells - 1)


def _processed(model, ids):
    with torch.no_grad():
        logits = model(ids).logits[:, -1]
    warpers = tr.LogitsProcessorList([tr.TemperatureLogitsWarper(0.9), tr.TopKLogitsWarper(6)])
    return warpers(ids, logits).softmax(-1)


def test_seed_generator_and_global_state_fix_the_text():
    model = llama()
    run = partial(model.generate, PROMPT, **CUSTOM, **SAMPLED, assistant_model=cut(model, 3))
    by_seed = [run(seed=seed).sequences.tolist() for seed in (1, 1, 2)]
    assert by_seed[0] == by_seed[1] != by_seed[2]
    by_generator = [run(generator=torch.Generator().manual_seed(s)).sequences.tolist() for s in (1, 1, 2)]
    assert by_generator[0] == by_generator[1] != by_generator[2]
    by_state = []
    for state in (1, 1, 2):
        torch.manual_seed(state)
        by_state.append(run().sequences.tolist())
    assert by_state[0] == by_state[1] != by_state[2]


def test_theta_and_cap_reach_the_rule():
    model = llama()
    run = partial(model.generate, PROMPT.repeat(8, 1), **CUSTOM, **{**SAMPLED, "eos_token_id": None}, seed=3)
    small = cut(model, 2)
    tau = {}
    for name, rule in {"sd": {"rule": "sd"}, "0.5": {"theta": 0.5}, "1": {"theta": 1.0}}.items():
        completions = run(assistant_model=small, **rule).completions
        tau[name] = sum(c.stats.tau for c in completions) / 8
    assert tau["sd"] < tau["0.5"] < tau["1"]
    capped = run(assistant_model=small, theta=1.0, max_deviation=0.05, accounting="full").completions
    spent = [t.eps for c in capped for block in c.blocks for t in block.tested]
    assert max(spent) <= 0.05 + 1e-9 and sum(c.stats.tau for c in capped) / 8 < tau["1"]
    whole = run(assistant_model=small, rule=nsd.NSD(0.5)).completions
    assert sum(c.stats.tau for c in whole) / 8 == tau["0.5"]


def test_several_sequences_of_one_prompt_differ():
    model = llama()
    drafter = nsd.load("toy", "ngram").drafter
    result = model.generate(PROMPT, **CUSTOM, **SAMPLED, drafter=drafter, num_return_sequences=3, seed=1)
    assert len({tuple(row) for row in result.sequences.tolist()}) == 3
