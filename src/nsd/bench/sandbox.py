"""Run a program that a language model wrote, with as few rights as the machine allows, and say which.

What it promises, each with a test that attacks it: an own process group and, where namespaces exist, an own process
namespace, all of it killed at the wall-clock limit, also if it ignores SIGTERM or moved to another session; limits on
CPU seconds, memory of one process, number of processes, size of a file, open files, bytes in its folder and bytes
printed; an empty environment; an unprivileged user of its own when started as root; no network where a network
namespace can be made; nothing to write to but its folder where a mount namespace can be made (else what its user may
write to: with a user of its own, the folders open to everybody); the folder removed afterwards. What could not be had
is named once by a `SandboxWarning` and in every `Outcome`.

What it does not protect from:
- errors of the kernel, of Python, of the container: there is no system-call filter and no virtual machine;
- reading: files that any user may read can be read, the clock and the names of the machine too (but not sent
  anywhere);
- a program that looks for the tests it is judged by: they lie beside it in the same process, and it may answer them
  alone;
- load: it shares the processors and the memory bus, and `processes` times `memory` may exceed what the machine has;
- without namespaces: the network, processes that leave the group (a user of its own is still swept at the end);
- started as an ordinary user without namespaces: everything else that this user runs or owns, its parent included.

Made for Linux, and refused elsewhere. For programs from someone who means harm use a virtual machine; this is for
programs that are merely wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from nsd.errors import NSDError

MIB = 1 << 20
FIRST_UID, LAST_UID = 61184, 65519  # the range that systemd keeps for users made on demand, so no account has one

Status = Literal["ok", "error", "killed", "timeout", "output"]


class SandboxError(NSDError):
    """The sandbox itself could not start; says nothing about the program."""


class SandboxWarning(UserWarning):
    """A protection is not to be had on this machine; named once a process."""


@dataclass(frozen=True)
class Limits:
    """Bytes, seconds and counts that one program gets."""

    wall_s: float = 45.0  # of a busy machine too: what computes meets the limit of CPU seconds first
    cpu_s: int = 6  # of one process
    memory: int = 1024 * MIB  # address space of one process
    processes: int = 32  # processes and threads together
    file: int = 16 * MIB
    disk: int = 64 * MIB  # of the whole folder, where it can be a file system of its own
    output: int = MIB  # of stdout and of stderr
    open_files: int = 64


@dataclass(frozen=True)
class Isolation:
    """Which protections a run really had."""

    network: bool  # no network
    pids: bool  # its own process namespace
    files: bool  # everything read-only but its folder
    own_user: bool  # a user that owns nothing else

    def missing(self) -> tuple[str, ...]:
        """What was not to be had, in words."""
        said = {
            "network": "no network namespace: the program can open connections",
            "pids": "no process namespace: processes that leave the group are found by their user alone, or not",
            "files": "no mount namespace: the program can write wherever its user can",
            "own_user": "not started as root: the program runs as the present user and can read its files",
        }
        return tuple(words for name, words in said.items() if not getattr(self, name))


@dataclass(frozen=True)
class Outcome:
    """How a program ended. `code` is its exit status, or minus the signal; None if it was stopped from outside."""

    status: Status
    code: int | None
    stdout: str
    stderr: str
    seconds: float
    isolation: Isolation


def run(program: str, stdin: str = "", limits: Limits | None = None, *, namespaces: bool = True) -> Outcome:
    """Run one Python program to its end or to its limits; `namespaces=False` shows what holds without them."""
    _ready()
    return _run(program, stdin, limits or Limits(), namespaces)


@cache
def _ready() -> None:
    """Refuse to judge anything before an empty program has run: a missing library must not look like a wrong answer."""
    if sys.platform != "linux":
        raise SandboxError(f"got {sys.platform}, wanted Linux to run programs safely; score code in a Linux container")
    seen = _run("print('ready')", "", Limits(), True)
    if seen.status != "ok" or seen.stdout != "ready\n":
        raise SandboxError(
            f"an empty program ended with {seen.status} ({seen.stderr.strip()[-160:]}), wanted it to run; "
            "use a Python that other users can read, or start as an ordinary user"
        )


def _run(program: str, stdin: str, limits: Limits, namespaces: bool) -> Outcome:
    uid, gid = _user()
    folder = Path(tempfile.mkdtemp(prefix="nsd-box-"))
    try:
        box = folder / "box"
        for made in (box, folder / "python"):
            made.mkdir()
        source, given = folder / "main.py", folder / "stdin"
        source.write_text(program, encoding="utf-8", errors="backslashreplace")
        given.write_text(stdin, encoding="utf-8", errors="backslashreplace")
        folder.chmod(0o711)
        source.chmod(0o644)
        box.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(box, uid, gid)
        return _launch(source, given, box, (uid, gid), limits, namespaces)
    finally:
        if os.geteuid() == 0:
            _sweep(uid)
        shutil.rmtree(folder, ignore_errors=True)


def isolation() -> Isolation:
    """Which protections this machine gives; found by running an empty program."""
    return run("").isolation


def _user() -> tuple[int, int]:
    """A user without a name and without processes when started as root, else the present one."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    taken = _uids()
    free = [uid for uid in range(FIRST_UID, LAST_UID) if uid not in taken]
    uid = random.SystemRandom().choice(free)
    return uid, uid


def _uids() -> dict[int, list[int]]:
    """User -> its processes, as /proc tells."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found.setdefault(entry.stat().st_uid, []).append(int(entry.name))
    return found


def _sweep(uid: int) -> None:
    """Kill what is left of a user of our own making; several rounds, since a process may fork meanwhile."""
    for _ in range(50):
        left = _uids().get(uid, []) if FIRST_UID <= uid < LAST_UID else []
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _launch(source: Path, given: Path, box: Path, user: tuple[int, int], limits: Limits, namespaces: bool) -> Outcome:
    read, write = os.pipe()
    spec = {
        "status": write, "program": str(source), "box": str(box), "uid": user[0], "gid": user[1],
        "namespaces": namespaces,
        "prefix": [sys.base_prefix, str(box.with_name("python"))], "pythons": _pythons(box.with_name("python")),
        "limits": {**{k: v for k, v in asdict(limits).items() if k != "wall_s"}, "cpu": limits.cpu_s},
    }  # fmt: skip
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("box.py")), json.dumps(spec)]
    start = time.monotonic()
    with given.open("rb") as stdin, os.fdopen(read, "rb") as status:
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/",
                pass_fds=(write,), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(write)
        watch = _Watch(process, start + limits.wall_s, limits.output)
        try:
            watch.follow()
        finally:
            _kill_group(process, user[0])
        seconds = time.monotonic() - start
        facts = _facts(status)
    if "refused" in facts or "network" not in facts:
        why = facts.get("refused") or bytes(watch.streams["stderr"]).decode(errors="replace")[-200:].strip()
        raise SandboxError(
            f"the sandbox could not start a program ({why or 'no reason given'}), wanted {sys.executable} to run; "
            "make Python and the temporary folder (TMPDIR) readable for other users"
        )
    own = os.geteuid() == 0
    got = Isolation(bool(facts["network"]), bool(facts["pids"]), bool(facts["files"]), own)
    if namespaces:
        _tell(got.missing())
    code = facts.get("ended") if watch.stopped is None else None
    ended: Status = "killed" if code is None or code < 0 else "error" if code else "ok"
    text = {name: bytes(kept).decode("utf-8", errors="replace") for name, kept in watch.streams.items()}
    return Outcome(watch.stopped or ended, code, text["stdout"], text["stderr"], seconds, got)


@dataclass
class _Watch:
    """Reads both streams until the process ends, the clock runs out, or a stream grows too long."""

    process: subprocess.Popen[bytes]
    deadline: float
    most: int
    stopped: Status | None = None
    streams: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})

    def follow(self) -> None:
        pipes: dict[str, IO[bytes] | None] = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        with selectors.DefaultSelector() as selector:
            for name, pipe in pipes.items():
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, name)
            while self.stopped is None:
                ended = self.process.poll() is not None
                left = self.deadline - time.monotonic()
                if not ended and left <= 0:
                    self.stopped = "timeout"
                    break
                if not selector.get_map():
                    time.sleep(min(0.002, max(left, 0)))
                    if ended:
                        break
                    continue
                ready = selector.select(0 if ended else min(left, 0.05))
                if ended and not ready:
                    break
                for key, _ in ready:
                    self._take(selector, key)
        for pipe in pipes.values():
            assert pipe is not None
            pipe.close()

    def _take(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        try:
            chunk = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return
        if not chunk:
            selector.unregister(key.fileobj)
            return
        kept = self.streams[key.data]
        kept += chunk[: self.most - len(kept)]
        if len(kept) >= self.most:
            self.stopped = "output"


def _kill_group(process: subprocess.Popen[bytes], uid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _facts(status: IO[bytes]) -> dict[str, Any]:
    """All lines of the status pipe in one; a process that still holds the other end does not block this."""
    os.set_blocking(status.fileno(), False)
    facts: dict[str, Any] = {}
    for line in (status.read() or b"").splitlines():
        facts.update(json.loads(line))
    return facts


def _pythons(bound: Path) -> list[str]:
    """Where to look for Python: as started, outside its environment, where it is mounted to, the system's own."""
    base = Path(sys.executable).resolve()
    inside = bound / base.relative_to(sys.base_prefix) if base.is_relative_to(sys.base_prefix) else base
    return [sys.executable, str(base), str(inside), "/usr/bin/python3"]


@cache
def _tell(missing: tuple[str, ...]) -> None:
    for words in missing:
        warnings.warn(f"sandbox: {words}", SandboxWarning, stacklevel=4)
