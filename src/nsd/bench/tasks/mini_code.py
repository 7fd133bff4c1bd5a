"""mini-code: 4,096 short Python functions to continue from signature and docstring, with hidden tests.

Made from a seed, without data files; held out from training by function name, composition and constants. The program is
the prompt with the text that continues it; six calls must come out right, run in the sandbox of the other code tasks.
`score_many` runs a hundred programs a call of the sandbox, each in a process of its own there.

Source: own problems and own rule (nsd.miniature.programs); end of a continuation: nsd.bench.code.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nsd.bench import sandbox
from nsd.bench.code import Program, find_completion, grade_code
from nsd.bench.sandbox import Limits
from nsd.bench.task import Problem, Row, Score, Task
from nsd.miniature.programs import Coding, problems, tests_of

SEED = 20261130
SIZE = 4096
AT_ONCE = 128
"""Programs that share one call of the sandbox."""

LIMITS = Limits(wall_s=60.0, cpu_s=30)
EACH_S = 2
"""CPU seconds of one program among many."""

# Each program runs in a fork of its own, which ends by its limit; what it prints is thrown away, and only the parent
# knows the token that a verdict must carry.
MANY = """import json, os, resource, sys
_cases = json.loads({cases!r})
_verdicts = []
for _program, _tests in _cases:
    _read, _write = os.pipe()
    _child = os.fork()
    if _child == 0:
        os.close(_read)
        _null = os.open(os.devnull, os.O_RDWR)
        for _fd in (0, 1, 2):
            os.dup2(_null, _fd)
        resource.setrlimit(resource.RLIMIT_CPU, ({each}, {each}))
        _space = {{"__name__": "solution"}}
        try:
            exec(compile(_program, "solution.py", "exec"), _space)
            exec(compile(_tests, "tests.py", "exec"), _space)
            os.write(_write, b"+")
        except BaseException as _error:
            os.write(_write, f"-{{type(_error).__name__}}: {{_error}}"[:160].encode())
        os._exit(0)
    os.close(_write)
    with os.fdopen(_read, "rb") as _file:
        _said = _file.read(200)
    os.waitpid(_child, 0)
    _verdicts.append(_said.decode(errors="replace"))
print("{token}" + json.dumps(_verdicts))
"""


class MiniCode(Task):
    """The same problems on every machine."""

    name, title, metric, size, max_new_tokens = "mini-code", "mini-code", "pass@1", SIZE, 128
    source = "own problems from a seed; program: prompt and continuation; six hidden asserts"

    @property
    def options(self) -> dict[str, Any]:
        """The seed of the problems."""
        return {"seed": SEED}

    def load(self, data_dir: Path | None = None, limit: int | None = None) -> list[Problem]:
        """Made, not read."""
        self.check_limit(limit)
        codings = islice(problems("test", SEED), SIZE if limit is None else min(limit, SIZE))
        return [self.problem(index, row_of(index, coding)) for index, coding in enumerate(codings)]

    def origin(self, data_dir: Path | None) -> dict[str, Any]:
        """The problems are made here."""
        return {"prompt_and_scoring": self.source, "data": f"made from seed {SEED}"}

    def available(self, data_dir: Path | None) -> bool:
        """No data are needed."""
        return True

    def problem(self, index: int, row: Row) -> Problem:
        """The reference keeps what `score` runs."""
        reference = {"prompt": row["prompt"], "entry_point": row["entry"], "test": row["test"]}
        meta = {"template": row["template"], "solution": row["solution"]}
        return Problem(f"mini-code/{index:04d}", row["prompt"], False, reference, meta)

    def score(self, problem: Problem, text: str) -> Score:
        """All asserts pass."""
        return grade_code(self._program(problem, text), problem.reference["test"])

    def score_many(self, problems: Sequence[Problem], texts: Sequence[str]) -> list[Score]:
        """The scores of many answers, the same as one by one; a batch that does not come back is scored one by one."""
        found: list[Score] = []
        for first in range(0, len(problems), AT_ONCE):
            part = list(zip(problems[first : first + AT_ONCE], texts[first : first + AT_ONCE], strict=True))
            found += self._score_part(part)
        return found

    def ready(self) -> None:
        """A program must be able to run."""
        sandbox.isolation()

    def _program(self, problem: Problem, text: str) -> Program:
        return find_completion(text, problem.reference["entry_point"], problem.reference["prompt"])

    def _score_part(self, part: Sequence[tuple[Problem, str]]) -> list[Score]:
        programs = [self._program(problem, text) for problem, text in part]
        cases = [
            (program.source, problem.reference["test"])
            for program, (problem, _) in zip(programs, part, strict=True)
            if program.source is not None
        ]
        verdicts = _run_many(cases)
        if verdicts is None:
            return [self.score(problem, text) for problem, text in part]
        left = iter(verdicts)
        found = []
        for program in programs:
            if program.source is None:
                found.append(Score(False, None, program.rule))
                continue
            verdict = next(left)
            why = "all tests pass" if verdict == "+" else verdict[1:] or "stopped at its limit"
            found.append(Score(verdict == "+", program.source, f"{program.rule}; {why}"))
        return found


def _run_many(cases: Sequence[tuple[str, str]]) -> list[str] | None:
    """What became of each program, "+" or "-" with the reason; None if the whole did not come to its end."""
    if not cases:
        return []
    token = secrets.token_hex(16)
    script = MANY.format(cases=json.dumps(cases), each=EACH_S, token=token)
    outcome = sandbox.run(script, "", LIMITS)
    line = outcome.stdout.strip().rpartition("\n")[2]
    if outcome.status != "ok" or not line.startswith(token):
        return None
    verdicts: list[str] = json.loads(line.removeprefix(token))
    return verdicts if len(verdicts) == len(cases) else None


def row_of(index: int, coding: Coding) -> Row:
    """A function as a row of data."""
    test = tests_of(coding.entry, coding.spec, f"{SEED}/{index}")
    sample = coding.sample
    return {
        "prompt": sample.prompt, "entry": coding.entry, "test": test,
        "template": sample.template, "solution": sample.solution,
    }  # fmt: skip
