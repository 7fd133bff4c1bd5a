"""What verification costs: the decision and the exact accounting, beside a softmax and a sort of the same rows.

    python -m benchmarks.verification [--quick] [--threads N] [--markdown FILE]

One block of one request. All columns of a line are measured in turns inside one run, so their ratios hold on a busy
machine too; times are the lower quartile over the rounds, in milliseconds.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nsd.laws import draw
from nsd.rules import NSD, SD, Rule
from nsd.verification import Accounting, Draft, DraftLaw, Uniforms, verify

BLOCKS = (2, 7, 16, 31)
VOCABULARIES = (49_152, 152_064, 256_000)
QUICK = ((7,), (49_152,))
SHAPES = {"peaked": "p(rank) ~ rank^-1.8, about 2 nats, as a chat model's", "flat": "normal logits, about 8 nats"}

Work = Callable[[], object]


def logits(shape: str, rows: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """Rows of logits of one shape, in random order of ids."""
    noise = torch.randn(rows, vocab, generator=generator)
    if shape == "flat":
        return noise * 2.5
    zipf = -1.8 * torch.arange(1, vocab + 1).log()
    order = torch.rand(rows, vocab, generator=generator).argsort(-1)
    return zipf[order] + 0.3 * noise


def arms(shape: str, k: int, vocab: int) -> dict[str, Work]:
    """What is timed, by column name: one block with k drafted tokens."""
    generator = torch.Generator().manual_seed(0)
    target = logits(shape, k + 1, vocab, generator)
    p = torch.softmax(target, -1)
    q = torch.softmax(target[:k] + torch.randn(k, vocab, generator=generator), -1)
    u = Uniforms(*(torch.rand(k + 1, generator=generator, dtype=torch.float64) for _ in range(3)))
    tokens = draw(q, torch.rand(k, generator=generator, dtype=torch.float64))
    sampled, point = Draft(tokens, (k,), DraftLaw.SAMPLED, q), Draft(tokens, (k,), DraftLaw.POINT)

    def decided(draft: Draft, rule: Rule, accounting: Accounting = Accounting.OFF) -> Work:
        return lambda: verify(draft, p, [rule], u, accounting)

    def sorted_nucleus() -> object:
        ordered, order = p[:k].sort(-1, descending=True)
        return ordered.cumsum(-1), order.argsort(-1).gather(-1, tokens.unsqueeze(-1))

    return {
        "softmax": lambda: torch.softmax(target, -1),
        "sort": sorted_nucleus,
        "SD": decided(sampled, SD()),
        "NSD": decided(sampled, NSD()),
        "NSD, point": decided(point, NSD()),
        "NSD, full": decided(sampled, NSD(), Accounting.FULL),
        "NSD, cap": decided(sampled, NSD(max_deviation=0.1), Accounting.FULL),
    }


def measured(work: dict[str, Work], rounds: int) -> dict[str, float]:
    """Milliseconds of each piece of work, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, piece in work.items():
            piece()  # the timed call finds its caches as another call of the same left them, not as the sort did
            started = time.perf_counter()
            piece()
            seconds[name].append(time.perf_counter() - started)
    return {name: 1e3 * sorted(times)[len(times) // 4] for name, times in seconds.items()}


def table(blocks: tuple[int, ...], vocabularies: tuple[int, ...], rounds: int) -> list[str]:
    """The lines of a Markdown table."""
    names = list(arms("peaked", 1, 64))
    head = ["laws", "K", "V", *names, "NSD/softmax", "sort/NSD"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for shape in SHAPES:
        for vocab in vocabularies:
            for k in blocks:
                ms = measured(arms(shape, k, vocab), rounds if k * vocab < 10**6 else max(rounds // 4, 3))
                ratios = [f"{ms['NSD'] / ms['softmax']:.1f}", f"{ms['sort'] / ms['NSD']:.0f}x"]
                lines.append(
                    "| " + " | ".join([shape, str(k), str(vocab), *(f"{v:.2f}" for v in ms.values()), *ratios]) + " |"
                )
    return lines


def conditions(threads: int) -> list[str]:
    """Machine, date and versions."""
    return [
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, {threads} threads,"
        f" Python {platform.python_version()}, torch {torch.__version__}; milliseconds, one block, one request.",
        *(f"{shape}: {meaning}." for shape, meaning in SHAPES.items()),
        "SD, NSD and point: the decision alone. full and cap: exact R and ES at every tested position.",
        "",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one block length, one vocabulary")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--markdown", type=Path, help="append the table to this file")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    blocks, vocabularies = QUICK if asked.quick else (BLOCKS, VOCABULARIES)
    lines = [*conditions(asked.threads), *table(blocks, vocabularies, asked.rounds)]
    print("\n".join(lines))
    if asked.markdown:
        with asked.markdown.open("a", encoding="utf-8") as out:
            out.write("\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
