"""Programs in answers: which one is found, what of it is kept, and whether its tests really ran."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsd.bench.code import Program, fences, find_completion, find_program, grade_code, last_script

PROMPT = '''from typing import List
import math


def helper(x):
    """ Add one. """
    return x + 1


def total(numbers: List[int]) -> int:
    """ Sum of the numbers, each one larger.
    >>> total([1, 2])
    5
    """
'''
TESTS = "assert total([1, 2]) == 5\nassert total([]) == 0\n"
GOOD = "def total(numbers):\n    return sum(n + 1 for n in numbers)\n"
BAD = "def total(numbers):\n    return sum(numbers)\n"
MAPPED = "def total(ns):\n    return sum(map(up, ns))\n"
STUB = 'def total(numbers):\n    """ Sum. """\n'
F = "```"


def fenced(*blocks: str, language: str = "python") -> str:
    return "\n\nThen:\n\n".join(f"{F}{language}\n{block}{F}" for block in blocks)


RIGHT = {
    "one fence": fenced(GOOD),
    "no language": fenced(GOOD, language=""),
    "py": fenced(GOOD, language="py"),
    "capital Python": fenced(GOOD, language="Python"),
    "tildes": f"~~~python\n{GOOD}~~~",
    "four backticks": f"````python\n{GOOD}````",
    "never closed": f"Sure:\n{F}python\n{GOOD}",
    "fence in a list": "1. So:\n   ```python\n" + "".join(f"   {line}\n" for line in GOOD.splitlines()) + "   ```",
    "prompt restated": fenced(PROMPT + "    return sum(helper(n) for n in numbers)\n"),
    "stub, then solution": fenced(STUB, GOOD),
    "solution, then stub": fenced(GOOD, STUB),
    "solution, then pass": fenced(GOOD, "def total(numbers):\n    pass\n"),
    "solution, then dots": fenced(GOOD, "def total(numbers):\n    ...\n"),
    "solution, then not implemented": fenced(GOOD, "def total(numbers):\n    raise NotImplementedError()\n"),
    "wrong first, right last": fenced(BAD, GOOD),
    "solution, then example": fenced(GOOD, "print(total([1, 2]))\n"),
    "solution, then output": fenced(GOOD) + f"\nOutput:\n{F}\n5\n{F}",
    "solution, then shell": fenced(GOOD) + f"\n{F}bash\npip install numpy\n{F}",
    "helper in an earlier fence": fenced("def up(n):\n    return n + 1\n", MAPPED),
    "helper in a later fence": fenced(MAPPED, "def up(n):\n    return n + 1\n"),
    "helper after its use": fenced(MAPPED + "def up(n):\n    return n + 1\n"),
    "helper of the prompt": fenced("def total(numbers):\n    return sum(helper(n) for n in numbers)\n"),
    "import of the prompt left out": fenced(
        "def total(ns: List[int]) -> int:\n    return int(math.fsum(n + 1 for n in ns))\n"
    ),
    "import in another fence": fenced(
        "import functools as f\n", "def total(ns):\n    return f.reduce(lambda a, n: a + n + 1, ns, 0)\n"
    ),
    "constant": fenced("STEP = 1\n" + GOOD.replace("+ 1", "+ STEP")),
    "constant built in a loop": fenced(
        "S = []\nfor i in range(1):\n    S.append(i + 1)\n" + GOOD.replace("+ 1", "+ S[0]")
    ),
    "lambda": fenced("total = lambda ns: sum(n + 1 for n in ns)\n"),
    "decorated": fenced(
        "import functools\n@functools.cache\ndef up(n):\n    return n + 1\n" + MAPPED
    ),
    "wrong assert of the model": fenced(GOOD + "assert total([1]) == 1\n"),
    "main guard that asks": fenced(GOOD + 'if __name__ == "__main__":\n    print(total([int(input())]))\n'),
    "example that prints": fenced(GOOD + "print(total([1]))\n"),
    "example in a loop": fenced(GOOD + "for case in ([1], [2]):\n    print(total(case))\n"),
    "example that exits": fenced(GOOD + "exit(0)\n"),
    "example that asks": fenced(GOOD + "n = input()\n"),
    "future import": fenced("from __future__ import annotations\n" + GOOD),
    "dataclass": fenced(
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    n: int\n" + GOOD.replace("n + 1", "P(n).n + 1")
    ),
    "recursion": fenced(
        "import sys\nsys.setrecursionlimit(9000)\n"
        "def total(ns):\n    return ns[0] + 1 + total(ns[1:]) if ns else 0\n"
    ),
    "try import": fenced(
        "try:\n    import nothing_here as m\nexcept ImportError:\n    import math as m\n"
        + GOOD.replace("sum(", "m.fsum(")
    ),
    "no fence": GOOD,
    "no fence, talk around": f"Here is the function.\n\n{GOOD}\nIt adds one to each number.",
    "no fence, import first": "import operator\n\n" + GOOD.replace("n + 1", "operator.add(n, 1)"),
    "body alone in a fence": fenced("    return sum(n + 1 for n in numbers)\n"),
    "windows ends": fenced(GOOD).replace("\n", "\r\n"),
    "two functions share a fence": fenced("def other():\n    return 1\n\n" + GOOD),
    "async helper unused": fenced("async def later():\n    pass\n" + GOOD),
    "fence inside the docstring": fenced('def total(ns):\n    """Like `sum`."""\n    return sum(n + 1 for n in ns)\n'),
    "yield outside": fenced("yield 1\n" + GOOD),
    "unicode": fenced("# größer um eins\n" + GOOD),
}  # fmt: skip
WRONG = {
    "wrong result": fenced(BAD),
    "right first, wrong last": fenced(GOOD, BAD),
    "another name": fenced(GOOD.replace("total", "sum_all")),
    "only the stub": fenced(STUB),
    "syntax error": fenced("def total(numbers)\n    return 1\n"),
    "cut in the middle": f"{F}python\ndef total(numbers):\n    return sum(n + 1 for",
    "empty": "",
    "talk": "The function total adds one to each number and sums.",
    "other language": f"{F}javascript\nfunction total(ns) {{ return 5 }}\n{F}",
    "endless": fenced("def total(numbers):\n    while True:\n        pass\n"),
    "exits inside": fenced("import os\ndef total(numbers):\n    os._exit(0)\n"),
    "raises SystemExit": fenced("def total(numbers):\n    raise SystemExit(0)\n"),
    "equal to everything but None": fenced("def total(numbers):\n    return None\n"),
    "needs a missing library": fenced("import not_a_library\ndef total(ns):\n    return not_a_library.sum(ns)\n"),
    "method of a class": fenced("class Solution:\n    def total(self, ns):\n        return 5\n"),
    "deep nesting": fenced("x = " + "-" * 20000 + "1\ndef total(ns):\n    return x\n"),
    "null byte": fenced("def total(ns):\n    return '\0'\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
def test_right_programs_are_found_and_pass(case: str) -> None:
    score = grade_code(find_program(RIGHT[case], "total", PROMPT), TESTS)
    assert score.correct, (score.detail, score.extracted)


@pytest.mark.parametrize("case", WRONG)
def test_wrong_programs_fail(case: str) -> None:
    score = grade_code(find_program(WRONG[case], "total", PROMPT), TESTS)
    assert not score.correct, (score.detail, score.extracted)
    assert score.detail


COMPLETIONS = {
    "body": ("    return sum(n + 1 for n in numbers)\n", True),
    "body and a new function": ("    return sum(n + 1 for n in numbers)\n\n\ndef other():\n    return", True),
    "body and a print": ("    return sum(n + 1 for n in numbers)\nprint(total([1]))\n", True),
    "body and a comment": ("    return sum(n + 1 for n in numbers)\n# that is all, folks (", True),
    "body and a fence": ("    return sum(n + 1 for n in numbers)\n```\nDone.", True),
    "body and a class": ("    return sum(n + 1 for n in numbers)\nclass A(", True),
    "cut last line": ("    s = sum(n + 1 for n in numbers)\n    return s\n    if (", True),
    "blank lines inside": ("\n    s = 0\n\n    for n in numbers:\n        s += n + 1\n\n    return s\n", True),
    "inner function": ("    def up(n):\n        return n + 1\n    return sum(map(up, numbers))\n", True),
    "uses the prompt": ("    return sum(helper(n) for n in numbers)\n", True),
    "wrong": ("    return sum(numbers)\n", False),
    "nothing": ("", False),
    "talk": ("Here is how I would do it.", False),
}


@pytest.mark.parametrize("case", COMPLETIONS)
def test_completions_continue_the_prompt(case: str) -> None:
    text, correct = COMPLETIONS[case]
    score = grade_code(find_completion(text, "total", PROMPT), TESTS)
    assert score.correct == correct, (score.detail, score.extracted)


def test_helpers_that_only_the_tests_call_come_from_the_prompt() -> None:
    tests = "assert total([helper(0)]) == 2\n"
    assert not grade_code(find_program(fenced(GOOD), "total", PROMPT), tests).correct
    assert grade_code(find_program(fenced(GOOD), "total", PROMPT, tests), tests).correct


def test_the_rule_is_named() -> None:
    assert find_program(fenced(STUB, GOOD), "total").rule == "last of 2 fences that defines it"
    assert find_program("```python\ndef total(:\n```", "total").rule == "total stands in a fence that does not parse"
    assert find_program("nothing", "total").rule == "no definition of total"
    assert "ended before its tests" in grade_code(find_program(WRONG["exits inside"], "total"), TESTS).detail
    assert "AssertionError" in grade_code(find_program(WRONG["wrong result"], "total"), TESTS).detail


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (fenced("print(1)\n"), "print(1)\n"),
        (fenced("print(1)\n", "print(2)\n"), "print(2)\n"),
        (fenced("print(1)\n") + f"\nOutput:\n{F}\n1\n{F}", "print(1)\n"),
        (fenced("print(1)\n", "print(\n"), "print(1)\n"),
        ("print(int(input()) + 1)", "print(int(input()) + 1)"),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_whole_programs(text: str, source: str | None) -> None:
    assert last_script(text).source == source


@given(
    st.lists(st.sampled_from([*RIGHT.values(), *WRONG.values(), F, "\n", "    ", "def total", "(", '"""']), max_size=4),
    st.data(),
)
def test_any_text_gives_a_program_or_a_reason(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cut = text[: data.draw(st.integers(0, len(text)))]
    for found in (find_program(cut, "total", PROMPT, TESTS), find_completion(cut, "total", PROMPT), last_script(cut)):
        assert found.rule
        assert found.source is None or compile(found.source, "found", "exec")


def test_fences_of_other_languages_are_no_programs() -> None:
    assert fences("```bash\nls\n```\n```python\nx = 1\n```\n") == ["x = 1\n"]


def test_a_program_that_is_missing_is_not_run() -> None:
    assert grade_code(Program(None, "nothing found"), "assert True").detail == "nothing found"
