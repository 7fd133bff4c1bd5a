"""The two generators: answers recomputed by other means, nothing of the tests in training, the same text every time."""

import ast
import itertools
import math
import re
from collections import Counter

import pytest

from nsd.bench.task import find_task
from nsd.errors import ConfigError
from nsd.miniature import maths, programs
from nsd.miniature.phrases import STYLES, Style
from nsd.miniature.splits import HELD_OUT_SHARE, leak
from nsd.miniature.tokens import build, save
from nsd.miniature.words import TOLD

TRAIN, TEST = 2000, 4096


@pytest.fixture(scope="module")
def stories():
    train = list(itertools.islice(maths.problems("train", 1), TRAIN))
    return train, list(itertools.islice(maths.problems("test"), TEST))


@pytest.fixture(scope="module")
def functions():
    train = list(itertools.islice(programs.problems("train", 1), TRAIN))
    return train, list(itertools.islice(programs.problems("test"), TEST))


def told(prompt: str) -> int:
    """The answer of a story, from its sentences alone."""
    first, *steps = re.findall(r"[^.:]+[.]", prompt.split("?")[0] + ".")[:-1]
    value = int(re.search(r"\d+", first)[0])
    for step in steps:
        numbers = [int(n) for n in re.findall(r"\d+", step)]
        if "bags of" in step or "boxes of" in step:
            value += numbers[0] * numbers[1]
        elif numbers:
            value += numbers[0] if re.search(r"buys|brings|finds", step) else -numbers[0]
        elif "half" in step:
            value //= 2
        else:
            value *= 3 if "triples" in step or "three times" in step else 2
    return value


def test_answers_of_stories_follow_from_their_sentences(stories):
    for sample in itertools.chain(*stories):
        assert str(told(sample.prompt)) == sample.answer == maths.answer_of(sample.solution)


def test_every_equation_holds(stories):
    for sample in itertools.chain(*stories):
        equations = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", sample.solution)
        assert len(equations) >= 2
        assert all(eval(f"{a}{op}{b}") == int(c) for a, op, b, c in equations)


def test_drills_hold_and_have_as_many_equations_as_asked():
    import random

    for seed in range(200):
        parts = maths.drill(random.Random(seed)).split(";")[:-1]
        assert len(parts) == 8
        assert all(eval(left) == int(right) for left, right in (part.split("=") for part in parts))


def test_solutions_of_functions_pass_hidden_tests_made_from_the_words(functions):
    for number, coding in enumerate(itertools.chain(*functions)):
        space = {}
        exec(coding.sample.prompt + coding.sample.solution, space)
        tests = programs.tests_of(coding.entry, coding.spec, str(number))
        assert tests.count("assert") == programs.TESTS
        exec(tests, space)


def test_hidden_tests_are_recomputed_from_the_docstring(functions):
    """The expected values again, from the English of the docstring as a comprehension."""
    for number, coding in enumerate(functions[1][:1500]):
        words = re.search(r'"""(.*)\."""', coding.sample.prompt)[1]
        reduce, rest = re.match(
            r"(Sum of|Minus the sum of|List of|Reversed list of|M\w+ or 0 of|Last or 0 of) (.*)", words
        ).groups()
        maps, _, condition = re.match(r"(.*) for x in (\w+)(?: if (.*))?", rest).groups()
        for line in programs.tests_of(coding.entry, coding.spec, str(number)).splitlines():
            call, expected = line.removeprefix(f"assert {coding.entry}").split(" == ", 1)
            kept = [x for x in ast.literal_eval(call) if condition is None or eval(english(condition), {"x": x})]
            for expression in maps.split(" then "):
                kept = [eval(expression, {"x": x}) for x in kept]
            found = {
                "Sum of": sum(kept), "Minus the sum of": -sum(kept), "List of": kept, "Reversed list of": kept[::-1],
                "Maximum or 0 of": max([0, *kept]), "Minimum or 0 of": min([0, *kept]),
                "Last or 0 of": kept[-1] if kept else 0,
            }[reduce]  # fmt: skip
            assert found == ast.literal_eval(expected)


def english(condition: str) -> str:
    for words, code in (
        (r"x is even", "x % 2 == 0"), (r"x is odd", "x % 2 == 1"), (r"x is above (\d+)", r"x > \1"),
        (r"x is below (\d+)", r"x < \1"), (r"(\d+) divides x", r"x % \1 == 0"), (r"x is not (\d+)", r"x != \1"),
    ):  # fmt: skip
        condition = re.sub(words, code, condition)
    return condition


def test_nothing_leaks(stories, functions):
    assert leak(*stories).clean
    assert leak([c.sample for c in functions[0]], [c.sample for c in functions[1]]).clean


def test_the_leakage_check_sees_a_leak(stories):
    train, test = stories
    found = leak([*train, test[7]], test)
    assert not found.clean
    assert found.prompts == (test[7].prompt,) and found.names == (test[7].name,)
    assert found.templates == (test[7].template,) and found.numbers == test[7].numbers


def test_test_problems_are_many_and_varied(stories, functions):
    for test in (stories[1], [c.sample for c in functions[1]]):
        assert len({s.prompt for s in test}) == TEST
        assert len({s.name for s in test}) >= 100 / HELD_OUT_SHARE * 0.5
        assert len({s.template for s in test}) >= 40


@pytest.mark.parametrize("style", STYLES)
def test_texts_are_the_same_every_time_and_styles_change_the_phrasing_alone(style):
    first, again, house = (
        list(itertools.islice(maths.problems("train", 5, Style(name)), 50)) for name in (style, style, "house")
    )
    assert first == again
    assert [s.prompt for s in first] == [s.prompt for s in house]
    assert [s.answer for s in first] == [s.answer for s in house]
    assert (first == house) == (style == "house")


def test_the_seed_changes_everything():
    one, other = (list(itertools.islice(maths.problems("train", seed), 50)) for seed in (1, 2))
    assert not {s.prompt for s in one} & {s.prompt for s in other}


def test_text_has_half_a_nat_a_token(stories, functions):
    tokenizer = build()
    for samples in (stories[0], [c.sample for c in functions[0]]):
        tokens = sum(len(tokenizer.encode(s.solution).ids) + 1 for s in samples)
        assert sum(s.nats for s in samples) / tokens > 0.5


def test_nats_are_the_information_in_a_phrasing(stories):
    """The first word's choices are Zipf-like: the best of ten has 1 / (1 + 1/2 + ... + 1/10) of all.

    2000 texts, 4 voices; 0.05 is five standard errors at least, so a false alarm comes once in 100,000 runs.
    """
    first = Counter(next(o for o in TOLD["opener"] if s.solution.startswith(o)) for s in stories[0])
    total = sum(1 / r for r in range(1, 11))
    shares = sorted((n / TRAIN for n in first.values()), reverse=True)
    turned = [sum(1 / ((i - 2 * v) % 10 + 1) for v in range(4)) / 4 / total for i in range(10)]
    assert all(math.isclose(a, b, abs_tol=0.05) for a, b in zip(shares, sorted(turned, reverse=True), strict=True))


def test_reversed_style_prefers_what_house_avoids():
    assert Style("reversed").order("opener", 10, 2) == Style("house").order("opener", 10, 2)[::-1]


def test_dials_change_the_length():
    short, long = (
        list(itertools.islice(maths.problems("train", 0, dial=maths.Dial(steps)), 100)) for steps in ((1, 1), (5, 6))
    )
    assert {s.template.count("-") for s in short} == {0}
    assert {s.template.count("-") for s in long} <= {4, 5}
    easy = list(itertools.islice(programs.problems("train", 0, dial=programs.Dial((1, 1), (0, 0))), 100))
    assert all(" if " not in c.sample.prompt and " then " not in c.sample.prompt for c in easy)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: maths.Dial(steps=(3, 2)),
        lambda: maths.Dial(most_start=20),
        lambda: programs.Dial(filters=(1, 3)),
        lambda: programs.Dial(most=5),
        lambda: Style("loud"),
        lambda: next(maths.problems("dev")),
    ],
)
def test_wrong_dials_are_refused(wrong):
    with pytest.raises(ConfigError, match="wanted"):
        wrong()


def test_the_tokenizer_is_small_and_gives_texts_back(tmp_path, stories, functions):
    from transformers import AutoTokenizer

    save(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert 200 <= len(tokenizer) <= 4000
    for sample in [*stories[1][:300], *(c.sample for c in functions[1][:300])]:
        text = sample.prompt + sample.solution
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and tokenizer.unk_token_id not in ids
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(" 24 + 7 = 31")) == [" 2", "4", " +", " 7", " =", " 3", "1"]
    assert (tmp_path / "tokenizer.json").read_bytes() == _again(tmp_path / "again")


def _again(folder):
    save(folder)
    return (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("name", ["mini-math", "mini-code"])
def test_tasks_have_four_thousand_problems_and_score_their_own_solutions(name):
    task = find_task(name)
    problems = task.load()
    assert len(problems) == TEST >= 4000
    assert problems[:5] == task.load(limit=5)
    assert all(task.score(p, p.meta["solution"]).correct for p in problems[:3])
    assert not any(task.score(p, "").correct for p in problems[:2])


def test_tasks_are_named_with_commas():
    from nsd.bench.task import find_tasks

    assert [task.name for task in find_tasks(["mini-math,mini-code", "miniature"])] == ["mini-math", "mini-code"]


def test_many_programs_are_scored_as_one_by_one():
    task = find_task("mini-code")
    problems = task.load(limit=9)
    texts = [p.meta["solution"] for p in problems]
    texts[1] = "\n    return 1"
    texts[2] = "\n    while True: pass"
    texts[3] = "\n    import os; os._exit(0)"
    texts[4] = "\n    )("
    texts[5] = "\n    raise SystemExit"
    texts[6] = "\n    import sys; sys.stdout.write('+'); sys.exit(0)"
    together = task.score_many(problems, texts)
    assert [s.correct for s in together] == [True, False, False, False, False, False, False, True, True]
    alone = [task.score(problems[i], texts[i]) for i in (0, 1, 3, 4, 5, 6)]
    assert [s.correct for s in alone] == [together[i].correct for i in (0, 1, 3, 4, 5, 6)]
