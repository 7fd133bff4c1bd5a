"""In the front end: requests are checked and stamped, workers are asked before anything is served, metrics shown."""

from __future__ import annotations

import functools
import secrets
from types import ModuleType
from typing import Any

from nsd.engines.vllm.exposition import keep_counting
from nsd.engines.vllm.patching import wrap
from nsd.engines.vllm.settings import STAMP, BadField, Stamp, request_ask
from nsd.engines.vllm.state import STATE, Stopped, log
from nsd.engines.vllm.worker import STATUS_METHOD

_COIN_SEEDS = 2**63


def admit(module: ModuleType) -> None:
    """Check every request's fields where vLLM checks its own, so that a bad one gets HTTP 400; stamp the good ones."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *rest: Any, **named: Any) -> Any:
            stamp = _stamp_for(params, self)
            request = stock(self, request_id, prompt, params, *rest, **named)
            sampling = getattr(request, "sampling_params", None)
            if sampling is not None and stamp is not None:
                # A new dictionary: the caller's own parameters may be shared between requests.
                sampling.extra_args = {**(sampling.extra_args or {}), STAMP: stamp.plain()}
                STATE.admitted += stamp.ask.acts
            return request

        return process_inputs

    wrap(module.InputProcessor, "process_inputs", make)


def _stamp_for(params: Any, processor: Any) -> Stamp | None:
    """The stamp of this request; None if there is nothing to say. Raises vLLM's own validation error."""
    if not hasattr(params, "extra_args"):
        return None
    extra_args = params.extra_args or {}
    named = [key for key in extra_args if key.startswith("nsd_")]
    if not named and STATE.default is None:
        return None
    try:
        if STAMP in extra_args:
            raise BadField(STAMP, "given", "it left to the server")
        ask = request_ask(extra_args, STATE.default)
        if ask.acts and STATE.problem is not None:
            raise BadField(named[0] if named else "nsd_rule", ask.rule, f"sd, as NSD is off here: {STATE.problem}")
        if ask.acts and processor.vllm_config.speculative_config is None:
            raise BadField(named[0] if named else "nsd_rule", ask.rule, "a server with --speculative-config")
    except BadField as bad:
        from vllm.exceptions import VLLMValidationError

        raise VLLMValidationError(str(bad), parameter=bad.field, value=bad.value) from None
    seed = getattr(params, "seed", None)
    return Stamp(ask, secrets.randbelow(_COIN_SEEDS) if seed is None else int(seed))


def ask_async(module: ModuleType) -> None:
    """The asynchronous engine (the server) asks its workers when the server asks it what it can do."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        async def get_supported_tasks(self: Any) -> Any:
            tasks = await stock(self)
            if not getattr(self, "_nsd_asked", False):
                self._nsd_asked = True
                try:
                    answers = await everywhere(self, STATUS_METHOD)
                except Exception as problem:
                    _refused(problem)
                else:
                    judge(answers)
                    keep_counting(self, everywhere)
            return tasks

        return get_supported_tasks

    wrap(module.AsyncLLM, "get_supported_tasks", make)


async def everywhere(engine: Any, method: str) -> list[Any]:
    """What every worker answers; of data-parallel engines, all those that this front end drives."""
    core = engine.engine_core
    every = getattr(core, "call_utility_all_async", None)
    if every is None or len(getattr(core, "core_engines", ())) < 2:
        answers: list[Any] = await engine.collective_rpc(method)
        return answers
    return [answer for answers in await every("collective_rpc", method, None, (), None) for answer in answers]


def ask(module: ModuleType) -> None:
    """The synchronous engine (`vllm.LLM`) asks its workers as it is built."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        def get_supported_tasks(self: Any) -> Any:
            tasks = stock(self)
            if not getattr(self, "_nsd_asked", False):
                self._nsd_asked = True
                try:
                    answers = self.collective_rpc(STATUS_METHOD)
                except Exception as problem:
                    _refused(problem)
                else:
                    judge(answers)
            return tasks

        return get_supported_tasks

    wrap(module.LLMEngine, "get_supported_tasks", make)


def _refused(problem: Exception) -> None:
    if isinstance(problem, Stopped):
        raise problem
    STATE.trouble(f"a worker did not answer for its hooks, so the plugin is not loaded there ({problem})")


def judge(answers: list[Any]) -> None:
    """Draw the conclusion from the workers' answers; one without working hooks is enough to have none."""
    for rank, answer in enumerate(answers):
        if not isinstance(answer, dict) or answer.get("problem") is not None:
            told = answer.get("problem") if isinstance(answer, dict) else repr(answer)
            STATE.trouble(f"worker {rank}: {told}")
            return
        if not answer["sampler"] and STATE.asked and not _is_late_stage(answers):
            STATE.trouble(f"worker {rank} drafts nothing; start the server with --speculative-config")
            return
    if STATE.problem is None and any(answer["sampler"] for answer in answers):
        log.info("nsd: %d worker(s) answered, default %s", len(answers), STATE.default or "exact, requests may ask")


def _is_late_stage(answers: list[Any]) -> bool:
    """Only the last stage of a pipeline samples, so the other stages have no rejection sampler."""
    return any(isinstance(answer, dict) and answer.get("sampler") for answer in answers)


def report(llm: Any) -> dict[str, Any]:
    """The ledger of a `vllm.LLM`: {"totals": ..., "requests": {id: ...}}, the columns as in `metrics`."""
    answers = [answer for answer in llm.collective_rpc("nsd_metrics") if answer["totals"]["blocks"]]
    # Ranks of a tensor-parallel group count the same drafts.
    return answers[0] if answers else {"totals": {}, "requests": {}}
