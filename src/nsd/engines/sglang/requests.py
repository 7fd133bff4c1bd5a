"""What each request of the batch at hand asks for, carried from `eagle_sample` to the kernels. Kernel-tested only."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsd.engines.vllm.settings import EXACT, Ask, request_ask


@dataclass(slots=True)
class State:
    """One per process: the server's default, and whether the hooks have been registered."""

    default: Ask | None = None
    registered: bool = False


STATE = State()


@dataclass(frozen=True, slots=True)
class Asked:
    """For a batch on its device: theta [B] (0 = exact), eps [B] or None, seeds and positions [B] of seeded batches."""

    theta: Tensor
    eps: Tensor | None = None
    seeds: Tensor | None = None
    positions: Tensor | None = None


_NOW: ContextVar[tuple[Asked | None] | None] = ContextVar("nsd_asked", default=None)


def asked_now(batch: int, device: torch.device) -> Asked | None:
    """What the running `eagle_sample` found; outside of one the server's default. None: nothing is relaxed."""
    inside = _NOW.get()
    if inside is not None:
        return inside[0]
    default = STATE.default
    return tensors([default] * batch, batch, device) if default is not None and default.acts else None


def tensors(asks: Sequence[Ask], batch: int, device: torch.device) -> Asked | None:
    """Asks as tensors; rows beyond them, which pad a batch, are exact."""
    if not any(ask.acts for ask in asks):
        return None
    rows = [*asks, *[EXACT] * (batch - len(asks))]
    theta = torch.tensor([ask.theta if ask.acts else 0.0 for ask in rows], dtype=torch.float64, device=device)
    if all(ask.max_deviation is None for ask in rows):
        return Asked(theta)
    caps = [torch.inf if ask.max_deviation is None else ask.max_deviation for ask in rows]
    return Asked(theta, torch.tensor(caps, dtype=torch.float64, device=device))


def around_eagle_sample(stock: Any, verify_input: Any, batch: Any, *rest: Any, **named: Any) -> Any:
    """AROUND hook: tells the kernels what the requests of this batch ask for. Raises for a tree of drafts."""
    asks = [_ask_of(request) for request in batch.reqs or ()]
    asked = tensors(asks, len(batch.seq_lens), batch.device) if asks and not batch.forward_mode.is_idle() else None
    if asked is not None:
        if getattr(verify_input, "tree_topk", None) != 1:
            raise RuntimeError("nsd: drafts form a tree, wanted a chain; start with --speculative-eagle-topk 1")
        require_kernels()
        seeds = batch.sampling_info.sampling_seed
        if seeds is not None and asked.eps is not None:
            asked = Asked(asked.theta, asked.eps, seeds, batch.seq_lens)
    token = _NOW.set((asked,))
    try:
        return stock(verify_input, batch, *rest, **named)
    finally:
        _NOW.reset(token)


def _ask_of(request: Any) -> Ask:
    return _parsed(tuple(sorted(_fields(request.sampling_params).items())), STATE.default)


@functools.lru_cache(maxsize=4096)
def _parsed(fields: tuple[tuple[str, Any], ...], default: Ask | None) -> Ask:
    """A request is read once for each step; its fields were checked when it came in."""
    return request_ask(dict(fields), default)


def _fields(sampling_params: Any) -> dict[str, Any]:
    given = getattr(sampling_params, "custom_params", None) or {}
    return {key: value for key, value in given.items() if key.startswith("nsd_")}


def before_verify(self: Any, *_: Any, **__: Any) -> None:
    """BEFORE hook of SGLang's own check of sampling parameters: BadField, a ValueError, names a field of ours."""
    request_ask(_fields(self), STATE.default)


def require_kernels() -> None:
    """Raise where SGLang failed to hook a kernel, which it only logs."""
    import importlib

    from nsd.engines.sglang.coins import CHAIN, TREE

    patched = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry._patched
    absent = [target for target in (CHAIN, TREE) if target not in patched]
    if absent:
        raise RuntimeError(f"nsd: the hook of {absent[0]} is not in place; look for 'Failed to apply hooks' in the log")
