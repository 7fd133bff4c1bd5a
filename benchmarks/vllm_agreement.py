"""Whether a drafter does in vLLM what it does in this project's own loop: tau of both, and their difference.

The shipped EAGLE-3 drafter, written out for vLLM, against itself in `nsd.load`: same prompts (the held-out ones of its
training), temperature 1, K = 3, the same number format. Blocks that the token limit may have cut are left out on both
sides. Errors are those of means over prompts' blocks (blocks of a prompt are not independent).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import nsd
from benchmarks.vllm_live import Live
from nsd.train.prompts import built_in_held_out

K, TOKENS = 3, 96
Z99 = 2.576
ARMS: Mapping[str, float] = {"sd": 0.0, "nsd": 0.95}
"""theta by the arm's name."""


@dataclass(frozen=True, slots=True)
class Mean:
    """tau over blocks, its standard error, and how many blocks there were."""

    tau: float
    error: float
    blocks: int

    @classmethod
    def of(cls, clusters: Sequence[Sequence[int]]) -> Mean:
        """From accepted drafts of each block, by prompt; the error is the ratio estimator's."""
        kept = [list(c) for c in clusters if c]
        blocks = sum(map(len, kept))
        mean = sum(map(sum, kept)) / blocks
        spread = sum((sum(c) - mean * len(c)) ** 2 for c in kept) * len(kept) / max(len(kept) - 1, 1)
        return cls(1 + mean, sqrt(spread) / blocks, blocks)


@dataclass(frozen=True, slots=True)
class Agreement:
    """One arm in both loops."""

    arm: str
    ours: Mean
    theirs: Mean

    @property
    def z(self) -> float:
        """The difference in standard errors."""
        return (self.theirs.tau - self.ours.tau) / max(sqrt(self.ours.error**2 + self.theirs.error**2), 1e-12)


def measure(live: Live, least: int, prompts: int | None = None, dtype: str = "bfloat16") -> list[Agreement]:
    """Both arms in both loops until each has so many blocks; live is an engine with the exported drafter, K = 3."""
    pair = nsd.load("smollm2-135m", "smollm2-eagle3", dtype=dtype, threads=1)
    texts = built_in_held_out().prompts[:prompts]
    ids = [list(pair.target.tokenizer.chat([{"role": "user", "content": text}])) for text in texts]
    found = []
    for arm, theta in ARMS.items():
        ours = Mean.of(_gather(lambda seed, theta=theta: _ours(pair, ids, theta, seed), least, len(ids)))
        theirs = Mean.of(_gather(lambda seed, theta=theta: _theirs(live, ids, theta, seed), least, len(ids)))
        found.append(Agreement(arm, ours, theirs))
    return found


def _gather(answer: Any, least: int, count: int) -> list[list[int]]:
    """Rounds of all prompts, each with a seed of its own, until there are enough blocks; by prompt."""
    clusters: list[list[int]] = [[] for _ in range(count)]
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
    """Markdown rows."""
    lines = [
        "| arm | tau, our loop | tau, vLLM | blocks | difference in errors | inside 99% |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        ours, theirs = one.ours, one.theirs
        lines.append(
            f"| {one.arm} | {ours.tau:.3f} ± {Z99 * ours.error:.3f} | {theirs.tau:.3f} ± {Z99 * theirs.error:.3f} "
            f"| {ours.blocks}, {theirs.blocks} | {one.z:+.2f} | {'yes' if abs(one.z) < Z99 else 'no'} |"
        )
    return lines
