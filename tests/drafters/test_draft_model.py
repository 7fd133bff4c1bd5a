"""A model drafts a chain: its cache holds committed tokens only, and q is the law of the draw."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from nsd.drafters.base import Ask
from nsd.drafters.draft_model import ModelDrafter
from nsd.errors import ConfigError
from nsd.laws import Purpose, Sampling, laws, uniforms
from nsd.verification import DraftLaw
from tests.drafters.prefix_model import PrefixModel

FALSE_ALARMS = 1e-6
DRAWS, BATCH, DEPTH = 20_000, 400, 3
PENALTIES = Sampling(repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3)
SAMPLINGS = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.6),
    "top-k": Sampling(top_k=3),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "min-p": Sampling(min_p=0.2),
    "penalties": PENALTIES,
    "banned": Sampling(banned=(1,)),
}


def ask(prompt, output, k, sampling=None):
    return Ask(k, output[-1], prompt, output, sampling or Sampling())


def draft_uniforms(batch, k, block=0, first=0):
    requests = torch.arange(first, first + batch).unsqueeze(-1).numpy()
    return torch.from_numpy(uniforms(11, requests, torch.arange(max(k, 1)).numpy(), Purpose.DRAFT, block))


def per_request(draft):
    tokens = [part.tolist() for part in draft.tokens.split(list(draft.lengths))]
    return tokens, (None if draft.q is None else draft.q.split(list(draft.lengths)))


def from_scratch(model, asked, drafted):
    """The laws of a request's drafts, from logits of the whole prefix: [k, V]."""
    places = range(len(drafted))
    prefixes = [[*asked.prompt, *asked.output, *drafted[:i]] for i in places]
    logits = torch.stack([model.logits(prefix) for prefix in prefixes])
    return laws(logits, [asked.sampling] * len(drafted), [asked.history(drafted[:i]) for i in places], model.absent)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_q_is_the_law_of_the_draw(name):
    """20,000 drafts against the returned q, block position by block position, chi-square within each prefix."""
    model = PrefixModel(salt=3)
    prompt, output = [0, 4, 2], [1]
    counts = [dict() for _ in range(DEPTH)]
    returned = [dict() for _ in range(DEPTH)]
    session = ModelDrafter(model, "small").open([prompt] * BATCH, None, 8)
    asks = [ask(prompt, output, DEPTH, SAMPLINGS[name])] * BATCH
    for block in range(DRAWS // BATCH):
        draft = session.propose(asks, draft_uniforms(BATCH, DEPTH, block))
        for drafted, q in zip(*per_request(draft), strict=True):
            for i, token in enumerate(drafted):
                path = tuple(drafted[:i])
                row = counts[i].setdefault(path, torch.zeros(model.vocab))
                row[token] += 1
                assert torch.equal(returned[i].setdefault(path, q[i]), q[i])
        session._session.keep([0] * BATCH)  # as if nothing had been fed: the same block once more
    for i in range(DEPTH):
        statistic, freedom = 0.0, 0
        for path, observed in counts[i].items():
            expected = returned[i][path] * observed.sum()
            assert not observed[expected == 0].any()
            cells = [(o, e) for o, e in zip(observed.tolist(), expected.tolist(), strict=True) if e >= 5]
            rest = (observed.sum() - sum(o for o, _ in cells), expected.sum() - sum(e for _, e in cells))
            cells += [rest] if rest[1] >= 5 else []
            statistic += float(sum((o - e) ** 2 / e for o, e in cells))
            freedom += max(len(cells) - 1, 0)
        assert freedom > 0
        assert stats.chi2.sf(statistic, freedom) > FALSE_ALARMS / (DEPTH * len(SAMPLINGS)), (i, statistic, freedom)


def all_patterns():
    """Every k in {0, 1, 3} for three requests with every pattern of accepted lengths."""
    for lengths in product((0, 1, 3), repeat=3):
        for accepted in product(*(range(k + 1) for k in lengths)):
            yield lengths, accepted


class Run:
    """Ragged blocks by hand: checks q against the whole prefix and what was fed against what was committed."""

    def __init__(self, prompts, samplings, salt=5):
        self.model = PrefixModel(salt=salt)
        self.prompts, self.samplings = list(prompts), list(samplings)
        self.outputs = [[b] for b in range(len(prompts))]
        self.unread = [1] * len(prompts)  # committed since the request last drafted
        self.session = ModelDrafter(self.model, "small").open(prompts, None, 40)
        self.blocks = 0

    def cached(self):
        return [len(ids) for ids in self.session._session.cached]

    def block(self, ks, accepted):
        asks = [ask(*of, s) for *of, s in zip(self.prompts, self.outputs, ks, self.samplings, strict=True)]
        before, fed_before = self.cached(), self.session.positions
        draft = self.session.propose(asks, draft_uniforms(len(ks), 4, self.blocks))
        fed = [now - then for now, then in zip(self.cached(), before, strict=True)]
        assert self.session.positions - fed_before == sum(fed)
        assert draft.lengths == tuple(ks)
        tokens, q = per_request(draft)
        committed = []
        for b, k in enumerate(ks):
            assert fed[b] <= (self.unread[b] + k - 1 if k else 0)
            if k:
                assert torch.equal(q[b], from_scratch(self.model, asks[b], tokens[b]))
                self.unread[b] = 0
            kept = tokens[b][: min(accepted[b], k)]
            committed.append([*kept, (self.blocks + b) % 5])
            self.unread[b] += len(kept) + 1
        self.session.commit(committed, None)
        for b, ids in enumerate(committed):
            self.outputs[b] = self.outputs[b] + ids
            whole = self.prompts[b] + self.outputs[b]
            held = self.session._session.cached[b]
            assert held == whole[: len(held)]
            assert len(held) >= len(whole) - self.unread[b]
            assert len(held) < len(whole)
        self.blocks += 1

    def retain(self, requests):
        self.session.retain(requests)
        for column in (self.prompts, self.samplings, self.outputs, self.unread):
            column[:] = [column[b] for b in requests]


THREE = [[0], [1, 2, 3], [4, 4]], [SAMPLINGS["top-p"], PENALTIES, SAMPLINGS["temperature"]]


def test_after_every_pattern_of_accepted_lengths_q_is_as_from_scratch():
    for lengths, accepted in all_patterns():
        run = Run(*THREE)
        run.block(lengths, accepted)
        run.block((3, 3, 3), (3, 0, 1))
        run.block((1, 3, 2), (1, 3, 2))


@settings(max_examples=50)
@given(
    blocks=st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=3), max_size=6),
    leaving=st.dictionaries(st.integers(0, 5), st.integers(0, 2)),
)
def test_long_ragged_runs_with_requests_that_end(blocks, leaving):
    run = Run(*THREE, salt=7)
    for number, block in enumerate(blocks):
        live = len(run.prompts)
        run.block([k for k, _ in block[:live]], [a for _, a in block[:live]])
        if live > 1 and number in leaving:
            run.retain([b for b in range(live) if b != leaving[number] % live])


def test_a_full_acceptance_feeds_the_last_draft_and_the_bonus_next_time():
    run = Run([[0, 1]], [Sampling()])
    run.block((3,), (3,))
    before = run.session.positions
    run.block((1,), (0,))
    assert run.session.positions - before == 2


def test_a_greedy_drafter_is_a_point_mass_at_the_argmax_after_penalties():
    model = PrefixModel(salt=2)
    prompt, output = [0, 2], [3]
    session = ModelDrafter(model, "small", greedy=True).open([prompt], None, 8)
    sampling = replace(PENALTIES, temperature=0.9, top_k=4, banned=(0,))
    draft = session.propose([ask(prompt, output, 4, sampling)], draft_uniforms(1, 4))
    assert (draft.law, draft.q, draft.lengths) == (DraftLaw.POINT, None, (4,))
    asked = ask(prompt, output, 4, replace(PENALTIES, banned=(0,)))
    law = from_scratch(model, asked, draft.tokens.tolist())
    assert draft.tokens.tolist() == law.argmax(-1).tolist()


def test_at_temperature_0_a_sampled_draft_has_one_hot_rows():
    model = PrefixModel(salt=2)
    session = ModelDrafter(model, "small").open([[0, 2]], None, 8)
    draft = session.propose([ask([0, 2], [3], 3, Sampling(temperature=0.0))], draft_uniforms(1, 3))
    assert draft.law is DraftLaw.SAMPLED
    assert torch.equal(draft.q, torch.nn.functional.one_hot(draft.tokens, 5).to(draft.q))


def test_nothing_asked_gives_an_empty_draft_and_feeds_nothing():
    session = ModelDrafter(PrefixModel(), "small").open([[0], [1]], None, 8)
    draft = session.propose([ask([0], [1], 0), ask([1], [1], 0)], draft_uniforms(2, 0))
    assert draft.lengths == (0, 0) and draft.q.shape == (0, 5)
    session.commit([[2], [2]], None)
    assert session.positions == 2


@pytest.mark.parametrize("own", [4, 9])
def test_q_spans_the_targets_vocabulary_whatever_the_drafters_is(own):
    """Ids the drafter lacks, surplus ids, and ids without a tokenizer entry on either side have q = 0."""
    absent_own = torch.zeros(own, dtype=torch.bool)
    absent_own[1] = True
    absent = torch.tensor([False, False, True, False, False, False])
    drafter = ModelDrafter(PrefixModel(own, absent=absent_own), "small", vocab=6, absent=absent)
    prompt, output = [0, 5], [3]
    session = drafter.open([prompt] * 200, None, 8)
    draft = session.propose([ask(prompt, output, 2, PENALTIES)] * 200, draft_uniforms(200, 2))
    assert draft.q.shape == (400, 6)
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(400, dtype=torch.float64))
    never = {1, 2} | set(range(own, 6))
    assert set(draft.tokens.tolist()) == set(range(6)) - never
    assert not draft.q[:, sorted(never)].any()


def test_a_committed_id_beyond_the_drafters_embedding_is_read_as_a_stand_in():
    model = PrefixModel(4)
    session = ModelDrafter(model, "small", vocab=6).open([[5, 1]], None, 8)
    draft = session.propose([ask([5, 1], [4], 1)], draft_uniforms(1, 1))
    expected = torch.softmax(model.logits([0, 1, 0]), -1)
    torch.testing.assert_close(draft.q[0], torch.cat([expected, torch.zeros(2).double()]))


def test_drafting_ends_where_the_drafters_context_does():
    drafter = ModelDrafter(PrefixModel(context=6), "small")
    prompts, outputs = [[0, 1], [0] * 6], [[2], [3]]
    session = drafter.open(prompts, None, 100)
    assert session.propose(
        [ask(p, o, 8) for p, o in zip(prompts, outputs, strict=True)], draft_uniforms(2, 8)
    ).lengths == (4, 0)
    session.commit([[1, 1, 1, 1, 1], [1]], None)
    outputs = [[2, 1, 1, 1, 1, 1], [3, 1]]
    assert session.propose(
        [ask(p, o, 8) for p, o in zip(prompts, outputs, strict=True)], draft_uniforms(2, 8)
    ).lengths == (0, 0)


def test_a_draft_does_not_depend_on_the_requests_beside_it():
    prompts, samplings = THREE
    drafter = ModelDrafter(PrefixModel(salt=9), "small")
    asks = [ask(p, [1], k, s) for p, k, s in zip(prompts, (3, 1, 2), samplings, strict=True)]
    u = draft_uniforms(3, 3)
    tokens, q = per_request(drafter.open(prompts, None, 9).propose(asks, u))
    for b in range(3):
        alone = drafter.open([prompts[b]], None, 9).propose([asks[b]], u[b : b + 1])
        assert alone.tokens.tolist() == tokens[b]
        assert torch.equal(alone.q, q[b])


def test_a_draft_row_that_is_not_finite_is_passed_on_as_such():
    model = PrefixModel()
    model.logits = lambda prefix: torch.full((5,), torch.nan if len(prefix) > 2 else 0.0)
    session = ModelDrafter(model, "small").open([[0]], None, 8)
    draft = session.propose([ask([0], [1], 2)], draft_uniforms(1, 2))
    assert draft.q[0].isfinite().all() and draft.q[1].isnan().all()
    assert 0 <= int(draft.tokens[1]) < 5


def test_absent_ids_of_another_vocabulary_are_refused():
    with pytest.raises(ConfigError, match=r"absent marks \(5,\) ids, wanted \(6,\)"):
        ModelDrafter(PrefixModel(), "small", vocab=6, absent=torch.zeros(5, dtype=torch.bool))


def test_describe_names_the_facts():
    facts = ModelDrafter(PrefixModel(4), "small", greedy=True, default_k=3, vocab=6).describe()
    assert (facts["drafter"], facts["law"], facts["k"]) == ("small", "point", 3)
    assert (facts["vocab"], facts["target_vocab"]) == (4, 6)
