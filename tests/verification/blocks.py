"""Batches for tests of verify(): many requests, ragged lengths, laws from logits, all from seeds."""

import torch

from nsd.laws import Sampling, draw, laws
from nsd.verification import Draft, DraftLaw, Uniforms


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def numbers(n, seed):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniforms(rows, seed=0):
    return Uniforms(*(numbers(rows, 10 * seed + part) for part in (1, 2, 3)))


def sampled_batch(lengths, vocab, dtype=torch.float32, seed=0, spread=3.0):
    """Draft, p and uniforms of one batch; q is drawn from, p is near q."""
    n, m = sum(lengths), sum(lengths) + len(lengths)
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(m, vocab, generator=generator) * spread
    rows = torch.cat([torch.arange(k) + sum(lengths[:b]) + b for b, k in enumerate(lengths)])
    drafter = target[rows] + torch.randn(n, vocab, generator=generator)
    p = laws(target.to(dtype), [Sampling()] * m)
    q = laws(drafter.to(dtype), [Sampling(temperature=0.9)] * n)
    tokens = draw(q, numbers(n, seed + 5))
    return Draft(tokens, tuple(lengths), DraftLaw.SAMPLED, q), p, uniforms(m, seed)


def only(draft, p, chance, b):
    """Request b of a batch, alone."""
    start, k = sum(draft.lengths[:b]), draft.lengths[b]
    token_rows, target_rows = slice(start, start + k), slice(start + b, start + b + k + 1)
    alone = Draft(draft.tokens[token_rows], (k,), draft.law, None if draft.q is None else draft.q[token_rows])
    return alone, p[target_rows], Uniforms(*(u[target_rows] for u in (chance.accept, chance.residual, chance.target)))


def single(p, q, x, u=0.5, residual_u=0.5, target_u=0.5):
    """One drafted token: p and q as lists (q None = point mass); the bonus row is p again."""
    rows = column(p, p)
    law = DraftLaw.POINT if q is None else DraftLaw.SAMPLED
    draft = Draft(torch.tensor([x]), (1,), law, None if q is None else column(q))
    return draft, rows, Uniforms(*(column(v, v) for v in (u, residual_u, target_u)))
