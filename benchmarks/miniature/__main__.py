"""python -m benchmarks.miniature: train, measure, report; goes on where it was stopped.

    python -m benchmarks.miniature                    everything from nothing; hours, cells in the order of worth
    python -m benchmarks.miniature --minutes 120      the same, with two hours of measuring at most
    python -m benchmarks.miniature --quick            the shipped checkpoints, fewer problems; 20 minutes
    python -m benchmarks.miniature --report-only      the document again, from stored rows

On two cores: --shard 1/2 and --shard 2/2 side by side once the models are trained.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.miniature.family import TARGETS, Manifest
from benchmarks.miniature.matrix import TASKS
from benchmarks.miniature.stages import Scale, all_stages, measure, ship, shipped, write_report
from nsd.errors import NSDError

QUICK = 1024
"""Problems a cell of a quick run; a full one takes all 4,096."""

REPORT = Path("docs/results/miniature.md")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.miniature", description="The paper in miniature.")
    p.add_argument("--work", type=Path, default=Path("miniature-run"), help="folder of checkpoints and rows")
    p.add_argument("--out", type=Path, default=None, help=f"the document (default: {REPORT}; quick: in --work)")
    p.add_argument("--quick", action="store_true", help="the shipped checkpoints, Table 1 and thresholds")
    p.add_argument("--count", type=int, default=None, help=f"problems a cell (default 4096; quick {QUICK})")
    p.add_argument("--tasks", default=",".join(TASKS), help="tasks with commas")
    p.add_argument("--targets", default=",".join(TARGETS), help="shapes to train, with commas")
    p.add_argument("--minutes", type=float, default=None, help="stop measuring after so long, and report")
    p.add_argument("--threads", type=int, default=None, help="torch's threads")
    p.add_argument("--steps", type=float, default=1.0, help="factor on training steps, to try the command")
    p.add_argument(
        "--ship", default=None, metavar="TARGET", help="make a trained target and its drafters the shipped ones"
    )
    p.add_argument("--shard", default="1/1", help="i/n: measure every n-th cell only, one process for each core")
    p.add_argument("--report-only", action="store_true", help="measure nothing")
    return p.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is missing, then write the document."""
    options = parse(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    count = options.count or (QUICK if options.quick else 4096)
    index, _, shards = options.shard.partition("/")
    shard = int(index), int(shards)
    scale = Scale(count, tuple(options.tasks.split(",")), options.steps, tuple(options.targets.split(",")), shard)
    work: Path = options.work
    minutes = options.minutes if options.minutes is not None else 20.0 if options.quick else None
    try:
        if options.ship is not None:
            tell(f"shipped: {ship(Manifest.read(work), options.ship):,} bytes")
            return 0
        if options.quick:
            manifest = shipped()
        elif options.report_only:
            manifest = Manifest.read(work)
        else:
            manifest = all_stages(work, scale, tell)
        if not options.report_only:
            measure(manifest, work, scale, options.quick, minutes, tell)
        out = options.out or (work / "miniature.md" if options.quick else REPORT)
        write_report(manifest, work, scale, out, ran(options, count))
    except NSDError as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    tell(f"written: {out}")
    return 0


def ran(options: argparse.Namespace, count: int) -> str:
    """What was run, in one line of the document."""
    models = "on the shipped checkpoints" if options.quick else "from nothing"
    return f"Run {models}, up to {count:,} problems a cell; temperature 1 unless a row says otherwise."


def tell(line: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
