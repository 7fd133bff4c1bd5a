"""A run on disk: a folder that only grows, survives a kill at any moment, and never changes once it is complete.

    runs/NAME.partial/   while it grows       manifest.json   configuration, machine, sessions
    runs/NAME/           once it is complete  records.jsonl   one line for each (arm, task, problem, seed)

A record is on the disk (fsync) before the next answer begins. A last line without its end is what a kill leaves: it is
cut off when the run goes on, and its answer is decoded again. Every line ends with the CRC-32 of its body, so that
damage is found. A lock that dies with its holder keeps a second process out.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from filelock import FileLock, Timeout

from nsd.errors import NSDError

FORMAT = "nsd-bench"
VERSION = 1
PARTIAL = ".partial"
MANIFEST, RECORDS, DAMAGED = "manifest.json", "records.jsonl", "damaged.jsonl"
_CRC = ',"crc":"'
_PARTS = ("shard", "seeds", "seed", "limit", "problems")
"""Of a configuration, what may differ between parts of one evaluation."""


class BenchError(NSDError):
    """A benchmark run cannot be read, written or continued."""


class Key(NamedTuple):
    """What a record answers; each key stands in a run at most once."""

    arm: str
    task: str
    problem: str
    seed: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Key:
        """The key of a record."""
        return cls(str(record["arm"]), str(record["task"]), str(record["problem"]), int(record["seed"]))

    def __str__(self) -> str:
        return "/".join(map(str, self))


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was read: its manifest, its records in the order they were written, and whether it is complete."""

    folder: Path
    manifest: dict[str, Any]
    records: tuple[dict[str, Any], ...]
    complete: bool

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.name.removesuffix(PARTIAL)


class RunWriter:
    """The one process that writes a run; `append` records, then `finish`. Leaving it releases the lock."""

    def __init__(
        self, root: Path, name: str, config: Mapping[str, Any], session: Mapping[str, Any], repair: bool = False
    ) -> None:
        """Begin a run, or go on with a partial one of the same configuration.

        session says where this process runs; it is added to the manifest's list. repair moves damaged lines aside.
        Raises BenchError if the run is complete, locked, damaged, or of another configuration.
        """
        _check_name(name)
        self.name, self._root = name, root
        self.final, self.folder = root / name, root / (name + PARTIAL)
        self._fd = -1
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BenchError(
                f"{root} cannot be made ({error.strerror}), wanted a folder for runs; try --runs FOLDER"
            ) from None
        self._lock = FileLock(root / f".{name}.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise BenchError(
                f"another process writes run {name}, wanted one; wait for it or choose another --name"
            ) from None
        try:
            self.manifest = self._open_manifest(dict(config), dict(session))
            self.done = self._open_records(repair)
        except BaseException:
            self.close()
            raise

    def _open_manifest(self, config: dict[str, Any], session: dict[str, Any]) -> dict[str, Any]:
        if self.final.exists():
            raise BenchError(
                f"run {self.name} is complete and never changes, wanted a new name; try --name {self.name}-2"
            )
        path = self.folder / MANIFEST
        if not path.exists():
            # Nothing was recorded before the manifest was, so a folder without one holds nothing to lose.
            self.folder.mkdir(exist_ok=True)
            manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": self.name, "created": now()}
            manifest["config"] = config
        else:
            manifest = read_manifest(self.folder)
            changed = differences(manifest["config"], json.loads(json.dumps(config)))
            if changed:
                raise BenchError(
                    f"run {self.name} was begun with another configuration ({'; '.join(changed[:4])}), "
                    f"wanted the same; go on with nsd bench --resume {self.name}, or choose another --name"
                )
        manifest["sessions"] = [*manifest.get("sessions", []), {**session, "began": now()}]
        self._write_manifest(manifest)
        return manifest

    def _open_records(self, repair: bool) -> dict[Key, dict[str, Any]]:
        path = self.folder / RECORDS
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        records, damaged = _parse(whole, path, tolerate=repair)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if len(whole) < len(data):
            os.ftruncate(self._fd, len(whole))
        self._size = len(whole)
        if damaged:
            self._set_aside(records, damaged)
        _sync_folder(self.folder)
        return {Key.of(record): record for record in records}

    def _set_aside(self, records: list[dict[str, Any]], damaged: list[bytes]) -> None:
        """Keep damaged lines in a file of their own; the records file is replaced whole."""
        with (self.folder / DAMAGED).open("ab") as aside:
            aside.writelines(damaged)
            os.fsync(aside.fileno())
        os.close(self._fd)
        data = b"".join(seal(record) for record in records)
        _replace(self.folder / RECORDS, data)
        self._fd = os.open(self.folder / RECORDS, os.O_WRONLY | os.O_APPEND)
        self._size = len(data)

    def append(self, record: dict[str, Any]) -> None:
        """Put one record on the disk; on return it is there. Raises BenchError for a key that is there already."""
        key = Key.of(record)
        if key in self.done:
            raise BenchError(f"{key} is recorded already, wanted every answer once; nsd bench --resume {self.name}")
        line = seal(record)
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise self.unwritable(error) from error
        self._size += len(line)
        self.done[key] = record

    def unwritable(self, error: OSError) -> BenchError:
        """What to say where the system refused to write, and how to go on."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else f"writing failed ({error.strerror})"
        return BenchError(
            f"{what} at record {len(self.done) + 1} of run {self.name}, wanted room for it; "
            f"the {len(self.done)} before it are safe: free some space, then nsd bench --resume {self.name}"
        )

    def finish(self) -> Path:
        """Seal the run and give it its final name -> its folder. Safe to repeat after a kill at any point of it."""
        data = (self.folder / RECORDS).read_bytes()
        facts = {"finished": now(), "records": len(self.done), "records_sha256": hashlib.sha256(data).hexdigest()}
        self._write_manifest({**self.manifest, **facts})
        for name in (MANIFEST, RECORDS):
            (self.folder / name).chmod(0o444)
        self.folder.rename(self.final)
        _sync_folder(self._root)
        # Whoever opens the vanished lock meanwhile finds the complete run and turns away.
        with contextlib.suppress(OSError):
            Path(self._lock.lock_file).unlink()
        self.close()
        return self.final

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        try:
            _replace(self.folder / MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            raise BenchError(
                f"the manifest of run {self.name} cannot be written ({error.strerror}), wanted room; free some space"
            ) from error

    def close(self) -> None:
        """Close the file and release the lock; what was appended stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seal(record: Mapping[str, Any]) -> bytes:
    """A record as its line: JSON whose last member is the CRC-32 of all before it."""
    body = json.dumps(record, separators=(",", ":"), ensure_ascii=True, allow_nan=False)[:-1]
    return f'{body}{_CRC}{zlib.crc32(body.encode()):08x}"}}\n'.encode()


def _open_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line, None if it is damaged."""
    body, found, crc = line.decode("utf-8", "replace").rpartition(_CRC)
    if not found or crc != f'{zlib.crc32(body.encode()):08x}"}}':
        return None
    record: dict[str, Any] = json.loads(body + "}")
    return record


def _parse(data: bytes, path: Path, tolerate: bool) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Records of whole lines, and the damaged lines if they are tolerated."""
    records, damaged, seen = [], [], set()
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        record = _open_line(line.rstrip(b"\n"))
        if record is None and tolerate:
            damaged.append(line)
            continue
        if record is None:
            raise BenchError(
                f"{path} line {number} is damaged (its checksum does not fit), wanted it as written; nothing "
                "was changed: restore the file, or nsd bench --resume RUN --repair to set it aside and decode again"
            )
        if Key.of(record) in seen:
            raise BenchError(
                f"{path} line {number} repeats {Key.of(record)}, wanted every answer once; restore the file"
            )
        seen.add(Key.of(record))
        records.append(record)
    return records, damaged


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """What two configurations do not share, in words."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        parts = (differences(old.get(n), new.get(n), f"{where}.{n}" if where else str(n)) for n in names)
        return [line for part in parts for line in part]
    return [] if old == new else [f"{where}: {json.dumps(old)[:60]} then, {json.dumps(new)[:60]} now"]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run. Raises BenchError where there is none of this format and version."""
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchError(
            f"{path} cannot be read ({error.strerror}), wanted a run of nsd bench; nsd report FOLDER"
        ) from None
    except ValueError:
        raise BenchError(f"{path} is not JSON, wanted the manifest of a run; restore it") from None
    got = (manifest.get("format"), manifest.get("version"))
    if got != (FORMAT, VERSION):
        raise BenchError(
            f"{path} has format and version {got}, wanted {(FORMAT, VERSION)}; read it with the release that wrote it"
        )
    return manifest


def read_run(folder: Path) -> StoredRun:
    """A run, complete or partial; a line that is still being written is left out."""
    manifest = read_manifest(folder)
    path = folder / RECORDS
    data = path.read_bytes() if path.exists() else b""
    wanted = manifest.get("records_sha256")
    if wanted is not None and hashlib.sha256(data).hexdigest() != wanted:
        raise BenchError(f"{path} was changed after the run was complete, wanted it as written; restore it from a copy")
    records, _ = _parse(data[: data.rfind(b"\n") + 1], path, tolerate=False)
    return StoredRun(folder, manifest, tuple(records), not folder.name.endswith(PARTIAL))


def find_run(root: Path, name: str) -> Path:
    """The folder of a run named by its name or its path."""
    for folder in (Path(name), root / name, root / (name + PARTIAL)):
        if (folder / MANIFEST).is_file():
            return folder
    known = ", ".join(folder.name for folder in runs_in(root)[:5]) or "none"
    raise BenchError(f"there is no run {name}, wanted one of those in {root}: {known}; nsd bench --suite toy makes one")


def newest_run(root: Path) -> Path:
    """The run of a folder whose records changed last."""
    found = runs_in(root)
    if not found:
        raise BenchError(f"there is no run in {root}, wanted at least one; nsd bench --suite toy makes one")
    return found[0]


def runs_in(root: Path) -> list[Path]:
    """All runs of a folder, the newest first."""
    found = [path.parent for path in root.glob(f"*/{MANIFEST}")] if root.is_dir() else []

    def changed(folder: Path) -> tuple[float, str]:
        records = folder / RECORDS
        return (records if records.exists() else folder / MANIFEST).stat().st_mtime, folder.name

    return sorted(found, key=changed, reverse=True)


def shards(runs: Iterable[StoredRun]) -> list[list[StoredRun]]:
    """Runs that are parts of one evaluation, grouped: alike in everything but shard, seeds and limit."""
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        config = {k: v for k, v in run.manifest["config"].items() if k not in _PARTS}
        config["request"] = {k: v for k, v in config.get("request", {}).items() if k not in _PARTS}
        groups.setdefault(json.dumps(config, sort_keys=True), []).append(run)
    return list(groups.values())


def _check_name(name: str) -> None:
    if not name or name != Path(name).name or name.startswith(".") or name.endswith(PARTIAL):
        raise BenchError(
            f"run name {name!r} is no plain folder name, wanted letters, digits, - and _; try --name first-run"
        )


def _replace(path: Path, data: bytes) -> None:
    """Put data in a file's place at once: the old content or the new is there, never a mixture."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
