"""Putting the hooks in place in this process, each as soon as the module it belongs to is imported."""

from __future__ import annotations

from types import ModuleType

from nsd.engines.vllm import cpu_expand, frontend, v1, v2, worker
from nsd.engines.vllm.hooks import HookMissing, check_version, require, version
from nsd.engines.vllm.patching import Action, when_imported
from nsd.engines.vllm.settings import full_accounting, server_default
from nsd.engines.vllm.state import STATE, log

_ACTIONS: tuple[tuple[str, Action], ...] = (
    ("vllm.v1.engine.input_processor", frontend.admit),
    ("vllm.v1.engine.async_llm", frontend.ask_async),
    ("vllm.v1.engine.llm_engine", frontend.ask),
    ("vllm.v1.worker.worker_base", worker.answer),
    ("vllm.v1.sample.rejection_sampler", v1.decide_drafts),
    ("vllm.v1.sample.rejection_sampler", cpu_expand.cure),
    ("vllm.v1.sample.rejection_sampler", cpu_expand.spare_empty_steps),
    ("vllm.v1.worker.gpu_model_runner", v1.know_rows),
    ("vllm.v1.worker.gpu.spec_decode.rejection_sampler", v2.decide_drafts),
    ("vllm.v1.worker.gpu.sample.sampler", v2.know_requests),
)


def install() -> None:
    """Install once. Raises if the environment asks for NSD and it cannot be given, or asks for nonsense."""
    if STATE.version != "?":
        return
    STATE.default, STATE.full = server_default(), full_accounting()
    STATE.version = version()
    try:
        known = check_version(STATE.version)
    except HookMissing as problem:
        STATE.trouble(str(problem))
        # Requests that ask must hear why; the rest of an unknown vLLM is left alone.
        when_imported("vllm.v1.engine.input_processor", frontend.admit)
        return
    if known == "read" and STATE.asked:
        log.warning("nsd: vLLM %s was read, not run, by nsd's tests; 0.32 was run", STATE.version)
    for name, action in _ACTIONS:
        when_imported(name, _guarded(name, action))


def _guarded(name: str, action: Action) -> Action:
    """The action, after a look whether the module still has what it needs."""

    def act(module: ModuleType) -> None:
        try:
            require(module)
            action(module)
        except HookMissing as problem:
            STATE.trouble(str(problem))
        else:
            STATE.hooked.add(name)

    return act
