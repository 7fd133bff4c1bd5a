"""Measures the embedded model on this machine: `python -m benchmarks.local [--cells SET ...] [--minutes M] [--quick]`.

One run, batch 1, arms interleaved prompt by prompt on the held-out prompts of the shipped drafter, until every cell has
32 prompts and 3,000 tokens. Sets of cells:

- goals: what the goals need, K around the optimum, transformers' generate, llama.cpp (see benchmarks/local/llama)
- k: every K from 1 to 6 under both rules: the default K by format
- curve: sharper drafts, greedy drafts and the cap, int8
- all

Answers are kept in --out as they come; the same command goes on where a killed one was, other sets join the same
folder. A set whose arms are compared with each other has a folder and a page of its own (--out, --page), so that all of
them are interleaved. --minutes takes the cells that are expected to fit, by priority, and names those left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.local import page
from benchmarks.local.cells import DTYPES, TEMPERATURES, THETA, Cell, chosen, fitting, with_company
from benchmarks.local.measure import MODEL, Bench, measure, probe, score_all
from benchmarks.local.rows import rows_of
from benchmarks.local.samples import FEWEST_PROMPTS, FEWEST_TOKENS, Store
from nsd.bench.runner import session_facts
from nsd.errors import NSDError
from nsd.train.prompts import built_in_held_out

QUICK = {"prompts": 2, "tokens": 1, "limit": 24}
EXPECTED_LENGTH = 0.82
"""Share of the limit that an answer reaches on average, for the estimate of a run's time."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, score, write the page."""
    options = parser().parse_args(arguments)
    try:
        return _run(options)
    except NSDError as problem:
        print(problem, file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.local", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--cells", nargs="+", default=["goals"], help="goals, k, curve, all")
    made.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    made.add_argument("--temperature", nargs="+", type=float, choices=TEMPERATURES, default=list(TEMPERATURES))
    made.add_argument("--k", nargs="+", type=int, default=list(range(1, 7)), help="K of the set k")
    made.add_argument("--minutes", type=float, help="measure the cells that fit, by priority")
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    made.add_argument("--limit", type=int, default=96, help="most tokens of an answer")
    made.add_argument("--accounting", choices=["full", "rescues"], default="full")
    made.add_argument("--out", type=Path, default=Path("runs/local"), help="where answers are kept")
    made.add_argument("--results", type=Path, help="where the page goes; docs/results, or --out if quick")
    made.add_argument(
        "--page", default=page.MAIN, metavar="NAME", help="the page's name, for a set with a folder of its own"
    )
    made.add_argument("--page-only", action="store_true", help="measure nothing: score what is there, make the page")
    made.add_argument("--quick", action="store_true", help="two short prompts a cell: shows that all works")
    return made


def _run(options: argparse.Namespace) -> int:
    prompts, tokens = (QUICK["prompts"], QUICK["tokens"]) if options.quick else (FEWEST_PROMPTS, FEWEST_TOKENS)
    limit = QUICK["limit"] if options.quick else options.limit
    torch.set_num_threads(options.threads)
    held_out, store = built_in_held_out(), Store(options.out)
    bench = Bench(held_out.prompts, limit, options.threads, options.accounting)
    cells = with_company(chosen(options.cells, options.dtype, options.temperature, options.k))
    try:
        if not options.page_only:
            fixed = {
                "model": MODEL,
                "theta": THETA,
                "most tokens": limit,
                "threads": options.threads,
                "accounting": options.accounting,
                "held-out prompts": held_out.digest[:12],
            }
            _session(options, bench, cells, store, fixed, prompts, tokens)
    finally:
        bench.close()
    known = with_company(chosen(["all"], DTYPES, TEMPERATURES, range(1, 7)) + cells)
    present = [cell for cell in known if store.of(cell.name)]
    score_all(bench, present, store, _say)
    rows, refused = rows_of(present, store, prompts, tokens)
    folder = options.results or (options.out if options.quick else Path("docs/results"))
    for path in page.write(folder, rows, refused, store, options.quick, options.page):
        print(path)
    return 0


def _session(
    options: argparse.Namespace,
    bench: Bench,
    cells: list[Cell],
    store: Store,
    fixed: dict[str, Any],
    prompts: int,
    tokens: int,
) -> None:
    """Measure the cells that are not complete."""
    facts = session_facts(["python", "-m", "benchmarks.local", *sys.argv[1:]])
    now, load = datetime.now(UTC).isoformat(timespec="minutes"), os.getloadavg()[0]
    session = store.begin({**facts, "created": now, "load": load}, fixed)
    cells = bench.usable(cells)
    missing = [cell for cell in cells if not store.enough([cell.name], prompts, tokens)]
    if missing:
        answers = prompts if options.quick else max(prompts, round(tokens / (EXPECTED_LENGTH * bench.limit)))
        _say("warming up")
        expected = {c: EXPECTED_LENGTH * s for c, s in probe(bench, missing, answers).items()}
        taken = missing
        if options.minutes is not None:
            taken = [cell for cell in fitting(missing, expected, 60 * options.minutes) if cell in missing]
        for cell in missing:
            if cell not in taken:
                bench.skipped[cell.name] = f"left out: did not fit into {options.minutes:g} minutes"
        _say(f"{len(taken)} of {len(missing)} cells, about {sum(expected.get(c, 0) for c in taken) / 60:.1f} minutes")
        if taken:
            measure(bench, taken, store, session, prompts, tokens, _say)
    store.sessions[session]["skipped"] = bench.skipped
    store.save_sessions()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
