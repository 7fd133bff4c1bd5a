"""Questions with mathematics as answer: forms that mean the same, and near misses."""

from __future__ import annotations

import time

import pytest

from nsd.bench.grade import grade_maths
from nsd.bench.judge import Judge

# (reference, boxed answer)
SAME = [
    (r"\frac{1}{2}", r"\frac{1}{2}"),
    (r"\frac{1}{2}", r"\dfrac{1}{2}"),
    (r"\frac{1}{2}", r"\frac12"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", "1/2"),
    (r"-\frac{3}{4}", r"\frac{-3}{4}"),
    (r"\frac{14}{3}", r"4\frac{2}{3}"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\left(3,\frac{\pi}{2}\right)"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    (r"x^2 + 2x + 1", r"(x+1)^2"),
    ("p - q", "-q + p"),
    ("10,080", "10080"),
    (r"10,\!080", "10,080"),
    (r"\$32,\!348", "32348"),
    ("90", r"90^\circ"),
    (r"90^\circ", "90"),
    ("5", r"5 \text{ cm}"),
    (r"5\text{ inches}", "5"),
    ("12", r"12\text{ cm}^2"),
    ("12", r"12\,\mathrm{cm}^2"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{Evelyn}", r"\text{evelyn}"),
    (r"\text{(C)}", "C"),
    (r"\text{(C)}", r"(C)"),
    ("7", "x = 7"),
    ("x = 7", "7"),
    (r"\{1, 2, 3\}", r"\{3, 2, 1\}"),
    (r"(-\infty, 2]", r"\left(-\infty, 2\right]"),
    (r"[2, 5)", r"[2,5)"),
    (r"3 + 4i", r"4i + 3"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"2^{10}", "1024"),
    (r"10\%", r"10\%"),
    (r"\frac{3}{5}", r"\tfrac{3}{5}."),
    ("11_{2}", "11_2"),
    (r"\pi", r"\displaystyle \pi"),
    (r"\log 2", r"\log(2)"),
    ("0", "-0"),
    ("58,500", "x = 58,500"),
    (r"\$32,\!348", r"x = \$32,\!348"),
    ("(6,31,-1)", "{(6,31,-1)}"),
    (r"90^\circ", r"{90^{\circ}}"),
    ("9", r"\color{blue}{9}"),
    (r"x \in [-2,7]", "[-2,7]"),
    ("[-2,7]", r"x \in [-2,7]"),
    ("2x", "f(x) = 2x"),
    ("y = 2x + 3", "2x + 3"),
    ("36", "36 cm^2"),
    ("-2", "\u20132"),
    ("120", "5!"),
    (r"\$18.90", "18.9"),
    ("1,-2", r"\{-2, 1\}"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
]
DIFFERENT = [
    (r"\frac{1}{2}", r"\frac{1}{3}"),
    (r"\frac{1}{3}", "0.33"),
    (r"\frac{1}{2}", r"-\frac{1}{2}"),
    (r"(3, \frac{\pi}{2})", r"(\frac{\pi}{2}, 3)"),
    (r"[2, 5)", r"[2, 5]"),
    (r"(2, 5)", r"[2, 5]"),
    (r"\{1, 2\}", r"\{1, 2, 3\}"),
    (r"x^2 + 1", r"x^2 - 1"),
    (r"2\sqrt{2}", r"2\sqrt{3}"),
    (r"\text{Evelyn}", r"\text{Carla}"),
    (r"\text{(C)}", r"\text{(D)}"),
    ("10,080", "10"),
    ("3", "x"),
    ("1,2", "12"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    ("4", "4i"),
    ("2", r"\text{two apples and 3 pears}"),
    ("11_2", "3_2"),
    ("1234", "1,2,3,4"),
    (r"3\pi", "9.42"),
    ("36", r"36\pi"),
    ("5", "5!"),
    (r"x \in [-2,7]", "[-2,7)"),
    ("58,500", "x = 58"),
]
TEXTS = [
    ("3", r"We get $x = 2$ and then $y = 3$.", True, "dollars"),
    (r"\frac{1}{2}", r"So the answer is $\frac{1}{2}$.", True, "marked"),
    ("12", "Therefore there are 12 ways", True, "last number"),
    (r"\sqrt{2}", r"\[ x = \sqrt{2} \]", True, "dollars"),
    ("3", r"Put it in \boxed{}: the answer is 3.", True, "marked"),
    (r"\text{east}", "Final answer: east", True, "marked"),
    ("3", r"$\boxed{3}$ since $4 - 1 = 3$ and $5$ fails", True, "boxed"),
    ("5", r"maybe \boxed{5}, no, \boxed{6}", False, "boxed"),
    ("5", "no idea", False, "no answer"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_in_another_form(gold: str, answer: str) -> None:
    score = grade_maths(gold, rf"Thus we find $\boxed{{{answer}}}$.")
    assert score.correct, score


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_near_misses(gold: str, answer: str) -> None:
    score = grade_maths(gold, rf"Thus we find $\boxed{{{answer}}}$.")
    assert not score.correct, score


@pytest.mark.parametrize(("gold", "text", "correct", "rule"), TEXTS)
def test_where_the_answer_is_looked_for(gold: str, text: str, correct: bool, rule: str) -> None:
    score = grade_maths(gold, text)
    assert score.correct == correct, score
    assert score.detail.startswith(rule)


def test_a_comparison_without_end_is_cut_and_the_next_one_works() -> None:
    judge = Judge(seconds=2)
    try:
        assert judge.same("1", "2") is False  # loads the library
        start = time.monotonic()
        assert judge.same("1", "9^{9^{9^{9}}}") in (None, False)
        assert time.monotonic() - start < 20
        assert judge.same(r"\sqrt{8}", r"2\sqrt{2}") is True
    finally:
        judge.close()
