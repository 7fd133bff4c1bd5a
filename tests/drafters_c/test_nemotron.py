"""Nemotron against transformers' own decoder and against a second, plain forward; what a draft does to the cache."""

import pytest
import torch
from transformers import Ministral3Config, Ministral3Model

from nsd.drafters.base import Ask
from nsd.drafters.nemotron import load as nemotron_drafter
from nsd.errors import ConfigError
from nsd.laws import Purpose, Sampling, laws, uniforms
from nsd.targets.base import FINAL_NORM
from nsd.targets.nemotron import load as load_nemotron
from tests.drafters_c.nemotron_checkpoint import CONFIG, MASK, VOCAB, Plain, write_folder

PROMPTS = [[3], [7, 2, 30, 14, 9], [1, 1, 8, 22, 35, 6, 19, 4, 12, 27, 33, 2, 10, 18, 29, 0, 25, 13, 34, 31]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("nemotron") / "tiny", lora=True)


@pytest.fixture(scope="module")
def target(folder):
    return load_nemotron(str(folder), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def plain(folder):
    return Plain(folder)


def ask(prompt, output, k, sampling=None):
    return Ask(k, output[-1], prompt, output, sampling or Sampling())


def draws(batch, k, block=0):
    keys = torch.arange(batch).unsqueeze(-1).numpy()
    return torch.from_numpy(uniforms(5, keys, torch.arange(max(k, 1)).numpy(), Purpose.DRAFT, block))


def theirs(plain):
    """transformers' decoder with the very tensors of the folder, and its head."""
    keys = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "sliding_window",
        "rope_parameters",
    )  # fmt: skip
    config = Ministral3Config(**{key: CONFIG[key] for key in keys})
    config._attn_implementation = "eager"
    model = Ministral3Model(config).eval()
    encoder = {name.removeprefix("encoder."): t for name, t in plain.w.items() if name.startswith("encoder.")}
    model.load_state_dict(encoder, strict=True)
    return model, plain.w["diffusion_head.weight"]


@torch.no_grad()
def test_the_backbone_agrees_with_transformers_at_every_layer(target, plain):
    model, head = theirs(plain)
    ids = torch.randint(VOCAB, (90,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = model(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
    taps = (2, FINAL_NORM, 0, 1)
    session, opened = target.open([ids[:60]], 40, taps)
    scored = session.score([ids[60:]])
    logits = expected.last_hidden_state[0] @ head.T
    torch.testing.assert_close(opened.logits, logits[59:60], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scored.logits, logits[60:], rtol=1e-5, atol=1e-5)
    tapped = torch.cat([opened.taps, scored.taps])
    for column, tap in enumerate(taps):
        state = expected.last_hidden_state if tap == FINAL_NORM else expected.hidden_states[tap]
        torch.testing.assert_close(tapped[:, column], state[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_plain_forward_agrees_with_transformers_too(plain):
    model, head = theirs(plain)
    ids = torch.randint(VOCAB, (90,), generator=torch.Generator().manual_seed(3)).tolist()
    logits = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0] @ head.T
    torch.testing.assert_close(plain.causal(ids), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lora", [False, True])
def test_rounds_with_a_cache_equal_recomputation_and_feed_nothing_twice(target, plain, lora, seed):
    """Ragged blocks, any accepted lengths, a request that leaves: q and p as from scratch, and exact counters."""
    g = torch.Generator().manual_seed(50 + seed)
    drafter = nemotron_drafter(target, lora=lora)
    session, scores = target.open(PROMPTS, 120)
    drafting = drafter.open_beside(session, PROMPTS, None, 120)
    outputs = [[int(row.argmax())] for row in scores.logits]
    live, fed, drafted_slots, calls = [0, 1, 2], sum(map(len, PROMPTS)), 0, 1
    for number in range(6):
        ks = torch.randint(0, 13, (len(live),), generator=g).tolist()
        ks[number % len(ks)] = 0 if number == 2 else max(ks[number % len(ks)], 1)
        asks = [ask(PROMPTS[r], outputs[r], k) for r, k in zip(live, ks, strict=True)]
        before = contents(session)
        draft = drafting.propose(asks, draws(len(live), max(ks), number))
        assert draft.lengths == tuple(ks)
        assert contents(session) == before, "a draft changes nothing in the cache"
        assert (session.positions, session.calls) == (fed, calls), "nor does it count as a pass of the target"
        drafted_slots += sum(k + 1 for k in ks if k)
        assert drafting.positions == drafted_slots
        tokens, q = draft.tokens.split(list(ks)), draft.q.split(list(ks))
        for b, r in enumerate(live):
            if ks[b]:
                logits = plain.block([*PROMPTS[r], *outputs[r]], ks[b], lora)
                expected = laws(logits, [Sampling()] * ks[b], None, target.absent)
                torch.testing.assert_close(q[b], expected, rtol=1e-5, atol=1e-5)
        scored = session.score([[outputs[r][-1], *tokens[b].tolist()] for b, r in enumerate(live)])
        fed, calls = fed + sum(ks) + len(live), calls + 1
        assert (session.positions, session.calls) == (fed, calls)
        for b, rows in enumerate(scored.logits.split([k + 1 for k in ks])):
            whole = plain.causal([*PROMPTS[live[b]], *outputs[live[b]], *tokens[b].tolist()])
            torch.testing.assert_close(rows, whole[-ks[b] - 1 :], rtol=1e-5, atol=2e-5)
        accepted = [int(torch.randint(0, k + 1, (1,), generator=g)) for k in ks]
        session.keep([a + 1 for a in accepted])
        committed = [[*tokens[b][:a].tolist(), 20 + b] for b, a in enumerate(accepted)]
        drafting.commit(committed, None)
        for b, r in enumerate(live):
            outputs[r] = [*outputs[r], *committed[b]]
            assert session.cache.lengths[b] == len(PROMPTS[r]) + len(outputs[r]) - 1
        if number == 3:
            session.retain([0, 2])
            drafting.retain([0, 2])
            live = [0, 2]


def contents(session):
    """Everything that the cache holds, bit for bit."""
    cache = session.cache
    stored = [
        [tensor[b, :, :n].numpy().tobytes() for b, n in enumerate(cache.lengths)]
        for tensor in cache.keys + cache.values
    ]
    return list(cache.lengths), stored


def test_the_addition_acts_in_drafts_alone(folder, target, plain):
    """Logits of the target are the same to the bit with a drafting session beside it; q is not the same."""
    alone, _ = target.open([PROMPTS[1]], 40)
    without = alone.score([[4, 8, 15, 16]]).logits
    session, _ = target.open([PROMPTS[1]], 40)
    q = {}
    for lora in (True, False):
        drafter = nemotron_drafter(target, lora=lora)
        assert (drafter.describe()["lora_parameters"] > 0) is lora
        drafting = drafter.open_beside(session, [PROMPTS[1]], None, 40)
        q[lora] = drafting.propose([ask(PROMPTS[1], [4], 9)], draws(1, 9)).q
        expected = laws(plain.block([*PROMPTS[1], 4], 9, lora), [Sampling()] * 9, None, target.absent)
        torch.testing.assert_close(q[lora], expected, rtol=1e-5, atol=1e-5)
    assert (q[True] - q[False]).abs().max() > 1e-2
    assert torch.equal(session.score([[4, 8, 15, 16]]).logits, without)
    assert nemotron_drafter(target).lora, "used where the folder has it"


def test_the_mask_id_is_in_no_law_unless_it_is_kept(folder, target):
    kept = load_nemotron(str(folder), dtype="float32", device="cpu", keep_mask_id=True)
    for model in (target, kept):
        session, scores = model.open([PROMPTS[1]], 40)
        draft = (
            nemotron_drafter(model)
            .open_beside(session, [PROMPTS[1]], None, 40)
            .propose([ask(PROMPTS[1], [4], 7)], draws(1, 7))
        )
        p = laws(scores.logits, [Sampling()], None, model.absent)
        assert (draft.q[:, MASK] > 0).all() == (p[:, MASK] > 0).all() == (model is kept)
        assert not p[:, VOCAB - 1].any() and not draft.q[:, VOCAB - 1].any(), "an id without a tokenizer entry"


def test_a_request_without_room_gets_an_empty_draft_and_others_go_on(target):
    session, _ = target.open(PROMPTS[:2], 40)
    drafting = nemotron_drafter(target).open_beside(session, PROMPTS[:2], None, 40)
    asks = [ask(PROMPTS[0], [4], 0), ask(PROMPTS[1], [4], 0)]
    draft = drafting.propose(asks, draws(2, 0))
    assert draft.lengths == (0, 0) and draft.q.shape == (0, VOCAB) and drafting.positions == 0
    draft = drafting.propose([asks[0], ask(PROMPTS[1], [4], 3)], draws(2, 3))
    assert draft.lengths == (0, 3) and draft.q.isfinite().all()


def test_more_than_the_block_holds_is_refused_with_the_limit(target):
    session, _ = target.open(PROMPTS[:1], 40)
    drafting = nemotron_drafter(target).open_beside(session, PROMPTS[:1], None, 40)
    assert drafting.propose([ask(PROMPTS[0], [4], 31)], draws(1, 31)).lengths == (31,)
    with pytest.raises(ConfigError, match=r"k is 32, wanted 0\.\.31: .* try -k 31"):
        drafting.propose([ask(PROMPTS[0], [4], 32)], draws(1, 32))


def test_penalties_shape_q_as_they_shape_p(target, plain):
    """Drawn in order, each slot's law sees the drafts before it, as the target's will."""
    sampling = Sampling(temperature=0.9, repetition_penalty=1.6, presence_penalty=0.4, top_k=12)
    session, _ = target.open(PROMPTS[1:2], 40)
    asked = ask(PROMPTS[1], [4], 9, sampling)
    draft = nemotron_drafter(target).open_beside(session, PROMPTS[1:2], None, 40).propose([asked], draws(1, 9))
    tokens = draft.tokens.tolist()
    logits = plain.block([*PROMPTS[1], 4], 9, lora=True)
    expected = laws(logits, [sampling] * 9, [asked.history(tokens[:i]) for i in range(9)], target.absent)
    torch.testing.assert_close(draft.q, expected, rtol=1e-4, atol=1e-6)
    assert ((draft.q > 0).sum(-1) <= 12).all()


def test_several_passes_before_a_roll_back_count_as_one(target, plain):
    """A request may sit a pass out; what is kept reaches over all passes since the last roll-back."""
    session, _ = target.open(PROMPTS[:2], 40)
    session.score([[4, 8], [1]])
    session.score([[], [2, 3]])
    rows = session.score([[9], [6]]).logits
    for row, ids in zip(rows, ([*PROMPTS[0], 4, 8, 9], [*PROMPTS[1], 1, 2, 3, 6]), strict=True):
        torch.testing.assert_close(row, plain.causal(ids)[-1], rtol=1e-5, atol=2e-5)
    session.keep([1, 2])
    rows = session.score([[7], [7]]).logits
    for row, ids in zip(rows, ([*PROMPTS[0], 4, 7], [*PROMPTS[1], 1, 2, 7]), strict=True):
        torch.testing.assert_close(row, plain.causal(ids)[-1], rtol=1e-5, atol=2e-5)
    assert (session.calls, session.positions) == (5, 6 + 3 + 2 + 2 + 2)
