"""What processes of a pool do in tests; they import it by name. As a program: a run of tiny cells in two processes."""

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.miniature.pool import Eta, Job, run_jobs


def meet(mine, other, seconds=600):
    """Leave a file and wait for that of another job."""
    mine.touch()
    end = time.monotonic() + seconds
    while not other.exists():
        if time.monotonic() > end:
            raise TimeoutError("the other job does not run at the same time")
        time.sleep(0.01)


def leave(path, text):
    """Write a file."""
    path.write_text(text)


def fail(words):
    """An error of a job."""
    raise ValueError(words)


def linger(path):
    """Write the process's number and stay."""
    path.with_suffix(".part").write_text(str(os.getpid()))
    path.with_suffix(".part").rename(path)
    time.sleep(600)


def small_cell(manifest, cell, path):
    """A cell of 12 problems in groups of four, short answers."""
    from benchmarks.miniature import evaluate
    from benchmarks.miniature.stages import measure_cell
    from nsd.bench.tasks.mini_math import MiniMath

    evaluate.BATCH, MiniMath.max_new_tokens = 4, 12
    measure_cell(manifest, cell, 12, path)


def cells():
    """What the program measures."""
    from benchmarks.miniature.cells import AR, Cell, nsd, sd

    drafted = [Cell("tiny", "mini-math", "draft-model:matched", arm) for arm in (sd(3), nsd(3), nsd(2))]
    return [*drafted, Cell("tiny", "mini-math", None, AR)]


if __name__ == "__main__":
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "linger":
        jobs = [Job(f"j{i}", "s", 1.0, linger, (folder / f"pid{i}",)) for i in range(2)]
    else:
        from benchmarks.miniature.family import Manifest

        manifest = Manifest.read(folder)
        jobs = [
            Job(cell.key, "cells", 1.0, small_cell, (manifest, cell, folder / "cells" / f"{cell.key}.jsonl"))
            for cell in cells()
        ]
    run_jobs(jobs, Eta({"cells": float(len(jobs))}, 2))
    (folder / "whole.json").write_text(json.dumps("done"))
