"""Measures the decoding loop on the embedded model: `python -m benchmarks.decode [--quick] [--threads N]`.

One run, arms interleaved prompt by prompt, medians over steps:

- decision share: seconds from logits to verdict (laws, uniforms, verify; no ES, no entropies) over a target pass, K = 7
- accounting share: what full accounting adds
- plain decoding against transformers' own generate, same prompts, temperature and lengths
- loop efficiency: measured speed-up / (tau t_AR / (t_draft + t_verify)); at 1 only model passes cost time
"""

from __future__ import annotations

import argparse
import platform
import sys
from datetime import UTC, datetime
from statistics import median

import torch
import transformers

import nsd
from nsd.api import Pair
from nsd.compare import compare
from nsd.events import Block

PROMPTS = (
    "List five everyday uses of a spoon, then repeat the list in the same words with one more use added.",
    "Write a short story about a fox that learns to swim.",
    "Explain why the sky is blue to a child.",
    "Write a Python function that returns the n-th Fibonacci number, then explain each line.",
)
K = 7


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one prompt, fewer tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompts, tokens = (PROMPTS[:1], 48) if options.quick else (PROMPTS, 128)

    print(
        f"# {datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {options.threads} threads, torch {torch.__version__},"
    )
    print(f"# transformers {transformers.__version__}, nsd {nsd.__version__}, {options.dtype}: {' '.join(sys.argv)}")
    target = nsd.load("smollm2-135m", None, dtype=options.dtype, threads=options.threads).target
    decision(nsd.load(target, "layer-skip"), prompts, tokens)
    for name in ("ngram", "layer-skip"):
        loop(nsd.load(target, name), prompts, tokens)


def decision(pair: Pair, prompts: tuple[str, ...], tokens: int) -> None:
    """Share of the decision, and of accounting, in a target pass with K sampled proposals."""
    laps: dict[tuple[str, str], list[Block]] = {}
    for prompt in prompts:
        for rule in ("sd", "nsd"):
            for accounting in ("off", "full"):
                answer = pair.generate(
                    prompt, chat=True, rule=rule, k=K, temperature=1.0, max_new_tokens=tokens, accounting=accounting
                )
                blocks = [b for b in answer.blocks if len(b.drafted) == K]
                laps.setdefault((rule, accounting), []).extend(blocks)
    print("\n| rule | accounting | target pass ms | decision ms | share |\n|---|---|---|---|---|")
    for (rule, accounting), blocks in laps.items():
        score = 1e3 * median(b.timing.score_s for b in blocks)
        decide = 1e3 * median(b.timing.decide_s for b in blocks)
        print(f"| {rule} | {accounting} | {score:.2f} | {decide:.2f} | {100 * decide / score:.1f}% |")


def loop(pair: Pair, prompts: tuple[str, ...], tokens: int) -> None:
    """Speeds of the three arms, and how much of the possible speed-up the loop delivers."""
    assert pair.drafter is not None
    result = compare(pair, prompts, chat=True, temperature=0.7, max_new_tokens=tokens)
    print(f"\n{pair.drafter.name}, k {pair.drafter.default_k}, temperature 0.7, {len(prompts)} prompts")
    print("\n| arm | tokens/s | tau | ms/block: draft, target, decision, rest | efficiency |\n|---|---|---|---|---|")
    plain = result.arms["ar"].stats()
    for name, arm in result.arms.items():
        if not arm.completions:
            continue
        s = arm.stats()
        assert (
            s.tau is not None and s.decode_tokens_per_second is not None and plain.decode_tokens_per_second is not None
        )
        possible = s.tau * (plain.score_s / plain.blocks) / ((s.draft_s + s.score_s) / s.blocks)
        efficiency = (s.decode_tokens_per_second / plain.decode_tokens_per_second) / possible
        laps = ", ".join(f"{1e3 * part / s.blocks:.2f}" for part in (s.draft_s, s.score_s, s.decide_s, s.commit_s))
        print(f"| {name} | {s.decode_tokens_per_second:.1f} | {s.tau:.2f} | {laps} | {efficiency:.2f} |")
    print(f"\nspeed-ups {result.speedups()}, intervals {result.intervals()}")
    print(f"transformers generate: {result.transformers_rate} tokens/s (prefill included, as in our totals)")


if __name__ == "__main__":
    main()
