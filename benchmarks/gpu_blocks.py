"""Draft, target pass and decision per block at Qwen3-4B sizes on a GPU: `python -m benchmarks.gpu_blocks [--tiny]`.

One random checkpoint of each mechanism in bfloat16, at its published k. Nemotron's target has the sizes of Qwen3-4B in
its own architecture; MTP's target has them with three DeltaNet layers to one of attention. Random weights say nothing
about acceptance. `--tiny` takes the same path through a tiny model on the CPU, to see that the script is in order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.laps import header, measure, plain_step
from benchmarks.random_pairs import MECHANISMS, QWEN3_4B, TINY, Maker


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model in float32 on the CPU")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--only", action="append", choices=list(MECHANISMS), help="a mechanism; repeatable")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        sys.exit("torch sees no GPU here, wanted one; try --tiny, which runs on the CPU")
    device, dtype, size = torch.device("cuda"), torch.bfloat16, QWEN3_4B
    if options.tiny:
        device, dtype, size = torch.device("cpu"), torch.float32, TINY

    print(header(dtype, device))
    print(
        f"# {size.name}, prompts of {options.prompt} tokens, medians over {options.blocks} blocks, rule nsd, theta 0.95"
    )
    print("\n| mechanism | k | batch | plain step ms | draft ms | target pass ms | decision ms | roll-back ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.only or MECHANISMS:
        with tempfile.TemporaryDirectory() as folder:
            pair = Maker(size, Path(folder), device, dtype).pair(name)
        for batch in options.batch:
            laps = measure(pair, batch, options.prompt, options.blocks)
            step = plain_step(pair.target, batch, options.prompt, options.blocks)
            cells = " | ".join(f"{1e3 * x:.2f}" for x in (step, laps.draft, laps.verify, laps.decide, laps.keep))
            print(f"| {name} | {pair.k} | {batch} | {cells} |", flush=True)
        del pair


if __name__ == "__main__":
    main()
