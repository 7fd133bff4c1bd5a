"""LiveCodeBench code generation: contest problems judged by hidden tests, on stdin or by a method of class Solution.

A row has `question_content`, `starter_code` (empty for stdin problems), `public_test_cases` (JSON list of input,
output, testtype) and `private_test_cases` (JSON, or base64 of zlib of a pickled JSON string), `metadata` (JSON with
func_name), `question_id`, `contest_date`, `platform`, `difficulty`. All tests of a problem must pass. stdout is
compared line by line without outer spaces, then token by token as exact decimals; a method gets one JSON value a line
and must return the value. Contest sites import the usual modules for everybody, and so does the origin's judge: an
answer may say heappush, inf or List without importing it, and recurse deeply.

The pickle is read by a reader that refuses every class. Which release a file holds decides the number of rows, so any
number is accepted; the pinned file is that of release 6.

Source: data livecodebench/code_generation_lite on the Hub; format and comparison LiveCodeBench/LiveCodeBench
lcb_runner/benchmarks/code_generation.py and lcb_runner/evaluation/testing_util.py; the prompt says the same in our
own words.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import pickle
import zlib
from decimal import Decimal, InvalidOperation
from typing import Any

from nsd.bench import sandbox
from nsd.bench.code import Program, find_program, last_script, parse, passes, why
from nsd.bench.sandbox import Limits
from nsd.bench.task import HubSource, Problem, Row, Score, Task, TaskDataError

STDIN = (
    "{question}\n\nRead the input from stdin and write the answer to stdout; do not test on the examples. "
    "Put the whole Python program into one fence:\n```python\n# your code\n```"
)
STARTER = (
    "{question}\n\nUse this starter code, and put the whole Python program into one fence:\n```python\n{starter}\n```"
)
MIB = 1 << 20
LIMITS = Limits(wall_s=60, cpu_s=8, memory=4096 * MIB, output=16 * MIB)  # per test; the origin allows 6 seconds, 4 GB
CALL = """
import json as _json
_given = [_json.loads(line) for line in {given!r}.split("\\n") if line.strip()]
_got = Solution().{name}(*_given)
_got = _json.loads(_json.dumps(_got))
assert _got == _json.loads({wanted!r}), f"got {{str(_got)[:80]}}"
"""


class _Plain(pickle.Unpickler):
    """Reads strings, numbers and lists; any class or function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} has no place in test cases")


def test_cases(packed: str) -> list[dict[str, str]]:
    """Tests of one field, from JSON or from the packed form."""
    try:
        cases: Any = json.loads(packed)
    except ValueError:
        try:
            cases = json.loads(_Plain(io.BytesIO(zlib.decompress(base64.b64decode(packed)))).load())
        except Exception as error:  # four layers, each with its own kinds of error
            raise TaskDataError(
                f"the private tests of a row cannot be unpacked ({error}), wanted base64 of zlib of pickled JSON; "
                "fetch the file again"
            ) from error
    return [{"input": case["input"], "output": case["output"]} for case in cases]


def same_output(wanted: str, got: str) -> bool:
    """Equal lines without outer spaces, or equal tokens where both are decimals."""
    pair = [[line.strip() for line in text.strip().split("\n")] for text in (wanted, got)]
    return len(pair[0]) == len(pair[1]) and all(_same_line(a, b) for a, b in zip(*pair, strict=True))


def _same_line(wanted: str, got: str) -> bool:
    if wanted == got:
        return True
    left, right = wanted.split(), got.split()
    try:
        return len(left) == len(right) and all(Decimal(a) == Decimal(b) for a, b in zip(left, right, strict=True))
    except InvalidOperation:
        return False


class LiveCodeBench(Task):
    """Problems of one release file, zero-shot."""

    name, title, metric, size = "livecodebench", "LiveCodeBench", "pass@1", 0
    source = "prompt: lcb_runner's request in own words; program: last fence; tests: public and private cases"
    files = ("livecodebench.jsonl", "test6.jsonl")
    hub = HubSource(
        "livecodebench/code_generation_lite", None, "train", "0fe84c3912ea0c4d4a78037083943e8f0c4dd505", "test6.jsonl"
    )

    def problem(self, index: int, row: Row) -> Problem:
        """The reference keeps all tests and, for a method, its name."""
        starter = row["starter_code"] or ""
        name = json.loads(row["metadata"] or "{}").get("func_name") if starter else None
        cases = [*test_cases(row["public_test_cases"]), *test_cases(row.get("private_test_cases") or "[]")]
        asked = (STARTER if starter else STDIN).format(question=row["question_content"], starter=starter)
        meta = {key: row[key] for key in ("difficulty", "platform", "contest_date") if key in row}
        return Problem(f"livecodebench/{row['question_id']}", asked, True, {"method": name, "cases": cases}, meta)

    def score(self, problem: Problem, text: str) -> Score:
        """All cases pass; the first that does not is named."""
        method, cases = problem.reference["method"], problem.reference["cases"]
        found = find_program(text, "Solution") if method else last_script(text)
        if found.source is None:
            return Score(False, None, found.rule)
        for number, case in enumerate(cases, 1):
            wrong = _method(found, method, case) if method else _stdin(found.source, case)
            if wrong:
                return Score(False, found.source, f"{found.rule}; case {number} of {len(cases)}: {wrong}")
        return Score(True, found.source, f"{found.rule}; all {len(cases)} cases pass")

    def ready(self) -> None:
        """A program must be able to run."""
        sandbox.isolation()


def _method(found: Program, method: str, case: dict[str, str]) -> str:
    """What went wrong with one call; empty if nothing."""
    tests = CALL.format(given=case["input"], name=method, wanted=case["output"])
    good, outcome = passes(with_imports(found.source or ""), tests, LIMITS)
    return "" if good else why(outcome)


def _stdin(source: str, case: dict[str, str]) -> str:
    """What went wrong with one run; empty if nothing."""
    outcome = sandbox.run(with_imports(source), case["input"], LIMITS)
    if outcome.status != "ok":
        return why(outcome)
    return "" if same_output(case["output"], outcome.stdout) else f"printed {outcome.stdout.strip()[:80]!r}"


LENT = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "typing", "builtins",
)  # fmt: skip
"""Modules whose names an answer has without asking; builtins last, since others hide open and pow."""
DEEPEST = 50_000
"""Calls that may be open at once."""


def with_imports(source: str) -> str:
    """The program after the imports that a contest site makes for it; its own `from __future__` stay first."""
    lent = [*(f"from {name} import *" for name in LENT), *(f"import {name}" for name in LENT)]
    head = "\n".join([*lent, f"sys.setrecursionlimit({DEEPEST})"]) + "\n"
    tree = parse(source)
    future = (
        [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"] if tree else []
    )
    if tree is None or not future:
        return head + source
    rest = [node for node in tree.body if node not in future]
    return "\n".join(ast.unparse(node) for node in (*future, *ast.parse(head).body, *rest)) + "\n"
