"""The hook map: what is hooked in SGLang, what must be there, and putting the hooks in place. Kernel-tested only.

Source: sglang 0.5.23 sglang/srt/plugins/hook_registry.py, srt/speculative/eagle_utils.py (eagle_sample),
kernels/ops/speculative/reject_sampling.py (chain), kernels/ops/speculative/sampling.py (tree, target laws only).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

from nsd.engines.sglang import coins, requests
from nsd.engines.vllm.settings import Ask, server_default
from nsd.errors import ConfigError

TESTED = ("0.5.23",)


@dataclass(frozen=True, slots=True)
class Hook:
    """A name of SGLang's: where, the kind of hook, our function, and the arguments it stands on."""

    target: str
    kind: str
    function: Any
    arguments: tuple[str, ...]


_KERNEL = ("uniform_samples", "candidates", "retrive_next_token", "retrive_next_sibling", "target_probs", "draft_probs")

HOOKS = (
    Hook(coins.CHAIN, "BEFORE", coins.before_chain, (*_KERNEL, "block_verification")),
    Hook(coins.TREE, "BEFORE", coins.before_tree, _KERNEL),
    Hook(
        "sglang.srt.speculative.eagle_utils.eagle_sample",
        "AROUND",
        requests.around_eagle_sample,
        ("verify_input", "batch"),
    ),
    Hook(
        "sglang.srt.sampling.sampling_params.SamplingParams.verify",
        "BEFORE",
        requests.before_verify,
        ("self", "vocab_size"),
    ),
)


def install() -> Ask | None:
    """Check version and symbols, then register every hook -> the server's default. Raises ConfigError."""
    default = server_default()
    check_version()
    for hook in HOOKS:
        problem = missing(hook)
        if problem is not None:
            raise ConfigError(problem)
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    requests.STATE.default = default
    if requests.STATE.registered:
        return default
    for hook in HOOKS:
        registry.HookRegistry.register(hook.target, hook.function, registry.HookType[hook.kind])
    requests.STATE.registered = True
    return default


def check_version() -> None:
    """Refuse a release that the hooks were not tested with. Raises ConfigError."""
    found = importlib.import_module("sglang.version").__version__
    if found not in TESTED:
        raise ConfigError(f"sglang is {found}, wanted {' or '.join(TESTED)}; pip install sglang=={TESTED[-1]}")


def missing(hook: Hook) -> str | None:
    """What this SGLang lacks of a hook's target, or None."""
    try:
        target = pkgutil.resolve_name(hook.target)
    except (ImportError, AttributeError) as problem:
        return f"sglang has no {hook.target} ({problem})"
    known = inspect.signature(target).parameters
    lacking = [name for name in hook.arguments if name not in known]
    return f"{hook.target} takes no {lacking[0]}" if lacking else None


def hook_map() -> list[tuple[str, str, str]]:
    """(target, kind, "ok" or what is missing) of every hook, for a look without a server."""
    return [(hook.target, hook.kind, missing(hook) or "ok") for hook in HOOKS]
