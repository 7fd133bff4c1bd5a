"""The chat template as ids around a user's turn, found by comparing what the tokenizer makes of different chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsd.errors import ModelError
from nsd.targets.base import Target

_FIRST, _SECOND, _ANSWER = "Alpha", "Go on", "Yes"


@dataclass(frozen=True, slots=True)
class Frame:
    """head stands before the first user turn, ask between a user turn and its answer, again from an answer's end to the
    next user turn (None: conversations have one turn). chat is False for models without a template."""

    head: tuple[int, ...]
    ask: tuple[int, ...]
    again: tuple[int, ...] | None
    chat: bool

    @property
    def user_end(self) -> int | None:
        """The id that ends a user's turn, None where a turn cannot be sampled."""
        return self.ask[0] if self.chat and self.ask else None


def frame(target: Target) -> Frame:
    """The frame of this target's chats; a bare one (the tokenizer's prefix, if any) where it has no chat template."""
    encode = target.tokenizer.encode
    try:
        one, two = (target.tokenizer.chat([_user(text)]) for text in (_FIRST, _SECOND))
    except ModelError:
        return Frame(tuple(target.tokenizer.prefix), (), None, False)  # as a plain prompt is decoded
    head, ask = _around(one, two)
    inner = list(one[len(head) : len(one) - len(ask)])
    if inner != encode(_FIRST):  # the template touches the text at its borders: keep to whole tokens at least
        shared = len(encode(_FIRST))
        ask = tuple(one[len(head) + shared :])
    both = target.tokenizer.chat([_user(_FIRST), {"role": "assistant", "content": _ANSWER}, _user(_SECOND)])
    behind = len(one) + len(encode(_ANSWER))
    again = tuple(both[behind : len(both) - len(ask) - len(encode(_SECOND))])
    whole = [*one, *encode(_ANSWER), *again, *encode(_SECOND), *ask] == both
    return Frame(tuple(head), tuple(ask), again if whole and again and again[0] in target.eos else None, True)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _around(one: Sequence[int], two: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What two lists share at their start and at their end."""
    most = min(len(one), len(two))
    start = next((i for i in range(most) if one[i] != two[i]), most)
    end = next((i for i in range(most - start) if one[-1 - i] != two[-1 - i]), most - start)
    return tuple(one[:start]), tuple(one[len(one) - end :])
