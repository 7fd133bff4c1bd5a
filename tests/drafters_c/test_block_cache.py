"""DFlash and DSpark with a cache equal recomputation without one, over rounds in ragged batches."""

import pytest
import torch

from nsd.drafters import dflash, dspark
from nsd.drafters.base import Ask
from nsd.laws import Sampling
from tests.drafters_c import block_tools as tools

CASES = {
    "dflash z-lab": (dflash, tools.zlab),
    "dflash DeepSpec": (dflash, lambda: tools.deepspec(None)),
    "dflash speculators": (dflash, lambda: tools.speculators("dflash")),
    "dflash speculators reduced": (dflash, lambda: tools.speculators("dflash", reduced=True)),
    "dspark DeepSpec vanilla": (dspark, lambda: tools.deepspec("vanilla")),
    "dspark DeepSpec gated": (dspark, lambda: tools.deepspec("gated")),
    "dspark nested rnn": (dspark, lambda: tools.nested("rnn")),
    "dspark speculators reduced": (dspark, lambda: tools.speculators("dspark", "rnn", reduced=True)),
    "dspark speculators behind the anchor": (
        dspark,
        lambda: tools.speculators("dspark", "rnn", sample_from_anchor=False),
    ),
}


@pytest.fixture(scope="module")
def target():
    return tools.PlainTarget()


def by_hand(made, target, taps, anchor, tokens):
    """q of the proposals `tokens`, from the description alone, without any cache: [k, V]."""
    w, block = made.tensors, made.config["block_size"]
    embed = target.model.get_input_embeddings().weight
    embed = w.get("embed_tokens.weight", embed)
    head = w.get("lm_head.weight", target.model.lm_head.weight)
    states = tools.plain_block(made, taps, anchor, lambda ids: embed[ids], block)
    from_anchor = made.config.get("sample_from_anchor", made.config["architectures"][0] != "DFlashDraftModel")
    first = 0 if from_anchor else 1
    logits = states @ head.T
    if "markov_head.markov_w1.weight" in w:
        memory = torch.zeros(tools.RANK)
        for slot in range(first + len(tokens)):
            before = anchor if slot <= first else tokens[slot - first - 1]
            token = w["markov_head.markov_w1.weight"][before]
            if "markov_head.gate_proj.weight" in w:
                both = torch.cat((states[slot], token))
                gate = w["markov_head.gate_proj.weight"] @ both + w["markov_head.gate_proj.bias"]
                token = token * torch.sigmoid(gate)
            if "markov_head.joint_proj.weight" in w:
                both = torch.cat((memory, token, states[slot]))
                out = w["markov_head.joint_proj.weight"] @ both + w["markov_head.joint_proj.bias"]
                keep, new, read = out[:7].sigmoid(), out[7:14].tanh(), out[14:].tanh()
                memory = keep * memory + (1 - keep) * new
                token = read
            logits[slot] = logits[slot] + w["markov_head.markov_w2.weight"] @ token
    q = torch.softmax(logits[first : first + len(tokens)], -1)
    if "d2t" not in w:
        return q
    whole = torch.zeros(len(tokens), tools.VOCAB)
    whole[:, torch.arange(tools.DRAFT_VOCAB) + w["d2t"]] = q
    return whole


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_rounds_in_a_ragged_batch(name, target, tmp_path):
    module, make = CASES[name]
    made = make()
    drafter = module.load(target, made.write(tmp_path))
    g = torch.Generator().manual_seed(11)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=g))

    sequences = [[number(0, 59) for _ in range(n)] for n in (5, 1, 9, 3)]
    prompts = [list(s) for s in sequences]
    _, states = target.states(sequences, drafter.taps)
    session = drafter.open(prompts, states, 4)  # less room than needed: the cache has to grow
    fed = sum(map(len, sequences))
    for s in sequences:
        s.append(number(0, 59))
    for step in range(5):
        # Some requests want fewer proposals, one of them none at all.
        ks = [drafter.max_k - (b + step) % 3 if (b + step) % 4 else 0 for b in range(len(sequences))]
        asks = [Ask(k, s[-1], p, s[len(p) :], Sampling()) for k, s, p in zip(ks, sequences, prompts, strict=True)]
        draft = session.propose(asks, torch.rand(len(ks), max(ks), generator=g, dtype=torch.float64))
        fed += made.config["block_size"] * sum(k > 0 for k in ks)
        assert draft.lengths == tuple(ks)
        at = 0
        for b, k in enumerate(ks):
            if k:
                _, taps = target.states([sequences[b][:-1]], drafter.taps)
                mine = by_hand(made, target, taps, sequences[b][-1], draft.tokens[at : at + k].tolist())
                torch.testing.assert_close(draft.q[at : at + k], mine, rtol=1e-5, atol=1e-5)
            at += k
        # Any pattern of accepted lengths; what is committed need not be what was drafted.
        committed = [[number(0, 59) for _ in range(number(0, k + 1) + 1)] for k in ks]
        kept = [[s[-1], *new[:-1]] for s, new in zip(sequences, committed, strict=True)]
        whole = [s[:-1] + inputs for s, inputs in zip(sequences, kept, strict=True)]
        states = [target.states([w], drafter.taps)[1][-len(inputs) :] for w, inputs in zip(whole, kept, strict=True)]
        session.commit(committed, torch.cat(states))
        fed += sum(map(len, kept))
        for s, new in zip(sequences, committed, strict=True):
            s.extend(new)
        assert session.cache.lengths == [len(s) - 1 for s in sequences]
        if step == 2:
            session.retain([0, 2, 3])
            sequences, prompts = ([x[b] for b in (0, 2, 3)] for x in (sequences, prompts))
    # Everything was fed once: no prefix was ever read again.
    assert session.positions == fed


@pytest.mark.parametrize("name", ["dflash z-lab", "dspark DeepSpec vanilla"])
@torch.no_grad()
def test_after_rollback_as_if_freshly_opened(name, target, tmp_path):
    module, make = CASES[name]
    drafter = module.load(target, make().write(tmp_path))
    g = torch.Generator().manual_seed(12)
    prompt, more = [3, 1, 4, 1, 5], [9, 2, 6]
    _, taps = target.states([prompt + more[:-1]], drafter.taps)
    grown = drafter.open([prompt], taps[:5], 20)
    u = torch.rand(1, drafter.max_k, generator=g, dtype=torch.float64)
    grown.propose([Ask(drafter.max_k, more[0], prompt, more[:1], Sampling())], u)
    grown.commit([more[1:]], taps[5:])
    fresh = drafter.open([prompt + more[:-1]], taps, 20)
    asks = [Ask(3, more[-1], prompt, more, Sampling())]
    one, two = (s.propose(asks, u[:, :3]) for s in (grown, fresh))
    assert one.tokens.tolist() == two.tokens.tolist()
    torch.testing.assert_close(one.q, two.q, rtol=1e-5, atol=1e-5)
    assert grown.cache.lengths == fresh.cache.lengths == [7]


@pytest.mark.parametrize("name", ["dflash z-lab", "dspark DeepSpec gated"])
@torch.no_grad()
def test_fewer_proposals_are_the_first_of_a_full_block(name, target, tmp_path):
    module, make = CASES[name]
    drafter = module.load(target, make().write(tmp_path))
    prompt = [3, 1, 4, 1, 5]
    _, taps = target.states([prompt], drafter.taps)
    u = torch.rand(1, drafter.max_k, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    session = drafter.open([prompt], taps, 20)
    whole = session.propose([Ask(drafter.max_k, 7, prompt, [7], Sampling())], u)
    for k in range(1, drafter.max_k):
        part = session.propose([Ask(k, 7, prompt, [7], Sampling())], u[:, :k])
        assert part.tokens.tolist() == whole.tokens[:k].tolist()
        torch.testing.assert_close(part.q, whole.q[:k])
    nothing = session.propose([Ask(0, 7, prompt, [7], Sampling())], u[:, :0])
    assert nothing.lengths == (0,) and nothing.q.shape == (0, tools.VOCAB)


@torch.no_grad()
def test_what_a_request_gets_does_not_depend_on_the_others(target, tmp_path):
    drafter = dspark.load(target, tools.deepspec("gated").write(tmp_path))
    g = torch.Generator().manual_seed(13)
    prompts = [torch.randint(59, (n,), generator=g).tolist() for n in (2, 6, 4)]
    u = torch.rand(3, drafter.max_k, generator=g, dtype=torch.float64)
    asks = [Ask(drafter.max_k - b, 8 + b, p, [8 + b], Sampling()) for b, p in enumerate(prompts)]
    together = drafter.open(prompts, target.states(prompts, drafter.taps)[1], 9).propose(asks, u)
    at = 0
    for b, prompt in enumerate(prompts):
        alone = drafter.open([prompt], target.states([prompt], drafter.taps)[1], 9).propose([asks[b]], u[b : b + 1])
        k = asks[b].k
        assert alone.tokens.tolist() == together.tokens[at : at + k].tolist()
        torch.testing.assert_close(alone.q, together.q[at : at + k], rtol=1e-5, atol=1e-6)
        at += k
