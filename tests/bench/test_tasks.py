"""Tasks on small files of our own wording: prompts, references, scores, and what is said when data are missing."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import subprocess
import sys
import types
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nsd.bench import judge
from nsd.bench.task import SUITES, TASKS, HubSource, Problem, TaskDataError, find_task, find_tasks
from nsd.bench.tasks.livecodebench import same_output, test_cases
from nsd.bench.tasks.toy import KINDS, read
from nsd.errors import ConfigError

HERE = Path(__file__).with_name("fixtures")
test_cases.__test__ = False  # a function of the package, not a test
ROWS = {"gsm8k": 3, "math500": 2, "humaneval": 1, "humaneval-completion": 1, "mbpp": 1, "mbpp-bare": 1, "aime25": 2}
ANSWERS = {
    "gsm8k": [r"\boxed{42}", r"\boxed{11500}", r"so \boxed{\$6.5}"],
    "math500": [r"\boxed{\sqrt{50}}", r"\boxed{(0.5, 1.5)}"],
    "humaneval": ["```python\ndef longest(words):\n    return max(words, key=len, default='')\n```"],
    "humaneval-completion": ["    return max(words, key=len, default='')\n\nprint(1"],
    "mbpp": ["```python\ndef double_all(ns):\n    return [2 * n for n in ns]\n```"],
    "mbpp-bare": ["```python\ndef double_all(ns):\n    return [n + n for n in ns]\n```"],
    "aime25": [r"\boxed{009}", r"\boxed{24}"],
    "livecodebench": [
        "```python\nn = int(input())\nprint(n * n)\n```",
        "```python\nclass Solution:\n    def pairs(self, nums: List[int], start):\n"
        "        return [(i, a) for i, (a, b) in enumerate(zip(nums, nums[1:])) if a == b]\n```",
    ],
}


def only(task: str) -> Problem:
    return find_task(task).load(HERE)[0]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_describes_itself(name: str) -> None:
    task = find_task(name)
    assert task.name == name
    assert task.metric in ("accuracy", "pass@1")
    assert task.title and task.source and task.max_new_tokens > 0
    task.ready()
    if task.hub is not None:
        assert len(task.hub.revision) == 40 and task.files


@pytest.mark.parametrize("name", ANSWERS)
def test_right_answers_score_and_others_do_not(name: str) -> None:
    task = find_task(name)
    problems = task.load(HERE)
    assert len(problems) == len(ANSWERS[name]) == len({p.id for p in problems})
    for problem, answer in zip(problems, ANSWERS[name], strict=True):
        assert json.loads(json.dumps([problem.reference, problem.meta])) == [problem.reference, problem.meta]
        right = task.score(problem, answer)
        assert right.correct, right
        assert right.extracted and right.detail
        assert not task.score(problem, "I do not know.").correct
        assert not task.score(problem, "").correct


def test_mathematical_prompts_are_those_of_the_drafters() -> None:
    asked = only("gsm8k").prompt
    assert asked.endswith("?\nPlease reason step by step, and put your final answer within \\boxed{}.")
    assert only("math500").prompt.startswith("Simplify $\\sqrt{50}$.\nPlease reason")
    assert only("aime25").chat and only("gsm8k").chat and only("math500").meta == {"subject": "Algebra", "level": 1}


def test_code_prompts() -> None:
    chat, bare = only("humaneval"), only("humaneval-completion")
    assert (
        chat.prompt == "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{bare.prompt}\n```"
    )
    assert chat.chat and not bare.chat and bare.prompt.startswith("from typing import List")


def test_mbpp_shows_its_tests_or_not_and_says_so() -> None:
    shown, bare = only("mbpp"), only("mbpp-bare")
    assert bare.prompt == "Write a function to double every number of a list."
    assert shown.prompt.startswith(bare.prompt) and "assert double_all([]) == []" in shown.prompt
    assert find_task("mbpp").options == {"show_tests": True} and find_task("mbpp-bare").options == {"show_tests": False}
    assert shown.id == "mbpp/11" and shown.reference["entry_point"] == "double_all"
    another_name = "```python\ndef doubled(ns):\n    return [2 * n for n in ns]\n```"
    assert find_task("mbpp-bare").score(bare, another_name).detail == "no definition of double_all"


def test_livecodebench_runs_both_kinds_of_cases() -> None:
    task = find_task("livecodebench")
    stdin, method = task.load(HERE)
    assert "stdin" in stdin.prompt and "class Solution" in method.prompt
    assert [case["output"] for case in stdin.reference["cases"]] == ["4\n", "9\n"]
    off = task.score(stdin, "```python\nprint(int(input()) * 2)\n```")
    assert not off.correct and "case 2 of 2: printed '6'" in off.detail
    late = task.score(
        method, "```python\nclass Solution:\n    def pairs(self, nums, start):\n        return [[0, 1]]\n```"
    )
    assert not late.correct and "case 2 of 2: AssertionError: got [[0, 1]]" in late.detail
    assert "NameError" in task.score(stdin, "```python\nprint(nothing)\n```").detail


def test_livecodebench_reads_packed_cases_but_no_objects() -> None:
    with pytest.raises(TaskDataError, match="cannot be unpacked"):
        test_cases(base64.b64encode(zlib.compress(pickle.dumps(Path("x")))).decode())
    with pytest.raises(TaskDataError, match="cannot be unpacked"):
        test_cases("not base64!")


def contest(cases: list[dict[str, str]], starter: str = "", **metadata: str) -> dict[str, Any]:
    """A row as the public set has it: tests as JSON text, the private ones packed in four layers."""
    packed = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases[1:])))).decode()
    return {
        "question_title": "Own", "question_content": "An own question.", "platform": "leetcode", "question_id": "9001",
        "contest_id": "weekly-contest-1", "contest_date": "2025-01-04T00:00:00", "starter_code": starter,
        "difficulty": "medium", "public_test_cases": json.dumps(cases[:1]), "private_test_cases": packed,
        "metadata": json.dumps(metadata),
    }  # fmt: skip


SMALLEST = contest(
    [
        {"input": "[5, 3, 9]\n2", "output": "[3, 5]", "testtype": "functional"},
        {"input": "[]\n4", "output": "[]", "testtype": "functional"},
    ],
    "class Solution:\n    def smallest(self, nums: List[int], k: int) -> List[int]:\n        ",
    func_name="smallest",
)
WITHOUT_IMPORTS = """class Solution:
    def smallest(self, nums: List[int], k: int) -> Optional[List[int]]:
        heap, best = [], inf
        for n in nums:
            heappush(heap, n)
            best = min(best, n)
        found = [heappop(heap) for _ in range(min(k, len(heap)))]
        return list(accumulate(found, max))
"""


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n", "import heapq\nfrom math import inf\n"])
def test_contest_answers_may_use_what_the_site_imports(first: str) -> None:
    task = find_task("livecodebench")
    problem = task.problem(0, SMALLEST)
    assert len(problem.reference["cases"]) == 2 and problem.reference["method"] == "smallest"
    assert SMALLEST["starter_code"] in problem.prompt and problem.meta["platform"] == "leetcode"
    score = task.score(problem, f"```python\n{first}{WITHOUT_IMPORTS}```")
    assert score.correct, score


STDIN = {
    "no imports": "n = int(input())\nprint(gcd(n, 6), Counter('aab')['a'], sep='\\n')",
    "future": "from __future__ import annotations\nn = int(input())\nprint(gcd(n, 6))\nprint(2)",
    "main guard": "def main():\n    print(gcd(int(input()), 6), 2, sep='\\n')\nif __name__ == '__main__':\n    main()",
    "reads all of stdin": "n, *_ = map(int, sys.stdin.read().split())\nprint(gcd(n, 6))\nprint('2.0')",
    "deep": "def f(n):\n    return 2 if n == 0 else f(n - 1)\nprint(gcd(int(input()), 6))\nprint(f(20000))",
    "open is the usual one": "n = int(open(0).readline())\nprint(gcd(n, 6))\nprint(pow(2, 1, 5))",
}


@pytest.mark.parametrize("how", STDIN)
def test_contest_programs_read_stdin(how: str) -> None:
    task = find_task("livecodebench")
    cases = [{"input": f"{n}\n", "output": f"{n}\n2\n", "testtype": "stdin"} for n in (3, 2)]
    problem = task.problem(0, contest(cases))
    assert problem.reference == {"method": None, "cases": [{k: c[k] for k in ("input", "output")} for c in cases]}
    score = task.score(problem, f"So:\n```python\n{STDIN[how]}\n```\nOutput:\n```\n3\n2\n```")
    assert score.correct, score


def test_a_contest_answer_may_be_long() -> None:
    task = find_task("livecodebench")
    wanted = "\n".join(map(str, range(300_000)))
    problem = task.problem(0, contest([{"input": "300000", "output": wanted, "testtype": "stdin"}]))
    assert len(wanted) > 1 << 20
    assert task.score(problem, "```python\nfor i in range(int(input())):\n    print(i)\n```").correct
    assert not task.score(problem, "```python\nfor i in range(299999):\n    print(i)\n```").correct


def test_both_public_forms_of_aime_are_read(tmp_path: Path) -> None:
    """math-ai/aime25: one file of problem, answer, id; opencompass/AIME2025: a file a paper of question, answer."""
    task = find_task("aime25")
    answers = [r"336^\circ", "070", *map(str, range(28))]
    whole = [{"problem": f"Problem {i}.", "answer": a, "id": str(i)} for i, a in enumerate(answers)]
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    (one / "aime25.jsonl").write_text("".join(json.dumps(row) + "\n" for row in whole), encoding="utf-8")
    parts = [{"question": row["problem"], "answer": row["answer"]} for row in whole]
    assert not task.available(two)
    for name, rows in (("aime2025-I", parts[:15]), ("aime2025-II", parts[15:])):
        (two / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert task.available(one) and task.available(two) and "aime25" in [t.name for t in find_tasks(["default"], two)]
    problems = task.load(one)
    assert problems == task.load(two) and len(problems) == 30
    assert task.origin(two)["file"] == "aime2025-I.jsonl, aime2025-II.jsonl" and len(task.origin(two)["sha256"]) == 130
    for problem, said in zip(problems, [r"336", "70", *map(str, range(28))], strict=True):
        assert task.score(problem, rf"Thus \boxed{{{said}}}.").correct
        assert not task.score(problem, r"Thus \boxed{999}.").correct
    (two / "aime2025-II.jsonl").write_text(json.dumps(parts[0]) + "\n", encoding="utf-8")
    with pytest.raises(
        TaskDataError, match=r"aime2025-I.jsonl, aime2025-II.jsonl gives 16 problems of aime25, wanted 30"
    ):
        task.load(two)


@pytest.mark.parametrize(
    ("wanted", "got", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True),
        ("1 2\n3\n", " 1 2 \n3\n\n", True),
        ("1.0", "1.00", True),
        ("1.0", "1.01", False),
        ("yes", "YES", False),
        ("1 2", "1  2", True),
        ("1 2", "1\n2", False),
        ("a b", "a  b", False),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_outputs_are_compared_by_line_and_token(wanted: str, got: str, same: bool) -> None:
    assert same_output(wanted, got) == same


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"got task 'gms8k', wanted one of gsm8k, .*did you mean gsm8k"):
        find_task("gms8k")
    with pytest.raises(ConfigError, match="type one of them"):
        find_tasks(["quux-quux"])


def test_suites(tmp_path: Path) -> None:
    assert [t.name for t in find_tasks(["toy"])] == ["toy"]
    assert [t.name for t in find_tasks(["default"])] == ["gsm8k", "math500", "humaneval", "mbpp"]
    (tmp_path / "aime25.jsonl").write_text("")
    assert [t.name for t in find_tasks(["default"], tmp_path)] == list(SUITES["default"])
    assert [t.name for t in find_tasks(["mbpp", "toy", "mbpp"])] == ["mbpp", "toy"]
    assert [t.name for t in find_tasks(["aime25"])] == ["aime25"]


def test_a_limit_takes_the_first_problems() -> None:
    task = find_task("gsm8k")
    assert [p.id for p in task.load(HERE, 2)] == ["gsm8k/0", "gsm8k/1"]
    assert len(task.load(HERE, 100)) == 3
    for name in ("gsm8k", "toy"):
        with pytest.raises(ConfigError, match="got limit 0, wanted at least 1"):
            find_task(name).load(HERE, 0)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    task = find_task("gsm8k")
    with pytest.raises(TaskDataError, match=r"no data of gsm8k in .*gsm8k_test\.jsonl or gsm8k\.jsonl; put it there"):
        task.load(tmp_path)
    path = tmp_path / "gsm8k_sample.jsonl"
    for text, message in [
        ('{"question": "a", "answer": "#### 1"}\n{"quest', "line 2 is not JSON"),
        ("[1]\n", "line 1 holds list, wanted a JSON object"),
        ('{"question": "a"}\n', "line 1 has no field 'answer'"),
        (b"\xff\xfe", "is not UTF-8"),
    ]:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(TaskDataError, match=message):
            task.load(tmp_path)


def test_a_whole_file_must_be_whole(tmp_path: Path) -> None:
    shutil.copy(HERE / "gsm8k_sample.jsonl", tmp_path / "gsm8k_test.jsonl")
    with pytest.raises(TaskDataError, match=r"gsm8k_test.jsonl gives 3 problems of gsm8k, wanted 1319"):
        find_task("gsm8k").load(tmp_path)


def test_without_a_folder_the_datasets_library_is_asked_for_one_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    rows = [json.loads(line) for line in (HERE / "mbpp_sample.jsonl").read_text().splitlines()]
    library = types.ModuleType("datasets")
    library.load_dataset = lambda *a, **k: asked.append((a, k)) or rows  # type: ignore[attr-defined] # a stand-in
    monkeypatch.setitem(sys.modules, "datasets", library)
    task = find_task("mbpp")
    monkeypatch.setattr(type(task), "size", 1)
    assert [p.id for p in task.load()] == ["mbpp/11"]
    revision = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
    assert asked == [(("google-research-datasets/mbpp", "sanitized"), {"split": "test", "revision": revision})]

    rows = [json.loads(line) for line in (HERE / "livecodebench_sample.jsonl").read_text().splitlines()]
    assert len(find_task("livecodebench").load()) == 2
    assert asked[-1][0] == ("json",) and asked[-1][1]["data_files"].endswith(
        "0fe84c3912ea0c4d4a78037083943e8f0c4dd505/test6.jsonl"
    )

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    library.load_dataset = refuse  # type: ignore[attr-defined] # a stand-in
    with pytest.raises(TaskDataError, match=r"could not fetch .*no route.*--data-dir FOLDER with mbpp_sanitized.jsonl"):
        task.load()


def test_without_folder_and_library_both_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskDataError, match=r"pip install datasets, or --data-dir FOLDER with gsm8k_test.jsonl"):
        find_task("gsm8k").load()
    monkeypatch.setattr(type(find_task("aime25")), "hub", None)
    with pytest.raises(TaskDataError, match=r"no public revision .* nsd bench --task aime25 --data-dir FOLDER"):
        find_task("aime25").load()
    assert HubSource("a", None, "test", "0" * 40).file is None


def test_a_missing_math_verify_is_refused_before_any_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge.util, "find_spec", lambda name: None)
    for name in ("gsm8k", "math500", "aime25"):
        with pytest.raises(ConfigError, match=r"pip install 'nucleus-speculative-decoding\[bench\]'"):
            find_task(name).ready()


def test_looking_at_tasks_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom nsd.bench.task import TASKS, find_task\n[find_task(n) for n in TASKS]\n"
        "print(sorted({'torch', 'transformers', 'sympy', 'math_verify', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout == "[]\n"


def test_toy_is_the_same_everywhere_and_needs_no_files() -> None:
    problems = find_task("toy").load()
    assert problems == find_task("toy").load(Path("/nowhere"))
    assert len(problems) == find_task("toy").size == len({p.id for p in problems}) == len({p.prompt for p in problems})
    assert Counter(p.meta["kind"] for p in problems) == dict.fromkeys(KINDS, 6)
    assert Counter(p.chat for p in problems) == {True: 24, False: 24}
    assert [p.id for p in find_task("toy").load(limit=2)] == ["toy/00-copy", "toy/01-list"]
    assert problems[0].prompt == "Repeat this word and write nothing else: harbor"


def test_toy_scores_its_own_answers_and_no_other_problem_s() -> None:
    task = find_task("toy")
    problems = task.load()
    for problem in problems:
        answer = problem.reference["answer"]
        assert task.score(problem, f" {answer}\nand more talk").correct
        assert task.score(problem, f'Answer: "{answer}".').correct
        others = {p.reference["answer"] for p in problems if p.meta["kind"] == problem.meta["kind"]} - {answer}
        assert not any(task.score(problem, other).correct for other in others)


@pytest.mark.parametrize(
    ("text", "form", "got"),
    [
        ("river", "line", "river"),
        ("\n\n  **river**  \nmore", "line", "river"),
        ('Sure: "river, garden".', "line", "river, garden"),
        ("river. garden", "line", "river. garden"),
        ("", "line", None),
        ("...\n", "line", None),
        ("The capital of France is Paris.", "word", "Paris"),
        ("Paris!", "word", "Paris"),
        ("The capital: **Paris**", "word", "Paris"),
        ("42", "word", None),
        ("1 + 4 = 5.", "number", "5"),
        ("five", "number", None),
        ("-3 degrees", "number", "-3"),
        ("The next is 8\n9", "number", "8"),
    ],
)
def test_toy_reads_the_first_line(text: str, form: str, got: str | None) -> None:
    assert read(text, form) == got


def test_toy_minds_letter_case_where_it_was_asked_for() -> None:
    task = find_task("toy")
    by_kind = {p.meta["kind"]: p for p in task.load()}
    assert not task.score(by_kind["capitals"], by_kind["capitals"].reference["answer"].lower()).correct
    assert task.score(by_kind["capital"], by_kind["capital"].reference["answer"].lower()).correct
