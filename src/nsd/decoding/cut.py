"""Where a block ends for good: end-of-text, a stop string or the length limit, whichever comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nsd.decoding.text import TextStream
from nsd.events import FinishReason


def cut(
    tokens: Sequence[int],
    room: int,
    eos: frozenset[int],
    stream: TextStream,
    until: Callable[[int], bool] | None = None,
) -> tuple[list[str], FinishReason | None]:
    """Text of each token that is kept, and why the request ends, if it does.

    room is how many tokens may still be emitted; until says whether the first n tokens of this block complete the text.
    A token that ends the text is kept in the ids and shows no text of its own; on one token EOS comes before a stop
    string, a stop string before the length.
    """
    texts: list[str] = []
    for token in tokens:
        if token in eos:
            return [*texts, stream.flush()], FinishReason.EOS
        text, stopped = stream.push(token)
        texts.append(text)
        if stopped:
            return texts, FinishReason.STOP
        if until is not None and until(len(texts)):
            texts[-1] += stream.flush()
            return texts, FinishReason.STOP
        if len(texts) == room:
            texts[-1] += stream.flush()
            return texts, FinishReason.LENGTH
    return texts, None
