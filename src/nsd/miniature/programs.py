"""mini-code: short Python functions over a list of whole numbers, asked for by a docstring.

    def calc_score(nums):
        \"\"\"Sum of x * 3 + 7 for x in nums if x is even.\"\"\"

The program is a loop with a comment, and many ways to write it: names, order, plain or augmented assignment, guard or
condition. Held out: function names, compositions (what is reduced, mapped and filtered), and the ranges of constants.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from nsd.errors import ConfigError
from nsd.miniature.phrases import VOICES, Style, Teller
from nsd.miniature.splits import Sample, Split, check_split, held_out
from nsd.miniature.words import ARGUMENTS, CODED, NOUNS, VERBS

TESTS = 6
"""Calls that a program must answer; the first is on an empty list."""

HELD_OUT_CONSTANTS = frozenset((*range(6, 9), *range(15, 18), *range(24, 27)))


@dataclass(frozen=True, slots=True)
class Reduce:
    """How a list becomes one value: words of the docstring, start, statement (plain, augmented), meaning."""

    words: str
    start: str
    plain: str
    augmented: str
    call: Callable[[list[int]], object]


REDUCES: dict[str, Reduce] = {
    "sum": Reduce("Sum of", "0", "{a} = {a} + {m}", "{a} += {m}", sum),
    "negsum": Reduce("Minus the sum of", "0", "{a} = {a} - {m}", "{a} -= {m}", lambda xs: -sum(xs)),
    "list": Reduce("List of", "[]", "{a} = {a} + [{m}]", "{a}.append({m})", list),
    "back": Reduce("Reversed list of", "[]", "{a} = [{m}] + {a}", "{a}.insert(0, {m})", lambda xs: xs[::-1]),
    "max": Reduce("Maximum or 0 of", "0", "{a} = max({a}, {m})", "{a} = max({m}, {a})", lambda xs: max([0, *xs])),
    "min": Reduce("Minimum or 0 of", "0", "{a} = min({a}, {m})", "{a} = min({m}, {a})", lambda xs: min([0, *xs])),
    "last": Reduce("Last or 0 of", "0", "{a} = {m}", "{a} = {m}", lambda xs: xs[-1] if xs else 0),
}
MAPS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "same": ("{x}", lambda x, c: x),
    "add": ("{x} + {c}", lambda x, c: x + c),
    "sub": ("{x} - {c}", lambda x, c: x - c),
    "mul": ("{x} * {c}", lambda x, c: x * c),
    "square": ("{x} * {x}", lambda x, c: x * x),
    "from": ("{c} - {x}", lambda x, c: c - x),
    "rest": ("{x} % {c}", lambda x, c: x % c),
}
# filter -> (words, condition, its negation, meaning)
FILTERS: dict[str, tuple[str, str, str, Callable[[int, int], bool]]] = {
    "even": ("x is even", "{x} % 2 == 0", "{x} % 2 != 0", lambda x, c: x % 2 == 0),
    "odd": ("x is odd", "{x} % 2 == 1", "{x} % 2 != 1", lambda x, c: x % 2 == 1),
    "above": ("x is above {c}", "{x} > {c}", "{x} <= {c}", lambda x, c: x > c),
    "below": ("x is below {c}", "{x} < {c}", "{x} >= {c}", lambda x, c: x < c),
    "multiple": ("{c} divides x", "{x} % {c} == 0", "{x} % {c} != 0", lambda x, c: x % c == 0),
    "not": ("x is not {c}", "{x} != {c}", "{x} == {c}", lambda x, c: x != c),
}


@dataclass(frozen=True, slots=True)
class Dial:
    """Difficulty: maps after one another, filters that must all hold, constants 2..most."""

    maps: tuple[int, int] = (1, 2)
    filters: tuple[int, int] = (1, 2)
    most: int = 29

    def __post_init__(self) -> None:
        if not (1 <= self.maps[0] <= self.maps[1] and 0 <= self.filters[0] <= self.filters[1] <= 2):
            raise ConfigError(f"got maps {self.maps}, filters {self.filters}, wanted 1 <= from <= to, filters 0 to 2")
        if self.most < 9:
            raise ConfigError(f"got constants to {self.most}, wanted at least 9; the smallest held-out range is 6..8")


@dataclass(frozen=True, slots=True)
class Spec:
    """What a function computes: reduce over maps (in order) of the elements that pass all filters, with constants."""

    reduce: str
    maps: tuple[tuple[str, int], ...]
    filters: tuple[tuple[str, int], ...]

    def __call__(self, numbers: list[int]) -> object:
        """The value, by the meaning of the words; no program is involved."""
        kept = [x for x in numbers if all(FILTERS[name][3](x, c) for name, c in self.filters)]
        for name, c in self.maps:
            kept = [MAPS[name][1](x, c) for x in kept]
        return REDUCES[self.reduce].call(kept)

    @property
    def template(self) -> str:
        """The composition without its numbers."""
        return "|".join((self.reduce, "+".join(m for m, _ in self.maps), "+".join(f for f, _ in self.filters)))


@dataclass(frozen=True, slots=True)
class Coding:
    """A function to write: the text of prompt and solution, its name, what it computes."""

    sample: Sample
    entry: str
    spec: Spec


def problems(split: Split, seed: int = 0, style: Style | None = None, dial: Dial | None = None) -> Iterator[Coding]:
    """Functions of one split without end, the same for the same arguments; no prompt twice."""
    check_split(split)
    style, dial = style or Style(), dial or Dial()
    draw = random.Random(f"mini-code/{split}/{seed}")
    phrasing = random.Random(f"mini-code/{split}/{seed}/{style.name}")
    seen: set[str] = set()
    while True:
        coding = _coding(split == "test", draw, phrasing, style, dial)
        if coding is not None and coding.sample.prompt not in seen:
            seen.add(coding.sample.prompt)
            yield coding


def tests_of(entry: str, spec: Spec, seed: str) -> str:
    """The hidden tests of a function, as asserts."""
    draw = random.Random(f"tests/{seed}")
    lists = [[], *([draw.randint(1, 40) for _ in range(draw.randint(3, 8))] for _ in range(TESTS - 1))]
    return "".join(f"assert {entry}({numbers!r}) == {spec(numbers)!r}\n" for numbers in lists)


def _coding(test: bool, draw: random.Random, phrasing: random.Random, style: Style, dial: Dial) -> Coding | None:
    constants = _constants(test, dial.most)
    maps = tuple((draw.choice(list(MAPS)), draw.choice(constants)) for _ in range(draw.randint(*dial.maps)))
    chosen = draw.sample(list(FILTERS), draw.randint(*dial.filters))
    spec = Spec(draw.choice(list(REDUCES)), maps, tuple((name, draw.choice(constants)) for name in chosen))
    if held_out("composition", spec.template) != test:
        return None
    entry, argument = draw.choice(_names(test)), draw.randrange(len(ARGUMENTS))
    used = tuple(c for name, c in (*spec.maps, *spec.filters) if name not in ("same", "square", "even", "odd"))
    if not used:
        return None
    teller = Teller(CODED, phrasing, style.settled(phrasing), argument % VOICES)
    prompt, solution = _prompt(entry, ARGUMENTS[argument], spec), _solution(ARGUMENTS[argument], spec, teller)
    return Coding(Sample(prompt, solution, solution, entry, spec.template, used, teller.nats), entry, spec)


@cache
def _names(test: bool) -> tuple[str, ...]:
    return tuple(name for name in (a + b for a in VERBS for b in NOUNS) if held_out("function", name) == test)


@cache
def _constants(test: bool, most: int) -> tuple[int, ...]:
    return tuple(c for c in range(2, most + 1) if (c in HELD_OUT_CONSTANTS) == test)


def _mapped(spec: Spec, x: str) -> list[str]:
    """The expressions of the maps, each over x."""
    return [MAPS[name][0].format(x=x, c=c) for name, c in spec.maps]


def _prompt(entry: str, argument: str, spec: Spec) -> str:
    maps = " then ".join(_mapped(spec, "x"))
    filters = " and ".join(FILTERS[name][0].format(c=c) for name, c in spec.filters)
    condition = f" if {filters}" if filters else ""
    return f'def {entry}({argument}):\n    """{REDUCES[spec.reduce].words} {maps} for x in {argument}{condition}."""'


def _solution(argument: str, spec: Spec, t: Teller) -> str:
    """A loop with comments: start, guard or condition, the maps but the last as assignments, the update, return."""
    a, x, r = t.say("acc"), t.say("each"), REDUCES[spec.reduce]
    lines = ["    #" + "".join(t.say(slot) for slot in ("plan", "over", "all", "things", "how"))]
    lines += [f"    {a} = {r.start}", f"    for {x} in {argument}:"]
    inner = "        "
    if spec.filters:
        lines += _comment(t, 0.9, inner, "keep", "only", "fit", "things", "how")
        guard = t.choose("guard", 2)
        lines.append(f"{inner}if {_condition(spec, x, guard, t)}:")
        if guard:
            lines.append(f"{inner}    continue")
        else:
            inner += "    "
    *first, last = _mapped(spec, x)
    lines += [f"{inner}{x} = {expression}" for expression in first]
    lines += _comment(t, 0.9, inner, "turn", "what", "with", "how")
    update = (r.plain, r.augmented)[t.choose("update", 2)]
    if spec.reduce == "negsum" and (" + " in last or " - " in last):
        last = f"({last})"
    lines.append(inner + update.format(a=a, m=last))
    lines += _comment(t, 0.9, "    ", "done", "what", "how")
    lines.append(f"    return {a}")
    return "\n" + "\n".join(lines)


def _comment(t: Teller, probability: float, indent: str, *slots: str) -> list[str]:
    """A comment of these slots, or none."""
    return [f"{indent}#{''.join(t.say(slot) for slot in slots)}"] if t.chance(probability) else []


def _condition(spec: Spec, x: str, guard: int, t: Teller) -> str:
    """All filters hold, or for a guard that one of them does not; two of them in either order."""
    filters = list(spec.filters)
    if len(filters) == 2 and t.choose("swap", 2):
        filters.reverse()
    return (" or " if guard else " and ").join(
        (FILTERS[f][2] if guard else FILTERS[f][1]).format(x=x, c=c) for f, c in filters
    )
