"""`nsd vllm` where there is no vLLM: what it says, and its exit code. Beside one: tests_vllm/engine/test_check.py."""

import json
import sys

import pytest

from nsd.cli import main
from nsd.engines.vllm.branches import BRANCHES

SERVE = ("vllm", "serve", "some/model", "--drafter", "ngram", "-k", "3")


@pytest.fixture
def nsd(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nsd", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return stop.value.code or 0, captured.out, captured.err

    return run


def test_check_fails_without_vllm_and_shows_the_branches_all_the_same(nsd):
    code, shown, _ = nsd("vllm", "check")
    assert code == 1
    assert "fix vLLM is not installed here" in shown
    assert all(fact.branch in shown and fact.test in shown for fact in BRANCHES)
    code, shown, _ = nsd("vllm", "check", "--json")
    told = json.loads(shown)
    assert code == 1 and told["ok"] is False and told["hooks"] == []
    assert "not installed" in told["problems"][0] and len(told["branches"]) == len(BRANCHES)


def test_serve_prints_the_command_of_vllm(nsd):
    code, shown, _ = nsd(*SERVE, "--theta", "0.9", "--max-deviation", "0.1", "--dry-run", "--port", "8001")
    assert code == 0
    assert shown.startswith("NSD_THETA=0.9 NSD_MAX_DEVIATION=0.1 python -m vllm.entrypoints.openai.api_server ")
    assert "--port 8001" in shown and '"num_speculative_tokens": 3' in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((*SERVE, "--theta", "1.5", "--dry-run"), "THETA is 1.5"),
        ((*SERVE, "--rule", "typical", "--dry-run"), "RULE is 'typical'"),
        (("vllm", "serve", "some/model", "--dry-run"), "no drafter given"),
        (SERVE, "vLLM is not installed here"),
    ],
)
def test_serve_refuses_what_cannot_be_in_one_line(nsd, arguments, named):
    code, shown, told = nsd(*arguments)
    assert (code, shown) == (2, "")
    assert named in told
