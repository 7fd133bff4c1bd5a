"""Whether a drafter does in vLLM what it does in this project's own loop: `python -m benchmarks.vllm_agreement`.

The shipped EAGLE-3 drafter, written out for vLLM (method eagle3), against the same folder in `nsd.load`: same weights,
prompts (the held-out ones of its training), temperature 1, K = 3, the same number format (float32 unless --dtype).
Blocks that the token limit may have cut are left out on both sides. Errors count prompts, not blocks, since blocks of a
prompt are not independent; that of the difference pairs the prompts.

make env-vllm; . .venv-vllm/bin/activate; python -m benchmarks.vllm_agreement --out docs/results/vllm_agreement.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import nsd
from benchmarks.vllm_live import Live
from benchmarks.vllm_pair import Engines, Kept, machine, write_page
from nsd.drafters.exported import exported_folder
from nsd.train.prompts import built_in_held_out

K, TOKENS = 3, 96
Z99 = 2.576
ARMS: Mapping[str, float] = {"sd": 0.0, "nsd": 0.95}
"""theta by the arm's name."""
Clusters = list[list[int]]
"""Accepted drafts of each block, by prompt."""


@dataclass(frozen=True, slots=True)
class Mean:
    """tau over blocks, each prompt's share of its error, and how many blocks there were."""

    tau: float
    residuals: tuple[float, ...]
    blocks: int

    @classmethod
    def of(cls, clusters: Sequence[Sequence[int]]) -> Mean:
        """From accepted drafts of each block, by prompt; the residuals are the ratio estimator's."""
        blocks = sum(map(len, clusters))
        mean = sum(map(sum, clusters)) / blocks
        return cls(1 + mean, tuple((sum(c) - mean * len(c)) / blocks for c in clusters), blocks)

    @property
    def error(self) -> float:
        """Its standard error over prompts."""
        return _error(self.residuals)


def _error(residuals: Sequence[float]) -> float:
    return sqrt(sum(r * r for r in residuals) * len(residuals) / max(len(residuals) - 1, 1))


@dataclass(frozen=True, slots=True)
class Agreement:
    """One arm in both loops, prompt by prompt the same."""

    arm: str
    ours: Mean
    theirs: Mean

    @property
    def difference(self) -> float:
        """tau in vLLM less tau here."""
        return self.theirs.tau - self.ours.tau

    @property
    def error(self) -> float:
        """The difference's standard error, prompts paired."""
        return _error([a - b for a, b in zip(self.theirs.residuals, self.ours.residuals, strict=True)])

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return self.difference / max(self.error, 1e-12)


def measure(
    live: Callable[[], Live], least: int, prompts: int | None = None, dtype: str = "float32", kept: Kept | None = None
) -> list[Agreement]:
    """Both arms in both loops until each has so many blocks.

    live gives an engine with the exported drafter, K = 3; it is asked for after our own loop has finished.
    """
    kept = kept or Kept(None, {})
    texts = built_in_held_out().prompts[:prompts]
    pair = nsd.load("smollm2-135m", str(exported_folder()), dtype=dtype, threads=1)
    ids = [list(pair.target.tokenizer.chat([{"role": "user", "content": text}])) for text in texts]
    found: dict[tuple[str, str], Mean] = {}
    for side in ("ours", "theirs"):
        for arm, theta in ARMS.items():

            def answer(seed: int, side: str = side, arm: str = arm, theta: float = theta) -> Clusters:
                def once() -> Clusters:
                    made = _ours(pair, ids, theta, seed) if side == "ours" else _theirs(live(), ids, theta, seed)
                    return list(made)

                got: Clusters = kept.get(f"{side} {arm} round {seed}", once)
                return got

            found[arm, side] = Mean.of(_gather(answer, least, len(ids)))
    return [Agreement(arm, found[arm, "ours"], found[arm, "theirs"]) for arm in ARMS]


def _gather(answer: Callable[[int], Clusters], least: int, count: int) -> Clusters:
    """Rounds of all prompts, each with a seed of its own, until there are enough blocks; by prompt."""
    clusters: Clusters = [[] for _ in range(count)]
    seed = 0
    while sum(map(len, clusters)) < least:
        for mine, blocks in zip(clusters, answer(seed), strict=True):
            mine += blocks
        seed += 1
    return clusters


def _ours(pair: Any, ids: Sequence[list[int]], theta: float, seed: int) -> Iterator[list[int]]:
    for number, prompt in enumerate(ids):
        done = pair.generate(
            prompt,
            theta=theta,
            k=K,
            temperature=1.0,
            max_new_tokens=TOKENS,
            seed=1000 * seed + number,
            accounting="off",
        )
        yield [block.accepted for block in done.blocks[:-1] if len(block.drafted) == K]


def _theirs(live: Live, ids: Sequence[list[int]], theta: float, seed: int) -> Iterator[list[int]]:
    for first in range(0, len(ids), 8):
        requests = [
            {
                "prompt": {"prompt_token_ids": prompt},
                "params": {
                    "temperature": 1.0, "max_tokens": TOKENS, "seed": 1000 * seed + first + place,
                    "extra_args": {"nsd_theta": theta},
                },
            }
            for place, prompt in enumerate(ids[first : first + 8])
        ]  # fmt: skip
        for steps in live.ask(requests).accepted:
            yield _whole(steps)


def _whole(steps: list[int]) -> list[int]:
    """Steps that had room for K drafts and one more token; the first token came with the prompt."""
    kept, emitted = [], 1
    for accepted in steps[:-1]:
        if TOKENS - emitted > K:
            kept.append(accepted)
        emitted += accepted + 1
    return kept


def table(found: Sequence[Agreement]) -> list[str]:
    """Markdown rows; every interval is one of 99%."""
    lines = [
        "| arm | tau, our loop | tau, vLLM | blocks: ours, vLLM | vLLM less ours | inside 99% |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        lines.append(
            f"| {one.arm} | {_interval(one.ours.tau, one.ours.error)} | {_interval(one.theirs.tau, one.theirs.error)} "
            f"| {one.ours.blocks:,}, {one.theirs.blocks:,} | {one.difference:+.3f} ± {Z99 * one.error:.3f} "
            f"| {'yes' if abs(one.z) < Z99 else 'no'} |"
        )
    return lines


def _interval(tau: float, error: float) -> str:
    return f"{tau:.3f} [{tau - Z99 * error:.3f}, {tau + Z99 * error:.3f}]"


def main() -> None:
    """Measure both arms in both loops and write one page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2600, help="least blocks of each arm in each loop")
    parser.add_argument("--prompts", type=int, help="the first so many of the held-out prompts; default: all")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of both loops")
    parser.add_argument("--keep", type=Path, default=Path("runs/vllm_agreement.json"), help="what was measured already")
    parser.add_argument("--out", type=Path, help="where to write the page")
    options = parser.parse_args()
    kept = Kept(options.keep, {"dtype": options.dtype, "prompts": options.prompts, "versions": machine(1)[12:]})
    with Engines(K, dtype=options.dtype) as engines:
        found = measure(engines.get, options.blocks, options.prompts, options.dtype, kept)
    lines = [
        "# One drafter in two loops",
        "",
        f"{machine(1)}: `{' '.join(['python -m benchmarks.vllm_agreement', *sys.argv[1:]])}`. smollm2-135m and its "
        f"shipped EAGLE-3 drafter as `nsd export` writes it, the same two folders in this project's loop and in vLLM "
        f"(eagle3, drafts sampled), both in {options.dtype}, K = {K}, temperature 1, theta {ARMS['nsd']} for nsd, "
        f"{len(found[0].ours.residuals)} held-out prompts, {TOKENS} tokens an answer. Intervals are of 99% and count "
        "prompts, not blocks; the difference pairs the prompts.",
        "",
        *table(found),
    ]
    print("\n".join(lines))
    write_page(lines, options.out)


if __name__ == "__main__":
    main()
