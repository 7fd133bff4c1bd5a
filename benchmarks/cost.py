"""What speed costs in distribution: `python -m benchmarks.cost [--drafter NAME] [--figure FILE] [--quick]`.

The embedded model under NSD with a falling cap on the one-step deviation, interleaved prompt by prompt in one run, each
setting with the same seeds: tokens/s, tau, mean ES and mean deviation spent, beside exact speculation (cap 0) and plain
decoding.
"""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
import transformers

import nsd
from nsd.api import Pair
from nsd.decoding import Completion, Stats

CAPS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, None)
PROMPTS = (
    "List five everyday uses of a spoon, then repeat the list in the same words with one more use added.",
    "Write a short story about a fox that learns to swim.",
    "Explain why the sky is blue to a child.",
    "Write a Python function that returns the n-th Fibonacci number, then explain each line.",
    "Give me a recipe for pancakes, then the shopping list for it.",
    "Write a letter to a landlord about a broken heater.",
)


def main() -> None:
    """Measure, print a table, and draw it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--quick", action="store_true", help="two prompts, fewer tokens")
    options = parser.parse_args()
    prompts, tokens = (PROMPTS[:2], 48) if options.quick else (PROMPTS, 128)
    pair = nsd.load("smollm2-135m", options.drafter, dtype=options.dtype, threads=options.threads)
    plain = Pair(pair.target, None)
    names = ["plain", *("none" if cap is None else f"{cap:g}" for cap in CAPS)]
    answers: dict[str, list[Completion]] = {name: [] for name in names}
    settings = {"chat": True, "accounting": "full", "temperature": options.temperature, "max_new_tokens": tokens}
    pair.generate(prompts[0], **{**settings, "max_new_tokens": 8})
    for number, prompt in enumerate(prompts):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            if name == "plain":
                answers[name].append(plain.generate(prompt, rule="sd", seed=number, **settings))
            else:
                cap = None if name == "none" else float(name)
                answers[name].append(pair.generate(prompt, max_deviation=cap, seed=number, **settings))
    print(f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {options.threads} threads, torch {torch.__version__},")
    command = " ".join(["python -m benchmarks.cost", *sys.argv[1:]])
    print(f"transformers {transformers.__version__}, nsd {nsd.__version__}: {command}\n")
    rows = [_row(name, answers[name], answers["plain"]) for name in names]
    print("| cap eps | tokens/s | over plain | tau | mean ES | mean spent | rescued per 100 tokens |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    if options.figure:
        _draw(options.figure, rows[1:], options.drafter)


def _row(name: str, mine: list[Completion], plain: list[Completion]) -> list[str]:
    stats = sum((c.stats for c in mine), Stats())
    base = sum((c.stats for c in plain), Stats())
    assert stats.tokens_per_second is not None and base.tokens_per_second is not None
    spent = sum(c.fidelity.sum_eps or 0.0 for c in mine)
    return [
        name,
        f"{stats.tokens_per_second:.1f}",
        f"{stats.tokens_per_second / base.tokens_per_second:.2f}x",
        f"{stats.tau:.2f}",
        "-" if stats.mean_ES is None else f"{stats.mean_ES:.3f}",
        f"{spent / stats.tested:.3f}" if stats.tested else "-",
        f"{100 * stats.rescued / stats.output_tokens:.1f}",
    ]


def _draw(path: Path, rows: list[list[str]], drafter: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    spent, speed = [float(row[5]) for row in rows], [float(row[2].rstrip("x")) for row in rows]
    axes.plot(spent, speed, marker="o", color="#8839ef")
    for row, x, y in zip(rows, spent, speed, strict=True):
        axes.annotate(f"eps {row[0]}", (x, y), textcoords="offset points", xytext=(5, -10), fontsize=8)
    axes.set_xlabel("mean deviation spent per tested token")
    axes.set_ylabel("speed over plain decoding")
    axes.set_title(f"smollm2-135m, {drafter}: speed against cost", fontsize=10)
    axes.grid(alpha=0.3)
    figure.savefig(path)


if __name__ == "__main__":
    main()
