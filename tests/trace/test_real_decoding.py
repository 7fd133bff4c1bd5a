"""Traces of the real loop, batches and all, through the recorder that the command line uses: 50 of them are clean."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from nsd.api import Pair
from nsd.drafters.base import Drafter
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.ngram import NGramDrafter
from nsd.recording import open_recorder
from nsd.targets.toy import TableTarget
from nsd.trace import audit, read_trace
from nsd.trace.convert import to_parquet

RULES = ("nsd", "nsd", "nsd", "sd", "sample-and-match", "lenience", "topk", "floor", "typical")


def pair(seed: int, rng: random.Random) -> Pair:
    target = TableTarget(vocab=12, order=2, seed=seed, eos=(3,))
    drafters: list[Drafter | None] = [ModelDrafter(target.near(0.8, seed + 1), "near"), NGramDrafter(), None]
    return Pair(target, rng.choices(drafters, (4, 1, 1))[0])


@pytest.mark.parametrize("seed", range(50))
def test_traces_of_real_decoding_are_clean(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    rule = rng.choice(RULES)
    settings: dict[str, object] = {"rule": rule, "seed": rng.getrandbits(63), "max_new_tokens": rng.choice([1, 9, 30])}
    settings |= {"temperature": rng.choice([0.0, 0.7, 1.0, 1.0]), "top_p": rng.choice([1.0, 0.9])}
    settings |= {"logprobs": rng.choice([None, "processed", "raw"]), "presence_penalty": rng.choice([0.0, 0.5])}
    if rule == "nsd":
        settings |= rng.choice(
            [{}, {"max_deviation": 0.05}, {"agreement": 0.8, "policy": rng.choice(["even", "front"])}]
        )
    one = pair(seed, rng)
    run = one.run(["abc", "bbda", "ab"][: rng.choice([1, 3])], trace=True, **settings)
    path = tmp_path / "t.jsonl"
    recorder = open_recorder(path, one, run)
    for block in run:
        recorder.write(block)
    recorder.close([completion.fidelity.as_json() for completion in run.completions()])
    trace = read_trace(path)
    result = audit(trace)
    assert result.findings == ()
    assert result.counts["tested"] == sum(len(block.tested) for block in trace.blocks)
    to_parquet(trace, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet") == trace
