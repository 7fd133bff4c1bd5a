"""Questions with one number as answer: what is read out of a text, and what counts as equal."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsd.bench.grade import grade_maths, grade_number, last_boxed, last_number, number

# (reference, text of a model, correct, what was read)
RIGHT = [
    ("18", r"She earns \boxed{18}.", "18"),
    ("18", r"She earns $\boxed{\$18}$ a day.", r"\$18"),
    ("18", r"\boxed{18.00}", "18.00"),
    ("18", r"\boxed{18 \text{ dollars}}", r"18 \text{ dollars}"),
    ("18", r"\boxed{18\text{ eggs per day}}", r"18\text{ eggs per day}"),
    ("70000", r"\boxed{70,000}", "70,000"),
    ("70000", r"\boxed{70{,}000}", "70{,}000"),
    ("70000", r"\boxed{\$70\,000}", r"\$70\,000"),
    ("70000", r"\boxed{70 000}", "70 000"),
    ("1234567", r"\boxed{1,234,567}", "1,234,567"),
    ("1,234", r"The total is \boxed{1234}", "1234"),
    ("3/4", r"\boxed{\frac{3}{4}}", r"\frac{3}{4}"),
    ("0.75", r"\boxed{\dfrac34}", r"\dfrac34"),
    ("0.5", r"\boxed{1/2}", "1/2"),
    ("1.5", r"\boxed{1\frac{1}{2}}", r"1\frac{1}{2}"),
    ("1.5", r"\boxed{1 1/2 \text{ hours}}", r"1 1/2 \text{ hours}"),
    ("-5", r"\boxed{-5}", "-5"),
    ("-5", "\\boxed{\u22125}", "\u22125"),
    ("50", r"\boxed{50\%}", r"50\%"),
    ("18", r"\boxed{x = 18}", "x = 18"),
    ("18", r"\boxed{10 + 8 = 18}", "10 + 8 = 18"),
    ("18", r"\boxed{2 \times 9}", r"2 \times 9"),
    ("4", r"\boxed{\sqrt{16}}", r"\sqrt{16}"),
    ("1024", r"\boxed{2^{10}}", "2^{10}"),
    ("18", r"First \boxed{12}, but wait: \boxed{18}", "18"),
    ("18", r"I put it within \boxed{}. So \boxed{18}. Remember \boxed{ }!", "18"),
    ("18", r"\boxed{\boxed{18}}", "18"),
    ("18", r"\fbox{18}", "18"),
    ("18", r"\boxed 18", "18"),
    ("5", r"\boxed{\text{5 apples}}", r"\text{5 apples}"),
    ("18", "9 * 2 = 18 dollars\n#### 18", "18"),
    ("18", "The answer is 18, since 16 - 3 - 4 = 9.", "18"),
    ("18", "**Final answer:** $18$ dollars for 9 eggs", "18"),
    ("18", "So she makes 18.", "18"),
    ("1200", "That costs $1,200.", "1,200"),
    ("2.50", "It is $2.50.", "2.50"),
    ("18", "She sells 9 eggs for $2, so 9*2=18", "18"),
    ("6", "He runs pages 3-6", "6"),
    ("-3", "The temperature is -3", "-3"),
    ("18", r"Half of it is \boxed{36/2}", "36/2"),
    ("540", r"The answer is \boxed{540} meters, that is 3*3*60 with 60 a sprint.", "540"),
    ("18", r"cut off: \boxed{18} then \boxed{19", "18"),
    ("1234.5", r"\boxed{1,234.50}", "1,234.50"),
    ("5", r"\boxed{5 = x}", "5 = x"),
    ("2.75", r"\boxed{2 \frac{3}{4}}", r"2 \frac{3}{4}"),
    ("2.75", "That makes 2 3/4 cups.", "2 3/4"),
    ("2.75", r"The answer is $2\frac34$.", r"2\frac34"),
    ("0.75", r"The answer is \frac{3}{4}.", r"\frac{3}{4}"),
    ("-0.75", r"So it is $-\frac{3}{4}$.", r"-\frac{3}{4}"),
    ("4", "On day 3 12/3 eggs", "12/3"),
    ("-3", "The temperature is \u20133 degrees.", "-3"),
    ("-3", "\\boxed{\u20133}", "\u20133"),
    ("18", "See pages 10\u201318", "18"),
    ("18", r"\boxed{\color{red}{18}}", r"\color{red}{18}"),
    ("18", r"\boxed{\textcolor{blue}{18}}", r"\textcolor{blue}{18}"),
    ("2125", r"\boxed{{2,125}}", "{2,125}"),
    ("60", r"\boxed{60 m^2}", "60 m^2"),
    ("60", r"\boxed{60 square feet}", "60 square feet"),
    ("60", r"\boxed{60\,\frac{\text{miles}}{\text{hour}}}", r"60\,\frac{\text{miles}}{\text{hour}}"),
    ("120", r"\boxed{5!}", "5!"),
    ("18", "She is glad: the answer is 18!", "18"),
    ("336", r"\boxed{336^\circ}", r"336^\circ"),
    ("-12", r"\boxed{-\$12}", r"-\$12"),
    ("57", "<answer>57</answer>", "57"),
]
WRONG = [
    ("18", r"\boxed{19}", "19"),
    ("18", r"\boxed{18.5}", "18.5"),
    ("18", r"\boxed{-18}", "-18"),
    ("18", r"\boxed{1,8}", "1,8"),
    ("18", r"\boxed{180}", "180"),
    ("0.5", r"\boxed{50}", "50"),
    ("18", r"\boxed{18} is wrong, it is \boxed{20}", "20"),
    ("18", r"The 18 eggs cost \boxed{\text{nothing}}", r"\text{nothing}"),
    ("18", "#### 18\nNo: #### 17", "17"),
    ("18", "18 eggs for 2 dollars", "2"),
    ("18", "eighteen", None),
    ("18", "", None),
    ("18", "   \n\n", None),
    ("1", r"\boxed{1/0}", "1/0"),
    ("1000", r"\boxed{1000000}", "1000000"),
    ("3", r"\boxed{3, 4}", "3, 4"),
    ("1", r"\boxed{9^{9^{9^{9}}}}", "9^{9^{9^{9}}}"),
    ("1", r"\boxed{1e999999}", "1e999999"),
    ("4", r"The answer is \frac{3}{4}.", r"\frac{3}{4}"),
    ("4", r"So it is $\frac{3}{4}$", r"\frac{3}{4}"),
    ("5", r"\boxed{5!}", "5!"),
    ("3", r"\boxed{3x^2}", "3x^2"),
    ("3", "\\boxed{\u20133}", "\u20133"),
]


@pytest.mark.parametrize(("gold", "text", "read"), RIGHT)
def test_right_answers_count(gold: str, text: str, read: str) -> None:
    score = grade_number(gold, text)
    assert score.correct, score
    assert score.extracted == read


@pytest.mark.parametrize(("gold", "text", "read"), WRONG)
def test_wrong_answers_do_not_count(gold: str, text: str, read: str | None) -> None:
    score = grade_number(gold, text)
    assert not score.correct, score
    assert score.extracted == read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", Fraction(2469, 2)),
        ("-1/4", Fraction(-1, 4)),
        ("-2\\frac{1}{2}", Fraction(-5, 2)),
        ("\u20ac 3", Fraction(3)),
        (".5", Fraction(1, 2)),
        ("1e3", Fraction(1000)),
        ("12,34", None),
        ("a", None),
        ("2+3", None),
        ("x^2", None),
    ],
)
def test_numbers_are_exact(text: str, value: Fraction | None) -> None:
    assert number(text) == value


SIGNS = [
    r"\boxed{",
    "}",
    "{",
    "\\",
    "$",
    "-",
    "1",
    "12",
    ",",
    ".",
    "/",
    "e",
    "%",
    " ",
    "####",
    "answer is",
    r"\frac",
    "=",
    "\n",
    "**",
]


@given(st.lists(st.sampled_from(SIGNS), max_size=14).map("".join))
def test_any_text_gets_a_verdict(text: str) -> None:
    for grade in (grade_number, grade_maths):
        score = grade("no number at all", text)
        assert not score.correct and score.detail


def test_a_text_that_repeats_itself_is_read_in_time() -> None:
    start = time.monotonic()
    assert grade_number("18", r"\boxed{" * 20_000).extracted is None
    assert grade_number("18", r"\boxed{18" * 10_000 + "}" * 10_000).detail
    assert grade_number("18", "1, " * 50_000 + "18").correct
    assert not grade_maths("18", "$" * 50_000).correct
    assert time.monotonic() - start < 20


def test_a_box_that_never_closes_is_no_answer() -> None:
    assert last_boxed(r"so \boxed{18 and then it stopped") is None
    assert last_boxed(r"\boxed{\frac{1}{2}} and \boxed{\{1\}}") == r"\{1\}"
    assert last_boxed(r"\boxed{a \} b}") == r"a \} b"


def test_the_dash_of_a_range_is_no_sign() -> None:
    assert last_number("between 10-18") == "18"
    assert last_number("minus: -18") == "-18"
    assert last_number("nothing") is None
