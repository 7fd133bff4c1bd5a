"""The shipped pair in a vLLM engine of its own process, and a file that keeps what was measured already."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.vllm_live import Live
from nsd.drafters.exported import exported_folder
from nsd.targets.smollm2 import smollm2_folder

CURE = Path(__file__).parents[1] / "tests_vllm" / "plugins"
WITH = {"VLLM_PLUGINS": "nsd"}
WITHOUT = {"VLLM_PLUGINS": "expand_cure", "PYTHONPATH": str(CURE)}
"""NSD absent, the CPU's expand bug cured all the same."""
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class Engines:
    """Engines of SmolLM2-135M, each started when it is first asked for; all end with the `with` block."""

    def __init__(self, k: int, threads: int = 1, **settings: Any) -> None:
        """k drafts a step of the shipped drafter; settings are arguments of vllm.LLM beside the usual ones."""
        self.k, self.threads, self.settings = k, threads, settings
        self.alive: dict[tuple[str | None, bool], Live] = {}

    def __enter__(self) -> Engines:
        self.folder = tempfile.TemporaryDirectory()
        return self

    def __exit__(self, *_: object) -> None:
        for live in self.alive.values():
            live.close()
        self.folder.cleanup()

    def get(self, drafting: str | None = "probabilistic", plugin: bool = True) -> Live:
        """The engine with this draft_sample_method (None: no drafter), with NSD's plugin or without."""
        key = drafting, plugin
        if key not in self.alive:
            log = Path(self.folder.name) / f"engine{len(self.alive)}.log"
            self.alive[key] = Live(self._arguments(drafting), self._environment(plugin), log)
        return self.alive[key]

    def _arguments(self, drafting: str | None) -> dict[str, Any]:
        base: dict[str, Any] = {
            "model": str(smollm2_folder()),
            "dtype": "bfloat16",
            "max_model_len": 512,
            "max_num_seqs": 16,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "disable_log_stats": False,
        }
        if drafting is not None:
            base["per_request_spec_decode_metrics"] = "detailed"  # refused by vLLM where nothing is drafted
            base["speculative_config"] = {
                "method": "eagle3",
                "model": str(exported_folder()),
                "num_speculative_tokens": self.k,
                "draft_sample_method": drafting,
            }
        return base | self.settings

    def _environment(self, plugin: bool) -> dict[str, str]:
        fixed = {
            "OMP_NUM_THREADS": str(self.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(Path(self.folder.name) / "vllm"),
            "HF_HUB_OFFLINE": "1",
        }
        return fixed | (WITH if plugin else WITHOUT)


def machine(threads: int) -> str:
    """Date, processor and versions in one line."""
    import torch
    import vllm

    import nsd

    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {_processor()}, {threads} thread(s); vLLM {vllm.__version__}, "
        f"torch {torch.__version__}, nsd {nsd.__version__}, Python {platform.python_version()}"
    )


def _processor() -> str:
    """The processor's name where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def write_page(lines: Sequence[str], out: Path | None) -> None:
    """Lines of Markdown as a file, if one is asked for."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Kept:
    """Measured values by name in a JSON file: what a run that was stopped has got is not measured again."""

    def __init__(self, path: Path | None, facts: Mapping[str, Any]) -> None:
        """facts are what the values depend on. SystemExit for a file of a run with other facts."""
        self.path, self.facts = path, dict(facts)
        self.values: dict[str, Any] = {}
        if path is None or not path.is_file():
            return
        told = json.loads(path.read_text(encoding="utf-8"))
        other = [key for key, value in self.facts.items() if told["facts"].get(key) != value]
        if other:
            raise SystemExit(
                f"{path} is of a run with another {', '.join(other)}; delete it, or give --keep another file"
            )
        self.values = told["values"]

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """The value of this name, measured now unless it is there."""
        if name not in self.values:
            self.values[name] = measure()
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"facts": self.facts, "values": self.values})
                self.path.with_suffix(".new").write_text(text, encoding="utf-8")
                self.path.with_suffix(".new").replace(self.path)
        return self.values[name]

    def series(self, name: str) -> list[Any]:
        """The values kept under this name followed by 1, 2, 3, ..., as far as they go."""
        found: list[Any] = []
        while (value := self.values.get(f"{name} {len(found) + 1}")) is not None:
            found.append(value)
        return found
