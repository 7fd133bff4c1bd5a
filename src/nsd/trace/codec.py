"""Dataclasses to JSON and back, strictly: unknown names, missing names and wrong types are errors with their place."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from nsd.errors import TraceError

_UNIONS = (Union, types.UnionType)


def plain(value: Any) -> Any:
    """A dataclass as dicts, lists and scalars; fields that are None are left out, a non-finite number becomes None."""
    if is_dataclass(value):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: plain(v) for name, v in pairs if v is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _number(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def _number(value: Any) -> Any:
    """In a free-form mapping an infinite number is the string "inf", so that it is not lost."""
    return str(value) if isinstance(value, float) and math.isinf(value) else plain(value)


def dumps(value: Any) -> str:
    """One line of JSON, the same bytes for the same value."""
    return json.dumps(plain(value), separators=(",", ":"), allow_nan=False)


class _Bad(Exception):
    """A value that does not fit; path leads to it from the inside out."""

    def __init__(self, wanted: str, got: Any) -> None:
        self.wanted, self.got = wanted, got
        self.path: list[str] = []


Reader = Callable[[Any], Any]


def build(kind: Any, raw: Any, where: str) -> Any:
    """The value of a type from what JSON gave; where names its place in errors.

    None stands for a number that was not finite where the type is float.
    """
    try:
        return _reader(kind)(raw)
    except _Bad as bad:
        place = ".".join([where, *reversed(bad.path)])
        raise TraceError(
            f"{place} is {str(bad.got)[:80]!r}, wanted {bad.wanted}; the file is damaged, or another release wrote it"
        ) from None


@cache
def _reader(kind: Any) -> Reader:
    """How to read a type, worked out once."""
    if kind is Any:
        return lambda raw: raw
    if kind is float:
        return _float
    origin, inner = get_origin(kind), get_args(kind)
    if origin in _UNIONS:
        some = _reader(next(option for option in inner if option is not type(None)))
        return lambda raw: None if raw is None else some(raw)
    if origin is tuple and inner[1:] == (Ellipsis,):
        return _many(_reader(inner[0]))
    if origin is tuple:
        return _some([_reader(one) for one in inner])
    if origin is dict:
        return _mapping(_reader(inner[1]))
    if is_dataclass(kind):
        return _record(kind)
    if issubclass(kind, Enum):
        return _choice(kind)
    return _exactly(kind)


def _float(raw: Any) -> float:
    if type(raw) is float:
        return raw
    if raw is None:
        return math.nan
    if type(raw) is int:
        return float(raw)
    raise _Bad("a number", raw)


def _exactly(kind: type) -> Reader:
    def read(raw: Any) -> Any:
        if type(raw) is not kind:
            raise _Bad(kind.__name__, raw)
        return raw

    return read


def _choice(kind: type[Enum]) -> Reader:
    known = {member.value: member for member in kind}

    def read(raw: Any) -> Enum:
        if not isinstance(raw, str) or raw not in known:
            raise _Bad(f"one of {', '.join(map(str, known))}", raw)
        return known[raw]

    return read


def _many(one: Reader) -> Reader:
    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, list):
            raise _Bad("a list", raw)
        done: list[Any] = []
        try:
            for item in raw:
                done.append(one(item))
        except _Bad as bad:
            bad.path.append(str(len(done)))
            raise
        return tuple(done)

    return read


def _some(each: list[Reader]) -> Reader:
    def read(raw: Any) -> tuple[Any, ...]:
        if not isinstance(raw, list) or len(raw) != len(each):
            raise _Bad(f"a list of {len(each)}", raw)
        return tuple(one(item) for one, item in zip(each, raw, strict=True))

    return read


def _mapping(one: Reader) -> Reader:
    def read(raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _Bad("names with values", raw)
        return {key: one(value) for key, value in raw.items()}

    return read


def _record(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    readers = {name: _reader(hint) for name, hint in hints.items()}
    optional = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}
    absent = {name: None for name, hint in hints.items() if type(None) in get_args(hint) and name not in optional}
    required = hints.keys() - optional - absent.keys()

    def read(raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise _Bad(kind.__name__, raw)
        if not required <= raw.keys() <= hints.keys():
            missing, unknown = sorted(required - raw.keys()), sorted(raw.keys() - hints.keys())
            raise _Bad(f"the fields of {kind.__name__}", f"missing {missing}, unknown {unknown}")
        values: dict[str, Any] = dict(absent)
        name = ""
        try:
            for name, value in raw.items():
                values[name] = readers[name](value)
        except _Bad as bad:
            bad.path.append(name)
            raise
        return kind(**values)

    return read
