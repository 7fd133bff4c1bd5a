"""Read an answer out of text and judge it: numbers, mathematics, code.

Each rule says where it looked, so that a score can be explained: `boxed` (the last \\boxed with balanced braces and
something inside), `marked` (after the last "####" or "answer is"), `dollars` (the last formula between dollar signs),
`last number`. Numbers are compared exactly, as fractions; mathematics first as normalised text, then as numbers, then
by math-verify.

Source: the order boxed, then last number is that of lm-evaluation-harness (gsm8k, filters strict and flexible;
minerva_math); the normalisation follows what openai/prm800k grading/math_normalize.py takes away; both in our own
words.
"""

from __future__ import annotations

import re
from fractions import Fraction

from nsd.bench.judge import JUDGE
from nsd.bench.task import Score

NUMBER = re.compile(r"(?:[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|[-+]?\.\d+)(?:[eE][-+]?\d+)?")
FRACTION = re.compile(rf"({NUMBER.pattern})\s*/\s*({NUMBER.pattern})")
MARK = re.compile(r"####|(?:final\s+)?answer\s*(?:is|:|=)+\**", re.IGNORECASE)
SPACES = re.compile(r"(?<!\\)\\[,;: ]|~|\\quad\b|\\qquad\b|[\u00a0\u2009\u202f]")
TEX_FRACTION = r"-?(?:\d+\s*)?\\[dtc]?frac\s*(?:\{\s*-?\d+\s*\}\s*\{\s*\d+\s*\}|\d\s*\d)"
MIXED = r"-?\d+ (?P<top>\d+)/(?P<bottom>\d+)(?![\d/])"
IN_TEXT = re.compile(rf"{TEX_FRACTION}|(?<![\d.,/]){MIXED}|{FRACTION.pattern}|{NUMBER.pattern}")
DASH = re.compile(r"(?<![^\s({\[$=:])[\u2012\u2013\ufe63\uff0d](?=[\d.$\\])")  # typeset as a minus; "10-18" is a range
NAMED = re.compile(r"^[A-Za-z](?:\s*\([A-Za-z]\))?\s*(?:=|\\in(?![a-z]))\s*(?=\S)")  # x = 5, f(x) = 2x, x \in [2, 3]
UNITS = re.compile(
    r"(?<=\d)\s*(?:square |cubic |sq\.? |cu\.? )?(?:[kcm]?m|km/h|mph|inch(?:es)?|in|feet|foot|ft|yards?|yd|miles?|mi|"
    r"(?:centi|milli|kilo)?met(?:er|re)s?|units?|[km]?g|lbs?|oz|[m]?[lL]|hours?|hrs?|min(?:ute)?s?|s(?:ec(?:ond)?s?)?)"
    r"(?:\s*\^\s*\{?[23]\}?|\s*[\u00b2\u00b3])?$"
)
LONGEST = 2000  # characters of an answer; what is longer is no answer
BOXES = 50  # looked at from the end; a text that repeats itself for ever has thousands


def last_boxed(text: str) -> str | None:
    """What the last complete, non-empty \\boxed{...} or \\fbox{...} holds, braces balanced; \\boxed 5 gives 5."""
    for found in reversed(list(re.finditer(r"\\f?box(?:ed)?\b\s*", text))[-BOXES:]):
        inside = _braced(text, found.end())
        if inside is None and not text.startswith("{", found.end()):
            bare = re.match(r"[^\s${}.,]+", text[found.end() :])
            inside = bare.group() if bare else None
        if inside is not None and inside.strip():
            return (last_boxed(inside) if "box" in inside and len(inside) < LONGEST else None) or inside.strip()
    return None


def _braced(text: str, start: int) -> str | None:
    if not text.startswith("{", start):
        return None
    depth, place = 0, start
    while place < len(text):
        if text[place] == "\\":
            place += 1  # the sign after a backslash is never a brace of the group
        elif text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : place]
        place += 1
    return None


def plain(text: str) -> str:
    """The same answer without what carries no meaning: sizes, spaces, currency, units in words, a trailing dot."""
    text = text.strip().strip("$").strip()
    text = DASH.sub("-", text)
    text = re.sub(r"\\(?:text)?color\s*\{\w+\}", "", text)
    while text.startswith("{") and _braced(text, 0) == text[1:-1]:
        text = text[1:-1].strip()
    text = text.replace("\u2212", "-").replace("\\$", "").replace("\\%", "%").replace("{,}", ",")
    text = re.sub(r"(?<!\\)\\!\s*", "", text)
    text = SPACES.sub(" ", text)
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|\\boldsymbol|\\bm\b", "", text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", text)
    text = re.sub(r"\^\s*\{?\\circ\}?|\u00b0|\\degree", "", text)
    text = re.sub(r"(?<=[\d}])[\s,]*\\frac\{\\text\s*\{[^{}]*\}\}\{\\text\s*\{[^{}]*\}\}$", "", text)
    text = re.sub(r"(?<=[\d}\])])\s*\\(?:text|mathrm|mbox|textbf)\s*\{[^{}]*\}(?:\^\{?\d\}?)?\s*\.?$", "", text)
    text = re.sub(r"\\(?:text|mathrm|mbox|textbf|textit|mathbf|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    return text.strip().rstrip(".").strip()


def number(text: str) -> Fraction | None:
    """The one number that this short text is, units beside it or not; None if it holds none or several."""
    text = plain(text).replace("**", "")
    sides = [side.strip() for side in text.split("=")]
    text = next((side for side in reversed(sides) if re.search(r"\d", side)), text)
    text = UNITS.sub("", text)
    text = re.sub(r"(?<![\d.])\d{1,3}(?: \d{3})+(?![\d,.]*\d)", lambda m: m.group().replace(" ", ""), text)
    text = re.sub(r"(-?)\s*(\d+)?\s*\\frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(-?\d+)\s*\}", _fraction, text)
    text = re.sub(r"(?<![\d/.])(-?)(\d+)\s+(\d+)/(\d+)(?![\d/])", lambda m: _mixed(*m.groups()), text)
    text = re.sub(r"^([-+]?)\s*[$\u20ac\u00a3]\s*(?=[-+.\d])", r"\1", text)
    if re.search(r"\\(?!n\b)|[\^_{}*]|\d\s*[-+]\s*\d|\d!", text):
        return None  # a formula: for math-verify
    ratio = FRACTION.search(text)
    if ratio:
        rest = text[: ratio.start()] + text[ratio.end() :]
        bottom = _value(ratio.group(2))
        return None if NUMBER.search(rest) or not bottom else _value(ratio.group(1)) / bottom
    found = NUMBER.findall(text)
    return _value(found[0]) if len(found) == 1 else None


def _fraction(m: re.Match[str]) -> str:
    return _mixed(m.group(1), m.group(2) or "0", m.group(3), m.group(4))


def _mixed(sign: str, whole: str, top: str, bottom: str) -> str:
    if int(bottom) == 0:
        return "1/0"
    value = int(whole) + Fraction(int(top), int(bottom))
    return f"{-value if sign else value}"


def _value(digits: str) -> Fraction:
    digits = digits.replace(",", "")
    power = digits.lower().partition("e")[2]
    if power and abs(int(power)) > 400:
        return Fraction(0) if power.startswith("-") else Fraction(10) ** 400
    return Fraction(digits)


def last_number(text: str) -> str | None:
    """The last number in running text, as written; a/b, 2 3/4 and \\frac{3}{4} count as one."""
    text = SPACES.sub(
        "", DASH.sub("-", text.replace("\u2212", "-").replace("\\$", "")).replace("$", "").replace("{,}", ",")
    )
    found = list(IN_TEXT.finditer(text))
    if not found:
        return None
    last = found[-1]
    written = last.group()
    if last["top"] and int(last["top"]) >= int(last["bottom"]):
        written = written.split(" ", 1)[1]  # "on day 3 12/4 eggs": no mixed number
    joined = last.start() > 0 and written[0] in "+-" and text[last.start() - 1].isalnum()
    return written[1:] if joined else written  # the dash of "10-18" or "A-1" is no sign


def answer_of(text: str, *, numeric: bool) -> tuple[str | None, str]:
    """The final answer in a text and the rule that found it."""
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed[:LONGEST], "boxed"
    marks = list(MARK.finditer(text))
    if marks:
        line = text[marks[-1].end() :].strip().split("\n", 1)[0]
        formula = re.match(r"\W*\$([^$]+)\$", line)
        clause = re.split(r"[.,;](?:\s|$)|\s(?:because|since|not)\s" if numeric else r"\.(?:\s|$)", line)[0]
        said = formula.group(1) if formula else last_number(clause) if numeric else clause
        if numeric and said is not None and number(said) is None:
            said = last_number(said)
        if said and said.strip(" *:"):
            return said.strip(" *:")[:LONGEST], "marked"
    if not numeric:
        formulas = re.findall(r"\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", text, flags=re.DOTALL)
        if formulas:
            return next(part for part in formulas[-1] if part).strip()[:LONGEST], "dollars"
    return last_number(text), "last number"


def same_text(gold: str, answer: str) -> bool:
    """Whether both are the same signs without spaces, "x =", letter case of words, brackets around one letter."""
    forms = []
    for text in (gold, answer):
        form = re.sub(r"\s+", "", NAMED.sub("", plain(text)))
        choice = re.fullmatch(r"\(([A-Za-z])\)", form)
        forms.append(choice.group(1) if choice else form)
    words = all(re.fullmatch(r"[A-Za-z]{2,}", form) for form in forms)
    return forms[0].lower() == forms[1].lower() if words else forms[0] == forms[1]


def grade_number(gold: str, text: str) -> Score:
    """A question whose answer is one number."""
    said, rule = answer_of(text, numeric=True)
    if said is None:
        return Score(False, None, "no number in the text")
    want, got = number(gold), number(said)
    if got is not None:
        return Score(got == want, said, f"{rule}; {'equal' if got == want else f'wanted {gold}'}")
    return _judged(gold, said, rule)


def grade_maths(gold: str, text: str) -> Score:
    """A question whose answer is any piece of mathematics or a word."""
    said, rule = answer_of(text, numeric=False)
    if said is None:
        return Score(False, None, "no answer in the text")
    if same_text(gold, said):
        return Score(True, said, f"{rule}; same text")
    sides = [NAMED.sub("", plain(side)) for side in (gold, said)]
    if _unitless(sides[0]):
        sides[1] = UNITS.sub("", sides[1])
    want, got = (number(side) if "%" not in side and _unitless(side) else None for side in sides)
    if want is not None and got is not None:
        return Score(want == got, said, f"{rule}; {'equal' if want == got else f'wanted {gold}'}")
    return _judged(gold, said, rule)


def _unitless(text: str) -> bool:
    return not re.search(r"[A-Za-z,]", re.sub(r"\\frac|(?<=\d),(?=\d{3})", "", text))


def _judged(gold: str, said: str, rule: str) -> Score:
    same = JUDGE.same(*(NAMED.sub("", plain(side)) for side in (gold, said)))
    if same is None:
        return Score(False, said, f"{rule}; math-verify ran out of time or memory, wanted {gold}")
    return Score(same, said, f"{rule}; math-verify says {'equal' if same else f'not equal, wanted {gold}'}")
