"""NSD inside vLLM on a CPU, run by vLLM's Python: `python -m benchmarks.vllm_cpu [--part NAME] [--rounds N] [--quick]`.

Engines stay alive and are asked in turn, so that arms share whatever else the machine does:

- idle: the plugin loaded and theta 0, over vLLM without it (the CPU's expand bug cured in both); goal: 2% at most
- speed: tokens/s of NSD over exact speculation at batch 1, 4 and 16, same drafter, drafts sampled and greedy (greedy
  drafts are point masses, against which exact speculation accepts less than it could), and without speculation
- decision: milliseconds of the plugin's decision beside vLLM's own sampling of the same rows
- structured: 50 JSON answers, valid or not (also `python -m benchmarks.vllm_structured`)

About 14 minutes on two quiet cores. Every answer is kept in --keep at once: a run that was stopped goes on where it
was, and more --rounds add to it. Intervals are 95% bootstraps over rounds, arms paired. Whether the drafter drafts as
in this project's own loop: `python -m benchmarks.vllm_agreement`.

make env-vllm; . .venv-vllm/bin/activate; python -m benchmarks.vllm_cpu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import vllm_decision, vllm_structured
from benchmarks.vllm_live import Live
from benchmarks.vllm_pair import CHAT, Engines, Kept, machine, write_page
from nsd.bench.stats import Spread, Totals, ratio
from nsd.train.prompts import built_in_held_out

K, THETA = 3, 0.95
BATCHES = (1, 4, 16)
DRAFTINGS = ("probabilistic", "greedy")
MOST_SLOWER = 0.02


@dataclass(frozen=True, slots=True)
class Settings:
    """What was asked for on the command line, and where answers are kept."""

    rounds: int
    tokens: int
    threads: int
    temperature: float
    quick: bool
    kept: Kept


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine, started when it is first needed, and NSD's fields of every request (None without the plugin)."""

    engine: Callable[[], Live]
    fields: Mapping[str, float] | None = None


def idle(asked: Settings) -> list[str]:
    """The plugin at theta 0 against vLLM without it, at batch 4, turn by turn; twice the rounds, for 2% is little."""
    with Engines(K, asked.threads) as engines:
        arms = {
            "with": Arm(lambda: engines.get(plugin=True), {"nsd_theta": 0.0}),
            "without": Arm(lambda: engines.get(plugin=False)),
        }
        found = _in_turn(asked, "idle", 4, 2 * asked.rounds, arms)
    slower = ratio(found["without"], found["with"])
    rates = " | ".join(f"{found[name].fraction:.1f}" for name in arms)
    goal = verdict(slower)
    return [
        "| tokens/s, plugin at theta 0 | tokens/s, no plugin | slower by | rounds | goal |",
        "|---|---|---|---|---|",
        f"| {rates} | {_shown(slower, lambda r: f'{r - 1:+.1%}')} | {slower.n} | {goal} ({MOST_SLOWER:.0%} at most) |",
    ]


def verdict(slower: Spread) -> str:
    """met or missed where the whole interval says so, else that the sample cannot tell."""
    seen, most = slower.estimate(), 1 + MOST_SLOWER
    if seen.low is None or seen.high is None or seen.low <= most < seen.high:
        return "cannot be told from so few rounds"
    return "met" if seen.high <= most else "missed"


def speed(asked: Settings) -> list[str]:
    """NSD over exact speculation, by batch and by how drafts are drawn."""
    lines = [
        "| drafts | batch | plain, tokens/s | SD | NSD | NSD over SD | SD over plain | tau SD | tau NSD |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with Engines(K, asked.threads) as engines:
        for drafting in DRAFTINGS:

            def drafter(drafting: str = drafting) -> Live:
                return engines.get(drafting)

            for size in BATCHES:
                arms = {
                    "plain": Arm(lambda: engines.get(None)),
                    "sd": Arm(drafter, {"nsd_theta": 0.0}),
                    "nsd": Arm(drafter, {"nsd_theta": THETA}),
                }
                name = f"speed {drafting} {size}"
                found = _in_turn(asked, name, size, asked.rounds, arms)
                taus = [_tau(asked, name, arm) for arm in ("sd", "nsd")]
                rates = [f"{found[arm].fraction:.1f}" for arm in arms]
                gain, base = ratio(found["nsd"], found["sd"]), ratio(found["sd"], found["plain"])
                lines.append(
                    f"| {drafting} | {size} | {' | '.join(rates)} | {_shown(gain, lambda r: f'{r:.2f}x')} "
                    f"| {_shown(base, lambda r: f'{r:.2f}x')} | {taus[0]:.2f} | {taus[1]:.2f} |"
                )
    return lines


def decision(asked: Settings) -> list[str]:
    """The decision beside vLLM's own sampling."""
    rows: list[str] = asked.kept.get(
        "decision", lambda: vllm_decision.table(BATCHES, K, THETA, 5 if asked.quick else 30, asked.threads)
    )
    return rows


def structured(asked: Settings) -> list[str]:
    """JSON answers."""
    with Engines(K, asked.threads, **vllm_structured.XGRAMMAR) as engines:
        return vllm_structured.run(engines, asked.kept, 5 if asked.quick else 50)


PARTS: Mapping[str, Callable[[Settings], list[str]]] = {
    "idle": idle,
    "speed": speed,
    "decision": decision,
    "structured": structured,
}


def _in_turn(asked: Settings, name: str, size: int, rounds: int, arms: Mapping[str, Arm]) -> dict[str, Totals]:
    """Tokens and seconds of each arm by round; who begins changes from round to round."""
    names = list(arms)
    warm: set[str] = set()
    for turn in range(1, rounds + 1):
        first = turn % len(names)
        for arm in (*names[first:], *names[:first]):

            def once(arm: str = arm, turn: int = turn) -> list[float]:
                engine, own = arms[arm].engine(), arms[arm].fields
                if arm not in warm:  # the first answer of an engine warms it up
                    warm.add(arm)
                    engine.ask(_requests(asked, size, 0, own))
                batch = engine.ask(_requests(asked, size, turn, own))
                return [batch.tokens, batch.seconds, sum(map(sum, batch.accepted)), sum(map(len, batch.accepted))]

            asked.kept.get(f"{name} {arm} {turn}", once)
    return {arm: _totals(asked.kept.series(f"{name} {arm}")) for arm in names}


def _totals(rounds: Sequence[Sequence[float]]) -> Totals:
    told = np.asarray(rounds, dtype=np.float64)
    return Totals(told[:, 0], told[:, 1])


def _tau(asked: Settings, name: str, arm: str) -> float:
    told = np.asarray(asked.kept.series(f"{name} {arm}"))
    return float(1 + told[:, 2].sum() / told[:, 3].sum())


def _shown(spread: Spread, write: Callable[[float], str]) -> str:
    """The value, with its interval where there are rounds enough for one."""
    one = spread.estimate()
    value = write(spread.value)
    return value if one.low is None or one.high is None else f"{value} [{write(one.low)}, {write(one.high)}]"


def _requests(asked: Settings, size: int, turn: int, own: Mapping[str, float] | None) -> Sequence[dict[str, Any]]:
    """A batch of held-out prompts as chats; the same for every arm of a turn."""
    prompts = built_in_held_out().prompts
    base = {"temperature": asked.temperature, "max_tokens": asked.tokens, "ignore_eos": True}
    more = {} if own is None else {"extra_args": dict(own)}
    return [
        {
            "prompt": CHAT.format(prompts[(turn * size + i) % len(prompts)]),
            "params": base | {"seed": turn * size + i} | more,
        }
        for i in range(size)
    ]


def main() -> None:
    """Run the parts asked for and write one Markdown page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(PARTS), action="append", help="repeatable; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="times that each arm is asked")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--keep", type=Path, default=Path("runs/vllm_cpu.json"), help="what was measured already")
    parser.add_argument("--out", type=Path, default=Path("docs/results/vllm_cpu.md"), help="the page")
    parser.add_argument("--quick", action="store_true", help="one round of short answers; nothing is kept or written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.tokens, options.keep, options.out = 1, 16, None, None
    told = machine(options.threads)
    facts = {"machine": told[12:], "tokens": options.tokens, "temperature": options.temperature}
    kept = Kept(options.keep, facts)
    asked = Settings(options.rounds, options.tokens, options.threads, options.temperature, options.quick, kept)
    lines = [
        "# NSD inside vLLM on a CPU",
        "",
        f"{told}: `{' '.join(['python -m benchmarks.vllm_cpu', *sys.argv[1:]])}`. smollm2-135m in bfloat16, its "
        f"shipped EAGLE-3 drafter, K = {K}, theta {THETA}, temperature {options.temperature:g}, "
        f"{options.tokens} tokens an answer; brackets are 95% bootstrap intervals over rounds, arms paired.",
    ]
    for name in options.part or PARTS:
        lines += ["", f"## {name}", "", *PARTS[name](asked)]
        print("\n".join(lines[-20:]), flush=True)
        write_page(lines, options.out)


if __name__ == "__main__":
    main()
