"""mini-math: word problems of two to four steps with worked solutions, all digits of which are determined.

    Q: Marta has 24 apples. Then Marta buys 17 more. Later there are twice as many. How many are left?
    A: First we simply add 17 so 24 + 17 = 41 in total. [...] Answer: 82.

The phrasing is free (`phrases`), the equations are not. Held out: names, orders of operations, and the numbers that a
story may start with.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from nsd.errors import ConfigError
from nsd.miniature.phrases import VOICES, Style, Teller
from nsd.miniature.splits import Sample, Split, check_split, held_out
from nsd.miniature.words import ASKED, ENDINGS, ITEMS, ONSETS, OPENINGS, QUESTIONS, TOLD

KINDS = ("add", "sub", "packs", "double", "triple", "half")
HELD_OUT_STARTS = frozenset((*range(13, 17), *range(27, 31), *range(41, 45)))
NOTES = 0.35
"""How often a step is followed by a remark without content."""

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Dial:
    """Difficulty: steps from..to, start 5..most_start, operands 2..most_operand, no value above most."""

    steps: tuple[int, int] = (2, 4)
    most_start: int = 50
    most_operand: int = 49
    most: int = 199

    def __post_init__(self) -> None:
        low, high = self.steps
        if not 1 <= low <= high:
            raise ConfigError(f"got steps {low}..{high}, wanted 1 <= from <= to; try 2..4")
        if self.most_start < 44 or self.most_operand < 9 or self.most < self.most_start:
            raise ConfigError(
                "got numbers too small for the held-out ranges, wanted starts to 44, operands to 9 or more"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: value before, operands (one, two for packs, none for double, triple, half), value after."""

    kind: str
    before: int
    operands: tuple[int, ...]
    after: int


def problems(split: Split, seed: int = 0, style: Style | None = None, dial: Dial | None = None) -> Iterator[Sample]:
    """Texts of one split without end, the same for the same arguments; no prompt twice."""
    check_split(split)
    style, dial = style or Style(), dial or Dial()
    draw = random.Random(f"mini-math/{split}/{seed}")
    phrasing = random.Random(f"mini-math/{split}/{seed}/{style.name}")
    seen: set[str] = set()
    while True:
        sample = _problem(split, draw, phrasing, style, dial)
        if sample is not None and sample.prompt not in seen:
            seen.add(sample.prompt)
            yield sample


def answer_of(text: str) -> str | None:
    """The last number of a solution, None if there is none."""
    found = NUMBER.findall(text)
    return found[-1] if found else None


def drill(draw: random.Random, dial: Dial | None = None, count: int = 8) -> str:
    """A list of equations with the operands that stories have: " 24 + 17 = 41; 6 * 7 = 42; ..." """
    dial = dial or Dial()
    parts: list[str] = []
    while len(parts) < count:
        step = _step(draw.choice(KINDS), draw.randint(2, dial.most), draw, dial)
        if step is not None:
            parts += equations(step)
    return "".join(f" {part};" for part in parts[:count])


def equations(step: Step) -> list[str]:
    """One equation, or two for packs."""
    v, r = step.before, step.after
    match step.kind:
        case "add":
            return [f"{v} + {step.operands[0]} = {r}"]
        case "sub":
            return [f"{v} - {step.operands[0]} = {r}"]
        case "packs":
            m, k = step.operands
            return [f"{m} * {k} = {m * k}", f"{v} + {m * k} = {r}"]
        case "double":
            return [f"{v} * 2 = {r}"]
        case "triple":
            return [f"{v} * 3 = {r}"]
        case _:
            return [f"{v} / 2 = {r}"]


def _problem(split: Split, draw: random.Random, phrasing: random.Random, style: Style, dial: Dial) -> Sample | None:
    test = split == "test"
    kinds = tuple(draw.choice(KINDS) for _ in range(draw.randint(*dial.steps)))
    template = "-".join(kinds)
    if held_out("order", template) != test:
        return None
    name, start = draw.choice(names(test)), draw.choice(_starts(test, dial))
    steps: list[Step] = []
    for kind in kinds:
        step = _step(kind, steps[-1].after if steps else start, draw, dial)
        if step is None:
            return None
        steps.append(step)
    voice = draw.randrange(len(ITEMS))
    prompt = _prompt(name, ITEMS[voice], start, steps, draw)
    teller = Teller(TOLD, phrasing, style.settled(phrasing), voice % VOICES)
    solution = _solution(steps, teller)
    return Sample(prompt, solution, str(steps[-1].after), name, template, (start,), teller.nats)


@cache
def names(test: bool) -> tuple[str, ...]:
    """The names of one side of the split."""
    return tuple(name for name in (a + b for a in ONSETS for b in ENDINGS) if held_out("name", name) == test)


@cache
def _starts(test: bool, dial: Dial) -> tuple[int, ...]:
    return tuple(n for n in range(5, dial.most_start + 1) if (n in HELD_OUT_STARTS) == test)


def _step(kind: str, value: int, draw: random.Random, dial: Dial) -> Step | None:
    """A step of this kind from a value, None if there is none within the dial."""
    match kind:
        case "add":
            a = draw.randint(2, dial.most_operand)
            step = Step(kind, value, (a,), value + a)
        case "sub":
            a = draw.randint(2, dial.most_operand)
            step = Step(kind, value, (a,), value - a)
        case "packs":
            m, k = draw.randint(2, 9), draw.randint(2, 9)
            step = Step(kind, value, (m, k), value + m * k)
        case "double":
            step = Step(kind, value, (), value * 2)
        case "triple":
            step = Step(kind, value, (), value * 3)
        case _:
            step = Step(kind, value, (), value // 2 if value % 2 == 0 else -1)
    return step if 1 <= step.after <= dial.most else None


def _prompt(name: str, items: str, start: int, steps: list[Step], draw: random.Random) -> str:
    parts = [draw.choice(OPENINGS).format(name=name, n=f" {start}", items=items)]
    for step in steps:
        a, b = (f" {step.operands[i]}" if len(step.operands) > i else "" for i in range(2))
        parts.append(draw.choice(ASKED[step.kind]).format(name=f" {name}", a=a, b=b))
    parts.append(draw.choice(QUESTIONS).format(items=items))
    return f"Q:{''.join(parts)}\nA:"


def _solution(steps: list[Step], teller: Teller) -> str:
    parts: list[str] = []
    for step in steps:
        words = [teller.say("opener"), teller.say("subject")]
        if teller.chance(0.7):
            words.append(teller.say("adverb"))
        words.append(teller.say(step.kind))
        words.append(teller.say("link"))
        words.append(" and".join(f" {one}" for one in equations(step)))
        if teller.chance(0.6):
            words.append(teller.say("close"))
        parts.append("".join(words) + ".")
        if teller.chance(NOTES):
            parts.append(teller.say("note") + teller.say("looks") + teller.say("good") + ".")
    return "".join(parts) + teller.say("final") + f" {steps[-1].after}."
