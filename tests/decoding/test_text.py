"""Text leaves whole: no half characters, nothing of a stop string, nothing taken back."""

from hypothesis import given
from hypothesis import strategies as st

from nsd.decoding.cut import cut
from nsd.decoding.text import TextStream
from nsd.events import FinishReason
from nsd.targets.toy import EOS_BYTE, ByteTokenizer

TOKENIZER = ByteTokenizer()
EOS = frozenset({EOS_BYTE})


def streamed(tokens, stop=()):
    stream = TextStream(TOKENIZER, stop)
    pieces = []
    for token in tokens:
        text, stopped = stream.push(token)
        pieces.append(text)
        if stopped:
            return pieces, True
    return [*pieces, stream.flush()], False


@given(st.text(max_size=40))
def test_edge_case_26_no_half_character_is_ever_shown(text):
    pieces, _ = streamed(text.encode())
    assert "".join(pieces) == text
    assert all("�" not in piece for piece in pieces) or "�" in text


@given(st.binary(max_size=40))
def test_broken_bytes_end_up_as_decoded_whole(raw):
    pieces, _ = streamed(raw)
    assert "".join(pieces) == raw.decode(errors="replace")


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_edge_case_13_text_ends_before_the_earliest_stop_string(text, stop):
    pieces, stopped = streamed(text.encode(), stop)
    # The first character at which some stop string is complete ends the text before its earliest beginning.
    ends = [(text.index(s) + len(s), text.index(s)) for s in stop if s in text]
    if not ends:
        assert not stopped
        assert "".join(pieces) == text
        return
    first = min(end for end, _ in ends)
    begins = [begin for end, begin in ends if end == first]
    assert stopped
    assert len(pieces) == first
    assert "".join(pieces) == text[: min(begins)]


def test_text_that_may_begin_a_stop_string_is_held_and_then_shown():
    stream = TextStream(TOKENIZER, ("\nUser:",))
    assert [stream.push(b)[0] for b in b"a\nUs"] == ["a", "", "", ""]
    assert stream.push(ord("!")) == ("\nUs!", False)


def test_edge_case_12_eos_ends_the_block_inside():
    stream = TextStream(TOKENIZER)
    texts, reason = cut([104, 105, EOS_BYTE, 33, 33], room=10, eos=EOS, stream=stream)
    assert (texts, reason) == (["h", "i", ""], FinishReason.EOS)


def test_edge_case_14_the_earliest_reason_wins():
    def run(tokens, room, stop=()):
        return cut(tokens, room, EOS, TextStream(TOKENIZER, stop))[1]

    assert run([104, 105, 33, EOS_BYTE], 3) is FinishReason.LENGTH
    assert run([104, EOS_BYTE, 33], 3) is FinishReason.EOS
    assert run([104, 105, 33], 3, ("i!",)) is FinishReason.STOP
    assert run([104, 105, EOS_BYTE], 3, ("i",)) is FinishReason.STOP
    assert run([104, EOS_BYTE], 2) is FinishReason.EOS
    assert run([104, 105], 3) is None


def test_length_shows_what_was_held():
    texts, reason = cut(list(b"ab\n"), 3, EOS, TextStream(TOKENIZER, ("\nX",)))
    assert ("".join(texts), reason) == ("ab\n", FinishReason.LENGTH)
