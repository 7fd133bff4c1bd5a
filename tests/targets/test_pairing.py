"""Two vocabularies, token by token."""

import pytest

from nsd.errors import PairMismatch
from nsd.targets.pairing import check_pair, compare
from nsd.targets.toy import ByteTokenizer, LetterTokenizer, TableTarget


class Words:
    def __init__(self, *words):
        self.words = words

    def token_text(self, token):
        return self.words[token] if token < len(self.words) else None


def test_the_first_different_token_is_printed():
    a, b = Words("x", "y", "same", "one", "p"), Words("x", "y", "same", "two", "q")
    with pytest.raises(PairMismatch, match="token 3 is 'one' for big and 'two' for small") as caught:
        compare(a, 5, b, 5, "big", "small")
    assert "\n" not in str(caught.value)


def test_a_hole_in_one_of_them_is_a_difference():
    with pytest.raises(PairMismatch, match="token 1 is 'y' for big and absent for small"):
        compare(Words("x", "y", "z"), 3, Words("x", None, "z"), 3, "big", "small")


def test_padding_of_the_head_does_not_count():
    words = Words("x", "y", "z")
    for a, b in ((3, 8), (8, 3), (5, 6)):
        assert compare(words, a, Words("x", "y", "z"), b, "big", "small").shared == 3


def test_one_may_end_earlier():
    pairing = compare(Words("x", "y", "z"), 3, Words("x", "y"), 4, "big", "small")
    assert (pairing.shared, pairing.target_only, pairing.drafter_only) == (2, 1, 0)
    assert "never drafted" in pairing.note
    pairing = compare(Words("x"), 1, Words("x", "y"), 2, "big", "small")
    assert (pairing.shared, pairing.drafter_only) == (1, 1)
    assert "cut off" in pairing.note


def test_nothing_in_common():
    with pytest.raises(PairMismatch, match="share no token"):
        compare(Words("x"), 1, Words(), 4, "big", "small")


def test_targets_are_compared_by_tokenizer():
    assert check_pair(TableTarget(8), TableTarget(8, seed=1)).shared == 8
    with pytest.raises(PairMismatch, match="token 0 is"):
        check_pair(TableTarget(8, tokenizer=LetterTokenizer(8)), TableTarget(8, tokenizer=ByteTokenizer()))
