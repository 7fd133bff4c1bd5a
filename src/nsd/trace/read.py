"""Reads a trace, finished or not. Only what cannot be understood is an error; a wrong hash is reported, not raised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nsd.errors import TraceError
from nsd.events import EVENT_VERSION, Block
from nsd.trace.chain import START, link, open_line
from nsd.trace.codec import build
from nsd.trace.schema import FORMAT, VERSION, Footer, Header, Trace

_KINDS: dict[str, Any] = {"header": Header, "block": Block, "footer": Footer}


def read_trace(path: str | Path) -> Trace:
    """The trace in a file: JSON lines, or Parquet where the name ends so."""
    if Path(path).suffix == ".parquet":
        from nsd.trace.convert import from_parquet

        return from_parquet(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(
            f"{path} cannot be read ({error.strerror}); name a file that nsd generate --trace wrote"
        ) from None
    return parse(data, str(path))


def parse(data: bytes, name: str = "trace") -> Trace:
    """A trace from the bytes of its JSON lines; a last line without its end is left out and reported as torn."""
    whole, _, rest = data.rpartition(b"\n")
    try:
        text = whole.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"{name} is not text ({error.reason}), wanted JSON lines of {FORMAT}") from None
    values: list[Any] = []
    broken: list[int] = []
    chain = START
    for number, line in enumerate(text.split("\n") if text else [], start=1):
        opened = open_line(line)
        body = line if opened is None else opened[0]
        expected = link(chain, body)
        if opened is None or opened[1] != expected:
            broken.append(number)
        chain = expected if opened is None else opened[1]
        values.append(_value(body, f"{name}, line {number}"))
    header, blocks, footer = _arranged(values, name)
    return Trace(header, blocks, footer, torn=bool(rest), broken_lines=tuple(broken), chain=chain)


def _value(body: str, where: str) -> Any:
    try:
        raw = json.loads(body)
    except ValueError:
        raise TraceError(f"{where} is not JSON, wanted a line of {FORMAT}; the file is damaged or no trace") from None
    if not isinstance(raw, dict) or raw.get("kind") not in _KINDS:
        raise TraceError(f"{where} is no header, block or footer, wanted a line of {FORMAT}")
    kind = raw.pop("kind")
    raw.pop("sha256", None)
    if kind == "header":
        _known_version(raw, where)
    return build(_KINDS[kind], raw, where)


def _known_version(raw: dict[str, Any], where: str) -> None:
    got = (raw.get("format"), raw.get("version"), raw.get("events"))
    if got != (FORMAT, VERSION, EVENT_VERSION):
        raise TraceError(
            f"{where} has format, version, events {got}, wanted {(FORMAT, VERSION, EVENT_VERSION)}; "
            "read it with the release that wrote it"
        )


def _arranged(values: list[Any], name: str) -> tuple[Header, tuple[Block, ...], Footer | None]:
    if not values or not isinstance(values[0], Header):
        raise TraceError(f"{name} does not begin with a header, wanted a file that nsd generate --trace wrote")
    footer = values[-1] if isinstance(values[-1], Footer) else None
    blocks = values[1:-1] if footer else values[1:]
    if not all(isinstance(block, Block) for block in blocks):
        raise TraceError(f"{name} has a header or footer among its blocks, wanted one header first and one footer last")
    return values[0], tuple(blocks), footer
