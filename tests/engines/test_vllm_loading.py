"""Hooks without vLLM: late patching, the map's refusals, the checks before a start, the ledger."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from nsd.engines.relax import decide
from nsd.engines.vllm import frontend, install, worker
from nsd.engines.vllm.exposition import summed
from nsd.engines.vllm.hooks import Hook, HookMissing, check_version, stand_in
from nsd.engines.vllm.metrics import COLUMNS, Ledger
from nsd.engines.vllm.patching import stock_of, when_imported, wrap
from nsd.engines.vllm.serving import check_surroundings, launch, speculative_config
from nsd.engines.vllm.settings import Ask
from nsd.engines.vllm.state import STATE, Stopped
from nsd.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("nsd_test_module")]:
        del sys.modules[name]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"default": None, "problem": None, "sampler": {}, "hooked": set(), "version": "?"}.items():
        monkeypatch.setattr(STATE, name, value)
    return STATE


def twice(stock: Any) -> Any:
    return lambda: 2 * stock()


def test_an_action_waits_for_its_module(here: Path) -> None:
    (here / "nsd_test_module_a.py").write_text("def f():\n    return 1\n\ndef g():\n    return f()\n")
    seen: list[str] = []
    when_imported("nsd_test_module_a", lambda m: (seen.append(m.__name__), wrap(m, "f", twice))[0])
    assert seen == []
    module = importlib.import_module("nsd_test_module_a")
    assert seen == ["nsd_test_module_a"] and module.g() == 2
    when_imported("nsd_test_module_a", lambda m: wrap(m, "f", twice))
    assert module.g() == 2, "a second load wrapped again"
    assert stock_of(module.f)() == 1


def test_an_error_of_an_action_ends_the_import(here: Path) -> None:
    (here / "nsd_test_module_b.py").write_text("")

    def fail(_: ModuleType) -> None:
        raise Stopped("no")

    when_imported("nsd_test_module_b", fail)
    with pytest.raises(Stopped):
        importlib.import_module("nsd_test_module_b")


@pytest.mark.parametrize(("seen", "known"), [("0.32.0", "tested"), ("0.32.5+cpu", "tested"), ("0.33.0", "read")])
def test_known_versions(seen: str, known: str) -> None:
    assert check_version(seen) == known


@pytest.mark.parametrize("seen", ["0.31.0", "0.34.0", "1.32.0", "0.3.2", "dev"])
def test_unknown_versions_are_refused(seen: str) -> None:
    with pytest.raises(HookMissing, match="not known to nsd"):
        check_version(seen)


def test_a_renamed_symbol_or_argument_is_missed(here: Path) -> None:
    (here / "nsd_test_module_c.py").write_text("class A:\n    def f(self, one):\n        pass\n")
    assert callable(stand_in(Hook("nsd_test_module_c", "A.f", ("one",), "")))
    for hook in (
        Hook("nsd_test_module_c", "A.g", (), ""),
        Hook("nsd_test_module_c", "A.f", ("two",), ""),
        Hook("nsd_test_module_none", "A.f", (), ""),
    ):
        with pytest.raises(HookMissing):
            stand_in(hook)


@pytest.mark.parametrize("asked", [True, False])
def test_a_missing_symbol_stops_or_refuses(state: Any, asked: bool) -> None:
    state.default = Ask("nsd", 0.9) if asked else None
    module = ModuleType("vllm.v1.sample.rejection_sampler")
    act = install._guarded(module.__name__, lambda _: pytest.fail("the action ran on a module without its symbols"))
    if asked:
        with pytest.raises(Stopped, match="rejection_sample"):
            act(module)
    else:
        act(module)
        assert "rejection_sample" in state.problem and not state.hooked


@pytest.mark.parametrize("method", ["block", "synthetic", "fly"])
def test_incompatible_methods_stop(state: Any, method: str) -> None:
    state.default = Ask("nsd", 0.9)
    with pytest.raises(Stopped, match=method):
        worker.learn(SimpleNamespace(rejection_sample_method=method, method="eagle"), "V2")
    state.default = None
    worker.learn(SimpleNamespace(rejection_sample_method=method, method="eagle"), "V2")
    assert method in state.problem


@pytest.mark.parametrize(
    "answers",
    [
        [None],
        [{"problem": "no symbol", "sampler": {"runner": "V1"}}],
        [{"problem": None, "sampler": {"runner": "V1"}}, {"problem": "no symbol", "sampler": {}}],
        [{"problem": None, "sampler": {}}],
    ],
)
def test_workers_that_cannot_stop_the_front_end(state: Any, answers: list[Any]) -> None:
    state.default = Ask("nsd", 0.9)
    with pytest.raises(Stopped, match="worker"):
        frontend.judge(answers)


def test_workers_that_can(state: Any) -> None:
    state.default = Ask("nsd", 0.9)
    frontend.judge([{"problem": None, "sampler": {}}, {"problem": None, "sampler": {"runner": "V1"}}])
    assert state.problem is None


class Engine:
    """A stand-in for LLMEngine, its worker without the plugin unless given an answer."""

    answer: Any = None

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def collective_rpc(self, method: str) -> list[Any]:
        if self.answer is None:
            raise AttributeError(f"'Worker' object has no attribute '{method}'")
        return [self.answer]


def test_a_worker_without_the_plugin_stops_the_front_end(state: Any) -> None:
    engine = type("LLMEngine", (Engine,), {"get_supported_tasks": lambda self: ("generate",)})
    frontend.ask(SimpleNamespace(LLMEngine=engine))  # type: ignore[arg-type]  # only the class is looked at
    assert engine().get_supported_tasks() == ("generate",)
    assert "not loaded there" in state.problem
    state.problem, state.default = None, Ask("nsd", 0.9)
    with pytest.raises(Stopped, match="not loaded there"):
        engine().get_supported_tasks()


def test_the_entry_point_needs_nothing_but_python() -> None:
    """vLLM only logs a plugin that cannot be imported; this one can be wherever the package is found."""
    code = "import sys; import nsd.engines.vllm.plugin; sys.exit(any(m in sys.modules for m in ('torch', 'vllm')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("asks", "code"), [({"NSD_THETA": "0.9"}, 1), ({"NSD_THETA": "2"}, 1), ({}, 0)])
def test_register_raises_if_it_was_asked(asks: dict[str, str], code: int) -> None:
    """Without vLLM (hidden here), and with a bad value: vLLM lets an error of the function end the process."""
    hide = "import sys; sys.modules['vllm'] = None; from nsd.engines.vllm.plugin import register; register()"
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NSD_")} | asks
    done = subprocess.run([sys.executable, "-c", hide], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "nsd" in done.stderr


def test_the_command_of_serve() -> None:
    flags: dict[str, Any] = {
        "rule": None,
        "theta": 0.9,
        "max_deviation": None,
        "method": None,
        "sampling": "probabilistic",
    }
    what = launch("m", drafter="d", k=5, rest=["--port", "1"], **flags)
    assert what.variables == {"NSD_THETA": "0.9"} and what.arguments[-2:] == ("--port", "1")
    config = json.loads(what.arguments[what.arguments.index("--speculative-config") + 1])
    assert config == {
        "method": "draft_model",
        "model": "d",
        "num_speculative_tokens": 5,
        "draft_sample_method": "probabilistic",
    }
    assert what.shown.startswith("NSD_THETA=0.9 python -m vllm.entrypoints.openai.api_server --model m ")
    for wrong in (
        {"drafter": None, "rest": []},
        {"drafter": "ngram", "rest": ["--speculative-config", "{}"]},
        {"drafter": None, "rest": ['--speculative-config={"rejection_sample_method": "fly"}']},
    ):
        with pytest.raises(ConfigError):
            launch("m", k=4, **flags, **wrong)
    assert speculative_config("ngram", 3, None, "greedy")["method"] == "ngram"


def test_surroundings_that_would_silence_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "nsd").mkdir()
    told = " ".join(check_surroundings({"VLLM_PLUGINS": "other"}, tmp_path))
    assert "VLLM_PLUGINS" in told and str(tmp_path / "nsd") in told
    told = " ".join(check_surroundings({"VLLM_PLUGINS": "other, nsd"}, tmp_path / "nsd"))
    assert "VLLM_PLUGINS" not in told and "folder" not in told


def test_the_ledger_counts_by_request_and_kind() -> None:
    ledger, gone = Ledger(), set[str]()
    ledger.alive = lambda request: request not in gone
    with torch.inference_mode():
        rows = ledger.rows_of(["a", "b"], torch.device("cpu"))
    # Request a: drafts 0, 1, 2 with one kept; request b: drafts 0, 1, both kept.
    row = torch.tensor([rows[0]] * 3 + [rows[1]] * 2)
    place, kept = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 1, 1, 2, 2])
    p = torch.tensor([[0.6, 0.4]] * 5)
    decision = decide(p, torch.tensor([0, 1, 1, 0, 0]), torch.full((5,), 0.5), account=True)
    passed = torch.tensor([False, False, False, True, False])
    for _ in range(2):
        with torch.inference_mode():  # as in a worker's step
            ledger.add(row, place, kept, decision, passed, torch.ones(5, dtype=torch.bool), False)
    told = ledger.fetch()
    assert told["requests"]["a"] | {"excess": 0, "spent": 0} == dict(
        zip(COLUMNS, (2, 4, 0, 2, 4, 0, 0, 0), strict=True)
    )
    assert told["requests"]["b"] | {"excess": 0, "spent": 0} == dict(
        zip(COLUMNS, (2, 4, 2, 2, 4, 0, 0, 0), strict=True)
    )
    assert told["requests"]["b"]["excess"] == pytest.approx(4 * 0.4)
    gone.add("a")
    before = ledger.fetch()["totals"]
    assert ledger.rows_of(["c"], torch.device("cpu"))[0] not in (rows[1],)
    after = ledger.fetch()
    assert before == told["totals"] == after["totals"] and after["requests"]["c"]["tested"] == 0
    assert after["requests"]["a"]["tested"] == 4


def test_ranks_count_once_engines_add_up() -> None:
    def figures(tested: float) -> dict[str, float]:
        return dict.fromkeys(COLUMNS, 0.0) | {"tested": tested}

    answers = [
        {"engine": 0, "totals": figures(5)},
        {"engine": 0, "totals": figures(5)},
        {"engine": 1, "totals": figures(2)},
    ]
    assert summed(answers)["tested"] == 7
