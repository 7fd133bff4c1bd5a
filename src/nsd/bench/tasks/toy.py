"""Toy: 48 small problems made from a seed, without data files, that a model of 135 million parameters solves in part.

Eight kinds: repeat a word, repeat a list, write in capitals, continue a count, add, name a capital, name an opposite,
name the first word. Half are chat requests, half are texts with two worked examples to continue (small models copy a
pattern better than they follow a request). Scores compare arms on one machine within minutes; they say nothing about
a model.

Extraction, fixed for each kind: the first non-empty line, without quotes, stars and a label up to a colon ("Answer:
..."); then `line` is that line without a final dot, `word` its last word, `number` its last number. Equality is
exact, but letter case is ignored where the request does not fix it.

Source: own problems and own rule.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsd.bench.task import Problem, Row, Score, Task

SEED = 20261130
WORDS = re.findall(
    r"\w+",
    """
    river lantern garden window marble copper thunder pencil harbor velvet orange falcon meadow silver basket rocket
    candle forest hammer island jacket kitten ladder mirror needle oyster pepper rabbit saddle ticket valley walnut
""",
)
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo", "Russia": "Moscow",
    "England": "London", "China": "Beijing", "Greece": "Athens", "Egypt": "Cairo",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "up": "down", "big": "small", "day": "night", "open": "closed", "left": "right", "black": "white",
    "early": "late", "high": "low", "old": "new",
}  # fmt: skip

Draw = Callable[[random.Random], tuple[str, str, str]]  # -> (what is given, the answer, the request around the given)


def _copy(draw: random.Random) -> tuple[str, str, str]:
    word = draw.choice(WORDS)
    return word, word, "Repeat this word and write nothing else: {}"


def _list(draw: random.Random) -> tuple[str, str, str]:
    words = ", ".join(draw.sample(WORDS, 6))
    return words, words, "Repeat this list exactly and write nothing else: {}"


def _capitals(draw: random.Random) -> tuple[str, str, str]:
    word = draw.choice(WORDS)
    return word, word.upper(), "Write this word in capital letters and write nothing else: {}"


def _count(draw: random.Random) -> tuple[str, str, str]:
    start = draw.randint(1, 60)
    return ", ".join(str(start + i) for i in range(7)), str(start + 7), "Which number comes next? {}"


def _add(draw: random.Random) -> tuple[str, str, str]:
    a, b = draw.randint(1, 9), draw.randint(1, 9)
    return f"{a} + {b}", str(a + b), "What is {}? Answer with one number."


def _capital(draw: random.Random) -> tuple[str, str, str]:
    country = draw.choice(list(CAPITALS))
    return country, CAPITALS[country], "What is the capital of {}?"


def _opposite(draw: random.Random) -> tuple[str, str, str]:
    word = draw.choice(list(OPPOSITES))
    return word, OPPOSITES[word], "What is the opposite of {}? Answer with one word."


def _first(draw: random.Random) -> tuple[str, str, str]:
    words = draw.sample(WORDS, 4)
    return " ".join(words), words[0], "What is the first word of this line? {}"


# kind -> (how it is drawn, how the answer is read, the label of its worked examples)
KINDS: dict[str, tuple[Draw, str, str]] = {
    "copy": (_copy, "line", "Copy"),
    "list": (_list, "line", "Copy"),
    "capitals": (_capitals, "word", "Capitals"),
    "count": (_count, "number", "Next"),
    "add": (_add, "number", "Sum"),
    "capital": (_capital, "word", "Capital"),
    "opposite": (_opposite, "word", "Opposite"),
    "first": (_first, "word", "First word"),
}


def read(text: str, form: str) -> str | None:
    """The answer in the first line that is not empty: that `line`, its last `word`, or its last `number`."""
    lines = [line for line in text.split("\n") if line.strip(" \t\"'`*.")]
    if not lines:
        return None
    line = re.sub(r"^[\w ]{1,30}:\s+", "", lines[0].strip().replace("*", ""))
    line = line.strip(" \t\"'`").rstrip(".!").strip(" \"'`")
    if form == "line":
        return line or None
    found = re.findall(r"-?\d+" if form == "number" else r"[A-Za-z]+", line)
    return found[-1] if found else None


class Toy(Task):
    """The same 48 problems on every machine."""

    name, title, metric, size, max_new_tokens = "toy", "Toy", "accuracy", 48, 40
    source = "own problems from a seed; answer: first line, read as line, word or number"

    @property
    def options(self) -> dict[str, Any]:
        """The seed of the problems."""
        return {"seed": SEED}

    def load(self, data_dir: Path | None = None, limit: int | None = None) -> list[Problem]:
        """Made, not read; any limit takes all kinds in turn."""
        self.check_limit(limit)
        draw = random.Random(SEED)
        seen: set[str] = set()
        rows = [_row(kind, chat, draw, seen) for _ in range(3) for chat in (True, False) for kind in KINDS]
        return [self.problem(index, row) for index, row in enumerate(rows[:limit])]

    def available(self, data_dir: Path | None) -> bool:
        """No data are needed."""
        return True

    def problem(self, index: int, row: Row) -> Problem:
        """The reference is the answer and how it is read."""
        exact = row["kind"] in ("copy", "list", "capitals")
        reference = {"answer": row["answer"], "form": row["form"], "exact_case": exact}
        meta = {"kind": row["kind"]}
        return Problem(f"toy/{index:02d}-{row['kind']}", row["prompt"], row["chat"], reference, meta)

    def score(self, problem: Problem, text: str) -> Score:
        """Exact equality after extraction."""
        wanted, form, exact = (problem.reference[key] for key in ("answer", "form", "exact_case"))
        got = read(text, form)
        if got is None:
            return Score(False, None, f"no {form} in the text")
        same = got == wanted if exact else got.lower() == wanted.lower()
        return Score(same, got, f"{form}; {'equal' if same else f'wanted {wanted}'}")


def _row(kind: str, chat: bool, draw: random.Random, seen: set[str]) -> Row:
    sample, form, label = KINDS[kind]
    given, answer, request = sample(draw)
    while f"{kind} {given}" in seen:  # no question twice, and no worked example that is the question
        given, answer, request = sample(draw)
    seen.add(f"{kind} {given}")
    prompt = request.format(given)
    if not chat:
        shown: dict[str, str] = {}
        while len(shown) < 2:
            item, result, _ = sample(draw)
            shown |= {item: result} if item != given else {}
        parts = [f"Given: {item}\n{label}: {result}\n" for item, result in shown.items()]
        prompt = "\n".join([*parts, f"Given: {given}\n{label}:"])
    return {"kind": kind, "form": form, "answer": answer, "prompt": prompt, "chat": chat}
