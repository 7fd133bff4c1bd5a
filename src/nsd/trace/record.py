"""Writes a trace while decoding runs: one line per block, on disk before the next block begins.

A process that is killed leaves every block that was whole; what it lacks is the footer.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from nsd.errors import TraceError
from nsd.events import Block, FinishReason, Origin
from nsd.trace.chain import START, seal
from nsd.trace.schema import Footer, Header, RequestTotals, Trace

INTERRUPTED = FinishReason.INTERRUPTED.value


class Recorder:
    """Records the events of one run: `write` every block, then `close` with each request's fidelity report.

    As a context manager it closes the file on the way out; without `close` before that the trace stays unfinished.
    """

    def __init__(self, path: str | Path, header: Header) -> None:
        self.path = Path(path)
        try:
            self._file = self.path.open("x", encoding="ascii", newline="\n")
        except FileExistsError:
            raise TraceError(f"{path} exists, wanted a new file; name another or remove it first") from None
        except OSError as error:
            raise TraceError(
                f"{path} cannot be written ({error.strerror}); name a file in a folder that exists"
            ) from None
        self._header = header
        self._chain = START
        self._totals = {info.request: RequestTotals(info.request) for info in header.requests}
        self._blocks = 0
        self._started = perf_counter()
        self._line("header", header)

    def write(self, block: Block) -> None:
        """Put one event on disk."""
        if block.request not in self._totals:
            raise TraceError(f"block of request {block.request}, wanted one of {sorted(self._totals)} from the header")
        self._totals[block.request] = add(self._totals[block.request], block)
        self._blocks += 1
        self._line("block", block)

    def close(self, fidelity_by_request: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write the footer: fidelity reports in the order of the header's requests (or none at all)."""
        reports = list(fidelity_by_request) or [{}] * len(self._totals)
        if len(reports) != len(self._totals):
            raise TraceError(f"{len(reports)} fidelity reports, wanted one for each of {len(self._totals)} requests")
        totals = (
            replace(t, fidelity=dict(r), finish_reason=t.finish_reason or INTERRUPTED)
            for t, r in zip(self._totals.values(), reports, strict=True)
        )
        self._line("footer", Footer(tuple(totals), self._blocks, perf_counter() - self._started))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()

    def _line(self, kind: str, value: Header | Block | Footer) -> None:
        line, self._chain = seal(kind, value, self._chain)
        self._file.write(line + "\n")
        self._file.flush()


def add(totals: RequestTotals, block: Block) -> RequestTotals:
    """Totals with one more block counted."""
    tested, drawn = [t.origin for t in block.tested], None if block.drawn is None else block.drawn.origin
    return replace(
        totals,
        blocks=totals.blocks + 1,
        output_tokens=totals.output_tokens + len(block.committed),
        drafted=totals.drafted + len(block.drafted),
        tested=totals.tested + len(tested),
        by_ratio=totals.by_ratio + tested.count(Origin.RATIO),
        rescued=totals.rescued + tested.count(Origin.RESCUED),
        rejected=totals.rejected + tested.count(Origin.REJECTED),
        recovered=totals.recovered + (drawn is Origin.RECOVERED),
        bonus=totals.bonus + (drawn is Origin.BONUS),
        target=totals.target + (drawn is Origin.TARGET),
        guards=totals.guards + block.guard,
        invalid=totals.invalid + block.invalid,
        finish_reason=totals.finish_reason if block.finish_reason is None else block.finish_reason.value,
    )


def lines(trace: Trace) -> list[str]:
    """The lines of a trace, sealed anew from the first to the last."""
    chain, sealed = START, []
    parts: list[tuple[str, Header | Block | Footer]] = [("header", trace.header)]
    parts += [("block", block) for block in trace.blocks]
    parts += [("footer", trace.footer)] if trace.footer is not None else []
    for kind, value in parts:
        line, chain = seal(kind, value, chain)
        sealed.append(line)
    return sealed


def surroundings() -> dict[str, Any]:
    """What a header says about where it was recorded: versions, source revision, machine, time. Never fails."""
    packages = {"nsd": "nucleus-speculative-decoding", "torch": "torch", "transformers": "transformers"}
    versions = {"python": platform.python_version()}
    for name, package in packages.items():
        try:
            versions[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    machine = f"{platform.system()} {platform.machine()}, {platform.processor() or 'processor unnamed'}"
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"versions": versions, "revision": _revision(), "machine": machine, "created": created}


def _revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
