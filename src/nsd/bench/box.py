"""The inside of the sandbox: a launcher that gives up rights, then becomes the program it was asked to run.

Started by `nsd.bench.sandbox` as `python -I -S box.py SPEC`, so it imports the standard library alone. Three
processes: the launcher (leader of the process group, in the old namespaces), the first process of the new process
namespace (whose end makes the kernel kill every other process in it, whatever session or group they moved to), and
the program itself, which is the only one that drops to the unprivileged user, takes the limits and sees the given
streams. What was and what was not possible is written to a status pipe as one JSON line; how the program ended as a
second.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NETWORK = 0x20000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
AT_FDCWD, AT_RECURSIVE, MOUNT_READ_ONLY, SYS_MOUNT_SETATTR = -100, 0x8000, 1, 442
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38

libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> bool:
    """Whether the kernel gave new namespaces of these kinds."""
    return bool(libc.unshare(flags) == 0)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> bool:
    """Whether the mount was made."""
    texts = source.encode(), target.encode(), kind.encode()
    return bool(libc.mount(*texts, ctypes.c_ulong(flags), data.encode()) == 0)


def mount_read_only(path: str, *, on: bool, deep: bool) -> bool:
    """Set or clear read-only on a mount (on all below it if `deep`); false before Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_READ_ONLY if on else 0, 0 if on else MOUNT_READ_ONLY, 0, 0)
    flags = AT_RECURSIVE if deep else 0
    done = libc.syscall(
        ctypes.c_long(SYS_MOUNT_SETATTR), AT_FDCWD, path.encode(), flags, ctypes.byref(attributes), ctypes.c_size_t(32)
    )
    return bool(done == 0)


def new_namespaces(uid: int, gid: int) -> dict[str, bool]:
    """Leave the network, the processes and the mounts of the machine, as far as the kernel lets this user."""
    if os.geteuid() != 0:
        if not unshare(NEW_USER):
            return {"network": False, "pids": False, "mounts": False}
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - as bare as can be
                file.write(text)
    unshare(NEW_IPC)
    return {"network": unshare(NEW_NETWORK), "pids": unshare(NEW_PIDS), "mounts": unshare(NEW_MOUNTS)}


def close_files(spec: dict[str, Any]) -> bool:
    """Make every mount read-only but the box, which becomes a memory file system; false if not possible."""
    box, uid, gid, size = spec["box"], spec["uid"], spec["gid"], spec["limits"]["disk"]
    if not mount("none", "/", "none", MS_REC | MS_PRIVATE):
        return False
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)  # hides other processes; refused in some containers
    there, here = spec["prefix"]
    mount(there, here, "none", MS_BIND)  # Python at a place that any user can reach, should its own be private
    if not mount("tmpfs", box, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},mode=700,uid={uid},gid={gid}"):
        return False
    return mount_read_only("/", on=True, deep=True) and mount_read_only(box, on=False, deep=False)


def set_limits(limits: dict[str, int]) -> None:
    """Hard limits; the soft CPU limit is one second lower, so that the program hears of it before it is killed."""
    pairs = {
        resource.RLIMIT_CPU: (limits["cpu"], limits["cpu"] + 1),
        resource.RLIMIT_AS: (limits["memory"],) * 2,
        resource.RLIMIT_NPROC: (limits["processes"],) * 2,
        resource.RLIMIT_FSIZE: (limits["file"],) * 2,
        resource.RLIMIT_NOFILE: (limits["open_files"],) * 2,
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, (soft, hard) in pairs.items():
        top = resource.getrlimit(kind)[1]
        if top != resource.RLIM_INFINITY:
            soft, hard = min(soft, top), min(hard, top)
        resource.setrlimit(kind, (soft, hard))


def become(spec: dict[str, Any]) -> None:
    """Drop rights and turn into the program; never returns."""
    os.chdir(spec["box"])
    set_limits(spec["limits"])
    if os.geteuid() == 0 and spec["uid"]:
        os.setgroups([])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    python = next((path for path in spec["pythons"] if os.access(path, os.X_OK)), spec["pythons"][0])
    os.execve(python, [python, "-I", "-B", spec["program"]], {})


def say(status: int, **facts: Any) -> None:
    """One JSON line to the status pipe."""
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(facts).encode() + b"\n")


def first_process(spec: dict[str, Any], status: int, got: dict[str, bool]) -> None:
    """Start the program, collect every orphan, and end with the program: the namespace ends with this process."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    files = got["mounts"] and got["pids"] and close_files(spec)
    say(status, network=got["network"], pids=got["pids"], files=files)
    child = os.fork()
    if child == 0:
        try:
            become(spec)
        except BaseException as error:
            say(status, refused=f"{type(error).__name__}: {error}")
        os._exit(127)
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(number)
    while True:
        pid, ended = os.wait()
        if pid == child:
            say(status, ended=os.waitstatus_to_exitcode(ended))
            os._exit(0)


def main() -> None:
    """Read the request, leave the machine's namespaces, and wait for the first process of the new ones."""
    spec = json.loads(sys.argv[1])
    status = spec["status"]
    os.set_inheritable(status, False)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    got = dict.fromkeys(("network", "pids", "mounts"), False)
    if spec["namespaces"]:
        got = new_namespaces(spec["uid"], spec["gid"])
    child = os.fork()
    if child == 0:
        first_process(spec, status, got)
    for number in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.close(number)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
