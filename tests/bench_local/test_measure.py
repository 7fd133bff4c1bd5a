"""Nothing kept is measured again, arms take turns, answers are scored by the law, absent peers are named."""

import json
import shutil
import types

import pytest
import torch

from benchmarks.local import peers
from benchmarks.local.cells import ar, llama, nsd, sd
from benchmarks.local.measure import Bench, measure, score
from benchmarks.local.samples import Sample, Store
from benchmarks.local.sharper import Sharper
from nsd.drafters.base import Ask
from nsd.errors import ConfigError
from nsd.laws import Sampling
from nsd.targets.toy import tiny_llama

CELLS = [ar("int8", 1.0), sd("int8", 3, 1.0), nsd("int8", 3, 1.0)]


class Counting:
    """Stands for a bench: answers of fifty tokens, and a note of every call."""

    def __init__(self, dies_after=None):
        self.calls, self.dies_after = [], dies_after

    def run(self, cell, index, session):
        if self.dies_after is not None and len(self.calls) >= self.dies_after:
            raise KeyboardInterrupt
        self.calls.append((index, cell.name))
        return Sample(cell.name, index, session, list(range(50)), "length", 1.0, 0.9)


def run(store, bench, prompts=4, tokens=300):
    measure(bench, CELLS, store, 0, prompts, tokens, lambda text: None)


def test_arms_take_turns_until_all_have_enough(tmp_path):
    bench = Counting()
    run(Store(tmp_path), bench)
    assert len(bench.calls) == 6 * 3  # six prompts of fifty tokens make three hundred
    first = [next(name for index, name in bench.calls if index == i) for i in range(3)]
    assert first == [cell.name for cell in CELLS]


def test_a_killed_run_goes_on_where_it_was(tmp_path):
    killed, resumed, whole = Counting(dies_after=7), Counting(), Counting()
    with pytest.raises(KeyboardInterrupt):
        run(Store(tmp_path), killed)
    with (tmp_path / "samples.jsonl").open("a", encoding="utf-8") as out:
        out.write('{"cell": "half a li')
    run(Store(tmp_path), resumed)
    run(Store(tmp_path / "whole"), whole)
    assert killed.calls + resumed.calls == whole.calls
    lines = (tmp_path / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["index"] for line in lines] == [index for index, _ in whole.calls]
    run(Store(tmp_path), none := Counting())
    assert none.calls == []


def test_a_folder_does_not_mix_settings(tmp_path):
    store = Store(tmp_path)
    assert store.begin({}, {"threads": 2}) == 0
    assert Store(tmp_path).begin({}, {"threads": 2}) == 1
    with pytest.raises(ConfigError, match="measured with threads 2, got 1; give another --out"):
        Store(tmp_path).begin({}, {"threads": 1})


def test_scores_are_sums_over_the_answer_at_the_arms_temperature():
    target = tiny_llama()
    prompt, ids = [1, 2, 3], [4, 5, 6, 7]
    log_p, spread = score(target, prompt, ids, 0.7)
    wanted_log_p = wanted_spread = 0.0
    for place, token in enumerate(ids):
        _, scores = target.open([[*prompt, *ids[:place]]], 1)
        p = torch.softmax(scores.logits[0].double() / 0.7, -1)
        wanted_log_p += float(p[token].log())
        wanted_spread -= float(torch.xlogy(p, p).sum())
    assert log_p == pytest.approx(wanted_log_p, abs=1e-4) and spread == pytest.approx(wanted_spread, abs=1e-4)


def test_a_sharper_drafter_asks_for_a_colder_law_and_nothing_else():
    asked = []
    inner = types.SimpleNamespace(
        name="inner", law=None, default_k=3, max_k=None, taps=(), void=None, open_beside=lambda *given: session
    )
    session = types.SimpleNamespace(propose=lambda asks, u: asked.extend(asks))
    drafter = Sharper(inner, 0.5)
    ask = Ask(3, 9, [1], [9], Sampling(temperature=0.8, top_k=5))
    drafter.open_beside(None, [[1]], None, 8).propose([ask], torch.zeros(1, 4))
    assert asked == [Ask(3, 9, [1], [9], Sampling(temperature=0.4, top_k=5))]


def test_absent_peers_are_skipped_with_a_reason(monkeypatch, tmp_path):
    bench = Bench(["a"], 8, 1, "full")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bench.usable([llama(1, 1.0), CELLS[0]]) == [CELLS[0]]
    assert bench.skipped == {"llama.cpp Q4_1 1 threads T=1": "node is not installed (node 20 or newer)"}
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/true")
    monkeypatch.setattr(peers, "LLAMA", tmp_path)
    assert bench.usable([llama(2, 1.0)]) == []
    assert "npm install --prefix benchmarks/local/llama" in bench.skipped["llama.cpp Q4_1 2 threads T=1"]
