"""Ranks of what failed the ratio test: counted by hand from the laws, in every run under full accounting."""

from __future__ import annotations

import pytest
import torch

from nsd.rules import make_rule
from nsd.verification import Accounting, Draft, DraftLaw, Uniforms, verify
from nsd.verification.types import Branch


@pytest.mark.parametrize("law", [DraftLaw.SAMPLED, DraftLaw.POINT])
@pytest.mark.parametrize("seed", range(5))
def test_failed_tokens_have_the_rank_that_a_count_gives(seed: int, law: DraftLaw) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths, vocab = (3, 0, 5, 2), 40
    n = sum(lengths)
    p = torch.softmax(2 * torch.randn(n + len(lengths), vocab, generator=g), -1)
    q = torch.softmax(2 * torch.randn(n, vocab, generator=g), -1)
    tokens = torch.multinomial(q, 1, generator=g).squeeze(-1)
    draft = Draft(tokens, lengths, q if law is DraftLaw.SAMPLED else None)
    u = torch.rand(3, n + len(lengths), generator=g, dtype=torch.float64)
    rules = [make_rule("nsd", theta=0.8), make_rule("sd"), make_rule("sd"), make_rule("nsd", theta=0.95)]
    verdict = verify(draft, p, rules, Uniforms(*u), Accounting.FULL)
    traced = verify(draft, p, rules, Uniforms(*u), Accounting.FULL, trace=True)
    row = [b + sum(lengths[:b]) + i for b, length in enumerate(lengths) for i in range(length)]
    for i, branch in enumerate(verdict.branch.tolist()):
        rank = verdict.columns.rank[i]
        if branch in (Branch.REJECTED, Branch.RESCUED):
            assert rank == 1 + int((p[row[i]] > p[row[i], tokens[i]]).sum()) == traced.columns.rank[i]
        else:
            assert rank.isnan()
    off = verify(draft, p, rules, Uniforms(*u), Accounting.OFF)
    assert torch.equal(off.branch, verdict.branch)
    assert off.columns.rank.isnan().all()
