"""Recording: what is on disk after each block, after a kill, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nsd.errors import TraceError
from nsd.trace.audit import audit
from nsd.trace.read import parse, read_trace
from nsd.trace.record import Recorder, lines, surroundings
from nsd.trace.schema import Header, RequestInfo, Trace
from tests.trace.world import Run


def test_what_is_read_is_what_was_written(runs: dict[str, Run], traces: dict[str, Trace]) -> None:
    for name, run in runs.items():
        trace = traces[name]
        assert trace.header == run.header
        assert trace.blocks == tuple(run.blocks)
        assert trace.footer is not None
        assert [totals.fidelity for totals in trace.footer.requests] == run.fidelity
        assert trace.broken_lines == ()
        assert not trace.torn


def test_each_block_is_on_disk_before_the_next(tmp_path: Path, runs: dict[str, Run]) -> None:
    run = runs["nsd"]
    path = tmp_path / "t.jsonl"
    with Recorder(path, run.header) as recorder:
        for count, block in enumerate(run.blocks, start=1):
            recorder.write(block)
            assert len(parse(path.read_bytes()).blocks) == count


KILLED = """
import sys, time
from pathlib import Path
from nsd.trace.record import Recorder
from nsd.trace.read import read_trace
whole = read_trace(sys.argv[1])
with Recorder(sys.argv[2], whole.header) as recorder:
    for block in whole.blocks[:7]:
        recorder.write(block)
        print(block.number, flush=True)
    time.sleep(60)
"""


def test_sigkill_leaves_a_readable_trace(files: dict[str, Path], traces: dict[str, Trace], tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    process = subprocess.Popen([sys.executable, "-c", KILLED, files["nsd"], path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(7):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    trace = read_trace(path)
    assert trace.blocks == traces["nsd"].blocks[:7]
    assert trace.footer is None
    assert audit(trace).exit_code == 1
    assert audit(trace, unfinished=True).clean


@pytest.mark.parametrize("bytes_lost", [1, 30, 200])
def test_a_half_written_last_line_is_left_out(files: dict[str, Path], bytes_lost: int) -> None:
    whole = files["sd"].read_bytes()
    trace = parse(whole[:-bytes_lost])
    assert trace.torn
    assert trace.footer is None
    assert trace.blocks == parse(whole).blocks


def test_leaving_early_marks_requests_as_interrupted(tmp_path: Path, runs: dict[str, Run]) -> None:
    run = runs["capped"]
    with Recorder(tmp_path / "t.jsonl", run.header) as recorder:
        for block in run.blocks[:6]:
            recorder.write(block)
        recorder.close()
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.footer is not None
    assert {totals.finish_reason for totals in trace.footer.requests} == {"interrupted"}
    result = audit(trace)
    assert result.clean
    assert any("no fidelity report" in note for note in result.notes)


def test_lines_are_made_again_byte_by_byte(files: dict[str, Path]) -> None:
    for path in files.values():
        data = path.read_bytes()
        assert "".join(line + "\n" for line in lines(parse(data))).encode() == data


def test_numbers_that_json_lacks(tmp_path: Path, runs: dict[str, Run]) -> None:
    """A q that was not finite comes back as NaN, an infinite setting as a string, nothing as an invalid file."""
    run = runs["sd"]
    info = replace(run.header.requests[0], numbers={"a": float("inf")})
    block = next(block for block in run.blocks if block.tested)
    block = replace(block, request=0, tested=(replace(block.tested[0], q=float("nan"), ES=float("nan")),))
    with Recorder(tmp_path / "t.jsonl", replace(run.header, requests=(info,))) as recorder:
        recorder.write(block)
    for line in (tmp_path / "t.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} in a trace"))
    back = read_trace(tmp_path / "t.jsonl")
    assert back.blocks[0].tested[0].q != back.blocks[0].tested[0].q
    assert back.blocks[0].tested[0].ES is None
    assert back.header.requests[0].numbers == {"a": "inf"}


def test_what_a_recorder_refuses(tmp_path: Path, runs: dict[str, Run]) -> None:
    run = runs["nsd"]
    path = run.record(tmp_path / "t.jsonl")
    before = path.read_bytes()
    with pytest.raises(TraceError, match="exists, wanted a new file"):
        Recorder(path, run.header)
    assert path.read_bytes() == before
    with pytest.raises(TraceError, match="cannot be written"):
        Recorder(tmp_path / "none" / "t.jsonl", run.header)
    with Recorder(tmp_path / "u.jsonl", run.header) as recorder:
        with pytest.raises(TraceError, match="block of request 9"):
            recorder.write(replace(run.blocks[0], request=9))
        with pytest.raises(TraceError, match="3 fidelity reports"):
            recorder.close([{}, {}, {}])


def test_any_text_survives(tmp_path: Path) -> None:
    odd = 'a"\n\\ \u2028 \ud83d \U0001f600 </script> \x00'
    info = RequestInfo(0, 2**64 - 1, "sd", {}, {}, 4, 8, prompt=odd)
    with Recorder(tmp_path / "t.jsonl", Header("x", "y", "sampled", (info,))) as recorder:
        recorder.close()
    back = read_trace(tmp_path / "t.jsonl")
    assert back.header.requests[0].prompt == odd
    assert back.header.requests[0].seed == 2**64 - 1


def test_surroundings_name_versions_and_machine() -> None:
    found = surroundings()
    assert {"nsd", "python", "torch", "transformers"} <= found["versions"].keys()
    assert found["machine"]
    assert found["created"].startswith("20")
