"""Text out of tokens, piece by piece: whole characters only, nothing of a stop string, nothing ever taken back."""

from __future__ import annotations

from collections.abc import Sequence

from nsd.targets.base import Tokenizer

_INCOMPLETE = "�"


class TextStream:
    """Turns a growing list of tokens into text.

    Bytes that form no character yet are held until they do (or until `flush`); text that could be the beginning of a
    stop string is held until it is decided.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        """context: the last few ids before the text, known but not shown.

        Some decoders drop the space at the very beginning of what they are given; with context, the text does not begin
        there. Context that ends inside a character is left out.
        """
        self._decode = tokenizer.decode
        self._stop = tuple(stop)
        self._tokens: list[int] = [] if self._decode(context).endswith(_INCOMPLETE) else list(context)
        self._shown_to = len(self._tokens)
        self._context_from = 0
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """Add a token -> the text that may be shown now, and whether a stop string was completed by it."""
        self._tokens.append(token)
        fresh = self._fresh()
        # Whole characters before an incomplete one are sure already, and may complete a stop string.
        if (at := self._stop_at(self._held + fresh.rstrip(_INCOMPLETE))) is not None:
            return self._end(fresh, at), True
        if fresh and not fresh.endswith(_INCOMPLETE):
            self._context_from, self._shown_to = self._shown_to, len(self._tokens)
            self._held += fresh
        return self._release(len(self._held) - self._possible_stop()), False

    def flush(self) -> str:
        """The rest: text held for a stop string that never came, and bytes that never became a character."""
        fresh = self._fresh()
        return self._end(fresh, self._stop_at(self._held + fresh))

    def _fresh(self) -> str:
        """Text of the tokens since the last complete character, read with the tokens before them as context."""
        known = self._decode(self._tokens[self._context_from : self._shown_to])
        return self._decode(self._tokens[self._context_from :])[len(known) :]

    def _stop_at(self, text: str) -> int | None:
        """Where the earliest stop string in a text begins."""
        return min((at for stop in self._stop if (at := text.find(stop)) >= 0), default=None)

    def _end(self, fresh: str, at: int | None) -> str:
        """All that is left, up to a place in it; nothing stays behind."""
        text, self._held = self._held + fresh, ""
        self._shown_to = self._context_from = len(self._tokens)
        return text[:at]

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(text) for text in self._stop), default=1) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(text.startswith(self._held[-size:]) for text in self._stop):
                return size
        return 0

    def _release(self, size: int) -> str:
        shown, self._held = self._held[:size], self._held[size:]
        return shown
