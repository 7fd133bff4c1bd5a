"""Running vLLM jobs in processes of their own, and reading what they say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CURE_ONLY = {"VLLM_PLUGINS": "expand_cure", "PYTHONPATH": str(HERE / "plugins")}
"""NSD absent, the CPU bug cured."""
STOCK = {"VLLM_PLUGINS": "none"}
"""vLLM as it is: an allow-list that names no plugin."""
PLUGIN = {"VLLM_PLUGINS": "nsd", "NSD_ACCOUNTING": "full"}
"""NSD through its installed entry point, every figure of its ledger computed."""
SECONDS = float(os.environ.get("NSD_VLLM_TEST_SECONDS", "420"))
PROMPTS = (
    "The history of the bicycle begins",
    "def fibonacci(n):\n",
    "Once upon a time there was a fox who",
    "The capital of France is",
)

Job = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Batches of answered requests, counters by name, the log of all processes, how the process ended."""

    batches: list[dict[str, Any]]
    counters: dict[str, Any]
    log: str
    code: int

    def answers(self, batch: int = 0) -> list[dict[str, Any]]:
        """The requests of one batch that was answered."""
        assert "requests" in self.batches[batch], self.batches[batch]
        requests: list[dict[str, Any]] = self.batches[batch]["requests"]
        return requests

    @property
    def ledger(self) -> dict[str, float]:
        """NSD's totals after the last batch."""
        return self.gained(0, len(self.batches) - 1)

    def gained(self, first: int, last: int | None = None) -> dict[str, float]:
        """What NSD's totals gained by a batch, or by all from first to last."""
        before: dict[str, float] = self.batches[first - 1]["ledger"] if first else {}
        after: dict[str, float] = self.batches[first if last is None else last]["ledger"]
        return {name: value - before.get(name, 0.0) for name, value in after.items()}


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """One OpenMP thread, unbound: two that spin on a busy machine are slower than one; no hub; no NSD settings."""
    base = {key: value for key, value in os.environ.items() if not key.startswith("NSD_") or key == "NSD_CACHE"}
    fixed = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(Path(tempfile.gettempdir()) / "nsd-vllm-cache"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    return base | fixed | dict(extra)


def settings(model: Path, speculative: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Arguments of vllm.LLM for a small engine on a CPU."""
    base: dict[str, Any] = {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "per_request_spec_decode_metrics": "detailed",
    }
    return base | ({} if speculative is None else {"speculative_config": dict(speculative)}) | more


def run(engine: Mapping[str, Any], batches: Sequence[Sequence[Job]], extra: Mapping[str, str], folder: Path) -> Outcome:
    """Run batches on one engine; an engine that stops is an outcome too, with its code and log."""
    folder.mkdir(parents=True, exist_ok=True)
    job, result, log = folder / "job.json", folder / "result.json", folder / "log.txt"
    result.unlink(missing_ok=True)
    with_nsd = extra.get("VLLM_PLUGINS") == PLUGIN["VLLM_PLUGINS"]
    job.write_text(json.dumps({"engine": dict(engine), "batches": batches, "ledger": with_nsd}), encoding="utf-8")
    with log.open("w", encoding="utf-8") as sink:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "driver.py"), str(job), str(result)],
            env=environment(extra), stdout=sink, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        finally:
            end(process)
    told = json.loads(result.read_text("utf-8")) if result.is_file() else {"batches": [], "counters": {}}
    return Outcome(told["batches"], told["counters"], log.read_text("utf-8", errors="replace"), code)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all it started: an engine's core and workers outlive a parent that was killed."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def answered(
    engine: Mapping[str, Any], batches: Sequence[Sequence[Job]], extra: Mapping[str, str], folder: Path
) -> Outcome:
    """`run`, for a job that must succeed."""
    outcome = run(engine, batches, extra, folder)
    assert outcome.code == 0, outcome.log[-6000:]
    return outcome


def request(prompt: str, /, **params: Any) -> Job:
    """One request of 48 tokens at temperature 1 that no end token stops; nsd_* goes to extra_args."""
    own = {key: params.pop(key) for key in list(params) if key.startswith("nsd_")}
    base: dict[str, Any] = {"temperature": 1.0, "max_tokens": 48, "ignore_eos": True} | params
    return {"prompt": prompt, "params": base | ({"extra_args": own} if own else {})}


def tau(answer: Mapping[str, Any]) -> float:
    """Tokens per step of one request."""
    return mean_tau([answer])


def mean_tau(answers: Sequence[Mapping[str, Any]]) -> float:
    """Tokens per step over requests, without each one's last step, which the token limit may cut short."""
    steps = [count for answer in answers for count in answer["accepted"][:-1]]
    return 1 + sum(steps) / len(steps)


def copy_of_nsd(folder: Path, change: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Copy the package with text replaced (file: old, new); returns the environment under which vLLM loads the copy."""
    import nsd

    source = Path(nsd.__file__).parent
    shutil.copytree(source, folder / "nsd", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in change.items():
        path = folder / "nsd" / name
        text = path.read_text("utf-8")
        assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}, wanted one place to change"
        path.write_text(text.replace(old, new), encoding="utf-8")
    return {"PYTHONPATH": str(folder)}
