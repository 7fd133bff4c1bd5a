"""A folder that is built once: two processes, a kill in the middle, damage of every kind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nsd.errors import ModelError
from nsd.targets.store import MANIFEST, cache_root, ensure, intact

BUILDER = """
import sys, time
from pathlib import Path
from nsd.targets.store import ensure

def build(folder):
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    (folder / "a.bin").write_bytes(b"x" * 1000)
    time.sleep(float(sys.argv[3]))
    (folder / "b.txt").write_text("whole")

ensure(Path(sys.argv[1]), build)
print("done", flush=True)
"""


def start(folder, log, seconds):
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), str(log), str(seconds)], stdout=subprocess.PIPE
    )


def build(folder: Path) -> None:
    (folder / "a.bin").write_bytes(b"x" * 1000)
    (folder / "b.txt").write_text("whole")


def wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_two_processes_build_it_once(tmp_path):
    folder, log = tmp_path / "model", tmp_path / "log"
    both = [start(folder, log, 1.0) for _ in range(2)]
    assert [p.wait(60) for p in both] == [0, 0]
    assert log.read_text() == "built\n"
    assert intact(folder)


def test_a_killed_build_is_started_again(tmp_path):
    folder, log = tmp_path / "model", tmp_path / "log"
    victim = start(folder, log, 60)
    wait_for(lambda: (tmp_path / "model.partial" / "a.bin").exists())
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait(30)
    assert not folder.exists() and (tmp_path / "model.partial").exists()
    ensure(folder, build)
    assert intact(folder) and not (tmp_path / "model.partial").exists()


def shorten(folder):
    (folder / "a.bin").write_bytes(b"x" * 999)


def flip(folder):
    (folder / "a.bin").write_bytes(b"x" * 999 + b"y")


def remove(folder):
    (folder / "b.txt").unlink()


def drop_manifest(folder):
    (folder / MANIFEST).unlink()


def garble_manifest(folder):
    (folder / MANIFEST).write_text("{")


def odd_manifest(folder):
    (folder / MANIFEST).write_text(json.dumps(["a.bin"]))


@pytest.mark.parametrize("damage", [shorten, flip, remove, drop_manifest, garble_manifest, odd_manifest])
def test_damage_is_found_and_repaired(tmp_path, damage):
    folder = ensure(tmp_path / "model", build)
    damage(folder)
    assert not intact(folder)
    ensure(folder, build)
    assert intact(folder) and (folder / "a.bin").read_bytes() == b"x" * 1000


def test_an_intact_folder_is_not_built_again(tmp_path):
    folder = ensure(tmp_path / "model", build)
    assert ensure(folder, lambda _: pytest.fail("built twice")) == folder


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def broken(folder):
        (folder / "a.bin").write_bytes(b"half")
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        ensure(tmp_path / "model", broken)
    assert [p.name for p in tmp_path.iterdir()] in ([], ["model.lock"])


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="NSD_CACHE"):
        ensure(tmp_path / "file" / "model", build)


def test_the_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("NSD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "nsd"
    monkeypatch.setenv("NSD_CACHE", str(tmp_path / "own"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("NSD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "nsd"
