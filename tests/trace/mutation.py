"""Changes a trace at one place: with its hashes left as they were, or made anew as a forger would."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from nsd.trace.audit import audit
from nsd.trace.chain import START, link, open_line
from nsd.trace.read import parse

Body = dict[str, Any]
Path = tuple[str | int, ...]
Place = tuple[int, int, Path]
"""Which trace, which line, which path inside it."""

_HOLDERS = {"requests": {"header": "RequestInfo", "footer": "RequestTotals"}, "tested": "Tested", "drawn": "Drawn"}
_HOLDERS |= {"committed": "Committed", "timing": "Timing", "p_law": "Law", "q_law": "Law"}
_FREE = ("numbers", "sampling", "versions", "fidelity")


def bodies(data: bytes) -> tuple[list[Body], list[str]]:
    """The lines of a trace as JSON without their hashes, and the hashes."""
    opened = [open_line(line) for line in data.decode().splitlines()]
    return [json.loads(one[0]) for one in opened if one], [one[1] for one in opened if one]


def with_hashes(lines: list[Body], hashes: list[str]) -> bytes:
    """Lines with the hashes given: those of before the change."""
    texts = (json.dumps(line, separators=(",", ":"))[:-1] for line in lines)
    return "".join(f'{text},"sha256":"{one}"}}\n' for text, one in zip(texts, hashes, strict=True)).encode()


def sealed(lines: list[Body]) -> bytes:
    """Lines with their hashes made anew."""
    chain, hashes = START, []
    for line in lines:
        chain = link(chain, json.dumps(line, separators=(",", ":")))
        hashes.append(chain)
    return with_hashes(lines, hashes)


def places(lines: list[Body]) -> Iterator[tuple[str, int, Path]]:
    """Every value of a trace: the name of its field as the schema has it, its line and its path."""
    for number, line in enumerate(lines):
        kind = {"header": "Header", "block": "Block", "footer": "Footer"}[line["kind"]]
        for name, path in _walk(line, kind, line["kind"], ()):
            yield name, number, path


def _walk(value: Any, record: str, kind: str, path: Path) -> Iterator[tuple[str, Path]]:
    for key, inner in value.items():
        here = (*path, key)
        holder = _HOLDERS.get(key)
        holder = holder[kind] if isinstance(holder, dict) else holder
        if key == "kind":
            continue
        if holder is not None and isinstance(inner, list):
            for i, item in enumerate(inner):
                yield from _walk(item, holder, kind, (*here, i))
        elif holder is not None and isinstance(inner, dict):
            yield from _walk(inner, holder, kind, here)
        elif key in _FREE:
            yield from _leaves(inner, f"{record}.{key}", here)
        else:
            yield f"{record}.{key}", here


def _leaves(value: Any, name: str, path: Path) -> Iterator[tuple[str, Path]]:
    if not isinstance(value, dict):
        yield name, path
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{name}.{key}", (*path, key))


def at(line: Body, path: Path) -> Any:
    """The value at a path."""
    value: Any = line
    for step in path:
        value = value[step]
    return value


def changed(lines: list[Body], number: int, path: Path, value: Any) -> list[Body]:
    """A copy with one value replaced."""
    line = copy.deepcopy(lines[number])
    at(line, path[:-1])[path[-1]] = value
    return [*lines[:number], line, *lines[number + 1 :]]


def caught(data: bytes) -> bool:
    """Whether the audit calls it violated or the reader calls it unreadable."""
    from nsd.errors import TraceError

    try:
        return not audit(parse(data)).clean
    except TraceError:
        return True


def broken(data: bytes) -> bool:
    """Whether the running hash gives it away (or it cannot even be read); the audit reports such lines."""
    from nsd.errors import TraceError

    try:
        return bool(parse(data).broken_lines)
    except TraceError:
        return True


def other(value: Any) -> Any:
    """A value of the same kind that is not the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 1e-3
    if isinstance(value, str):
        return {"ratio": "rescued", "length": "eos", "eos": "stop", "bonus": "recovered"}.get(value, value + "x")
    if isinstance(value, list):
        return value[:-1] if value else [0]
    return 0.5
