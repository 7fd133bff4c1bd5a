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

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._decode = tokenizer.decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._shown_to = 0
        self._context_from = 0
        self._held = ""

    def push(self, token: int) -> tuple[str, bool]:
        """Add a token -> the text that may be shown now, and whether a stop string was completed by it."""
        self._tokens.append(token)
        self._held += self._new_text()
        found = [at for text in self._stop if (at := self._held.find(text)) >= 0]
        if found:
            shown, self._held = self._held[: min(found)], ""
            return shown, True
        return self._release(len(self._held) - self._possible_stop()), False

    def flush(self) -> str:
        """The rest: text held for a stop string that never came, and bytes that never became a character."""
        rest = self._decode(self._tokens[self._context_from :])
        known = self._decode(self._tokens[self._context_from : self._shown_to])
        self._shown_to = self._context_from = len(self._tokens)
        self._held += rest[len(known) :]
        return self._release(len(self._held))

    def _new_text(self) -> str:
        """Text of the tokens since the last complete character, read with the tokens before them as context."""
        known = self._decode(self._tokens[self._context_from : self._shown_to])
        whole = self._decode(self._tokens[self._context_from :])
        if whole.endswith(_INCOMPLETE) or len(whole) <= len(known):
            return ""
        self._context_from, self._shown_to = self._shown_to, len(self._tokens)
        return whole[len(known) :]

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
