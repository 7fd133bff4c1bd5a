"""The leakage guard: no training text may share thirteen words in a row with a held-out prompt or a benchmark.

Words are compared in lower case, without punctuation. A text of fewer words counts as a whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nsd.errors import ConfigError
from nsd.targets.base import Tokenizer
from nsd.train.corpus import Corpus

LENGTH = 13
"""Words in a row that betray a copy."""

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Lower-case words of a text."""
    return _WORD.findall(text.lower())


class Guard:
    """Knows the n-grams of what must stay unseen."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.grams: dict[int, set[tuple[str, ...]]] = {}
        for text in texts:
            mine = words(text)
            size = min(len(mine), LENGTH)
            for i in range(len(mine) - size + 1 if size else 0):
                self.grams.setdefault(size, set()).add(tuple(mine[i : i + size]))

    def overlap(self, text: str) -> str | None:
        """Words that a text shares with what must stay unseen, None if there are none."""
        mine = words(text)
        for size, known in self.grams.items():
            for i in range(len(mine) - size + 1):
                if (gram := tuple(mine[i : i + size])) in known:
                    return " ".join(gram)
        return None

    def require_clean(self, prompts: Sequence[str], where: str) -> None:
        """Refuse a list of prompts if one of them overlaps. Raises ConfigError naming the first."""
        for number, prompt in enumerate(prompts, 1):
            if (shared := self.overlap(prompt)) is not None:
                raise ConfigError(
                    f"prompt {number} of {where} shares '{shared}' with held-out or excluded text, "
                    "wanted none of it in training; remove the prompt"
                )

    def refused(self, corpus: Corpus, tokenizer: Tokenizer) -> frozenset[int]:
        """Numbers of the rows whose text overlaps."""
        rows = range(len(corpus.rows))
        return frozenset(row for row in rows if self.overlap(tokenizer.decode(corpus.ids(row))) is not None)


def read_excluded(path: Path) -> list[str]:
    """Texts of a benchmark file: every string inside JSON lines, any other line as it stands. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path} ({problem}), wanted the text of a benchmark") from None
    texts: list[str] = []
    for line in lines:
        try:
            texts += _strings(json.loads(line))
        except ValueError:
            texts.append(line)
    return [text for text in texts if words(text)]


def digest(path: Path) -> str:
    """sha256 of a file, for the plan."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _strings(value: Any) -> list[str]:
    """Every string inside parsed JSON."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []
