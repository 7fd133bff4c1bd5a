"""Measures the lean path on the embedded model: `python -m benchmarks.lean [--quick] [--threads 1 2]`.

One process; formats and block lengths take turns round by round, minima over rounds:

- milliseconds a pass of n tokens after 200 cached ones, wall clock and CPU time of the process
- tokens/s of plain decoding at temperature 1 in this project's loop and in transformers' own generate (bfloat16)
- where the time of one pass goes, by operation
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import perf_counter, process_time

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

import nsd
from nsd.api import Pair
from nsd.targets.base import Target
from nsd.targets.load import load_target

MODEL = "smollm2-135m"
FORMATS = ("float32", "bfloat16", "int8", "int4", "w8a8")
LENGTHS = (1, 2, 4, 8, 16)
CACHED = 200
PROMPT = "Write a short story about a fox that learns to swim."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and tokens")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtype", nargs="+", default=list(FORMATS))
    options = parser.parse_args()
    rounds, tokens = (4, 24) if options.quick else (25, 96)
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f},")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, nsd {nsd.__version__}: {sys.argv[1:]}")
    targets = {dtype: load_target(MODEL, dtype, "cpu") for dtype in options.dtype}
    peer = load_target(MODEL, "bfloat16", "cpu", engine="transformers")
    for threads in options.threads:
        torch.set_num_threads(threads)
        passes({**targets, "bfloat16, transformers": peer}, rounds, threads)
        plain(targets, peer, tokens, threads)
    torch.set_num_threads(1)
    for dtype in targets:
        operations(targets[dtype], dtype)


def passes(targets: dict[str, Target], rounds: int, threads: int) -> None:
    """Cost of a pass by block length."""
    runs = {(name, n): one_pass(target, n) for name, target in targets.items() for n in LENGTHS}
    best = dict.fromkeys(runs, (float("inf"), float("inf")))
    for _ in range(rounds):
        for key, run in runs.items():
            wall, cpu = perf_counter(), process_time()
            run()
            took = perf_counter() - wall, process_time() - cpu
            best[key] = min(best[key][0], took[0]), min(best[key][1], took[1])
    print(f"\n{threads} threads: ms a pass after {CACHED} cached tokens, wall (CPU)\n")
    print("| weights | " + " | ".join(f"n={n}" for n in LENGTHS) + " |\n|" + "---|" * (len(LENGTHS) + 1))
    for name in targets:
        cells = " | ".join(f"{1e3 * best[name, n][0]:.1f} ({1e3 * best[name, n][1]:.1f})" for n in LENGTHS)
        print(f"| {name} | {cells} |")


def one_pass(target: Target, n: int) -> Callable[[], None]:
    """A block of n tokens that is rolled back at once."""
    session, _ = target.open([list(range(100, 100 + CACHED))], 64)
    block = [list(range(500, 500 + n))]

    def run() -> None:
        session.score(block)
        session.keep([0])

    run()
    return run


def plain(targets: dict[str, Target], peer: Target, tokens: int, threads: int) -> None:
    """Plain decoding at temperature 1, the prefill included."""
    model = peer.reference()
    assert model is not None
    ids = peer.tokenizer.chat([{"role": "user", "content": PROMPT}])
    rates: dict[str, list[float]] = {name: [] for name in (*targets, "transformers generate, bfloat16")}
    for turn in range(4):
        for name, target in targets.items():
            answer = Pair(target, None).generate(
                ids, temperature=1.0, max_new_tokens=tokens, seed=turn, ignore_eos=True, accounting="off"
            )
            rates[name].append(answer.stats.tokens_per_second or 0.0)
        started = perf_counter()
        with torch.inference_mode():
            model.generate(torch.tensor([ids]), do_sample=True, top_k=0, max_new_tokens=tokens, min_new_tokens=tokens)
        rates["transformers generate, bfloat16"].append(tokens / (perf_counter() - started))
    print(f"\n{threads} threads: plain decoding of {tokens} tokens, temperature 1, best of 3 after one to warm up\n")
    print("| weights | tokens/s |\n|---|---|")
    for name, seen in rates.items():
        print(f"| {name} | {max(seen[1:]):.1f} |")


def operations(target: Target, dtype: str) -> None:
    """The costliest operations of passes of four tokens, one thread."""
    run, repeats = one_pass(target, 4), 5
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(repeats):
            run()
    events = seen.key_averages()
    total = sum(e.self_cpu_time_total for e in events)
    print(f"\n{dtype}, n=4, 1 thread: share of the time by operation (profiler's own cost included)\n")
    print("| operation | calls a pass | share |\n|---|---|---|")
    for e in sorted(events, key=lambda e: -e.self_cpu_time_total)[:10]:
        print(f"| {e.key} | {e.count / repeats:.0f} | {100 * e.self_cpu_time_total / total:.1f}% |")


if __name__ == "__main__":
    main()
