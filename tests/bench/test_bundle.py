"""A run on disk: damage is found and named, nothing is lost, one process writes, a complete run never changes."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nsd.bench.bundle import (
    DAMAGED,
    MANIFEST,
    RECORDS,
    BenchError,
    Key,
    RunWriter,
    differences,
    find_run,
    newest_run,
    read_run,
    seal,
    shards,
)

CONFIG: dict[str, Any] = {"arms": ["ar"], "settings": {"temperature": 1.0}}


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"arm": "ar", "task": "t", "problem": f"p{number}", "seed": 0, "text": 'a "quoted"\nline, {crc}', **more}


def writer(root: Path, config: dict[str, Any] | None = None, **more: Any) -> RunWriter:
    return RunWriter(root, "one", config or CONFIG, {"command": ["nsd", "bench"]}, **more)


def begun(root: Path, count: int = 5) -> Path:
    with writer(root) as bundle:
        for number in range(count):
            bundle.append(record(number))
        return bundle.folder


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    stored = read_run(folder)
    assert stored.records == tuple(record(number) for number in range(5))
    assert not stored.complete and stored.name == "one"


def test_a_complete_run_has_its_final_name_and_is_read_only(tmp_path: Path) -> None:
    with writer(tmp_path) as bundle:
        bundle.append(record(0))
        final = bundle.finish()
    assert final == tmp_path / "one" and read_run(final).complete
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert all((final / name).stat().st_mode & 0o222 == 0 for name in (MANIFEST, RECORDS))
    with pytest.raises(BenchError, match="complete and never changes"):
        writer(tmp_path)


def test_a_change_after_completion_is_found(tmp_path: Path) -> None:
    with writer(tmp_path) as bundle:
        bundle.append(record(0))
        final = bundle.finish()
    (final / RECORDS).chmod(0o644)
    (final / RECORDS).write_bytes(seal(record(0, text="nicer")))
    with pytest.raises(BenchError, match="changed after the run was complete"):
        read_run(final)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_cut_off_and_decoded_again(tmp_path: Path, cut: int) -> None:
    path = begun(tmp_path) / RECORDS
    path.write_bytes(path.read_bytes()[:-cut])
    assert len(read_run(path.parent).records) == 4
    with writer(tmp_path) as bundle:
        assert len(bundle.done) == 4
        bundle.append(record(4))
    assert len(read_run(path.parent).records) == 5


def test_a_damaged_line_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    path = begun(tmp_path) / RECORDS
    data = path.read_bytes().replace(b'"p2"', b'"p9"')
    path.write_bytes(data)
    with pytest.raises(BenchError, match=r"line 3 is damaged .* --repair"):
        writer(tmp_path)
    assert path.read_bytes() == data


def test_repair_sets_the_damaged_line_aside(tmp_path: Path) -> None:
    path = begun(tmp_path) / RECORDS
    path.write_bytes(path.read_bytes().replace(b'"p2"', b'"p9"'))
    with writer(tmp_path, repair=True) as bundle:
        assert sorted(key.problem for key in bundle.done) == ["p0", "p1", "p3", "p4"]
        bundle.append(record(2))
    assert b'"p9"' in (path.parent / DAMAGED).read_bytes()
    assert {r["problem"] for r in read_run(path.parent).records} == {f"p{i}" for i in range(5)}


def test_an_answer_is_recorded_once(tmp_path: Path) -> None:
    with writer(tmp_path) as bundle:
        bundle.append(record(0))
        with pytest.raises(BenchError, match="recorded already"):
            bundle.append(record(0))
    path = tmp_path / "one.partial" / RECORDS
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(BenchError, match="line 2 repeats ar/t/p0/0"):
        read_run(path.parent)


def test_a_changed_configuration_is_refused_by_name(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(BenchError, match=r"settings.temperature: 1.0 then, 0.7 now"):
        writer(tmp_path, {"arms": ["ar"], "settings": {"temperature": 0.7}})
    with writer(tmp_path) as bundle:
        assert len(bundle.manifest["sessions"]) == 2


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from nsd.bench.bundle import RunWriter\n"
        "try: RunWriter(Path(sys.argv[1]), 'one', {'arms': ['ar'], 'settings': {'temperature': 1.0}}, {})\n"
        "except Exception as error: print(error)"
    )
    with writer(tmp_path):
        found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "another process writes run one" in found.stdout


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """A file size limit stands for the full disk: the system writes a part of the line, then refuses."""
    with writer(tmp_path) as bundle:
        for number in range(3):
            bundle.append(record(number))
        size = (bundle.folder / RECORDS).stat().st_size
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, old[1]))
        try:
            with pytest.raises(BenchError, match=r"the disk is full at record 4 of run one.* the 3 before it are safe"):
                bundle.append(record(3))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        assert (bundle.folder / RECORDS).stat().st_size == size
        bundle.append(record(3))
    assert len(read_run(tmp_path / "one.partial").records) == 4


def test_a_kill_between_folder_and_manifest_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "one.partial").mkdir()
    with writer(tmp_path) as bundle:
        assert not bundle.done


def test_finishing_may_be_repeated_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with writer(tmp_path) as bundle:
        bundle.append(record(0))
        monkeypatch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            bundle.finish()
    monkeypatch.undo()
    with writer(tmp_path) as bundle:
        assert len(bundle.done) == 1
        bundle.finish()
    assert read_run(tmp_path / "one").complete


def test_runs_are_found_by_name_path_and_age(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    with RunWriter(tmp_path, "two", CONFIG, {}) as bundle:
        bundle.append(record(0))
        later = bundle.finish()
    os.utime(folder / RECORDS, (1, 1))
    assert find_run(tmp_path, "one") == find_run(tmp_path, str(folder)) == folder
    assert newest_run(tmp_path) == later
    with pytest.raises(BenchError, match="there is no run three, wanted one of those"):
        find_run(tmp_path, "three")
    with pytest.raises(BenchError, match="nsd bench --suite toy makes one"):
        newest_run(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "x.partial"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(BenchError, match="no plain folder name"):
        RunWriter(tmp_path, name, CONFIG, {})


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "version": 99}))
    with pytest.raises(BenchError, match=r"format and version \('nsd-bench', 99\)"):
        read_run(folder)


def test_differences_name_what_is_new_gone_or_other() -> None:
    assert differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}, "d": 4}) == [
        "b.c: 2 then, 3 now",
        "d: null then, 4 now",
    ]


def test_parts_of_one_evaluation_are_grouped(tmp_path: Path) -> None:
    found = []
    for name, shard, theta in (("a", [1, 2], 0.9), ("b", [2, 2], 0.9), ("c", [1, 1], 0.95)):
        with RunWriter(tmp_path, name, {"shard": shard, "theta": theta, "request": {"shard": shard}}, {}) as bundle:
            found.append(read_run(bundle.folder))
    assert [[run.name for run in group] for group in shards(found)] == [["a", "b"], ["c"]]


def test_keys_are_arm_task_problem_and_seed() -> None:
    assert Key.of(record(1)) == ("ar", "t", "p1", 0)
