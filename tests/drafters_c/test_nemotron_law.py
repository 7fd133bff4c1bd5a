"""What Nemotron draws and emits, against exact laws: q, standard speculation both ways, nucleus speculation.

Every statistical test fails by chance with probability FALSE_ALARMS at most.
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import stats

from nsd.api import Pair
from nsd.decoding import Decoder, Request
from nsd.drafters.base import Ask
from nsd.drafters.nemotron import load as nemotron_drafter
from nsd.events import Origin
from nsd.laws import Purpose, Sampling, laws, uniforms
from nsd.rules import NSD, SD, SampleAndMatch
from nsd.targets.nemotron import load as load_nemotron
from nsd.verification import Accounting
from tests.drafters_c.nemotron_checkpoint import MASK, Plain, write_folder

FALSE_ALARMS = 1e-6
VOCAB = 7
PROMPT = (2, 4, 0, 6, 1)
BATCH, DRAWS, K = 2000, 20_000, 7
SAMPLINGS = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.6),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(temperature=1.4, top_p=0.8),
    "banned": Sampling(banned=(1,)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("nemotron") / "small", vocab=VOCAB, lora=True, seed=4)


@pytest.fixture(scope="module")
def target(folder):
    return load_nemotron(str(folder), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def plain(folder):
    return Plain(folder)


def chi_square(observed, expected):
    """p value of counts against expected counts; cells that expect fewer than five are put together."""
    assert not observed[expected == 0].any()
    enough = expected >= 5
    cells = [(o, e) for o, e in zip(observed[enough], expected[enough], strict=True)]
    rest = (observed[~enough].sum(), expected[~enough].sum())
    if rest[1] >= 5:
        cells.append(rest)
    assert len(cells) > 1
    return stats.chi2.sf(sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1)


def drawn(target, sampling):
    """20,000 blocks behind one prefix: tokens [DRAWS, K] and the returned q [K, V], the same for all to rounding."""
    session, _ = target.open([PROMPT] * BATCH, 20)
    drafting = nemotron_drafter(target).open_beside(session, [PROMPT] * BATCH, None, 20)
    asks = [Ask(K, 3, PROMPT, [3], sampling)] * BATCH
    tokens, q = [], None
    for block in range(DRAWS // BATCH):
        keys = np.arange(BATCH)[:, None]
        u = torch.from_numpy(uniforms(17, keys, np.arange(K), Purpose.DRAFT, block))
        draft = drafting.propose(asks, u)
        tokens.append(draft.tokens.view(BATCH, K))
        rows = draft.q.view(BATCH, K, -1)
        q = rows[0] if q is None else q
        torch.testing.assert_close(rows, q.expand_as(rows), rtol=1e-5, atol=1e-6)
    return torch.cat(tokens).numpy(), q.double().numpy()


@pytest.mark.parametrize("name", SAMPLINGS)
def test_q_is_the_law_of_the_draw_at_every_slot_and_slots_are_independent(target, plain, name):
    tokens, q = drawn(target, SAMPLINGS[name])
    expected = laws(plain.block([*PROMPT, 3], K, lora=True), [SAMPLINGS[name]] * K, None, target.absent)
    np.testing.assert_allclose(q, expected.numpy(), rtol=1e-4, atol=1e-5)
    tests = len(SAMPLINGS) * (2 * K - 1)
    for i in range(K):
        counts = np.bincount(tokens[:, i], minlength=VOCAB)
        assert chi_square(counts, q[i] / q[i].sum() * DRAWS) > FALSE_ALARMS / tests, i
    for i in range(K - 1):
        counts = np.bincount(tokens[:, i] * VOCAB + tokens[:, i + 1], minlength=VOCAB**2)
        both = np.outer(q[i], q[i + 1]).ravel()
        assert chi_square(counts, both / both.sum() * DRAWS) > FALSE_ALARMS / tests, i


def decode(target, rule, count, new, sampling=None, lora=None, first=0, accounting=Accounting.OFF, k=K):
    """`count` requests with one prompt in one batch -> their blocks, request by request."""
    requests = [
        Request(PROMPT, rule, sampling or Sampling(), k, new, seed=23, key=first + i, ignore_eos=True)
        for i in range(count)
    ]
    blocks = [[] for _ in requests]
    for block in Decoder(target, nemotron_drafter(target, lora=lora), requests, accounting):
        blocks[block.request].append(block)
    return blocks


def text(blocks):
    return [c.token for block in blocks for c in block.committed]


def two_token_counts(target, rule, sampling, lora):
    """Counts of the two tokens that follow each request's first one, which plain decoding draws: [V, V, V]."""
    counts = np.zeros((VOCAB,) * 3)
    for first in range(0, 8000, BATCH):
        for blocks in decode(target, rule, BATCH, 4, sampling, lora, first):
            counts[tuple(text(blocks)[:3])] += 1
    return counts


def exact_counts(plain, target, sampling, total):
    """The target's law over a first token and the two after it, by enumeration: [V, V, V]."""
    expected = np.zeros((VOCAB,) * 3)
    for a, b in product(range(VOCAB), repeat=2):
        p = laws(plain.causal([*PROMPT, a, b])[-3:], [sampling] * 3, None, target.absent).double().numpy()
        p /= p.sum(-1, keepdims=True)
        expected[a, b] = p[0, a] * p[1, b] * p[2]
    return expected * total


@pytest.mark.parametrize(("sampling", "lora"), [(Sampling(), True), (Sampling(temperature=0.7, top_k=4), False)])
def test_the_ratio_test_keeps_the_targets_law_over_two_tokens(target, plain, sampling, lora):
    expected = exact_counts(plain, target, sampling, 8000).ravel()
    counts = two_token_counts(target, SD(), sampling, lora).ravel()
    assert chi_square(counts, expected) > FALSE_ALARMS / 2
    if lora:
        other = two_token_counts(target, NSD(0.9), sampling, lora).ravel()
        assert chi_square(other, expected) < FALSE_ALARMS, "a lossy rule would be noticed"


def test_sample_and_match_equals_plain_decoding_token_for_token(target):
    matched = [text(blocks) for blocks in decode(target, SampleAndMatch(), 60, 40)]
    requests = [Request(PROMPT, SD(), Sampling(), 0, 40, seed=23, key=i, ignore_eos=True) for i in range(60)]
    plainly = [[] for _ in requests]
    for block in Decoder(target, None, requests):
        plainly[block.request] += [c.token for c in block.committed]
    assert matched == plainly
    assert MASK not in {token for tokens in plainly for token in tokens}


def test_the_ratio_test_accepts_more_than_matching(target):
    """Both in expectation: sum min(p, q) against sum pq."""
    accepted = {}
    for rule in (SD(), SampleAndMatch()):
        blocks = [block for one in decode(target, rule, 200, 20) for block in one]
        accepted[rule.name] = np.mean([block.accepted for block in blocks if block.drafted])
    assert 0 < accepted["sample-and-match"] < accepted["sd"]


def test_the_deviation_of_nucleus_speculation_is_the_recorded_excess(target, plain):
    """P(y in A) - p(A) = ES for A = {pi > p}, pi the emitted law: a mean over requests, each with its own anchor."""
    rule, gaps, recorded, of_anchor = NSD(0.9), [], [], {}
    for first in range(0, 8000, BATCH):
        requests = [
            Request(PROMPT, rule, Sampling(), K, 9, seed=29, key=first + i, ignore_eos=True) for i in range(BATCH)
        ]
        decoder = Decoder(target, nemotron_drafter(target), requests, Accounting.FULL)
        decoder.start()
        for block in decoder.step():
            anchor = decoder.sequences[block.request].output[0]
            if anchor not in of_anchor:
                rows = [plain.causal([*PROMPT, anchor])[-1:], plain.block([*PROMPT, anchor], K, lora=True)[:1]]
                p, q = (laws(r, [Sampling()], None, target.absent).double() for r in rows)
                more = rule.emitted(p, q)[0] > p[0] + 1e-9
                inside = (q - p).clamp_min(0)[0][rule.whole_set(p)[0]].sum()
                of_anchor[anchor] = (more.tolist(), float(p[0, more].sum()), float(inside))
            more, mass, inside = of_anchor[anchor]
            gaps.append(more[block.committed[0].token] - mass)
            recorded.append(block.tested[0].ES)
            assert abs(recorded[-1] - inside) < 1e-5
    gaps = np.array(gaps)
    error = gaps.std() / np.sqrt(len(gaps))
    assert abs(gaps.mean() - np.mean(recorded)) < stats.norm.isf(FALSE_ALARMS / 2) * error
    assert gaps.mean() > stats.norm.isf(FALSE_ALARMS / 2) * error, "the deviation is there to be seen"


def test_text_of_a_request_does_not_depend_on_its_batch(target):
    together = [text(blocks) for blocks in decode(target, NSD(0.9), 12, 30)]
    for i in (0, 7, 11):
        assert text(decode(target, NSD(0.9), 1, 30, first=i)[0]) == together[i]


@pytest.mark.parametrize("k", [1, 3, 31])
@pytest.mark.parametrize("rule", [SD(), NSD(0.95), SampleAndMatch()])
def test_any_k_up_to_the_limit_decodes_a_ragged_batch_to_the_end(target, k, rule):
    pair = Pair(target, nemotron_drafter(target))
    prompts = [[1], [2, 3, 6, 0], [4] * 40]
    answers = pair.generate(prompts, rule=rule, k=k, max_new_tokens=50, ignore_eos=True, temperature=1.0, seed=3)
    for answer in answers:
        assert len(answer.token_ids) == 50
        drafted = [len(block.drafted) for block in answer.blocks]
        assert max(drafted) == k
        assert all(c.origin is not Origin.REJECTED for block in answer.blocks for c in block.committed)
