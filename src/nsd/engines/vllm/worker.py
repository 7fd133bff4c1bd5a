"""In the worker: answering for its hooks, and saying once what is active."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from nsd.engines.vllm.hooks import METHODS
from nsd.engines.vllm.metrics import LEDGER
from nsd.engines.vllm.patching import wrap
from nsd.engines.vllm.state import STATE, log

STATUS_METHOD = "nsd_status"
METRICS_METHOD = "nsd_metrics"

_POINT_METHODS = ("ngram", "ngram_gpu", "suffix")


def answer(module: ModuleType) -> None:
    """Give every worker two methods that the front end can call by RPC: nsd_status and nsd_metrics."""
    setattr(module.WorkerBase, STATUS_METHOD, _status)
    setattr(module.WorkerBase, METRICS_METHOD, _metrics)


def _status(worker: Any) -> dict[str, Any]:
    """Whether this worker can do what it is asked, in plain values."""
    problem = STATE.problem
    if problem is None and STATE.sampler and not _runner_hooked():
        problem = f"the hooks of the {STATE.sampler['runner']} runner are not in place"
    return {
        "version": STATE.version,
        "problem": problem,
        "sampler": dict(STATE.sampler),
        "hooked": sorted(STATE.hooked),
        "default": str(STATE.default) if STATE.default else None,
    }


def _runner_hooked() -> bool:
    wanted = {
        "V1": ("vllm.v1.sample.rejection_sampler", "vllm.v1.worker.gpu_model_runner"),
        "V2": ("vllm.v1.worker.gpu.spec_decode.rejection_sampler", "vllm.v1.worker.gpu.sample.sampler"),
    }
    return all(name in STATE.hooked for name in wanted[STATE.sampler["runner"]])


def _metrics(worker: Any) -> dict[str, Any]:
    """The ledger's figures, fetched from the device now, and which data-parallel engine this worker belongs to."""
    engine = getattr(worker.vllm_config.parallel_config, "data_parallel_rank", 0)
    return {**LEDGER.fetch(), "engine": engine}


def watch_sampler(sampler_class: Any, runner: str) -> None:
    """Learn the speculative configuration as the engine builds its rejection sampler."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        def __init__(self: Any, sampler: Any, spec_config: Any = None, *rest: Any, **named: Any) -> None:
            stock(self, sampler, spec_config, *rest, **named)
            if spec_config is not None:
                learn(spec_config, runner)

        return __init__

    wrap(sampler_class, "__init__", make)


def learn(spec_config: Any, runner: str) -> None:
    """Note method and drafting, refuse what cannot be joined with a nucleus, say what is active."""
    method = getattr(spec_config, "rejection_sample_method", "standard")
    drafting = getattr(spec_config, "draft_sample_method", "greedy")
    drafter = str(getattr(spec_config, "method", "?"))
    point = drafter in _POINT_METHODS or drafting == "greedy"
    STATE.sampler = {"runner": runner, "method": method, "drafter": drafter, "drafting": "point" if point else drafting}
    if method not in METHODS:
        STATE.trouble(
            f"rejection_sample_method is {method!r}, which decides otherwise than token by token; "
            f"wanted {METHODS[0]!r} in --speculative-config"
        )
        return
    log.info(
        "nsd active: default %s; vLLM %s, %s runner, drafter %s",
        STATE.default or "exact, requests may ask",
        STATE.version,
        runner,
        drafter,
    )
    if point:
        log.info(
            "nsd: drafting with %s is greedy, drafts are point masses: one in the nucleus is always kept, so that its "
            "position becomes deterministic and deviates by 1 - p(x) from the target; draft_sample_method "
            "'probabilistic' (with a drafting model) or a cap (nsd_max_deviation) stays closer",
            drafter,
        )
