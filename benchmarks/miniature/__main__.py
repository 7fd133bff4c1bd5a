"""python -m benchmarks.miniature: train, measure, report; goes on where it was stopped.

    python -m benchmarks.miniature                    everything from nothing in about 4 hours on two cores: as many
                                                      cells as fit, in the order of worth; the same command goes on
    python -m benchmarks.miniature --minutes 600      the same, with ten hours of measuring at most
    python -m benchmarks.miniature --quick            the shipped checkpoints, 1,024 problems; 20 minutes at most
    python -m benchmarks.miniature --report-only      the document again, from stored rows

Targets, drafters and cells are each worked on by two processes side by side (--workers).
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.miniature.family import TARGETS, Manifest
from benchmarks.miniature.matrix import TASKS
from benchmarks.miniature.pool import tell
from benchmarks.miniature.stages import Scale, all_stages, measure, ship, shipped, write_report
from nsd.bench.runner import session_facts
from nsd.errors import NSDError

COUNT, OTHERS, QUICK = 4096, 1024, 1024
"""Problems a main cell of a full run (all there are), of its other cells, and of a quick run."""

MINUTES, QUICK_MINUTES = 130.0, 20.0
"""Measuring at most, unless told otherwise; training takes about an hour and three quarters before it."""

WORKERS = 2

REPORT = Path("docs/results/miniature.md")


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.miniature", description="The paper in miniature.")
    p.add_argument("--work", type=Path, default=Path("miniature-run"), help="folder of checkpoints and rows")
    p.add_argument("--out", type=Path, default=None, help=f"the document (default: {REPORT}; quick: in --work)")
    p.add_argument("--quick", action="store_true", help="the shipped checkpoints, Table 1 and thresholds")
    p.add_argument(
        "--count", type=int, default=None, help=f"problems a cell of table 1 and thresholds ({COUNT}; quick {QUICK})"
    )
    p.add_argument("--count-others", type=int, default=OTHERS, help=f"problems a cell of the rest ({OTHERS})")
    p.add_argument("--tasks", default=",".join(TASKS), help="tasks with commas")
    p.add_argument("--targets", default=",".join(TARGETS), help="shapes to train, with commas")
    p.add_argument(
        "--minutes", type=float, default=None, help=f"measure so long at most ({MINUTES:g}; quick {QUICK_MINUTES:g})"
    )
    p.add_argument("--workers", type=int, default=WORKERS, help=f"processes side by side, a thread each ({WORKERS})")
    p.add_argument("--steps", type=float, default=1.0, help="factor on training steps, to try the command")
    p.add_argument(
        "--ship", default=None, metavar="TARGET", help="make a trained target and its drafters the shipped ones"
    )
    p.add_argument("--report-only", action="store_true", help="measure nothing")
    return p.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run what is missing, then write the document."""
    options = parse(arguments)
    torch.set_num_threads(1)
    count = options.count or (QUICK if options.quick else COUNT)
    tasks, shapes = tuple(options.tasks.split(",")), tuple(options.targets.split(","))
    scale = Scale(count, tasks, options.steps, shapes, options.count_others, options.workers)
    work: Path = options.work
    minutes = options.minutes if options.minutes is not None else QUICK_MINUTES if options.quick else MINUTES
    try:
        if options.ship is not None:
            tell(f"shipped: {ship(Manifest.read(work), options.ship):,} bytes")
            return 0
        if options.quick:
            manifest = shipped()
            measure(manifest, work, scale, True, minutes, tell)
        elif options.report_only:
            manifest = Manifest.read(work)
        else:
            manifest = all_stages(work, scale, minutes)
        out = options.out or (work / "miniature.md" if options.quick else REPORT)
        write_report(manifest, work, scale, out, ran(options, scale))
    except NSDError as problem:
        print(problem, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    tell(f"written: {out}")
    return 0


def ran(options: argparse.Namespace, scale: Scale) -> str:
    """What was run, where and with what: two lines of the document."""
    models = "on the shipped checkpoints" if options.quick else "from nothing"
    rest = f" ({min(scale.others or scale.count, scale.count):,} in cells beside Table 1 and the thresholds)"
    here = session_facts(["python", "-m", "benchmarks.miniature", *sys.argv[1:]])
    versions = ", ".join(f"{name} {version}" for name, version in here["versions"].items())
    where = f"{here['hardware']['cpu']}, {here['hardware']['cores']} cores"
    return (
        f"Run {models}, {scale.count:,} problems a cell asked for{rest if scale.others else ''}; every row says how "
        "many it has. Temperature 1 unless a row says otherwise.\n\n"
        f"Page written {datetime.now(UTC):%Y-%m-%d} on {where}, one thread a process; {versions}; revision "
        f"{(here['revision'] or 'none')[:12]}. A run may be stopped and gone on with, beside other work: tokens a "
        "second depend on that, scores, counts and ES do not."
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
