"""Draft time per block against its floor, and what taps cost: `python -m benchmarks.drafters [--quick]`.

The floor of a block is passes x bytes / bandwidth: the weights that a drafting pass has to read (its layers and the
head; an embedding is only looked up), once per pass, at the bandwidth that this machine reaches with one row. A block
of many slots is computation rather than reading on a CPU, so its ratio says how far from reading-bound it is.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

import torch

from benchmarks.laps import bandwidth, header, measure, pass_times
from benchmarks.random_pairs import MECHANISMS, MIDDLE, SMALL, TINY, Maker, Size

PROMPT = 64


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tiny size only, few blocks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", action="append", choices=list(MECHANISMS), help="a mechanism; repeatable")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device, dtype = torch.device("cpu"), torch.float32
    sizes, blocks, megabytes = ((TINY,), 4, 16) if options.quick else ((TINY, MIDDLE, SMALL), 16, 512)
    names = options.only or list(MECHANISMS)

    print(header(dtype, device))
    speed = bandwidth(device, dtype, megabytes)
    print(
        f"# bandwidth {speed / 1e9:.1f} GB/s, prompts of {PROMPT} tokens, batch 1, medians of {blocks} blocks, rule nsd"
    )
    print("\n| size | mechanism | k | passes | MB a pass | floor ms | draft ms | ratio | target ms | decision ms |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        makers = [Maker(size, Path(folder), device, dtype) for size in sizes]
        for maker in makers:
            for name in names:
                print(row(maker, name, blocks, speed), flush=True)
        print("\n| size | tapped | tokens | target ms | with taps ms | overhead |\n|---|---|---|---|---|---|")
        for maker in makers:
            print(taps_row(maker, 4 if options.quick else 60), flush=True)


def row(maker: Maker, name: str, blocks: int, speed: float) -> str:
    """One mechanism at one size."""
    pair = maker.pair(name)
    laps = measure(pair, 1, PROMPT, blocks)
    size = torch.empty(0, dtype=maker.dtype).element_size()
    floor = pair.passes * pair.weights * size / speed
    figures = (1e3 * floor, 1e3 * laps.draft, laps.draft / floor, 1e3 * laps.verify, 1e3 * laps.decide)
    cells = " | ".join(f"{x:.2f}" for x in figures)
    return f"| {maker.size.name} | {name} | {pair.k} | {pair.passes} | {pair.weights * size / 1e6:.1f} | {cells} |"


def taps_row(maker: Maker, steps: int, width: int = 8) -> str:
    """Five tapped layers against none on the plain target, passes in turns; the overhead is the median of the pairs."""
    target, size = maker.plain, maker.size
    taps = tuple(i + 1 for i in _spread(size))
    without, having = pass_times(target, [(), taps], 1, PROMPT, width, steps)
    over = f"{100 * (median(b / a for a, b in zip(without, having, strict=True)) - 1):+.1f}%"
    times = " | ".join(f"{1e3 * median(seen):.2f}" for seen in (without, having))
    return f"| {size.name} | {len(taps)} layers | {width} | {times} | {over} |"


def _spread(size: Size) -> list[int]:
    from nsd.drafters.block_shape import spread_layers

    return spread_layers(size.layers, 5)


if __name__ == "__main__":
    main()
