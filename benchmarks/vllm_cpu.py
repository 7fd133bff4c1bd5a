"""NSD inside vLLM on a CPU, run by vLLM's Python: `python -m benchmarks.vllm_cpu [--quick] [--part NAME] [--out FILE]`.

Several engines are alive at once and asked in turn, so that arms share whatever else the machine does:

- idle: the plugin loaded and theta 0, over vLLM without it (the CPU's expand bug cured in both); goal: 2% at most
- speed: tokens/s of NSD over exact speculation at batch 1, 4 and 16, same drafter, drafts sampled and greedy (greedy
  drafts are point masses, against which exact speculation accepts less than it could), and without speculation
- decision: milliseconds of the plugin's decision beside vLLM's own sampling of the same rows
- agreement: tau of the shipped drafter in vLLM against this project's own loop, at least 1,500 blocks an arm

make env-vllm; . .venv-vllm/bin/activate; python -m benchmarks.vllm_cpu --out docs/results/vllm_cpu.md
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import vllm_agreement, vllm_decision
from benchmarks.vllm_live import Batch, Live
from nsd.drafters.exported import exported_folder
from nsd.targets.smollm2 import smollm2_folder
from nsd.train.prompts import built_in_held_out

K, THETA = 3, 0.95
BATCHES = (1, 4, 16)
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
CURE = Path(__file__).parents[1] / "tests_vllm" / "plugins"
WITH = {"VLLM_PLUGINS": "nsd"}
WITHOUT = {"VLLM_PLUGINS": "expand_cure", "PYTHONPATH": str(CURE)}
Work = Callable[[argparse.Namespace, Path], list[str]]


def main() -> None:
    """Run the parts asked for and write one Markdown page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(PARTS), action="append", help="repeatable; default: all")
    parser.add_argument("--rounds", type=int, default=8, help="times that each arm is asked")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--blocks", type=int, default=1500, help="least blocks of each arm of the agreement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="two rounds of short answers, 100 blocks")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.tokens, options.blocks = 2, 24, 100
    lines = _head(options)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.part or PARTS:
            lines += ["", f"## {name}", "", *PARTS[name](options, Path(folder))]
            print("\n".join(lines), flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _head(options: argparse.Namespace) -> list[str]:
    import torch
    import vllm

    import nsd

    command = " ".join(["python -m benchmarks.vllm_cpu", *sys.argv[1:]])
    return [
        "# NSD inside vLLM on a CPU",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {options.threads} threads, vLLM {vllm.__version__}, "
        f"torch {torch.__version__}, nsd {nsd.__version__}: `{command}`. SmolLM2-135M-Instruct in bfloat16, the "
        f"shipped EAGLE-3 drafter, K = {K}, temperature {options.temperature:g}, {options.tokens} tokens an answer.",
    ]


def idle(options: argparse.Namespace, folder: Path) -> list[str]:
    """The plugin at theta 0 against vLLM without it."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    with (
        _alive(options, folder, "probabilistic", WITH) as mine,
        _alive(options, folder, "probabilistic", WITHOUT) as theirs,
    ):
        for turn in range(options.rounds + 1):
            arms = [("with", mine), ("without", theirs)]
            for name, engine in arms if turn % 2 else arms[::-1]:
                asked = {"nsd_theta": 0.0} if name == "with" else None
                batch = engine.ask(_requests(options, 4, turn, asked))
                if turn:  # the first answer of an engine warms it up
                    seconds[name].append(batch.seconds / batch.tokens)
    ratios = [a / b - 1 for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    rates = {name: 1 / median(values) for name, values in seconds.items()}
    return [
        "| tokens/s, plugin at theta 0 | tokens/s, no plugin | slower by, median of pairs | least, most | goal |",
        "|---|---|---|---|---|",
        f"| {rates['with']:.1f} | {rates['without']:.1f} | {median(ratios):+.1%} "
        f"| {min(ratios):+.1%}, {max(ratios):+.1%} "
        f"| {'met' if median(ratios) <= 0.02 else 'missed'} (2%) |",
    ]


def speed(options: argparse.Namespace, folder: Path) -> list[str]:
    """NSD over exact speculation, by batch and by how drafts are drawn."""
    lines = [
        "| drafts | batch | plain, tokens/s | SD | NSD | NSD over SD | SD over plain | tau SD | tau NSD |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with _alive(options, folder, None, WITH) as plain:
        for drafting in ("probabilistic", "greedy"):
            with _alive(options, folder, drafting, WITH) as engine:
                arms: Mapping[str, tuple[Live, dict[str, float] | None]] = {
                    "plain": (plain, None),
                    "sd": (engine, {"nsd_theta": 0.0}),
                    "nsd": (engine, {"nsd_theta": THETA}),
                }
                lines += [_speed_row(options, drafting, size, arms) for size in BATCHES]
    return lines


def _speed_row(
    options: argparse.Namespace, drafting: str, size: int, arms: Mapping[str, tuple[Live, dict[str, float] | None]]
) -> str:
    found: dict[str, list[Batch]] = {name: [] for name in arms}
    names = list(arms)
    for turn in range(options.rounds + 1):
        for name in (*names[turn % 3 :], *names[: turn % 3]):
            engine, asked = arms[name]
            batch = engine.ask(_requests(options, size, turn, asked))
            if turn:
                found[name].append(batch)
    rates = {name: [batch.tokens / batch.seconds for batch in mine] for name, mine in found.items()}
    gain = median(a / b for a, b in zip(rates["nsd"], rates["sd"], strict=True))
    base = median(a / b for a, b in zip(rates["sd"], rates["plain"], strict=True))
    taus = [sum(batch.tau for batch in found[name]) / options.rounds for name in ("sd", "nsd")]
    shown = [f"{median(rates[name]):.1f}" for name in names]
    return f"| {drafting} | {size} | {' | '.join(shown)} | {gain:.2f}x | {base:.2f}x | {taus[0]:.2f} | {taus[1]:.2f} |"


def decision(options: argparse.Namespace, folder: Path) -> list[str]:
    """The decision beside vLLM's own sampling."""
    return vllm_decision.table(BATCHES, K, THETA, 5 if options.quick else 50, options.threads)


def agreement(options: argparse.Namespace, folder: Path) -> list[str]:
    """The shipped drafter here and there."""
    with _alive(options, folder, "probabilistic", WITH) as live:
        return vllm_agreement.table(vllm_agreement.measure(live, options.blocks, 6 if options.quick else None))


PARTS: Mapping[str, Work] = {"idle": idle, "speed": speed, "decision": decision, "agreement": agreement}


@contextmanager
def _alive(
    options: argparse.Namespace, folder: Path, drafting: str | None, environment: Mapping[str, str]
) -> Iterator[Live]:
    """An engine with the shipped drafter (none without drafting) until the block ends."""
    settings: dict[str, Any] = {
        "model": str(smollm2_folder()),
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": max(BATCHES),
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "per_request_spec_decode_metrics": "detailed",
    }
    if drafting is not None:
        settings["speculative_config"] = {
            "method": "eagle3",
            "model": str(exported_folder()),
            "num_speculative_tokens": K,
            "draft_sample_method": drafting,
        }
    fixed = {
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "vllm"),
        "HF_HUB_OFFLINE": "1",
    }
    live = Live(settings, fixed | dict(environment), folder / "engine.log")
    try:
        yield live
    finally:
        live.close()


def _requests(
    options: argparse.Namespace, size: int, turn: int, asked: Mapping[str, float] | None
) -> Sequence[dict[str, Any]]:
    """A batch of held-out prompts as chats; the same for every arm of a turn."""
    prompts = built_in_held_out().prompts
    base = {"temperature": options.temperature, "max_tokens": options.tokens, "ignore_eos": True}
    own = {} if asked is None else {"extra_args": dict(asked)}
    return [
        {
            "prompt": CHAT.format(prompts[(turn * size + i) % len(prompts)]),
            "params": base | {"seed": turn * size + i} | own,
        }
        for i in range(size)
    ]


if __name__ == "__main__":
    main()
