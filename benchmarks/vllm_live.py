"""A vLLM engine kept alive in a process of its own, so that several can be asked in turn within one run.

`Live(settings, environment, log)` starts it, `ask(requests)` answers a batch, `ledger()` gives NSD's counts since the
start, `close()` ends it. The child reads a JSON line for each and writes one back through a pipe of its own; the rest
goes to the log. All requests of a batch wait until the last has arrived, so a batch's time is that of decoding it
together.

Uses of vLLM (>= 0.32): LLM.enqueue, LLM.wait_for_completion, the engine core's pause_scheduler and resume_scheduler.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Request = Mapping[str, Any]
"""prompt (text, or prompt_token_ids) and params (of vllm.SamplingParams; `json_schema` asks for structured output)."""
LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class Batch:
    """Seconds from first to last step; of each request its ids, its text, why it ended ("stop", "length"), and how many
    were accepted and drafted in each of its steps."""

    seconds: float
    ids: list[list[int]]
    accepted: list[list[int]]
    drafted: list[list[int]]
    texts: list[str]
    ends: list[str]

    @property
    def tokens(self) -> int:
        """Tokens of all requests."""
        return sum(map(len, self.ids))

    @property
    def tau(self) -> float:
        """Tokens per step, over all requests."""
        steps = [count for mine in self.accepted for count in mine]
        return 1 + sum(steps) / max(len(steps), 1)


class Live:
    """The parent's side."""

    def __init__(self, settings: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> None:
        read, write = os.pipe()
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.vllm_live", str(write)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=log.open("w", encoding="utf-8"),
            stderr=subprocess.STDOUT,
            pass_fds=(write,),
            start_new_session=True,
            text=True,
        )
        os.close(write)
        self.answers = os.fdopen(read, encoding="utf-8")
        self._say(dict(settings))
        self._hear()

    def ask(self, requests: Sequence[Request]) -> Batch:
        """Decode a batch. RuntimeError with the end of the log if the engine stopped."""
        self._say([dict(request) for request in requests])
        return Batch(**self._hear())

    def ledger(self) -> dict[str, float]:
        """NSD's totals since the engine started (nsd.engines.vllm.metrics); needs the plugin."""
        self._say(LEDGER)
        told: dict[str, float] = self._hear()
        return told

    def close(self) -> None:
        """End the engine and all its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.answers.close()

    def _say(self, what: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> Any:
        line = self.answers.readline()
        if not line:
            raise RuntimeError(f"the engine stopped; its log ends with {self.log.read_text('utf-8')[-2000:]}")
        return json.loads(line)


def _serve(answers: Any) -> None:
    from vllm import LLM

    llm = LLM(**json.loads(sys.stdin.readline()))
    core = llm.llm_engine.engine_core
    answers.write("{}\n")
    answers.flush()
    for line in sys.stdin:
        requests = json.loads(line)
        if requests == LEDGER:
            answers.write(json.dumps(_ledger(llm)) + "\n")
            answers.flush()
            continue
        core.call_utility("pause_scheduler", "keep", False)
        params = [_params(request["params"]) for request in requests]
        llm.enqueue([request["prompt"] for request in requests], params, use_tqdm=False)
        started = time.monotonic()
        core.call_utility("resume_scheduler")
        outputs = [output.outputs[0] for output in llm.wait_for_completion(use_tqdm=False)]
        told = [output.spec_decode_metrics for output in outputs]
        answer = {
            "seconds": time.monotonic() - started,
            "ids": [list(output.token_ids) for output in outputs],
            "accepted": [[] if spec is None else spec.per_step_accepted for spec in told],
            "drafted": [[] if spec is None else spec.per_step_drafted for spec in told],
            "texts": [output.text for output in outputs],
            "ends": [output.finish_reason for output in outputs],
        }
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _params(given: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    schema = given.pop("json_schema", None)
    own = {} if schema is None else {"structured_outputs": StructuredOutputsParams(json=schema)}
    return SamplingParams(**given, **own)


def _ledger(llm: Any) -> dict[str, float]:
    from nsd.engines.vllm.frontend import report

    totals: dict[str, float] = report(llm)["totals"]
    return totals


if __name__ == "__main__":
    _serve(os.fdopen(int(sys.argv[1]), "w", encoding="utf-8"))
