"""Parquet: the round trip loses nothing, the table is what an analyst expects, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nsd.errors import TraceError
from nsd.trace.audit import audit
from nsd.trace.convert import to_jsonl, to_parquet
from nsd.trace.read import parse, read_trace
from nsd.trace.schema import Trace


def test_the_round_trip_is_exact(traces: dict[str, Trace], files: dict[str, Path], tmp_path: Path) -> None:
    for name, trace in traces.items():
        path = tmp_path / f"{name}.parquet"
        to_parquet(trace, path)
        back = read_trace(path)
        assert back == trace
        assert audit(back).clean
        to_jsonl(back, tmp_path / f"{name}.jsonl")
        assert (tmp_path / f"{name}.jsonl").read_bytes() == files[name].read_bytes()


def test_one_row_per_drafted_and_final_token(traces: dict[str, Trace], tmp_path: Path) -> None:
    trace = traces["nsd"]
    to_parquet(trace, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert len(table) == sum(len(b.drafted) + (b.drawn is not None) for b in trace.blocks)
    emitted = [row["token"] for row in table if row["request"] == 0 and row["text"] is not None]
    assert emitted == [c.token for b in trace.of(0) for c in b.committed]
    tested = [t for b in trace.blocks for t in b.tested]
    rows = [row for row in table if row["origin"] in ("ratio", "rescued", "rejected")]
    for name in ("p", "q", "u", "mass", "rank", "R", "ES", "eps", "lam", "q_below", "entropy_p"):
        assert [row[name] for row in rows] == [getattr(t, name) for t in tested]


def test_a_changed_value_in_parquet_breaks_the_hash(traces: dict[str, Trace], tmp_path: Path) -> None:
    to_parquet(traces["sd"], tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    column = table.column("entropy_p").to_pylist()
    row = next(i for i, value in enumerate(column) if value is not None)
    column[row] += 1e-9
    place = table.column_names.index("entropy_p")
    pq.write_table(table.set_column(place, "entropy_p", pa.array(column, pa.float64())), tmp_path / "u.parquet")
    result = audit(read_trace(tmp_path / "u.parquet"))
    assert [finding.field for finding in result.findings] == ["sha256"]


def test_only_whole_traces_are_converted(files: dict[str, Path], tmp_path: Path) -> None:
    data = files["nsd"].read_bytes()
    unfinished = parse(b"".join(data.splitlines(keepends=True)[:-1]))
    with pytest.raises(TraceError, match="not finished"):
        to_parquet(unfinished, tmp_path / "t.parquet")
    with pytest.raises(TraceError, match="hash is broken"):
        to_parquet(parse(data.replace(b'"batch":2', b'"batch":1', 1)), tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_trace_is_refused(tmp_path: Path, traces: dict[str, Trace]) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    for name in ("a", "b", "missing"):
        with pytest.raises(TraceError, match="wanted a file that nsd convert wrote"):
            read_trace(tmp_path / f"{name}.parquet")
    with pytest.raises(TraceError, match="cannot be written"):
        to_parquet(traces["nsd"], tmp_path / "none" / "t.parquet")
    (tmp_path / "t.jsonl").write_text("mine")
    with pytest.raises(TraceError, match="exists"):
        to_jsonl(traces["nsd"], tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text() == "mine"
