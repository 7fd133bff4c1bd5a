"""Where the time of one draft-verify block goes: `python -m benchmarks.profile_block [--quick] [--clock cpu|wall]`.

The seams of the loop are timed from outside, each without what it calls in turn, while the loop runs as it always
does; medians over blocks of K proposals, NSD, full accounting, batch 1. What no seam covers is `python`, the glue
between operations. With --clock cpu and one thread (the default) other work on the machine matters little.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor

import nsd
from benchmarks.laps import header
from nsd.api import Pair
from nsd.decoding import Decoder as Loop
from nsd.decoding.blocks import HostVerdict
from nsd.decoding.chance import Chance
from nsd.drafters.drawing import Drawing
from nsd.drafters.eagle3 import EagleNet
from nsd.drafters.feature_chain import ChainDrafter, ChainSession
from nsd.nn import Decoder
from nsd.nn.decoder import Norm
from nsd.targets.lean import LeanSession, LeanTarget
from nsd.train.prompts import built_in_held_out

MODEL = "smollm2-135m"
STAGES = {"_chance": "uniforms", "_propose": "draft", "_score": "target", "_verify": "decision", "_commit": "commit"}


class Spans:
    """Exclusive seconds by part; a part is the stage of the loop with the innermost seam inside it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._stack = clock, list[str]()
        self._mark = 0.0
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Time spent in here, without inner spans, belongs to this name under its stage."""
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def _charge(self) -> None:
        now = self._clock()
        if self._stack:
            stage, inner = self._stack[0], self._stack[-1]
            self.seconds[stage if stage == inner else f"{stage}: {inner}"] += now - self._mark
        self._mark = now

    def wrap(self, stack: ExitStack, owner: Any, name: str, label: str) -> None:
        """Time a function or method of `owner` until the stack is left."""
        plain = getattr(owner, name)
        inner = plain.__func__ if isinstance(owner, type) and hasattr(plain, "__func__") else plain

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.inside(label):
                return inner(*arguments, **options)

        setattr(owner, name, classmethod(timed) if inner is not plain else timed)
        stack.callback(setattr, owner, name, classmethod(inner) if inner is not plain else plain)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", default=["int8", "bfloat16", "w8a8"])
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="one prompt, fewer tokens")
    options = parser.parse_args()
    if options.clock == "cpu" and options.threads != 1:
        sys.exit("the CPU clock counts one thread, wanted --threads 1; for more take --clock wall")
    torch.set_num_threads(options.threads)
    prompts, tokens = (1, 32) if options.quick else (6, 96)
    clock = thread_time if options.clock == "cpu" else perf_counter
    print(header(torch.bfloat16, torch.device("cpu")))
    print(f"# {options.clock} time, K={options.k}, T={options.temperature:g}, {prompts} prompts of {tokens} tokens\n")
    found = {}
    for dtype in options.dtype:
        pair = nsd.load(MODEL, "auto", dtype=dtype, threads=options.threads)
        found[dtype] = profile(pair, options.k, options.temperature, prompts, tokens, clock)
    print(table(found))


def profile(
    pair: Pair, k: int, temperature: float, prompts: int, tokens: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median milliseconds of every part of a block."""
    spans, blocks = Spans(clock), list[dict[str, float]]()
    asked: dict[str, Any] = {"chat": True, "k": k, "temperature": temperature, "accounting": "full"}
    texts = built_in_held_out().prompts
    pair.generate(texts[0], max_new_tokens=16, **asked)
    with ExitStack() as stack:
        _watch(spans, stack)
        _watch_projections(spans, stack, pair)
        for number in range(prompts):
            for block in pair.run([texts[number]], max_new_tokens=tokens, seed=number, **asked):
                if len(block.drafted) == k:
                    blocks.append(dict(spans.seconds))
                spans.seconds.clear()
    parts = sorted({part for block in blocks for part in block})
    return {part: 1e3 * median(block.get(part, 0.0) for block in blocks) for part in parts}


def _watch(spans: Spans, stack: ExitStack) -> None:
    """Put spans around every seam until the stack is left."""
    names = ("decoding.loop", "nn.decoder", "verification.verify", "verification.one")
    loop, chain, deciding, deciding_one = (sys.modules[f"nsd.{name}"] for name in names)
    for method, stage in STAGES.items():
        spans.wrap(stack, Loop, method, stage)
    for owner, method, label in (
        (LeanTarget, "embed", "embedding"),
        (LeanTarget, "logits", "head"),
        (Decoder, "_attention", "attention, the rest"),
        (chain, "attend", "scaled dot product"),
        (Decoder, "_mlp", "mlp"),
        (Norm, "__call__", "norms"),
        (LeanSession, "score", "python"),
        (EagleNet, "features", "fusing target states"),
        (EagleNet, "narrow_logits", "head"),
        (Drawing, "next", "law and draw"),
        (ChainSession, "propose", "python"),
        (loop, "laws", "laws"),
        (loop, "verify", "verify"),
        (deciding, "_account", "accounting"),
        (deciding_one, "_account", "accounting"),
        (HostVerdict, "of", "to plain values"),
        (Chance, "of_step", "uniforms"),
    ):
        spans.wrap(stack, owner, method, label)


def _watch_projections(spans: Spans, stack: ExitStack, pair: Pair) -> None:
    """Put spans around the projections of attention: which one it is, is known by identity."""
    target, drafter = pair.target, pair.drafter
    assert isinstance(target, LeanTarget) and isinstance(drafter, ChainDrafter), "the profile knows the lean path"
    layers = [*target.decoder.layers, *drafter.net.decoder.layers]
    labels = {id(p): label for layer in layers for p, label in ((layer.qkv, "qkv"), (layer.o, "attention output"))}
    for form in {type(p) for layer in layers for p in (layer.qkv, layer.o)}:
        plain = form.__call__

        def timed(projection: Any, x: Tensor, plain: Any = plain) -> Any:
            label = labels.get(id(projection))
            if label is None:
                return plain(projection, x)
            with spans.inside(label):
                return plain(projection, x)

        stack.callback(setattr, form, "__call__", plain)
        setattr(form, "__call__", timed)  # noqa: B010 (mypy refuses the assignment to a method)


def table(found: dict[str, dict[str, float]]) -> str:
    """Parts as rows, formats as columns: milliseconds and share of the block."""
    lines = ["| part | " + " | ".join(f"{d} ms | share" for d in found) + " |", "|---" * (1 + 2 * len(found)) + "|"]
    totals = {dtype: sum(parts.values()) for dtype, parts in found.items()}
    parts = sorted({part for mine in found.values() for part in mine}, key=lambda part: _place(part, found))
    for part in [*parts, "block"]:
        cells = []
        for dtype, mine in found.items():
            ms = totals[dtype] if part == "block" else mine.get(part, 0.0)
            cells.append(f"{ms:.2f} | {100 * ms / totals[dtype]:.1f}%")
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _place(part: str, found: dict[str, dict[str, float]]) -> tuple[int, float]:
    """By stage in the order of a block, then by size."""
    stage = part.partition(":")[0]
    return list(STAGES.values()).index(stage), -max(mine.get(part, 0.0) for mine in found.values())


if __name__ == "__main__":
    main()
