"""Tests of chance for chain drafters: draws against q, and whole decoding runs against the target's law.

Every one is a chi-square or binomial test at LEVEL; there are fewer than 40 of them, so that a false alarm of any has
probability below 1e-6. Seeds are fixed.
"""

import torch
from scipy.stats import binomtest, chi2

from nsd.decoding import Decoder, Request
from nsd.drafters.base import Ask
from nsd.events import Origin
from nsd.laws import Purpose, Sampling, laws, uniforms
from nsd.rules import make_rule
from nsd.verification import Accounting, Branch, Uniforms, verify

LEVEL = 1e-6 / 40
DRAWS = 20_000
PROMPT = [3, 1, 4]
SAMPLINGS = {"plain": Sampling(), "cut": Sampling(temperature=0.8, top_k=6, top_p=0.95)}


def require_law(counts, law, least=5.0):
    """Pearson's test of counts [n, V] against laws [n, V]; cells that expect few are merged row by row."""
    statistic, freedom = 0.0, 0
    for row, p in zip(counts.double(), law.double(), strict=True):
        assert row[p == 0].sum() == 0
        expected = row.sum() * p
        big = expected >= least
        seen, wanted = (
            [*row[big].tolist(), float(row[~big].sum())],
            [*expected[big].tolist(), float(expected[~big].sum())],
        )
        if wanted[-1] < least:
            seen, wanted = seen[:-1], wanted[:-1]
        statistic += sum((a - b) ** 2 / b for a, b in zip(seen, wanted, strict=True))
        freedom += max(len(wanted) - 1, 0)
    assert freedom > 0
    assert chi2.sf(statistic, freedom) > LEVEL, (statistic, freedom)


def of_draws(first, count, k):
    """Uniforms of drafts as the decoding loop keys them: [count, k]."""
    requests = torch.arange(first, first + count).unsqueeze(-1).numpy()
    return torch.from_numpy(uniforms(9, requests, torch.arange(k).numpy(), Purpose.DRAFT, 0))


@torch.no_grad()
def check_draws(target, drafter, sampling, k=3):
    """20,000 blocks at one prefix: at every depth, tokens given those before them are spread as q says."""
    scores = target.open([PROMPT], 2, drafter.taps)[1]
    session = drafter.open([PROMPT] * DRAWS, scores.taps.repeat(DRAWS, 1, 1), k + 2)
    draft = session.propose([Ask(k, 5, PROMPT, [5], sampling)] * DRAWS, of_draws(0, DRAWS, k))
    vocab = target.vocab
    x, q = draft.tokens.view(DRAWS, k), draft.q.view(DRAWS, k, vocab)
    for depth in range(k):
        before = (x[:, :depth] * vocab ** torch.arange(depth)).sum(-1)
        counts, rows = [], []
        for value in before.unique():
            group = before == value
            assert (q[group, depth] - q[group, depth][0]).abs().max() < 1e-6, "q depends on the tokens before alone"
            if group.sum() >= 100:
                counts.append(torch.bincount(x[group, depth], minlength=vocab))
                rows.append(q[group, depth][0])
        require_law(torch.stack(counts), torch.stack(rows))
    assert len(x[:, 0].unique()) > 3, "the draws differ"


def target_law(target, last):
    """The target's law of the two tokens after PROMPT + [last]: [V, V]."""
    vocab = target.vocab
    with torch.no_grad():
        ids = torch.tensor([[*PROMPT, last, x] for x in range(vocab)])
        p = torch.softmax(target.model(input_ids=ids, use_cache=False).logits[:, -2:].double(), -1)
    return p[0, 0].unsqueeze(-1) * p[:, 1]


def check_decoding(target, drafter, k=2, batch=1000, count=DRAWS):
    """Standard speculation by the loop itself: two tokens behind the first one follow the target's law."""
    vocab, rule = target.vocab, make_rule("sd")
    counts = torch.zeros(vocab, vocab, vocab)
    origins = dict.fromkeys(Origin, 0)
    for first in range(0, count, batch):
        requests = [
            Request(tuple(PROMPT), rule, Sampling(), k, 3, key=first + i, seed=4, ignore_eos=True) for i in range(batch)
        ]
        decoder = Decoder(target, drafter, requests)
        for block in decoder:
            for committed in block.committed:
                origins[committed.origin] += 1
        outputs = torch.tensor([sequence.output for sequence in decoder.sequences])
        counts.index_put_(tuple(outputs.T), torch.ones(batch), accumulate=True)
    given = [a for a in range(vocab) if counts[a].sum() >= 100]
    require_law(counts[given].flatten(1), torch.stack([target_law(target, a) for a in given]).flatten(1))
    assert min(origins[o] for o in (Origin.RATIO, Origin.RECOVERED, Origin.BONUS)) > 100, origins


@torch.no_grad()
def check_nucleus(target, drafter, theta=0.9):
    """20,000 proposals under NSD: the emitted token follows the emitted law, whose distance from p is ES."""
    scores = target.open([PROMPT], 2, drafter.taps)[1]
    session = drafter.open([PROMPT] * DRAWS, scores.taps.repeat(DRAWS, 1, 1), 3)
    draft = session.propose([Ask(1, 5, PROMPT, [5], Sampling())] * DRAWS, of_draws(50_000, DRAWS, 1))
    opened, _ = target.open([PROMPT], 6)
    p = laws(opened.score([[5]]).logits, [Sampling()])
    after = torch.full_like(p, 1.0 / p.shape[-1])  # the bonus row, of no interest here
    g = torch.Generator().manual_seed(8)
    chance = Uniforms(*(torch.rand(2 * DRAWS, generator=g, dtype=torch.float64) for _ in range(3)))
    verdict = verify(
        draft, torch.cat((p, after)).repeat(DRAWS, 1), [make_rule("nsd", theta=theta)] * DRAWS, chance, Accounting.FULL
    )
    emitted = torch.where(verdict.accepted > 0, draft.tokens, verdict.final.token)
    p, q = p[0].double(), draft.q[0].double()
    order = p.argsort(descending=True)
    inside = torch.zeros(len(p), dtype=torch.bool)
    inside[order[p[order].cumsum(0) - p[order] < theta]] = True
    over, left = (q - p).clamp_min(0), (p - q).clamp_min(0)
    law = torch.minimum(p, q) + over * inside + (over * ~inside).sum() * left / left.sum()
    ES = float((over * inside).sum())
    assert abs(float((law - p).clamp_min(0).sum()) - ES) < 1e-6
    assert ES > 0.01, (p, q)
    assert (verdict.columns.ES - ES).abs().max() < 1e-6
    require_law(torch.bincount(emitted, minlength=len(p))[None], law[None])
    rescued = int((verdict.branch == Branch.RESCUED).sum())
    assert binomtest(rescued, DRAWS, ES).pvalue > LEVEL, (rescued / DRAWS, ES)
