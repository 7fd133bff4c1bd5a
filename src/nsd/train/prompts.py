"""Where training text starts: task templates filled at random, a file of one's own, and prompts that stay held out.

The built-in source needs no download. Its held-out prompts (heldout.jsonl) were written by hand and share no topic with
the slots of the templates (tasks.json). The runs between slots are short, so that no template is a 13-gram by itself.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from nsd.errors import ConfigError

HELD_OUT_SHARE = 0.05
"""Share of a file of one's own that is set aside, by the hash of each prompt."""


@dataclass(frozen=True, slots=True)
class Given:
    """A prompt whose answer is given too: the target reads it and writes nothing."""

    prompt: str
    response: str


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Prompts that no training text may touch; digest names them in a card."""

    prompts: tuple[str, ...]

    @property
    def digest(self) -> str:
        """sha256 over the hashes of all prompts, in order."""
        return hashlib.sha256("\n".join(fingerprint(prompt) for prompt in self.prompts).encode()).hexdigest()


def fingerprint(prompt: str) -> str:
    """sha256 of one prompt."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def built_in_held_out() -> HeldOut:
    """The hand-written held-out prompts: eight of each kind."""
    text = (files("nsd.train") / "heldout.jsonl").read_text(encoding="utf-8")
    return HeldOut(tuple(json.loads(line)["prompt"] for line in text.splitlines()))


@cache
def _tasks() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Templates by kind, and values by slot."""
    tasks = json.loads((files("nsd.train") / "tasks.json").read_text(encoding="utf-8"))
    return tasks["templates"], tasks["slots"]


def fill(chance: random.Random) -> str:
    """One task from the templates."""
    templates, slots = _tasks()
    text = chance.choice(templates[chance.choice(sorted(templates))])
    b = chance.randint(2, 30)
    text = text.replace("{a}", str(b + chance.randint(5, 170))).replace("{b}", str(b))
    for slot, values in slots.items():
        fixed = chance.choice(values) if slot in ("n", "thing") else None
        while "{" + slot + "}" in text:
            text = text.replace("{" + slot + "}", fixed or chance.choice(values), -1 if fixed else 1)
    return text


def read_prompts(path: Path) -> list[str]:
    """Prompts from a JSONL file: a string, or an object with `prompt` or `text`, per line. Raises ConfigError."""
    return [prompt for prompt, _ in read_texts(path)]


def read_texts(path: Path) -> list[tuple[str, str | None]]:
    """Prompts as `read_prompts`, each with the `response` beside it, None where there is none. Raises ConfigError."""
    texts: list[tuple[str, str | None]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path} ({problem}), wanted JSONL with one prompt per line") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as problem:
            raise ConfigError(f"{path}:{number} is not JSON ({problem}), wanted a line such as {{...}}") from None
        response: Any = None
        if isinstance(value, dict):
            row: dict[str, Any] = value
            value, response = row.get("prompt", row.get("text")), row.get("response")
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f'{path}:{number} holds no prompt, wanted a string or {{"prompt": "..."}}')
        if response is not None and (not isinstance(response, str) or not response.strip()):
            raise ConfigError(
                f"{path}:{number} holds an empty response, wanted text; leave the field out to have it written"
            )
        texts.append((value, response))
    if not texts:
        raise ConfigError(f"{path} holds no prompts, wanted one per line")
    return texts


def responses_of(texts: Sequence[tuple[str, str | None]], where: Path) -> dict[str, str]:
    """Given answers by their prompts. Raises ConfigError for a prompt with two of them."""
    found: dict[str, str] = {}
    for prompt, response in texts:
        if response is not None and found.setdefault(prompt, response) != response:
            raise ConfigError(
                f"{where} answers '{prompt[:40]}' in two ways, wanted one response per prompt; remove one"
            )
    return found


def set_aside(prompts: Sequence[str], share: float = HELD_OUT_SHARE) -> tuple[list[str], HeldOut]:
    """Split a file of one's own: a prompt is held out by its own hash, at least one; the order does not matter."""
    limit = int(share * 16**8)
    ordered = sorted(set(prompts), key=fingerprint)
    count = max(sum(int(fingerprint(prompt)[:8], 16) < limit for prompt in ordered), 1)
    if len(ordered) < 2:
        raise ConfigError(f"got {len(ordered)} different prompts, wanted at least 2: one trains, one is held out")
    return ordered[count:], HeldOut(tuple(ordered[:count]))
