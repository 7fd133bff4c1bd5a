"""Parquet from a finished trace and back: one row per drafted token and per final token, block by block.

The columns of a row are those of `Tested` or `Drawn`, its text and logprob if it was committed, and its block's. Header
and footer stand in the file's metadata, so nothing is lost: the running hash is the same after the round trip.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsd.errors import TraceError
from nsd.events import Block, Drawn, Origin, Tested, Timing
from nsd.trace.chain import START, link, open_line
from nsd.trace.codec import build, dumps, plain
from nsd.trace.record import lines
from nsd.trace.schema import Footer, Header, Trace

if TYPE_CHECKING:
    import pyarrow as pa

UNTESTED = "untested"
_BLOCK = ("request", "number", "rejected_text", "guard", "invalid", "batch", "seconds_since_start")
_TIMING = tuple(f.name for f in fields(Timing))
_TESTED = tuple(f.name for f in fields(Tested))
_DRAWN = tuple(f.name for f in fields(Drawn))
_KEYS = (b"nsd.header", b"nsd.footer", b"nsd.chain")


def to_parquet(trace: Trace, path: str | Path) -> None:
    """Write a finished trace as Parquet."""
    pa, pq = _pyarrow()
    if trace.footer is None or trace.torn or trace.broken_lines:
        why = "its running hash is broken" if trace.broken_lines else "its recording was not finished"
        raise TraceError(f"the trace cannot be converted: {why}; wanted a finished, whole one (nsd audit says more)")
    columns: dict[str, list[Any]] = {name: [] for name, _ in _columns(pa)}
    for block in trace.blocks:
        for row in _rows(block):
            for name, column in columns.items():
                column.append(row.get(name))
    values = (dumps(trace.header), dumps(trace.footer), trace.chain)
    metadata = {key: value.encode() for key, value in zip(_KEYS, values, strict=True)}
    table = pa.table(columns, schema=pa.schema(_columns(pa), metadata=metadata))
    temporary = Path(path).with_name(Path(path).name + ".part")
    try:
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(path)
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}); name a file in a folder that exists") from None
    finally:
        temporary.unlink(missing_ok=True)


def from_parquet(path: str | Path) -> Trace:
    """The trace in a Parquet file; a running hash that no longer fits is reported as for JSON lines."""
    pa, pq = _pyarrow()
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0][:80]
        raise TraceError(f"{path} cannot be read as Parquet ({reason}); wanted a file that nsd convert wrote") from None
    metadata = table.schema.metadata or {}
    if any(key not in metadata for key in _KEYS) or set(table.column_names) != {name for name, _ in _columns(pa)}:
        raise TraceError(f"{path} is Parquet without a trace in it, wanted a file that nsd convert wrote")
    header = build(Header, _load(metadata[_KEYS[0]], path), f"{path}, header")
    footer = build(Footer, _load(metadata[_KEYS[1]], path), f"{path}, footer")
    groups = groupby(table.to_pylist(), key=lambda row: (row["request"], row["number"]))
    blocks = tuple(build(Block, _block(list(rows)), f"{path}, block {key}") for key, rows in groups)
    trace = Trace(header, blocks, footer)
    sealed = lines(trace)
    chain = START
    for line in sealed:
        opened = open_line(line)
        assert opened is not None, "sealed lines carry their hash"
        chain = link(chain, opened[0])
    kept = metadata[_KEYS[2]].decode("ascii", "replace")
    return Trace(header, blocks, footer, broken_lines=() if chain == kept else (len(sealed),), chain=kept)


def to_jsonl(trace: Trace, path: str | Path) -> None:
    """Write a trace as JSON lines, as its recorder did; an existing file is refused."""
    try:
        with Path(path).open("x", encoding="ascii", newline="\n") as file:
            file.writelines(line + "\n" for line in lines(trace))
    except FileExistsError:
        raise TraceError(f"{path} exists, wanted a new file; name another or remove it first") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}); name a file in a folder that exists") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise TraceError(
            "pyarrow is not installed, wanted for Parquet; pip install 'nucleus-speculative-decoding[trace]'"
        ) from None
    return pa, pq


def _columns(pa: Any) -> list[tuple[str, pa.DataType]]:
    i64, f64, text, flag = pa.int64(), pa.float64(), pa.string(), pa.bool_()
    law = pa.struct([("top", pa.list_(pa.struct([("id", i64), ("p", f64)]))), ("rest", f64)])
    kinds = {
        "request": i64, "number": i64, "block_position": i64, "place": i64, "position": i64, "token": i64, "rank": i64,
        "batch": i64, "origin": text, "text": text, "rejected_text": text, "finish_reason": text, "member": flag,
        "guard": flag, "invalid": flag, "p_law": law, "q_law": law,
    }  # fmt: skip
    names = ["request", "number", "block_position", "place", *_TESTED, "weight", "below", "text", "logprob"]
    names += ["rejected_text", "guard", "invalid", "finish_reason", *_TIMING, "batch", "seconds_since_start"]
    return [(name, kinds.get(name, f64)) for name in names]


def _rows(block: Block) -> Iterator[dict[str, Any]]:
    """One block's rows: its drafted tokens in order, then its final token."""
    shared = {name: getattr(block, name) for name in _BLOCK} | {"block_position": block.position}
    shared |= {name: getattr(block.timing, name) for name in _TIMING}
    shared["finish_reason"] = None if block.finish_reason is None else block.finish_reason.value
    texts = iter(block.committed)
    entries: list[dict[str, Any]] = [plain(t) | {"place": i} for i, t in enumerate(block.tested)]
    untested = block.drafted[len(block.tested) :]
    entries += [{"token": x, "origin": UNTESTED, "place": len(block.tested) + i} for i, x in enumerate(untested)]
    entries += [] if block.drawn is None else [plain(block.drawn) | {"place": len(block.drafted)}]
    for entry in entries:
        if entry["origin"] not in (UNTESTED, Origin.REJECTED.value):
            committed = next(texts, None)
            if committed is None or (committed.token, committed.origin.value) != (entry["token"], entry["origin"]):
                raise TraceError(f"block {block.number} commits other tokens than it decided; see nsd audit")
            entry |= {"text": committed.text, "logprob": committed.logprob}
        for name in ("p_law", "q_law"):
            if entry.get(name) is not None:
                entry[name]["top"] = [{"id": id_, "p": p} for id_, p in entry[name]["top"]]
        yield shared | entry


def _block(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The block of some rows, as plain values."""
    first = rows[0]
    drawn = [row for row in rows if row["origin"] in ("recovered", "bonus", "target")]
    drafted = [row for row in rows if row not in drawn]
    tested = [row for row in drafted if row["origin"] != UNTESTED]
    committed = [row for row in rows if row["text"] is not None]
    block = {name: first[name] for name in _BLOCK} | {"position": first["block_position"]}
    block |= {
        "drafted": [row["token"] for row in drafted],
        "tested": [_present(row, _TESTED) for row in tested],
        "committed": [_present(row, ("token", "origin", "text", "logprob")) for row in committed],
        "timing": {name: first[name] for name in _TIMING},
    }
    if drawn:
        block["drawn"] = _present(drawn[0], _DRAWN)
    if first["finish_reason"] is not None:
        block["finish_reason"] = first["finish_reason"]
    return block


def _present(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a row that have a value; q stays, since a q that is not finite is recorded as null."""
    entry = {name: row[name] for name in names if row[name] is not None or name == "q"}
    for name in ("p_law", "q_law"):
        if name in entry:
            entry[name] = {"top": [[x["id"], x["p"]] for x in entry[name]["top"]], "rest": entry[name]["rest"]}
    return entry


def _load(data: bytes, path: str | Path) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise TraceError(f"{path} has a damaged header or footer, wanted a file that nsd convert wrote") from None
