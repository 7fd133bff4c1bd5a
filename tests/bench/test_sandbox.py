"""Attacks on the sandbox, one for each thing that it promises."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsd.bench import sandbox
from nsd.bench.sandbox import Isolation, Limits, SandboxError, SandboxWarning, isolation, run

SHORT = Limits(wall_s=3.0, cpu_s=2)
ROOMY = Limits(wall_s=120.0, cpu_s=60)
"""For an attack on something else than time: a busy machine must not end it first."""
HAS = isolation()
AS_ROOT = os.geteuid() == 0
# Every attack runs with namespaces and, where the rest must hold alone, without.
BOTH = pytest.mark.parametrize("namespaces", [True, False])


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of this test alone that other users can enter; its path marks every process of the sandbox."""
    folder = Path(tempfile.mkdtemp(prefix="nsd-attack-"))
    folder.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield str(folder)
    shutil.rmtree(folder, ignore_errors=True)


def processes(mark: str) -> list[int]:
    """Processes whose command line holds the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in line and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def gone(mark: str) -> bool:
    """Whether all such processes end within a second."""
    for _ in range(50):
        if not processes(mark):
            return True
        time.sleep(0.02)
    return False


@BOTH
def test_a_program_gets_its_input_and_gives_its_output(namespaces: bool) -> None:
    out = run("print(int(input()) + 1); import sys; sys.exit(3)", "41\n", namespaces=namespaces)
    assert (out.status, out.code, out.stdout) == ("error", 3, "42\n")
    assert run("print('gr\u00fc\u00df')", namespaces=namespaces).stdout == "gr\u00fc\u00df\n"


@BOTH
def test_an_endless_loop_is_stopped(namespaces: bool) -> None:
    out = run("while True: pass", limits=Limits(wall_s=1.0, cpu_s=30), namespaces=namespaces)
    assert out.status == "timeout" and out.code is None
    assert 0.9 < out.seconds < 5


@BOTH
def test_cpu_seconds_are_limited_whatever_the_clock(namespaces: bool) -> None:
    out = run("while True: pass", limits=Limits(wall_s=60, cpu_s=1), namespaces=namespaces)
    assert out.status == "killed" and out.code is not None and out.code < 0
    assert out.seconds < 30


def test_sleeping_costs_no_cpu_but_time() -> None:
    assert run("import time; time.sleep(60)", limits=Limits(wall_s=0.7)).status == "timeout"


@BOTH
def test_sigterm_is_no_shield(namespaces: bool) -> None:
    program = (
        "import signal, time\n"
        "for n in range(1, 65):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "print('armed', flush=True)\ntime.sleep(60)"
    )
    out = run(program, limits=Limits(wall_s=1.5), namespaces=namespaces)
    assert out.status == "timeout" and out.stdout == "armed\n"
    assert out.seconds < 6


@pytest.mark.skipif(not AS_ROOT, reason="the process limit counts the processes of this user, so the number differs")
@BOTH
def test_a_fork_bomb_stays_small_and_leaves_nothing(namespaces: bool, mark: str) -> None:
    program = (
        "import os, sys\n"
        "made = 0\n"
        "try:\n"
        "    for _ in range(1000):\n"
        "        if os.fork() == 0:\n"
        "            import time; time.sleep(60)\n"
        "        made += 1\n"
        "except OSError as error: print(made, error.strerror, flush=True)\n"
    )
    out = run(program, limits=SHORT, namespaces=namespaces)
    made = int(out.stdout.split()[0])
    assert 0 < made < SHORT.processes and "unavailable" in out.stdout
    assert gone(mark)


@BOTH
def test_a_bomb_that_forks_for_ever_is_cleared_away(namespaces: bool, mark: str) -> None:
    program = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    out = run(program, limits=Limits(wall_s=1.5, processes=20), namespaces=namespaces)
    assert out.status == "timeout" and out.seconds < 10
    assert gone(mark)


@BOTH
def test_a_child_in_a_session_of_its_own_does_not_survive(namespaces: bool, mark: str) -> None:
    if not namespaces and not AS_ROOT:
        pytest.skip(
            "without namespaces and without a user of its own nothing marks such a child; the docstring says so"
        )
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for fd in (0, 1, 2): os.close(fd)\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait(); print('left one behind')"
    )
    out = run(program, limits=SHORT, namespaces=namespaces)
    assert out.stdout == "left one behind\n"
    assert gone(mark)


@BOTH
def test_memory_is_limited(namespaces: bool) -> None:
    out = run("x = bytearray(8 << 30); print('got it')", limits=ROOMY, namespaces=namespaces)
    assert out.status == "error" and "MemoryError" in out.stderr and not out.stdout
    slow = "x = []\nwhile True: x.append(bytearray(64 << 20))"
    assert "MemoryError" in run(slow, limits=ROOMY, namespaces=namespaces).stderr


@BOTH
def test_a_gigabyte_of_output_is_cut(namespaces: bool) -> None:
    out = run("import sys\nfor _ in range(1000): sys.stdout.write('x' * (1 << 20))", namespaces=namespaces)
    assert out.status == "output"
    assert len(out.stdout) == Limits().output
    loud = run("import sys\nwhile True: sys.stderr.write('x' * (1 << 20))", namespaces=namespaces)
    assert loud.status == "output" and len(loud.stderr) == Limits().output


@BOTH
def test_a_file_cannot_grow_without_end(namespaces: bool) -> None:
    program = (
        "import os, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "with open('big', 'wb') as f:\n    for _ in range(64): f.write(bytes(1 << 20)); f.flush()"
    )
    out = run(program, limits=Limits(file=4 << 20), namespaces=namespaces)
    assert out.status == "error" and "File too large" in out.stderr


@pytest.mark.skipif(
    not HAS.files, reason="this machine gives no mount namespace, so the folder is no file system of its own"
)
def test_many_files_cannot_fill_the_disk() -> None:
    program = "for i in range(100):\n    open(str(i), 'wb').write(bytes(1 << 20))"
    out = run(program, limits=Limits(disk=8 << 20))
    assert out.status == "error" and "No space left" in out.stderr


def places() -> list[str]:
    """Where a program might write: beside its folder, the home, this project, shared memory, the root."""
    here = Path(__file__).resolve()
    return [str(p) for p in (Path.home(), here.parent, "/", "/usr", "/tmp", "/var/tmp", "/dev/shm", "/etc")]


def test_nothing_can_be_written_outside_the_folder(tmp_path: Path) -> None:
    if not HAS.files and not AS_ROOT:
        pytest.skip("as an ordinary user without a mount namespace the program may write what the user may; it is said")
    owned = tmp_path / "owned"
    owned.write_text("mine")
    program = (
        f"import os\nopen('inside', 'w').write('yes')\nprint(open('inside').read())\nwritten = []\n"
        f"for place in {places()!r}:\n"
        f"    try:\n        open(os.path.join(place, 'nsd-escape'), 'w').write('x'); written.append(place)\n"
        f"    except OSError: pass\n"
        f"try: open({str(owned)!r}, 'w').write('theirs'); written.append('owned')\nexcept OSError: pass\n"
        f"try: os.remove({str(owned)!r}); written.append('removed')\nexcept OSError: pass\n"
        f"print(written)"
    )
    out = run(program, limits=SHORT)
    everybody = [] if HAS.files else [p for p in places() if Path(p).is_dir() and Path(p).stat().st_mode & 0o002]
    try:
        assert out.stdout == f"yes\n{everybody}\n", out
        assert owned.read_text() == "mine"
    finally:
        for place in places():
            with contextlib.suppress(OSError):
                (Path(place) / "nsd-escape").unlink(missing_ok=True)


def test_the_program_cannot_change_mounts_or_become_root() -> None:
    program = (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, b''), libc.umount(os.getcwd().encode()), libc.setuid(0))"
    )
    assert run(program, limits=SHORT).stdout == "-1 -1 -1\n"


def test_the_network_is_out_of_reach_or_it_is_said() -> None:
    program = (
        "import socket\n"
        "listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)\n"
        "try: listener.connect(('127.0.0.1', int(input()))); print('connected')\n"
        "except OSError as error: print(type(error).__name__)"
    )
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        if HAS.network:
            out = run(program, port, SHORT)
            assert "connected" not in out.stdout and out.stdout
        assert run(program, port, SHORT, namespaces=False).stdout == "connected\n"  # so the attack is a real one


def test_what_is_missing_is_said_once_and_recorded() -> None:
    bare = Isolation(network=False, pids=False, files=False, own_user=False)
    assert [words.split(":")[0] for words in bare.missing()] == [
        "no network namespace",
        "no process namespace",
        "no mount namespace",
        "not started as root",
    ]
    sandbox._tell.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sandbox._tell(bare.missing())
    assert [str(warning.message) for warning in said] == [f"sandbox: {words}" for words in bare.missing()]
    assert all(warning.category is SandboxWarning for warning in said)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sandbox._tell(bare.missing())
    assert not run("", namespaces=False).isolation.network


def test_a_machine_without_namespaces_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_facts", lambda status: {"network": False, "pids": True, "files": True, "ended": 0})
    sandbox._tell.cache_clear()
    with pytest.warns(SandboxWarning, match="no network namespace"):
        out = run("print(1)")
    assert not out.isolation.network


@BOTH
def test_killing_the_parent_changes_no_verdict(namespaces: bool) -> None:
    if not namespaces and not AS_ROOT:
        pytest.skip(
            "without namespaces an ordinary user's program may end what the user may end; the docstring says so"
        )
    program = (
        "import os, signal\n"
        "for pid in {os.getppid(), 1, -1, *range(2, 40)} - {os.getpid()}:\n"
        "    for number in (signal.SIGTERM, signal.SIGKILL):\n"
        "        try: os.kill(pid, number)\n"
        "        except OSError: pass\n"
        "print('still here', flush=True)"
    )
    out = run(program, limits=SHORT, namespaces=namespaces)
    assert out.status in ("ok", "killed")  # it may end itself by -1, but neither us nor a right verdict
    assert run("print('next')").stdout == "next\n"


@pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")
@BOTH
def test_root_is_given_up_for_a_user_that_owns_nothing(namespaces: bool) -> None:
    out = run("import os; print(os.getuid(), os.geteuid(), os.getgroups())", namespaces=namespaces)
    uid, effective, groups = out.stdout.split(maxsplit=2)
    assert uid == effective and sandbox.FIRST_UID <= int(uid) <= sandbox.LAST_UID and groups.strip() == "[]"


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSD_SECRET", "x")
    out = run("import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))")  # Python itself sets LC_CTYPE
    assert out.stdout == "[]\n"
    assert run("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:3])").stdout == "[0, 1, 2]\n"


@pytest.mark.skipif(not HAS.pids or not HAS.files, reason="this machine hides no processes")
def test_other_processes_are_out_of_reach() -> None:
    out = run(f"import os\ntry: os.kill({os.getpid()}, 0); print('seen')\nexcept OSError as e: print(type(e).__name__)")
    assert out.stdout == "ProcessLookupError\n"


def test_the_folder_is_removed_even_after_a_kill(mark: str) -> None:
    programs = ["open('x', 'w').write('y')", "import os; os.makedirs('a/b'); os.chmod('a', 0)", "while True: pass"]
    for program in programs:
        run(program, limits=Limits(wall_s=1.0))
        assert list(Path(mark).iterdir()) == []


@pytest.mark.skipif(
    not HAS.pids, reason="without a process namespace the kernel does not end the program with its starter"
)
def test_the_program_ends_with_whoever_started_the_sandbox(mark: str) -> None:
    code = "from nsd.bench.sandbox import run, Limits\nrun('import time; time.sleep(50)', limits=Limits(wall_s=60))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": mark}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as starter:
        deadline = time.monotonic() + 20
        while not processes(f"{mark}/") and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        running = processes(f"{mark}/")
        starter.kill()
    assert running
    assert gone(f"{mark}/")


def test_a_sandbox_that_cannot_start_is_not_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_pythons", lambda bound: ["/nowhere/python"])
    with pytest.raises(SandboxError, match="could not start a program"):
        sandbox._run("print(1)", "", Limits(), True)
    monkeypatch.setattr(sandbox, "_pythons", lambda bound: ["/bin/true"])
    sandbox._ready.cache_clear()
    with pytest.raises(SandboxError, match="an empty program"):
        run("print(1)")
    monkeypatch.undo()
    sandbox._ready.cache_clear()
    assert run("print(1)").stdout == "1\n"
