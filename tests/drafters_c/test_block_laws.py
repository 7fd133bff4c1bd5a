"""Drafted tokens follow the q that is returned; verified, they follow the target's law.

Every test of chance here is a chi-square test at level 1e-6 / 40, so that a false alarm of any of them (fewer than 40)
has probability below 1e-6. Seeds are fixed.
"""

from itertools import product

import pytest
import torch
from scipy.stats import chi2

from nsd.drafters import dflash, dspark
from nsd.drafters.base import Ask
from nsd.laws import Sampling, laws
from nsd.rules import make_rule
from nsd.verification import Accounting, Branch, DraftLaw, Uniforms, verify
from tests.drafters_c import block_tools as tools

LEVEL = 1e-6 / 40
V = 13


def small(made):
    """The same checkpoint over a vocabulary of 13, with soft logits so that no cell of a table is empty."""
    config = made.config
    layers = config.get("transformer_layer_config", config)
    layers["vocab_size"] = V
    if "draft_vocab_size" in config:
        config["draft_vocab_size"] = V
    inner = config.get("dflash_config", config)
    inner["mask_token_id"] = V - 1
    for name, tensor in made.tensors.items():
        if name in ("embed_tokens.weight", "lm_head.weight") or "markov_w" in name:
            made.tensors[name] = tensor[:V] * (0.5 if name != "embed_tokens.weight" else 1.0)
    return made


CASES = {
    "dflash z-lab": (dflash, lambda: tools.zlab(block=4)),
    "dflash DeepSpec": (dflash, lambda: tools.deepspec(None, block=3)),
    "dspark vanilla": (dspark, lambda: tools.deepspec("vanilla", block=3, seed=1)),
    "dspark gated": (dspark, lambda: tools.nested("gated", block=3)),
    "dspark rnn": (dspark, lambda: tools.speculators("dspark", "rnn", block=3)),
}


@pytest.fixture(scope="module")
def target():
    made = tools.PlainTarget(vocab=V, layers=tools.TARGET_LAYERS, seed=5)
    made.model.lm_head.weight.mul_(0.5)
    return made


@pytest.fixture(params=CASES)
def drafter(request, target, tmp_path):
    module, make = CASES[request.param]
    return module.load(target, small(make()).write(tmp_path))


def uniform(g, *shape):
    return torch.rand(*shape, generator=g, dtype=torch.float64)


def require_law(counts, law, least=5.0):
    """Pearson's test of counts [n, V] against row laws [n, V] at LEVEL; rare cells are merged row by row."""
    statistic, freedom = 0.0, 0
    for row, p in zip(counts.double(), law.double(), strict=True):
        expected = row.sum() * p
        big = expected >= least
        o = torch.cat((row[big], row[~big].sum()[None]))
        e = torch.cat((expected[big], expected[~big].sum()[None]))
        o, e = (o, e) if e[-1] >= least else (o[:-1], e[:-1])
        assert row[p == 0].sum() == 0
        statistic += float(((o - e) ** 2 / e).sum())
        freedom += max(len(e) - 1, 0)
    assert freedom > 0
    assert chi2.sf(statistic, freedom) > LEVEL, (statistic, freedom)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_k=9, top_p=0.9)], ids=["plain", "cut"])
@torch.no_grad()
def test_q_is_the_law_of_the_draw(drafter, target, sampling):
    """20000 blocks: at every depth, tokens given those before them are spread as q says."""
    n, k = 20000, drafter.max_k
    prompt = [3, 1, 4]
    _, taps = target.states([prompt], drafter.taps)
    session = drafter.open([prompt] * n, taps.repeat(n, 1, 1), k + 2)
    draft = session.propose([Ask(k, 7, prompt, [7], sampling)] * n, uniform(torch.Generator().manual_seed(1), n, k))
    x, q = draft.tokens.view(n, k), draft.q.view(n, k, V)
    for depth in range(k):
        before = (x[:, :depth] * V ** torch.arange(depth)).sum(-1)
        counts, rows = [], []
        for value in before.unique():
            group = before == value
            assert (q[group, depth] - q[group, depth][0]).abs().max() < 1e-6, "q looks at the tokens before alone"
            if group.sum() >= 100:
                counts.append(torch.bincount(x[group, depth], minlength=V))
                rows.append(q[group, depth][0])
        require_law(torch.stack(counts), torch.stack(rows))
    if sampling.top_k:
        assert (q == 0).any()


def decode(target, drafter, rule, n, seed):
    """Two tokens after the anchor for n requests of one prompt, in as many blocks as that takes -> [n, 2], evidence."""
    g = torch.Generator().manual_seed(seed)
    prompt, anchor, k = [3, 1, 4], 7, 2
    session, scores = target.open([prompt] * n, 8, drafter.taps)
    drafts = drafter.open([prompt] * n, scores.taps, 8)
    output = [[anchor] for _ in range(n)]
    alive, evidence = list(range(n)), None
    while alive:
        asks = [Ask(k, output[b][-1], prompt, output[b], Sampling()) for b in alive]
        draft = drafts.propose(asks, uniform(g, len(alive), k))
        drafted = [d.tolist() for d in draft.tokens.split(draft.lengths)]
        scores = session.score([[output[b][-1], *d] for b, d in zip(alive, drafted, strict=True)])
        p = laws(scores.logits, [Sampling()] * len(scores.logits))
        m = len(p)
        chance = Uniforms(uniform(g, m), uniform(g, m), uniform(g, m))
        verdict = verify(draft, p, [rule] * len(alive), chance, Accounting.FULL)
        evidence = evidence or (draft, p, verdict)
        accepted, final = verdict.accepted.tolist(), verdict.final.token.tolist()
        new = [[*d[:a], f] for d, a, f in zip(drafted, accepted, final, strict=True)]
        starts = torch.tensor([0] + [length + 1 for length in draft.lengths]).cumsum(0)[:-1].tolist()
        kept = [s + i for s, tokens in zip(starts, new, strict=True) for i in range(len(tokens))]
        session.keep([len(tokens) for tokens in new])
        drafts.commit(new, scores.taps[kept])
        for b, tokens in zip(alive, new, strict=True):
            output[b].extend(tokens)
        on = [i for i, b in enumerate(alive) if len(output[b]) < 3]
        session.retain(on)
        drafts.retain(on)
        alive = [alive[i] for i in on]
    return torch.tensor([o[1:3] for o in output]), evidence


def pair_law(target):
    """The target's law of two tokens after [3, 1, 4, 7]: [V, V]."""
    logits, _ = target.states([[3, 1, 4, 7, x] for x in range(V)], ())
    p = torch.softmax(logits.view(V, 5, V), -1)
    return p[0, 3, :, None] * p[:, 4]


@torch.no_grad()
def test_standard_speculation_emits_the_targets_law(drafter, target):
    pairs, (draft, _, verdict) = decode(target, drafter, make_rule("sd"), 12000, seed=2)
    counts = torch.bincount(pairs[:, 0] * V + pairs[:, 1], minlength=V * V)
    require_law(counts[None], pair_law(target).flatten()[None])
    assert draft.law is DraftLaw.SAMPLED
    assert 0 < verdict.accepted.double().mean() < 2, "both acceptance and rejection were seen"


@torch.no_grad()
def test_nucleus_speculation_deviates_by_ES(drafter, target):
    """The first token's emitted law, from its definition: kept by ratio or set, or drawn from the residual."""
    rule = make_rule("nsd", theta=0.95)
    pairs, (draft, p, verdict) = decode(target, drafter, rule, 12000, seed=3)
    p, q = p[0].double(), draft.q[0].double()
    order = p.argsort(descending=True)
    inside = torch.zeros(V, dtype=torch.bool)
    inside[order[p[order].cumsum(0) - p[order] < 0.95]] = True
    ratio = torch.minimum(p, q)
    left = (p - q).clamp_min(0)
    rejected = ((q - p).clamp_min(0) * ~inside).sum()
    emitted = torch.where(inside, torch.maximum(q, ratio), ratio) + rejected * left / left.sum()
    assert abs(float(emitted.sum()) - 1) < 1e-6
    first = torch.zeros(len(verdict.accepted), dtype=torch.long)
    first[1:] = torch.tensor(draft.lengths).cumsum(0)[:-1]
    ES = verdict.columns.ES[first]
    assert ES.min() > 0.05 and float(ES.max() - ES.min()) < 1e-6
    assert abs(float((emitted - p).clamp_min(0).sum()) - float(ES[0])) < 1e-6
    require_law(torch.bincount(pairs[:, 0], minlength=V)[None], emitted[None])
    assert (verdict.branch == Branch.RESCUED).any()


@torch.no_grad()
def test_greedy_drafts_are_point_masses_and_exact(target, tmp_path):
    for module, make in (CASES["dflash z-lab"], CASES["dspark vanilla"]):
        drafter = module.load(target, small(make()).write(tmp_path / module.__name__), greedy=True)
        assert drafter.law is DraftLaw.POINT
        pairs, (draft, _, verdict) = decode(target, drafter, make_rule("sd"), 12000, seed=4)
        assert draft.q is None and draft.law is DraftLaw.POINT
        assert len(draft.tokens.view(-1, 2).unique(dim=0)) == 1
        counts = torch.bincount(pairs[:, 0] * V + pairs[:, 1], minlength=V * V)
        require_law(counts[None], pair_law(target).flatten()[None])
        assert 0 < verdict.accepted.double().mean() < 2


@torch.no_grad()
def test_penalties_see_the_drafted_prefix(target, tmp_path):
    """A penalty on repeats makes slots of DFlash depend on the tokens before them, and q says so."""
    drafter = dflash.load(target, small(tools.zlab(block=4)).write(tmp_path))
    sampling = Sampling(temperature=0.5, frequency_penalty=1.5, banned=(2,))
    prompt = [3, 1, 4]
    _, taps = target.states([prompt], drafter.taps)
    session = drafter.open([prompt] * 50, taps.repeat(50, 1, 1), 9)
    asks = [Ask(3, 7, prompt, [7], sampling)] * 50
    draft = session.propose(asks, uniform(torch.Generator().manual_seed(5), 50, 3))
    plain = drafter.open([prompt], taps, 9).propose([Ask(3, 7, prompt, [7], Sampling())], torch.rand(1, 3))
    assert (draft.q[:, 2] == 0).all()
    for b in range(50):
        x = draft.tokens.view(50, 3)[b].tolist()
        for depth in range(3):
            counts = torch.bincount(torch.tensor([7, *x[:depth]]), minlength=V)
            logits = (plain.q[depth].log() - 1.5 * counts) / 0.5
            logits[2] = -torch.inf
            mine = torch.softmax(logits, -1)
            torch.testing.assert_close(draft.q.view(50, 3, V)[b, depth], mine, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_absent_ids_are_never_drafted(tmp_path):
    target = tools.PlainTarget(vocab=V, seed=5)
    target.absent = torch.arange(V) >= 9
    drafter = dspark.load(target, small(tools.deepspec("vanilla", block=3)).write(tmp_path))
    _, taps = target.states([[3, 1]], drafter.taps)
    session = drafter.open([[3, 1]] * 200, taps.repeat(200, 1, 1), 9)
    draft = session.propose(
        [Ask(3, 7, [3, 1], [7], Sampling())] * 200, uniform(torch.Generator().manual_seed(6), 200, 3)
    )
    assert draft.tokens.max() < 9 and (draft.q[:, 9:] == 0).all()


class Enumerated:
    """Every block of a drafter over 5 ids, drawn by choosing uniforms inside each token's share of q."""

    def __init__(self, target, made, folder, threshold, k=3, ids=5):
        drafter = dspark.load(target, made.write(folder), threshold=threshold)
        whole = dspark.load(target, made.write(folder))
        prompt = [3, 1, 4]
        self.ids, self.k, self.target = ids, k, target
        self.blocks = list(product(range(ids), repeat=k))
        n = len(self.blocks)
        _, taps = target.states([prompt], drafter.taps)
        asks = [Ask(k, 2, prompt, [2], Sampling())] * n
        u = torch.full((n, k), 0.5, dtype=torch.float64)
        x = torch.tensor(self.blocks)
        for depth in range(k):
            q = whole.open([prompt] * n, taps.repeat(n, 1, 1), 9).propose(asks, u).q.view(n, k, ids)[:, depth].double()
            below = q.cumsum(-1).gather(-1, x[:, depth : depth + 1]) - 0.5 * q.gather(-1, x[:, depth : depth + 1])
            u[:, depth] = (below / q.sum(-1, keepdim=True)).squeeze(-1)
        full = whole.open([prompt] * n, taps.repeat(n, 1, 1), 9).propose(asks, u)
        assert full.tokens.view(n, k).equal(x), "every block was drawn"
        self.x, self.q = x, full.q.view(n, k, ids).double()
        cut = drafter.open([prompt] * n, taps.repeat(n, 1, 1), 9).propose(asks, u)
        self.lengths = cut.lengths
        at = 0
        for b, length in enumerate(cut.lengths):
            assert cut.tokens[at : at + length].tolist() == list(self.blocks[b][:length])
            assert cut.q[at : at + length].equal(full.q.view(n, k, ids)[b, :length])
            at += length
        # The target after [3 1 4 2] and any two tokens.
        logits, _ = target.states([[*prompt, 2, a, b] for a in range(ids) for b in range(ids)], ())
        p = torch.softmax(logits.double(), -1).view(ids, ids, 6, ids)
        self.p1, self.p2 = p[0, 0, 3], p[:, 0, 4]

    def emitted_pairs(self, lengths):
        """Law of the first two tokens under exact verification of each block's first lengths[b] proposals: [ids, ids].

        What follows a block is again exact, hence the target's law.
        """
        law = torch.zeros(self.ids, self.ids, dtype=torch.float64)
        for b, length in enumerate(lengths):
            x, q = self.x[b].tolist(), self.q[b]
            chance = torch.stack([q[i, x[i]] for i in range(self.k)]).prod()
            if length == 0:
                law += chance * self.p1[:, None] * self.p2
                continue
            a = x[0]
            accept = (self.p1[a] / q[0, a]).clamp_max(1)
            left = (self.p1 - q[0]).clamp_min(0)
            law += chance * (1 - accept) * (left / left.sum())[:, None] * self.p2
            if length == 1:
                law[a] += chance * accept * self.p2[a]
                continue
            c = x[1]
            second = (self.p2[a, c] / q[1, c]).clamp_max(1)
            law[a, c] += chance * accept * second
            left = (self.p2[a] - q[1]).clamp_min(0)
            law[a] += chance * accept * (1 - second) * left / left.sum()
        return law


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@torch.no_grad()
def test_the_gate_is_a_stopping_rule_by_enumeration(tmp_path, kind):
    target = tools.PlainTarget(vocab=5, seed=8)
    target.model.lm_head.weight.mul_(0.5)
    made = tools.deepspec(kind, block=3, seed=9)
    made.config.update(vocab_size=5, mask_token_id=4)
    for name in (
        "embed_tokens.weight",
        "lm_head.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
    ):
        made.tensors[name] = made.tensors[name][:5] * (0.4 if name == "lm_head.weight" else 1.0)
    made.tensors["confidence_head.proj.weight"] *= 0.7
    made.tensors["confidence_head.proj.bias"] = torch.zeros(1)
    conf = threshold_between(target, made, tmp_path)
    done = Enumerated(target, made, tmp_path, threshold=conf)
    exact = done.p1[:, None] * done.p2
    assert {1, 2, 3} & set(done.lengths) and len(set(done.lengths)) >= 2, "the gate cuts blocks at different depths"
    torch.testing.assert_close(done.emitted_pairs(done.lengths), exact, rtol=0, atol=1e-6)
    torch.testing.assert_close(done.emitted_pairs([3] * len(done.blocks)), exact, rtol=0, atol=1e-6)
    # A cut that looks at x_k itself is no stopping rule, and this test would notice.
    peeking = [0 if block[0] == 1 else n for block, n in zip(done.blocks, done.lengths, strict=True)]
    assert (done.emitted_pairs(peeking) - exact).abs().max() > 1e-3


def threshold_between(target, made, folder):
    """A threshold in the middle of the confidences of the second slot over all ids, below that of the first."""
    drafter = dspark.load(target, made.write(folder), threshold=0.5)
    prompt = [3, 1, 4]
    _, taps = target.states([prompt], drafter.taps)
    session = drafter.open([prompt], taps, 9)
    states = drafter.net.block([2], [True], session.cache)[0]
    second = drafter.head.confident(torch.arange(5), states[1].expand(5, -1)).sort().values
    first = float(drafter.head.confident(torch.tensor([2]), states[:1]))
    middle = float((second[1] + second[2]) / 2)
    assert second[0] < middle < second[-1]
    if first < middle:
        # Let the first slot pass: the bias raises both, so scale the threshold into the second slot's lower range.
        middle = float((second[0] + min(second[1], torch.tensor(first))) / 2)
    assert middle < first, "the first slot passes the gate"
    return middle
