"""Text leaves whole: no half characters, nothing of a stop string, nothing taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from nsd.decoding.cut import cut
from nsd.decoding.text import TextStream
from nsd.events import FinishReason
from nsd.targets.tokenizer import HfTokenizer
from nsd.targets.toy import EOS_BYTE, ByteTokenizer

TOKENIZER = ByteTokenizer()
EOS = frozenset({EOS_BYTE})


def streamed(tokens, stop=(), tokenizer=TOKENIZER, context=()):
    stream = TextStream(tokenizer, stop, context)
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


class PieceTokenizer:
    """Ids are places in a list of byte strings: tokens that end inside a character."""

    def __init__(self, *pieces):
        self.pieces = pieces

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


def test_a_stop_string_before_an_incomplete_character_is_found_with_its_token():
    stream = TextStream(PieceTokenizer(b"STO", b"P\xf0"), ("STOP",))
    assert [stream.push(0), stream.push(1)] == [("", False), ("", True)]
    assert stream.flush() == ""
    stream = TextStream(PieceTokenizer(b"a STO", b"P\xf0"), ("STOP",))
    assert cut([0, 1], 2, frozenset(), stream) == (["a ", ""], FinishReason.STOP)


def test_flush_ends_before_a_stop_string():
    """A character that never comes is part of what may be looked for."""
    stream = TextStream(PieceTokenizer(b"ab", b"P\xf0"), ("P\ufffd",))
    assert [stream.push(0), stream.push(1)] == [("ab", False), ("", False)]
    assert stream.flush() == ""
    assert stream.flush() == ""


PIECES = st.lists(
    st.sampled_from([b"S", b"STO", b"P", b"OP\xf0", b"P\xf0\x9f", b"\x98\x80", b"T\xc3", b"\xa9", b"\xff"]), max_size=8
)


@given(PIECES, st.sampled_from([("STOP",), ("OP", "TO"), ()]))
def test_whatever_the_pieces_no_stop_string_is_shown(pieces, stop):
    shown, stopped = streamed(range(len(pieces)), stop, PieceTokenizer(*pieces))
    text, whole = "".join(shown), b"".join(pieces).decode(errors="replace")
    assert not any(s in text for s in stop)
    assert stopped == any(s in whole for s in stop)
    assert whole.startswith(text) and (stopped or text == whole)


WORDS = ["\u2581Hello", "\u2581world", "lo", "\u2581", "!"]


def metaspace(decoder):
    """A tokenizer whose decoder drops the first space of what it is given, as those of Llama 2 and its kind do."""
    vocab = {word: i for i, word in enumerate(["<s>", "</s>", *WORDS])} | {f"<0x{b:02X}>": 7 + b for b in range(256)}
    inner = Tokenizer(BPE(vocab, [], byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoder
    return HfTokenizer(PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>"))


METASPACE = metaspace(decoders.Metaspace())
STRIP = metaspace(
    decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
)
HELLO, WORLD, LO, SPACE, BANG = range(2, 7)


@pytest.mark.parametrize("tokenizer", [METASPACE, STRIP], ids=["Metaspace", "Strip"])
def test_the_first_space_is_kept_where_the_text_goes_on_from_a_prompt(tokenizer):
    assert tokenizer.decode([HELLO, WORLD]) == "Hello world"
    assert streamed([WORLD, BANG], (), tokenizer, [HELLO])[0] == [" world", "!", ""]
    assert streamed([LO, BANG], (), tokenizer, [HELLO])[0] == ["lo", "!", ""]
    # At the beginning of everything there is no space to keep.
    assert streamed([WORLD, BANG], (), tokenizer)[0] == ["world", "!", ""]
    assert streamed([WORLD, HELLO], (" world",), tokenizer, [HELLO]) == ([""], True)


@pytest.mark.parametrize("tokenizer", [METASPACE, STRIP], ids=["Metaspace", "Strip"])
@given(
    context=st.lists(st.integers(2, 6), min_size=1, max_size=4).filter(lambda ids: ids != [SPACE]),
    tokens=st.lists(st.integers(2, 6), max_size=8),
)
def test_prompt_and_streamed_text_are_the_whole_text(tokenizer, context, tokens):
    pieces, _ = streamed(tokens, (), tokenizer, context)
    assert tokenizer.decode(context) + "".join(pieces) == tokenizer.decode([*context, *tokens])


def test_a_context_that_ends_inside_a_character_is_left_out():
    euro = "\u20ac".encode()
    assert "".join(streamed(euro[1:] + b"ok", (), TOKENIZER, euro[:1])[0]) == "\ufffd\ufffdok"
    assert "".join(streamed([7 + b for b in euro], (), STRIP, [HELLO])[0]) == "\u20ac"
