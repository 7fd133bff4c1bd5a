"""Work side by side: jobs in processes of their own, in order, with the time that is left over all stages.

Every job passes over what it finds done, so that a run that was killed goes on. A worker ends itself when the process
that started it is gone; otherwise a second run could meet it at the same files.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from nsd.errors import NSDError

PASSED = 0.05
"""Share of a job's planned time under which it was passed over."""

WATCHED = 1.0
"""Seconds between a worker's looks at its parent."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do: its name, the stage it belongs to, planned seconds of one core, a function and its arguments."""

    name: str
    stage: str
    seconds: float
    call: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(slots=True)
class Eta:
    """Time left over all stages: planned seconds, corrected by how long this machine took for what is done."""

    planned: dict[str, float]
    workers: int
    spent: dict[str, tuple[float, float]] = field(default_factory=dict)

    def plan(self, stage: str, seconds: float) -> None:
        """Say anew what a stage takes, once its jobs are known."""
        self.planned[stage] = seconds

    def done(self, job: Job, seconds: float) -> None:
        """A job took so many seconds; one that found everything there says nothing of this machine's pace."""
        if seconds < PASSED * job.seconds:
            self.planned[job.stage] = self.planned.get(job.stage, job.seconds) - job.seconds
            return
        planned, real = self.spent.get(job.stage, (0.0, 0.0))
        self.spent[job.stage] = planned + job.seconds, real + seconds

    def left(self) -> float:
        """Seconds until all stages are done."""
        total = 0.0
        for stage, planned in self.planned.items():
            done, _ = self.spent.get(stage, (0.0, 0.0))
            total += max(planned - done, 0.0) * self._pace(stage)
        return total / self.workers

    def _pace(self, stage: str) -> float:
        """Real seconds for a planned one: of this stage, else of all so far, else 1."""
        planned, real = self.spent.get(stage, (0.0, 0.0))
        if not planned:
            planned, real = (sum(pair[i] for pair in self.spent.values()) for i in (0, 1))
        return real / planned if planned else 1.0


def tell(line: str) -> None:
    """A line with the time; workers write to the same place."""
    os.write(1, f"{time.strftime('%H:%M:%S')} {line}\n".encode())


def run_jobs(jobs: Sequence[Job], eta: Eta, until: float | None = None, watch: Callable[[str], None] = tell) -> int:
    """Do all jobs, the first ones first -> how many were left at `until` (time.monotonic()). Raises the first error."""
    return (_alone if eta.workers < 2 or len(jobs) < 2 else _together)(deque(jobs), eta, until, watch)


def _alone(jobs: deque[Job], eta: Eta, until: float | None, watch: Callable[[str], None]) -> int:
    while jobs and not _late(until):
        job, started = jobs.popleft(), time.monotonic()
        job.call(*job.args)
        _ended(job, time.monotonic() - started, eta, watch)
    return len(jobs)


def _together(jobs: deque[Job], eta: Eta, until: float | None, watch: Callable[[str], None]) -> int:
    running: dict[Future[Any], tuple[Job, float]] = {}
    failed: Exception | None = None
    with ProcessPoolExecutor(eta.workers, multiprocessing.get_context("spawn"), _begin, (os.getpid(),)) as pool:
        while running or (jobs and failed is None and not _late(until)):
            while jobs and len(running) < eta.workers and failed is None and not _late(until):
                job = jobs.popleft()
                running[pool.submit(job.call, *job.args)] = job, time.monotonic()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, started = running.pop(future)
                try:
                    future.result()
                    _ended(job, time.monotonic() - started, eta, watch)
                except BrokenProcessPool:
                    failed = failed or NSDError(f"the process of {job.name} was ended; the same command goes on")
                except Exception as problem:  # any: it is raised again once the others have ended
                    failed = failed or problem
    if failed is not None:
        raise failed
    return len(jobs)


def _ended(job: Job, seconds: float, eta: Eta, watch: Callable[[str], None]) -> None:
    eta.done(job, seconds)
    watch(f"done: {job.name} ({seconds / 60:.1f} min); about {eta.left() / 60:.0f} min left of all")


def _late(until: float | None) -> bool:
    return until is not None and time.monotonic() > until


def _begin(parent: int) -> None:
    """Set a worker up: one thread, and an end when its parent is gone."""
    import torch

    torch.set_num_threads(1)

    def watched() -> None:
        while os.getppid() == parent:
            time.sleep(WATCHED)
        os._exit(1)

    threading.Thread(target=watched, daemon=True).start()
