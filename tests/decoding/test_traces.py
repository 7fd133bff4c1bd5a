"""Traces of real decoding: every one is clean, whatever rule, drafter, law, budget or batch produced it."""

import itertools

import pytest

from nsd.api import Pair
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.ngram import ngram_drafter
from nsd.errors import TraceError
from nsd.recording import open_recorder
from nsd.rules import RULES
from nsd.targets.toy import TableTarget
from nsd.trace import audit, read_trace

TARGET = TableTarget(vocab=10, order=1, seed=4, sharpness=2.0, eos=(9,))
PAIRS = {
    "sampled": Pair(TARGET, ModelDrafter(TARGET.near(0.8, seed=1), "near", default_k=3)),
    "greedy": Pair(TARGET, ModelDrafter(TARGET.near(0.8, seed=1), "near", greedy=True, default_k=3)),
    "ngram": Pair(TARGET, ngram_drafter(TARGET)),
    "plain": Pair(TARGET, None),
}
SETTINGS = {
    "theta": {"rule": "nsd", "theta": 0.8},
    "prefix": {"rule": "nsd", "theta": 0.8, "ties": "smallest"},
    "cap": {"rule": "nsd", "theta": 0.9, "max_deviation": 0.1},
    "budget": {"rule": "nsd", "theta": 0.9, "agreement": 0.7},
    "both": {"rule": "nsd", "agreement": 0.5, "policy": "greedy", "max_deviation": 0.05},
    "cold": {"rule": "nsd", "temperature": 0.0},
    "laws": {"rule": "nsd", "theta": 0.8, "trace_laws": 10},
    "some of the laws": {"rule": "sd", "trace_laws": 3},
    "truncated": {"rule": "nsd", "theta": 0.9, "temperature": 0.8, "top_p": 0.9, "top_k": 6},
    **{name: {"rule": name} for name in RULES if name not in ("nsd", "cold-nucleus")},
}


def recorded(tmp_path, pair, prompts, **settings):
    run = pair.run(prompts, trace=True, max_new_tokens=24, **settings)
    path = tmp_path / "run.jsonl"
    recorder = open_recorder(path, pair, run)
    for block in run:
        recorder.write(block)
    recorder.close([answer.fidelity.as_json() for answer in run.completions()])
    return path


@pytest.mark.parametrize(("drafter", "setting"), list(itertools.product(PAIRS, SETTINGS)))
def test_a_trace_of_real_decoding_is_clean(tmp_path, drafter, setting):
    path = recorded(
        tmp_path, PAIRS[drafter], [[0, 1, 0, 1], [3]], seed=len(drafter) * 100 + len(setting), **SETTINGS[setting]
    )
    result = audit(read_trace(path))
    assert result.clean, [str(finding) for finding in result.findings[:5]]
    assert result.exit_code == 0
    assert result.counts["blocks"] > 2


def test_a_rule_that_cannot_be_audited_is_not_recorded(tmp_path):
    with pytest.raises(TraceError, match="cannot be audited"):
        recorded(tmp_path, PAIRS["plain"], [[0, 1]], rule="cold-nucleus", temperature=0.0)
    assert not list(tmp_path.iterdir())


def test_there_are_at_least_fifty():
    assert len(PAIRS) * len(SETTINGS) >= 50
