"""Drafts over a reduced vocabulary are those over the whole one, where all other ids have no mass."""

import pytest
import torch

from nsd.drafters import eagle3
from nsd.drafters.base import Ask
from nsd.drafters.checkpoint import spread
from nsd.drafters.drawing import Drawing, Pen
from nsd.laws import Sampling
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_tools as chains

VOCAB, IDS = 23, torch.tensor([1, 2, 5, 7, 11, 12, 17, 20])
SAMPLINGS = {
    "plain": Sampling(),
    "cool": Sampling(temperature=0.7),
    "argmax": Sampling(temperature=0.0),
    "truncated": Sampling(top_k=5, top_p=0.9, min_p=0.05),
    "banned": Sampling(banned=(2, 3, 20)),
    "penalised": Sampling(repetition_penalty=1.5, frequency_penalty=0.4),
}


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("absent", [(), (0, 7, 22)])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_reduced_and_whole_draw_the_same(sampling, absent, greedy):
    generator = torch.Generator().manual_seed(len(sampling))
    gone = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, torch.tensor(absent, dtype=torch.long), True)
    asks = [Ask(3, 2, [3, 5, 2], [], SAMPLINGS[sampling]), Ask(2, 7, [1], [7], SAMPLINGS[sampling])]
    u = torch.rand(2, 3, generator=generator)
    reduced, whole = (
        Drawing(Pen(greedy, VOCAB, gone, torch.device("cpu"), ids), asks, (3, 2), u) for ids in (IDS, None)
    )
    for depth, rows in enumerate((2, 2, 1)):
        logits = 2 * torch.randn(rows, len(IDS), generator=generator)
        assert reduced.next(logits, depth).tolist() == whole.next(spread(logits, IDS, VOCAB), depth).tolist()
    mine, theirs = reduced.draft(), whole.draft()
    assert mine.tokens.tolist() == theirs.tokens.tolist() and mine.lengths == theirs.lengths
    if greedy:
        assert mine.q is None and theirs.q is None
    else:
        torch.testing.assert_close(mine.q, theirs.q, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_reduced_and_whole_draw_the_same_at_once(sampling, greedy):
    generator = torch.Generator().manual_seed(len(sampling))
    asks = [Ask(3, 2, [3, 5, 2], [], SAMPLINGS[sampling]), Ask(2, 7, [1], [7], SAMPLINGS[sampling])]
    u, logits = torch.rand(2, 3, generator=generator), 2 * torch.randn(5, len(IDS), generator=generator)
    drafts = []
    for ids, given in ((IDS, logits), (None, spread(logits, IDS, VOCAB))):
        drawing = Drawing(Pen(greedy, VOCAB, None, torch.device("cpu"), ids), asks, (3, 2), u)
        drawing.at_once(given)
        drafts.append(drawing.draft())
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    if not greedy:
        torch.testing.assert_close(drafts[0].q, drafts[1].q, rtol=1e-6, atol=1e-7)


def test_a_row_without_a_law_is_not_a_number_at_every_id():
    pen = Pen(False, VOCAB, None, torch.device("cpu"), IDS)
    drawing = Drawing(pen, [Ask(2, 1, [1], [], Sampling())], (2,), torch.full((1, 2), 0.5))
    logits = torch.zeros(1, len(IDS))
    drawing.next(logits, 0)
    drawing.next(logits.fill_(torch.nan), 1)
    q = drawing.draft().q
    assert q[0].isfinite().all() and q[1].isnan().all()


def test_the_order_of_ids_in_a_checkpoint_does_not_matter(tmp_path):
    target = tools.PlainTarget(vocab=61, seed=5)
    made = chains.eagle_safeai()
    drafts = []
    for name, order in (("rising", None), ("mixed", torch.randperm(len(made.tensors["d2t"])))):
        w = made.tensors
        if order is not None:
            ids = (torch.arange(len(order)) + w["d2t"])[order]
            w["lm_head.weight"], w["d2t"] = w["lm_head.weight"][order], ids - torch.arange(len(order))
        drafter = eagle3.load(target, made.write(tmp_path / name))
        _, scores = target.open([[5, 9, 4]], 8, drafter.taps)
        session = drafter.open([[5, 9, 4]], scores.taps, 8)
        drafts.append(session.propose([Ask(3, 30, [5, 9, 4], [30], Sampling())], torch.tensor([[0.2, 0.5, 0.9]])))
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    assert torch.equal(drafts[0].q, drafts[1].q)
