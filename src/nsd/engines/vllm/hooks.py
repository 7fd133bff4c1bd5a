"""The hook map: every name of vLLM's that the plugin replaces or reads, and whether this vLLM has it.

Versions: 0.32 is run by the tests (V1 in whole engines and by kernel, V2 by kernel); 0.33 was read and has the same
names and arguments, which `probe` checks again. Any other version is unknown and refused.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any, Literal

from nsd.errors import ConfigError

Runner = Literal["both", "V1", "V2"]
TESTED, READ = ("0.32",), ("0.33",)
METHODS = ("standard",)
"""rejection_sample_method values that the nucleus can be joined with; block, synthetic and fly decide otherwise."""


class HookMissing(ConfigError):
    """This vLLM lacks a name, or an argument, that the plugin stands on."""


@dataclass(frozen=True)
class Hook:
    """A name of vLLM's: module, dotted name inside it, the arguments that must be there, and what it is used for."""

    module: str
    name: str
    arguments: tuple[str, ...]
    use: str
    runner: Runner = "both"
    optional: bool = False

    @property
    def where(self) -> str:
        """The full dotted name."""
        return f"{self.module}.{self.name}"


_V1, _V2 = "vllm.v1.sample.rejection_sampler", "vllm.v1.worker.gpu.spec_decode.rejection_sampler"

HOOKS = (
    Hook("vllm.v1.engine.input_processor", "InputProcessor.process_inputs", ("params",), "checks and stamps requests"),
    Hook("vllm.v1.engine.async_llm", "AsyncLLM.get_supported_tasks", (), "asks the workers before serving"),
    Hook("vllm.v1.engine.llm_engine", "LLMEngine.get_supported_tasks", (), "asks the workers before generating"),
    Hook("vllm.v1.worker.worker_base", "WorkerBase.__init__", ("vllm_config",), "lets workers answer"),
    Hook(
        _V1,
        "rejection_sample",
        ("draft_token_ids", "num_draft_tokens", "draft_probs", "target_logits", "sampling_metadata"),
        "decides which drafts are forced",
        "V1",
    ),
    Hook(_V1, "generate_uniform_probs", ("num_tokens",), "gives forced drafts the uniform 0", "V1"),
    Hook(_V1, "expand_batch_to_tokens", ("x", "cu_num_tokens", "num_tokens"), "cured on the CPU", "V1"),
    Hook(_V1, "apply_sampling_constraints", ("logits",), "spared steps without drafts on the CPU", "V1"),
    Hook(_V1, "RejectionSampler.__init__", ("spec_config",), "learns the method, says what is active", "V1"),
    Hook(
        "vllm.v1.worker.gpu_model_runner",
        "GPUModelRunner._sample",
        ("spec_decode_metadata",),
        "knows whose row is whose",
        "V1",
    ),
    Hook(
        _V2,
        "rejection_sample",
        (
            "target_logits",
            "draft_logits",
            "draft_sampled",
            "cu_num_logits",
            "pos",
            "expanded_idx_mapping",
            "expanded_local_pos",
            "temperature",
            "seed",
        ),
        "decides which drafts are forced",
        "V2",
    ),
    Hook(_V2, "RejectionSampler.__init__", ("spec_config",), "learns the method, says what is active", "V2"),
    Hook(_V2, "RejectionSampler.__call__", ("input_batch",), "knows whose row is whose", "V2"),
    Hook(
        "vllm.v1.worker.gpu.sample.sampler", "Sampler.add_request", ("req_idx", "sampling_params"), "reads asks", "V2"
    ),
    Hook(
        "vllm.v1.worker.gpu.sample.gumbel", "tl_rand32", (), "tells rescued from ordinary drafts (metrics)", "V2", True
    ),
)


@dataclass(frozen=True)
class Found:
    """What became of one hook here: found or not, and what was seen."""

    hook: Hook
    ok: bool
    seen: str


def version() -> str:
    """The version of the vLLM that Python would import; raises HookMissing if there is none."""
    try:
        return str(importlib.import_module("vllm").__version__)
    except ImportError:
        raise HookMissing("vLLM is not installed here; pip install vllm (GPU) or see docs/serving.md (CPU)") from None


def check_version(seen: str) -> Literal["tested", "read"]:
    """How well this version is known; raises HookMissing for one that is not."""
    short = ".".join(re.findall(r"\d+", seen)[:2])
    if short in TESTED:
        return "tested"
    if short in READ:
        return "read"
    known = ", ".join(f"{v}.x" for v in TESTED + READ)
    raise HookMissing(
        f"vLLM {seen} is not known to nsd, wanted one of {known}; install such a version (nsd vllm check)"
    )


def stand_in(hook: Hook, module: Any = None) -> Any:
    """The object that the hook names; raises HookMissing if it, or one of its arguments, is not there."""
    try:
        found: Any = importlib.import_module(hook.module) if module is None else module
        for part in hook.name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise HookMissing(f"vLLM has no {hook.where} ({problem}); nsd vllm check shows the map") from None
    if hook.arguments:
        there = inspect.signature(found).parameters
        lacking = [name for name in hook.arguments if name not in there]
        if lacking:
            raise HookMissing(f"{hook.where} takes no {', '.join(lacking)} any more; nsd vllm check shows the map")
    return found


def require(module: Any) -> None:
    """Raise HookMissing unless every hook that lives in this module is there."""
    for hook in HOOKS:
        if hook.module == module.__name__ and not hook.optional:
            stand_in(hook, module)


def probe() -> list[Found]:
    """Look for every hook in the installed vLLM, without replacing anything."""
    found = []
    for hook in HOOKS:
        try:
            stand_in(hook)
        except HookMissing as problem:
            found.append(Found(hook, False, str(problem)))
        else:
            found.append(Found(hook, True, "found"))
    return found
