"""Find the program in an answer, and run it against the tests of a problem.

A chat model restates the prompt, explains between several fences, adds examples that print or assert wrongly, or
forgets the imports that the prompt had. So one fence is chosen (the last that really defines the wanted name), and
from it only what the wanted name needs is kept, with helpers from other fences and, last, from the prompt. A plain
completion is what continues the prompt's function, up to the next statement at the left margin.

Source: the wanted-name closure is that of evalplus (sanitize: imports and definitions reachable from the entry
point), the end of a completion that of openai/human-eval and lm-evaluation-harness (stop at a new top-level class,
def, #, if, print).
"""

from __future__ import annotations

import ast
import builtins
import re
import secrets
import symtable
import warnings
from dataclasses import dataclass

from nsd.bench import sandbox
from nsd.bench.sandbox import Limits, Outcome
from nsd.bench.task import Score

FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([A-Za-z0-9_+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.S | re.M)
PYTHON = {"", "python", "python3", "py", "py3"}
TOP_LEVEL = re.compile(r"^(?:def |class |async def |if |print\b|assert |@|#|```|import |from )", re.MULTILINE)
LONGEST = 200_000  # characters of an answer that are looked at
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Program:
    """Source to run and the rule that found it; `source` is None if there is none."""

    source: str | None
    rule: str


def fences(text: str) -> list[str]:
    """The contents of all Python fences, in order; one that never closes runs to the end of the text."""
    return [_dedent(found[2]) for found in FENCE.findall(text[:LONGEST]) if found[1].lower() in PYTHON]


def find_program(text: str, entry: str, prompt: str = "", tests: str = "") -> Program:
    """The program of a chat answer that defines `entry`; `prompt` lends imports and helpers that are missing.

    What else the tests name is kept too, where the answer or the prompt defines it.
    """
    try:
        return _find(text, entry, prompt, tests)
    except (SyntaxError, RecursionError, MemoryError):  # yield outside a function; a thousand nested brackets
        return Program(None, "what stands there is no program")


def _find(text: str, entry: str, prompt: str, tests: str) -> Program:
    roots = {entry, *(name for tree in _trees(tests) for name in _used(tree))}
    text = text[:LONGEST]
    blocks = fences(text)
    trees = [tree for block in blocks for tree in _trees(block)]
    whole = [tree for tree in trees if _defines(tree, entry)]
    if whole:
        others = [tree for tree in trees if tree is not whole[-1]]
        source = _closure(whole[-1], [*others, *_trees(prompt)], roots)
        return Program(source, f"last of {len(blocks)} fences that defines it")
    for block in reversed(blocks):  # the body alone, to be put under the prompt's signature
        if prompt and block[:1] in " \t" and (tree := parse(prompt + "\n" + block)) and _defines(tree, entry):
            return Program(_closure(tree, [], roots), "body in a fence, under the prompt's signature")
    longest = _longest(text, entry)
    if longest is not None:
        return Program(_closure(longest, [*trees, *_trees(prompt)], roots), "longest span of lines that parses")
    if prompt and text[:1] in " \t" and (done := find_completion(text, entry, prompt)).source:
        return done
    broken = [block for block in blocks if re.search(rf"\b(?:def|class)\s+{re.escape(entry)}\b", block)]
    if broken:
        return Program(None, f"{entry} stands in a fence that does not parse")
    return Program(None, f"no definition of {entry}")


def find_completion(text: str, entry: str, prompt: str) -> Program:
    """The program of a plain continuation: the prompt and the text up to the next statement at the left margin."""
    text = text[:LONGEST]
    cut = TOP_LEVEL.search(text, 1 if text[:1] not in "\n" else 0)
    body = text[: cut.start()] if cut else text
    lines = body.split("\n")
    for end in range(len(lines), 0, -1):  # a cut-off last line must not cost the rest
        tree = parse(prompt + "\n".join(lines[:end]) + "\n")
        if tree is not None and _defines(tree, entry):
            return Program(ast.unparse(tree), "continuation of the prompt")
    return Program(None, "the continuation does not parse")


def last_script(text: str) -> Program:
    """A whole program that reads stdin: the last fence that parses, else the text itself."""
    for rule, sources in (("last fence that parses", fences(text)), ("whole text", [text[:LONGEST]])):
        for source in reversed(sources):
            tree = parse(source)
            if tree is not None and any(not isinstance(node, ast.Expr) or _calls(node) for node in tree.body):
                return Program(source, rule)
    return Program(None, "no program in the text")


def _dedent(block: str) -> str:
    """Take away the indent that a fence in a list has, but not that of a bare function body."""
    lines = block.split("\n")
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    moved = "\n".join(line[margin:] for line in lines)
    whole = margin and re.search(r"^(def|class|import|from)\b", moved, re.M) and parse(moved) is not None
    return moved if whole else block


def parse(source: str) -> ast.Module | None:
    """The syntax tree, or None if there is none; what Python would only warn of is none of our business."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _trees(source: str) -> list[ast.Module]:
    tree = parse(source)
    return [tree] if tree is not None else []


def _defines(tree: ast.Module, entry: str) -> bool:
    """Whether the name is bound by more than a signature: a body of docstring, pass or ... is a restated prompt."""
    for node in tree.body:
        if isinstance(node, Definition) and node.name == entry:
            if any(not _empty(statement) for statement in node.body):
                return True
        elif entry in _bound(node) and isinstance(node, ast.Assign | ast.AnnAssign):
            return True
    return False


def _empty(node: ast.stmt) -> bool:
    """Whether a statement of an answer leaves the work undone."""
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _longest(text: str, entry: str) -> ast.Module | None:
    """Outside fences: the longest run of lines that parses and defines the name; at most 300 lines are tried."""
    lines = text.split("\n")[:300]
    starts = [i for i, line in enumerate(lines) if re.match(r"(?:def|class|import|from|@|async)\b|@", line)]
    wanted = re.compile(rf"\s*(?:async\s+)?(?:def|class)\s+{re.escape(entry)}\b|{re.escape(entry)}\s*=")
    if not any(wanted.match(line) for line in lines):
        return None
    for start in starts[:20]:
        for end in range(len(lines), start, -1):
            tree = parse("\n".join(lines[start:end]))
            if tree is not None:
                if _defines(tree, entry):
                    return tree
                break
    return None


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement at the left margin binds."""
    if isinstance(node, Definition):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    inner = (part for part in ast.walk(node) if isinstance(part, Definition | ast.Import | ast.ImportFrom))
    return names.union(*(_bound(part) for part in inner))


def _used(node: ast.AST) -> set[str]:
    """Names of the module that a piece of syntax reads or writes; variables of its own functions are not among them."""
    table = symtable.symtable(ast.unparse(node), "part", "exec")
    names, inner = {symbol.get_name() for symbol in table.get_symbols()}, table.get_children()
    while inner:
        scope = inner.pop()
        names |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        inner = [*inner, *scope.get_children()]
    return names


def _calls(node: ast.Expr) -> bool:
    return isinstance(node.value, ast.Call)


def _closure(tree: ast.Module, others: list[ast.Module], roots: set[str]) -> str:
    """What the roots need, in order: its own tree's statements, before them what only another tree binds."""
    kept = _reach(tree, roots)
    known = {name for node in kept for name in _bound(node)} | set(dir(builtins))
    lent: list[ast.stmt] = []
    for other in others:
        missing = {*roots, *(name for node in [*kept, *lent] for name in _used(node))} - known
        stars = [node for node in other.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
        found = _reach(other, missing & {name for node in other.body for name in _bound(node)}) if missing else []
        new = [node for node in found if _bound(node) - known and not _bound(node) & known]
        lent = [*(stars if missing else []), *new, *lent]
        known |= {name for node in new for name in _bound(node)}
    future = [node for node in kept if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    body = [*future, *[n for n in lent if not _future(n)], *[n for n in kept if n not in future]]
    return ast.unparse(ast.Module(body=body, type_ignores=[])) + "\n"


def _future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _reach(tree: ast.Module, wanted: set[str]) -> list[ast.stmt]:
    """Statements that bind, or change, what the wanted names use; imports only if wanted or of the star kind."""
    wanted, kept = set(wanted), set[int]()
    functions = {node.name for node in tree.body if isinstance(node, Definition)}
    grew = True
    while grew:
        grew = False
        for place, node in enumerate(tree.body):
            if place in kept or isinstance(node, ast.Assert) or _example(node, functions):
                continue
            changes = isinstance(node, ast.Expr | ast.For | ast.While | ast.With | ast.If | ast.Try | ast.AugAssign)
            touched = (_used(node) & wanted) - functions if changes else set()
            if _bound(node) & wanted or touched or _always(node):
                kept.add(place)
                wanted |= _used(node)
                grew = True
    return [node for place, node in enumerate(tree.body) if place in kept]


def _example(node: ast.stmt, functions: set[str]) -> bool:
    """A main guard, a print, or a bare call of a function of the answer: shown to the reader, not needed."""
    if isinstance(node, ast.If) and "__name__" in _used(node.test):
        return True
    if isinstance(node, ast.Expr):
        return not _calls(node) or bool(_used(node) & (functions | {"print", "input", "exit", "quit"}))
    return False


def _always(node: ast.stmt) -> bool:
    """Needed whatever the name: future and star imports, and a raised recursion limit with its import."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__" or node.names[0].name == "*"
    return isinstance(node, ast.Expr) and "setrecursionlimit" in ast.dump(node)


HARNESS = """import os as _os, sys as _sys, types as _types
_m = _types.ModuleType("solution")
_sys.modules["solution"] = _m
exec(compile({program!r}, "solution.py", "exec"), _m.__dict__)
exec(compile({tests!r}, "tests.py", "exec"), _m.__dict__)
_sys.stdout.flush()
_os.write(1, b"\\n{token}\\n")
"""


def passes(program: str, tests: str, limits: Limits | None = None) -> tuple[bool, Outcome]:
    """Whether the tests run to their end after the program, in one namespace whose __name__ is not __main__.

    An exit status of 0 is not enough, since a program may call exit(): a fresh random token must come out at the end.
    """
    token = secrets.token_hex(16)
    outcome = sandbox.run(HARNESS.format(program=program, tests=tests, token=token), "", limits)
    return outcome.status == "ok" and outcome.stdout.endswith(f"\n{token}\n"), outcome


def why(outcome: Outcome) -> str:
    """One line for the end of a failed program."""
    if outcome.status == "timeout":
        return f"ran longer than {outcome.seconds:.0f} s"
    if outcome.status == "output":
        return "printed too much"
    if outcome.status == "ok":
        return "ended before its tests did"
    if outcome.status == "killed":
        return f"killed by signal {-outcome.code}" if outcome.code else "killed"
    return outcome.stderr.strip().split("\n")[-1][:200] or f"exit status {outcome.code}"


def grade_code(program: Program, tests: str, limits: Limits | None = None) -> Score:
    """A problem whose answer is a function: correct if all tests pass."""
    if program.source is None:
        return Score(False, None, program.rule)
    good, outcome = passes(program.source, tests, limits)
    return Score(good, program.source, f"{program.rule}; {'all tests pass' if good else why(outcome)}")
