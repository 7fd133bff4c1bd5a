"""Prompt lookup against a search through the whole text."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nsd.drafters.base import Ask
from nsd.drafters.ngram import DEFAULT_K, NGramDrafter
from nsd.drafters.none import NoDrafter
from nsd.errors import ConfigError
from nsd.laws import Sampling
from nsd.verification import DraftLaw

IDS = st.integers(0, 2)
U = torch.zeros(1, 1, dtype=torch.float64)


def searched(text, k, max_n, min_n):
    """The definition, by brute force."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if n <= len(text) and text[end - n : end] == text[-n:]:
                return text[end : end + k]
    return []


def ask(prompt, output, k):
    return Ask(k, output[-1], prompt, output, Sampling())


def proposals(draft):
    return [part.tolist() for part in draft.tokens.split(list(draft.lengths))]


@given(
    prompts=st.lists(st.lists(IDS, min_size=1, max_size=12), min_size=1, max_size=3),
    blocks=st.lists(st.tuples(st.lists(IDS, min_size=1, max_size=5), st.integers(0, 6)), max_size=6),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    leave=st.integers(0, 8),
)
def test_proposals_are_those_of_a_search_through_the_text(prompts, blocks, sizes, leave):
    min_n, max_n = sizes
    session = NGramDrafter(max_n, min_n).open(prompts, None, 0)
    outputs = [[b] for b in range(len(prompts))]
    for number, (ids, k) in enumerate(blocks):
        ks = [k + b for b in range(len(prompts))]
        draft = session.propose([ask(*of) for of in zip(prompts, outputs, ks, strict=True)], U)
        assert draft.law is DraftLaw.POINT and draft.q is None
        expected = [searched(p + o, n, max_n, min_n) for p, o, n in zip(prompts, outputs, ks, strict=True)]
        assert proposals(draft) == expected
        committed = [ids[b:] or ids for b in range(len(prompts))]
        session.commit(committed, None)
        outputs = [o + new for o, new in zip(outputs, committed, strict=True)]
        if number == leave and len(prompts) > 1:
            session.retain([1])
            prompts, outputs = prompts[1:2], outputs[1:2]


def test_the_longest_suffix_wins_and_of_its_occurrences_the_latest():
    text = [1, 2, 3, 7, 7, 9, 2, 3, 8, 5, 2, 3, 6, 1, 2]
    session = NGramDrafter(3, 2).open([text], None, 0)
    assert proposals(session.propose([ask(text, [3], 4)], U)) == [[7, 7, 9, 2]]
    session = NGramDrafter(2, 2).open([text], None, 0)
    assert proposals(session.propose([ask(text, [3], 4)], U)) == [[6, 1, 2, 3]]


def test_no_occurrence_no_draft():
    session = NGramDrafter().open([[1, 2, 3], [4, 5, 4]], None, 0)
    draft = session.propose([ask([1, 2, 3], [4], DEFAULT_K), ask([4, 5, 4], [5], DEFAULT_K)], U)
    assert draft.lengths == (0, 2)
    assert draft.tokens.tolist() == [4, 5]


class CountedList(list):
    """Counts the ids that are read from it."""

    read = 0

    def __getitem__(self, index):
        got = super().__getitem__(index)
        self.read += len(got) if isinstance(index, slice) else 1
        return got


def test_a_step_reads_what_was_committed_not_the_whole_text():
    prompt = CountedList([i % 50 for i in range(5000)])
    session = NGramDrafter().open([prompt], None, 0)
    index = session._indices[0]
    index.ids = CountedList(index.ids)
    output = CountedList([0])
    prompt.read = 0
    for _ in range(50):
        output.read = index.ids.read = 0
        draft = session.propose([ask(prompt, output, 4)], U)
        assert draft.lengths == (4,)
        assert output.read <= 5 + 1
        assert index.ids.read <= 5 * (4 + 3 + 2) + (4 + 3 + 2) + 4
        output += [*draft.tokens.tolist(), (int(draft.tokens[-1]) + 1) % 50]
    assert prompt.read == 0


@pytest.mark.parametrize(("max_n", "min_n"), [(1, 2), (2, 0)])
def test_sizes_out_of_order_are_refused(max_n, min_n):
    with pytest.raises(ConfigError, match=f"sizes are {min_n} to {max_n}, wanted 1 <= min_n <= max_n"):
        NGramDrafter(max_n, min_n)


def test_describe_names_k_and_the_sizes():
    facts = NGramDrafter().describe()
    assert (facts["law"], facts["k"], facts["max_k"]) == ("point", 4, None)
    assert (facts["max_n"], facts["min_n"]) == (4, 2)


def test_none_drafts_nothing():
    drafter = NoDrafter()
    session = drafter.open([[1], [2]], None, 4)
    draft = session.propose([ask([1], [1], 3), ask([2], [1], 3)], U)
    assert draft.lengths == (0, 0) and draft.tokens.dtype == torch.long
    session.commit([[1], [2]], None)
    session.retain([1])
    assert session.propose([ask([2], [1], 3)], U).lengths == (0,)
    assert (drafter.default_k, drafter.max_k) == (0, 0)
