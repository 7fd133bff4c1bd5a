"""One vLLM engine in a process of its own: `python driver.py JOB RESULT`, both JSON files.

A job has `engine` (arguments of vllm.LLM), `ledger` (whether to read NSD's) and `batches`, each a list of requests with
`prompt` and `params` (SamplingParams; `json_schema` in it asks for structured output). The result has, for every
batch, its seconds, the totals of NSD's ledger after it, and for every request its token ids, text, logprobs, and how
many ids vLLM says were accepted and drafted in each step; and the counters of speculation after the last batch.
A request that vLLM refuses is given as `error`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the job."""
    from vllm import LLM

    from nsd.engines.vllm.frontend import report

    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    llm = LLM(**job["engine"])
    started = time.monotonic()
    batches: list[dict[str, Any]] = []
    for number, requests in enumerate(job["batches"], 1):
        batches.append(_batch(llm, requests))
        sys.stderr.write(f"batch {number} of {len(job['batches'])} after {time.monotonic() - started:.1f} s\n")
        batches[-1]["ledger"] = report(llm)["totals"] if job["ledger"] else {}
        result = {"batches": batches, "counters": _counters(llm)}
        Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


def _batch(llm: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """All requests wait until the last has arrived, so that steps, and draws, are the same in every run."""
    from vllm.exceptions import VLLMClientError

    core = llm.llm_engine.engine_core
    prompts, params = [r["prompt"] for r in requests], [_params(r["params"]) for r in requests]
    core.call_utility("pause_scheduler", "keep", False)
    try:
        llm.enqueue(prompts, params, use_tqdm=False)
    except (ValueError, VLLMClientError) as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}
    finally:
        core.call_utility("resume_scheduler")
    started = time.monotonic()
    outputs = llm.wait_for_completion(use_tqdm=False)
    return {"seconds": time.monotonic() - started, "requests": [_told(output) for output in outputs]}


def _params(given: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    schema = given.pop("json_schema", None)
    own = {} if schema is None else {"structured_outputs": StructuredOutputsParams(json=schema)}
    return SamplingParams(**given, **own)


def _told(output: Any) -> dict[str, Any]:
    first, spec = output.outputs[0], output.outputs[0].spec_decode_metrics
    drafts = {} if spec is None else {"accepted": spec.per_step_accepted, "drafted": spec.per_step_drafted}
    logprobs = [[p.logprob for p in place.values()] for place in first.logprobs or []]
    return {"ids": list(first.token_ids), "text": first.text, "end": first.finish_reason, "logprobs": logprobs} | drafts


def _counters(llm: Any) -> dict[str, Any]:
    metrics = llm.get_metrics()
    return {
        m.name: getattr(m, "value", getattr(m, "values", None)) for m in metrics if "spec" in m.name or "nsd" in m.name
    }


if __name__ == "__main__":
    main()
