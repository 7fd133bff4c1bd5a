"""What training may see and what is kept for tests: by a hash of the thing itself, so that both sides agree.

Held out are names (pairs of syllables), templates (what is asked, without its numbers) and number ranges. A test
problem is held out in all three; a training problem in none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from nsd.errors import ConfigError

Split = Literal["train", "test"]

HELD_OUT_SHARE = 5
"""One of so many names and templates is kept for tests."""


def held_out(kind: str, name: str) -> bool:
    """Whether a name or template is kept for tests."""
    return hashlib.sha256(f"{kind}/{name}".encode()).digest()[0] % HELD_OUT_SHARE == 0


def check_split(split: str) -> None:
    """Refuse other splits."""
    if split not in ("train", "test"):
        raise ConfigError(f"got split {split!r}, wanted train or test")


@dataclass(frozen=True, slots=True)
class Sample:
    """One text: `prompt` is given, `solution` is to be written; `answer` is what it comes to.

    name, template and numbers are what is held out; nats the information in the solution's phrasing.
    """

    prompt: str
    solution: str
    answer: str
    name: str
    template: str
    numbers: tuple[int, ...]
    nats: float


@dataclass(frozen=True, slots=True)
class Leak:
    """What test problems share with training texts; all empty if nothing leaks."""

    prompts: tuple[str, ...]
    names: tuple[str, ...]
    templates: tuple[str, ...]
    numbers: tuple[int, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing is shared."""
        return not (self.prompts or self.names or self.templates or self.numbers)


def leak(train: Iterable[Sample], test: Sequence[Sample]) -> Leak:
    """Compare training texts with test problems in all that is held out."""
    seen = list(train)

    def both(what: str) -> tuple[str, ...]:
        return tuple(sorted({getattr(s, what) for s in seen} & {getattr(s, what) for s in test}))

    shared = {n for s in seen for n in s.numbers} & {n for s in test for n in s.numbers}
    return Leak(both("prompt"), both("name"), both("template"), tuple(sorted(shared)))
