"""Whether structured output stays valid in vLLM under NSD: `python -m benchmarks.vllm_structured`.

Fifty prompts, five JSON schemas, temperature 1, the shipped EAGLE-3 drafter: exact speculation, theta 0.95, and theta
1, which keeps every draft with a probability. An answer is valid if it ended by itself and satisfies its schema; drafts
that only the nucleus kept are counted, since without them nothing was put to the test.

make env-vllm; . .venv-vllm/bin/activate; python -m benchmarks.vllm_structured --out docs/results/vllm_structured.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.vllm_live import Batch, Live
from benchmarks.vllm_pair import CHAT, Engines, Kept, machine, write_page

K, TOKENS, TOGETHER = 3, 120, 10
ARMS: Mapping[str, float] = {"sd": 0.0, "nsd, theta 0.95": 0.95, "nsd, theta 1": 1.0}
XGRAMMAR = {"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_WORD = {"type": "string", "maxLength": 12}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "a person": _object(
        name=_WORD,
        age={"type": "integer", "minimum": 0, "maximum": 99},
        home={"enum": ["Lima", "Oslo", "Kyoto", "Accra"]},
    ),
    "a book": _object(
        title={"type": "string", "maxLength": 24},
        year={"type": "integer", "minimum": 1500, "maximum": 2029},
        read={"type": "boolean"},
    ),
    "a shopping list": _object(
        items={"type": "array", "items": _WORD, "minItems": 2, "maxItems": 4},
        total={"type": "integer", "minimum": 1, "maximum": 500},
    ),
    "a weather report": _object(
        sky={"enum": ["clear", "cloudy", "rain", "snow"]},
        wind=_object(
            speed={"type": "integer", "minimum": 0, "maximum": 150},
            direction={"enum": ["north", "east", "south", "west"]},
        ),
    ),
    "a verdict": _object(
        guilty={"type": "boolean"},
        reason={"type": "string", "maxLength": 40},
        vote={"type": "array", "items": {"enum": ["yes", "no", "abstain"]}, "minItems": 3, "maxItems": 3},
    ),
}
ABOUT = ("a baker", "a pilot", "a nurse", "a poet", "a judge", "a farmer", "a diver", "a clerk", "a smith", "a singer")


@dataclass(frozen=True, slots=True)
class Answers:
    """One arm: valid answers of all, accepted drafts and steps, and NSD's own counts."""

    valid: int
    asked: int
    accepted: int
    steps: int
    ledger: dict[str, float]

    @property
    def tau(self) -> float:
        """Tokens per step."""
        return 1 + self.accepted / max(self.steps, 1)


def questions() -> list[tuple[str, dict[str, Any]]]:
    """Fifty prompts with their schemas."""
    return [(CHAT.format(f"Write {kind} about {who} as JSON."), SCHEMAS[kind]) for who in ABOUT for kind in SCHEMAS]


def is_valid(text: str, end: str, schema: Mapping[str, Any]) -> bool:
    """Whether an answer came to its own end and is JSON of its schema."""
    import jsonschema  # type: ignore[import-untyped]  # no types come with it

    if end != "stop":
        return False
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def measure(live: Live, theta: float, count: int) -> Answers:
    """The first so many questions, some at a time, on an engine with the plugin and a grammar backend."""
    before = live.ledger()
    asked = questions()[:count]
    valid = accepted = steps = 0
    for first in range(0, len(asked), TOGETHER):
        some = asked[first : first + TOGETHER]
        requests = [
            {
                "prompt": prompt,
                "params": {
                    "temperature": 1.0, "max_tokens": TOKENS, "seed": first + place, "json_schema": schema,
                    "extra_args": {"nsd_theta": theta},
                },
            }
            for place, (prompt, schema) in enumerate(some)
        ]  # fmt: skip
        batch: Batch = live.ask(requests)
        told = zip(batch.texts, batch.ends, some, strict=True)
        valid += sum(is_valid(text, end, schema) for text, end, (_, schema) in told)
        accepted += sum(map(sum, batch.accepted))
        steps += sum(map(len, batch.accepted))
    after = live.ledger()
    gained = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in ("tested", "ordinary", "rescued")}
    return Answers(valid, len(asked), accepted, steps, gained)


def table(found: Mapping[str, Answers]) -> list[str]:
    """Markdown rows."""
    lines = ["| arm | valid | tau | drafts tested | kept by the exact test | rescued |", "|---|---|---|---|---|---|"]
    for arm, one in found.items():
        nsd = [f"{one.ledger[name]:.0f}" if one.ledger["tested"] else "-" for name in ("tested", "ordinary", "rescued")]
        lines.append(f"| {arm} | {one.valid} of {one.asked} | {one.tau:.2f} | {' | '.join(nsd)} |")
    return lines


def run(engines: Engines, kept: Kept, count: int = 50) -> list[str]:
    """All arms on one engine that was made with XGRAMMAR."""
    found = {}
    for arm, theta in ARMS.items():

        def once(theta: float = theta) -> list[Any]:
            one = measure(engines.get(), theta, count)
            return [one.valid, one.asked, one.accepted, one.steps, one.ledger]

        found[arm] = Answers(*kept.get(f"structured {arm} {count}", once))
    return table(found)


def main() -> None:
    """Measure the three arms and write one page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50, help="how many of the fifty prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--keep", type=Path, default=Path("runs/vllm_structured.json"), help="what was measured already"
    )
    parser.add_argument("--out", type=Path, help="where to write the page")
    options = parser.parse_args()
    kept = Kept(options.keep, {"machine": machine(options.threads)[12:]})
    with Engines(K, options.threads, **XGRAMMAR) as engines:
        rows = run(engines, kept, options.count)
    lines = [
        "# Structured output in vLLM under NSD",
        "",
        f"{machine(options.threads)}: `{' '.join(['python -m benchmarks.vllm_structured', *sys.argv[1:]])}`. "
        f"smollm2-135m in bfloat16, its shipped EAGLE-3 drafter (drafts sampled), K = {K}, temperature 1, xgrammar, "
        f"{len(SCHEMAS)} JSON schemas, at most {TOKENS} tokens.",
        "",
        *rows,
    ]
    print("\n".join(lines))
    write_page(lines, options.out)


if __name__ == "__main__":
    main()
