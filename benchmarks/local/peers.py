"""Other people's loops on the same prompts: transformers' generate, and llama.cpp by node-llama-cpp."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from nsd.errors import NSDError
from nsd.targets.base import Target
from nsd.targets.smollm2 import locate

LLAMA = Path(__file__).parent / "llama"
CONTEXT = 1024


class Absent(NSDError):
    """A peer that is not here; the message says why."""


class Generate:
    """transformers' generate in the target's dtype, the whole law, no truncation."""

    def __init__(self, target: Target) -> None:
        self._model: Any = target.reference()
        if self._model is None:
            raise Absent(f"{target.name} has no transformers model")

    def answer(self, ids: Sequence[int], temperature: float, limit: int, seed: int) -> tuple[list[int], float, None]:
        """Decode once -> ids, seconds with the prefill, and nothing about the first token."""
        prompt = torch.tensor([list(ids)])
        torch.manual_seed(seed)
        law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        started = perf_counter()
        with torch.inference_mode():
            out = self._model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, **law)
        seconds = perf_counter() - started
        return out[0, prompt.shape[1] :].tolist(), seconds, None


class Llama:
    """llama.cpp in a process of its own, which sleeps between answers. Raises Absent where it cannot be started."""

    def __init__(self) -> None:
        node = shutil.which("node")
        if node is None:
            raise Absent("node is not installed (node 20 or newer)")
        if not (LLAMA / "node_modules" / "node-llama-cpp").is_dir():
            raise Absent("node-llama-cpp is not installed: npm install --prefix benchmarks/local/llama")
        command = [node, str(LLAMA / "generate.mjs"), str(locate()), str(CONTEXT)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.release = str(self._read()["ready"])

    def answer(
        self, ids: Sequence[int], temperature: float, limit: int, seed: int, threads: int
    ) -> tuple[list[int], float, float]:
        """Decode once -> ids, seconds with the prefill, seconds to the first token."""
        request = {"ids": list(ids), "maxTokens": limit, "temperature": temperature, "seed": seed, "threads": threads}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        found = self._read()
        return found["ids"], found["seconds"], found["first"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def _read(self) -> dict[str, Any]:
        """The next document; llama.cpp's own lines between are passed over."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise Absent(f"llama.cpp ended with status {self._process.wait()} before it answered")
