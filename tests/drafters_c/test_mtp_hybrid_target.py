"""The hybrid target: after any pattern of accepted lengths in a ragged batch it is where a fresh prefill would be."""

from itertools import product

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from nsd.errors import ConfigError, ModelError
from nsd.targets.base import FINAL_NORM
from nsd.targets.hf import HfTarget
from nsd.targets.hybrid import HybridTarget, is_hybrid
from tests.drafters_c.hybrid_models import VOCAB, Ids, hybrid_target, qwen35

PROMPTS = [[5, 3, 8, 2, 7, 4, 4, 19, 33], [6], [1, 9, 2]]


def require_close(got, expected):
    """Equal to 1e-5 of the largest logit: float32 through another order of the same sums."""
    assert (got - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.fixture(scope="module")
def target():
    return hybrid_target()


@torch.no_grad()
def fresh(target, ids):
    """Logits [n, V] of a plain pass without a cache, and the state that the head reads."""
    output = target.model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
    return output.logits[0], output.hidden_states[-1][0]


def block(seed, lengths):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (n,), generator=generator).tolist() for n in lengths]


def test_a_ragged_prefill_is_the_plain_pass_of_each_prompt(target):
    session, scores = target.open(PROMPTS, 8, (0, 2, FINAL_NORM))
    at = 0
    for b, prompt in enumerate(PROMPTS):
        logits, states = fresh(target, prompt)
        require_close(scores.logits[b], logits[-1])
        require_close(scores.taps[at : at + len(prompt), 2], states)
        at += len(prompt)
    assert (session.positions, session.calls) == (sum(map(len, PROMPTS)), 1)


def test_every_pattern_of_accepted_lengths_ends_where_a_fresh_prefill_would(target):
    """Three requests, block widths 4, 3 and 1, every number of kept inputs of each; then one more ragged pass."""
    inputs = block(1, (4, 3, 1))
    after = block(2, (2, 1, 3))
    for kept in product(range(5), range(4), range(2)):
        session, _ = target.open(PROMPTS, 16)
        session.score(inputs)
        session.keep(kept)
        fed = session.positions
        logits = session.score(after).logits
        assert session.positions == fed + sum(map(len, after)) and session.calls == 3
        at = 0
        for prompt, first, n, more in zip(PROMPTS, inputs, kept, after, strict=True):
            expected, _ = fresh(target, [*prompt, *first[:n], *more])
            require_close(logits[at : at + len(more)], expected[-len(more) :])
            at += len(more)


@settings(max_examples=12, phases=[Phase.generate])
@given(st.data())
def test_long_ragged_runs_stay_exact_and_feed_nothing_twice(target, data):
    """Passes with and without a keep between them, requests sitting out, requests leaving."""
    texts = [list(prompt) for prompt in PROMPTS]
    session, _ = target.open(PROMPTS, 40)
    expected_positions, pending = sum(map(len, PROMPTS)), [[] for _ in texts]
    for step in range(data.draw(st.integers(2, 6))):
        lengths = data.draw(st.lists(st.integers(0, 3), min_size=len(texts), max_size=len(texts)).filter(any))
        inputs = block(100 + step, lengths)
        logits = session.score(inputs).logits
        expected_positions += sum(lengths)
        at = 0
        for b, new in enumerate(inputs):
            pending[b] += new
            if new:
                whole, _ = fresh(target, texts[b] + pending[b])
                require_close(logits[at : at + len(new)], whole[-len(new) :])
            at += len(new)
        if data.draw(st.booleans()):
            counts = [data.draw(st.integers(0, len(ids))) for ids in pending]
            session.keep(counts)
            texts = [text + ids[:n] for text, ids, n in zip(texts, pending, counts, strict=True)]
            pending = [[] for _ in texts]
        if len(texts) > 1 and data.draw(st.integers(0, 4)) == 0:
            session.retain(range(1, len(texts)))
            texts, pending = texts[1:], pending[1:]
    assert session.positions == expected_positions


def test_eager_attention_rolls_back_too():
    target = hybrid_target(attn_implementation="eager")
    session, _ = target.open(PROMPTS, 16)
    session.score(block(1, (4, 3, 1)))
    session.keep([2, 0, 1])
    logits = session.score([[5], [6], [7]]).logits
    kept = [inputs[:n] for inputs, n in zip(block(1, (4, 3, 1)), (2, 0, 1), strict=True)]
    for b in range(3):
        require_close(logits[b], fresh(target, [*PROMPTS[b], *kept[b], 5 + b])[0][-1])


def test_plain_decoding_and_full_acceptance_replay_nothing(target):
    session, _ = target.open(PROMPTS, 16)
    for step in range(3):
        session.score(block(step, (1, 1, 1)))
        session.keep([1, 1, 1])
    session.score(block(7, (4, 2, 3)))
    session.keep([4, 2, 3])
    assert session.replayed == 0
    session.score(block(8, (4, 2, 3)))
    session.keep([4, 1, 2])
    assert session.replayed == 3, "only the kept inputs of the rows that were cut"


def test_what_a_request_gets_does_not_depend_on_the_others_being_cut(target):
    """Full acceptance takes the state the pass ended with, bit for bit, whoever else is rolled back."""
    inputs, states = block(3, (3, 3, 3)), []
    for kept in ([3, 3, 3], [3, 1, 0]):
        session, _ = target.open(PROMPTS, 16)
        session.score(inputs)
        session.keep(kept)
        states.append([layer.recurrent_states[0][0] for layer in session.cache.deltas])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_bfloat16_rolls_back_within_its_own_rounding():
    target = HybridTarget(qwen35(5, torch.bfloat16), Ids(), "bf16")
    inputs, after = block(1, (4, 3, 1)), block(2, (2, 2, 2))
    session, _ = target.open(PROMPTS, 16)
    session.score(inputs)
    session.keep([2, 1, 1])
    rolled = session.score(after).logits.float()
    session, _ = target.open([p + i[:n] for p, i, n in zip(PROMPTS, inputs, [2, 1, 1], strict=True)], 16)
    prefilled = session.score(after).logits.float()
    exact = HybridTarget(target.model.float(), Ids(), "fp32")
    session, _ = exact.open([p + i[:n] for p, i, n in zip(PROMPTS, inputs, [2, 1, 1], strict=True)], 16)
    truth = session.score(after).logits
    assert (rolled - truth).abs().mean() <= 2 * (prefilled - truth).abs().mean() + 1e-3


def test_a_hybrid_model_is_refused_elsewhere_and_another_model_here():
    with pytest.raises(ModelError, match="linear_attention"):
        HfTarget(qwen35(), Ids(), "tiny")
    llama = LlamaForCausalLM(
        LlamaConfig(vocab_size=31, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2)
    )
    assert not is_hybrid(llama.config) and is_hybrid(qwen35().config)
    with pytest.raises(ModelError, match="no Gated DeltaNet layers"):
        HybridTarget(llama, Ids(), "tiny-llama")


def test_a_mixer_of_another_kind_is_named():
    model = qwen35()
    del model.model.layers[0].linear_attn.in_proj_b
    with pytest.raises(ModelError, match="lacking in_proj_b"):
        HybridTarget(model, Ids(), "odd")


def test_wrong_counts_leave_an_error_and_no_state(target):
    session, _ = target.open(PROMPTS, 16)
    session.score(block(1, (2, 2, 2)))
    with pytest.raises(ConfigError, match="keep"):
        session.keep([3, 0, 0])
    with pytest.raises(ConfigError, match="input"):
        session.score([[], [], []])
