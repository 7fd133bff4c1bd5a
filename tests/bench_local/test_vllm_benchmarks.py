"""What the benchmarks of the vLLM plugin make of their measurements; the engine is a stand-in."""

from __future__ import annotations

import json
from math import sqrt

import numpy as np
import pytest

from benchmarks import vllm_cpu
from benchmarks.vllm_agreement import Agreement, Mean, _whole
from benchmarks.vllm_live import Batch
from benchmarks.vllm_pair import Kept
from benchmarks.vllm_structured import ARMS, SCHEMAS, Answers, questions, table
from nsd.bench.stats import Spread


def test_kept_values_are_not_measured_again_and_belong_to_one_run(tmp_path):
    path, calls = tmp_path / "kept.json", []
    kept = Kept(path, {"threads": 2})
    for _ in range(2):
        assert kept.get("a 1", lambda: calls.append(1) or [3, 0.5]) == [3, 0.5]
    again = Kept(path, {"threads": 2})
    assert again.get("a 1", lambda: calls.append(1) or [4]) == [3, 0.5] and len(calls) == 1
    again.get("a 2", lambda: [5])
    again.get("a 4", lambda: [7])
    assert again.series("a") == [[3, 0.5], [5]], "up to the first one that is missing"
    with pytest.raises(SystemExit, match="another threads"):
        Kept(path, {"threads": 1})
    assert json.loads(path.read_text("utf-8"))["facts"] == {"threads": 2}


def test_tau_and_its_error_count_prompts():
    """Ratio estimator by hand: prompts with means 1, 2 and 3 over 2, 2 and 4 blocks."""
    mean = Mean.of([[1, 1], [2, 2], [3, 3, 3, 3]])
    assert (mean.tau, mean.blocks) == (1 + 18 / 8, 8)
    residuals = [(2 - 4.5) / 8, (4 - 4.5) / 8, (12 - 9) / 8]
    assert mean.error == pytest.approx(sqrt(sum(r * r for r in residuals) * 3 / 2))


def test_a_difference_pairs_the_prompts():
    """Prompts differ widely, the loops by a constant: the difference is certain although both means are not."""
    ours, theirs = Mean.of([[0, 0], [3, 3], [1, 1]]), Mean.of([[1, 1], [4, 4], [2, 2]])
    one = Agreement("sd", ours, theirs)
    assert one.difference == pytest.approx(1) and one.error == pytest.approx(0, abs=1e-12)
    assert ours.error > 0.5


def test_blocks_that_the_limit_may_cut_are_left_out():
    assert _whole([3] * 23 + [2]) == [3] * 23
    assert _whole([3] * 24 + [0]) == [3] * 23, "from 93 tokens on there is no room for four"


class Engine:
    """Answers at a speed that is told, and remembers what it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked = seconds, []

    def ask(self, requests):
        self.asked.append(requests)
        return Batch(self.seconds, [[1] * 8 for _ in requests], [[1, 3]] * len(requests), [], [], [])


def test_arms_are_asked_in_turn_and_rounds_are_kept(tmp_path):
    def asked():
        return vllm_cpu.Settings(6, 8, 1, 1.0, False, Kept(tmp_path / "kept.json", {}))

    slow, fast = Engine(2.0), Engine(1.0)
    arms = {"sd": vllm_cpu.Arm(lambda: slow, {"nsd_theta": 0.0}), "nsd": vllm_cpu.Arm(lambda: fast)}
    vllm_cpu._in_turn(asked(), "speed", 2, 3, arms)
    found = vllm_cpu._in_turn(asked(), "speed", 2, 6, arms)
    assert len(slow.asked) == len(fast.asked) == 6 + 2, "six rounds, and a warm-up in each of the two runs"
    assert found["sd"].fraction == 8 and found["nsd"].fraction == 16
    mine, theirs = slow.asked[1][0]["params"], fast.asked[1][0]["params"]
    assert mine["extra_args"] == {"nsd_theta": 0.0} and "extra_args" not in theirs
    assert [r["prompt"] for r in slow.asked[1]] == [r["prompt"] for r in fast.asked[1]]
    assert vllm_cpu._shown(vllm_cpu.ratio(found["nsd"], found["sd"]), lambda r: f"{r:.2f}x") == "2.00x [2.00x, 2.00x]"
    assert vllm_cpu._tau(asked(), "speed", "sd") == 3


class Engines:
    """Stand-ins by what they were asked for: plain decoding 10 tokens/s, drafting 20, NSD's arms twice that."""

    def __init__(self, *_, **__):
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get(self, drafting="probabilistic", plugin=True):
        self.started.append((drafting, plugin))
        return self

    def ask(self, requests):
        own = requests[0]["params"].get("extra_args", {"nsd_theta": 0.0})
        size, tokens = len(requests), requests[0]["params"]["max_tokens"]
        rate = 10 if self.started[-1][0] is None else 20 if own["nsd_theta"] == 0 else 40
        return Batch(size * tokens / rate, [[1] * tokens] * size, [[1, 1]] * size, [], [], [])


@pytest.mark.parametrize(
    ("samples", "said"),
    [((0.99, 1.01), "met"), ((1.03, 1.2), "missed"), ((0.9, 1.2), "cannot be told from so few rounds")],
)
def test_a_goal_is_met_or_missed_by_its_whole_interval(samples, said):
    assert vllm_cpu.verdict(Spread(1.0, np.array(samples), 10)) == said


def test_parts_are_tables_with_ratios_and_intervals(monkeypatch, tmp_path):
    monkeypatch.setattr(vllm_cpu, "Engines", Engines)
    asked = vllm_cpu.Settings(5, 8, 1, 1.0, False, Kept(tmp_path / "kept.json", {}))
    (row,) = vllm_cpu.idle(asked)[2:]
    assert row == "| 20.0 | 20.0 | +0.0% [+0.0%, +0.0%] | 10 | met (2% at most) |"
    rows = vllm_cpu.speed(asked)[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        [f"| {drafting}", str(size)] for drafting in vllm_cpu.DRAFTINGS for size in vllm_cpu.BATCHES
    ]
    wanted = "10.0 | 20.0 | 40.0 | 2.00x [2.00x, 2.00x] | 2.00x [2.00x, 2.00x] | 2.00 | 2.00 |"
    assert all(row.endswith(wanted) for row in rows)


def test_structured_answers_are_fifty_and_rescues_are_shown():
    assert len({prompt for prompt, _ in questions()}) == 50
    assert {json.dumps(schema) for _, schema in questions()} == {json.dumps(schema) for schema in SCHEMAS.values()}
    found = {arm: Answers(50, 50, 30, 20, dict.fromkeys(("tested", "ordinary", "rescued"), 7.0)) for arm in ARMS}
    found["sd"] = Answers(49, 50, 10, 20, dict.fromkeys(("tested", "ordinary", "rescued"), 0.0))
    lines = table(found)
    assert lines[2] == "| sd | 49 of 50 | 1.50 | - | - | - |" and lines[3].endswith("| 7 | 7 | 7 |")
