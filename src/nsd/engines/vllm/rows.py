"""Which request a row of logits belongs to, and what that request asks for, as columns on the device."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsd.engines.coin import coin_key
from nsd.engines.vllm.settings import EXACT, Stamp, read_stamp
from nsd.engines.vllm.state import STATE, Stopped

_NOBODY = Stamp(EXACT, 0)
_GREEDY = 1e-5
"""Below this temperature vLLM samples greedily."""
_WARM_UP = ("_warmup_", "_v2_mixed_warmup")


def stamp_of(request: str, params: Any) -> Stamp:
    """The stamp of a request as its front end left it; exact if it left none and none was needed.

    Raises Stopped, which ends the engine, if the environment asks for NSD, or the request does, and nobody admitted it.
    """
    extra_args: Mapping[str, Any] = getattr(params, "extra_args", None) or {}
    stamp = read_stamp(extra_args)
    if stamp is None:
        named = any(key.startswith("nsd_") for key in extra_args)
        if (STATE.asked or named) and not request.startswith(_WARM_UP):
            raise Stopped(
                f"request {request} came in unchecked: the plugin is not loaded in the front end; "
                "see VLLM_PLUGINS and nsd vllm check"
            )
        return _NOBODY
    greedy = getattr(params, "temperature", 1.0) < _GREEDY
    return Stamp(EXACT if greedy else stamp.ask, _coin_seed(request, params, stamp))


def _coin_seed(request: str, params: Any, stamp: Stamp) -> int:
    """The request's own seed (of n samples each has its own), else the one drawn at admission, told apart by its id."""
    seed = getattr(params, "seed", None)
    return int(seed) if seed is not None else stamp.coin_seed ^ zlib.crc32(request.encode())


@dataclass(frozen=True)
class Columns:
    """Columns of N draft rows on the device: theta, eps [N] float64, key [N], row and place [N] int64.

    theta is 0 where the engine decides alone. eps is None if no request has a cap. row is the ledger's.
    """

    theta: Tensor
    eps: Tensor | None
    key: Tensor
    row: Tensor
    place: Tensor


def columns(stamps: Sequence[Stamp], counts: Sequence[int], rows: Sequence[int], device: torch.device) -> Columns:
    """Columns of a batch: request i has counts[i] draft rows, one after the other. Two copies, no wait."""
    real, whole = [], []
    for stamp, count, row in zip(stamps, counts, rows, strict=True):
        ask = stamp.ask
        theta = ask.theta if ask.acts else 0.0
        cap = float("inf") if ask.max_deviation is None else ask.max_deviation
        key = coin_key(stamp.coin_seed)
        real += [(theta, cap)] * count
        whole += [(key, row, place) for place in range(count)]
    floats = _to(torch.tensor(real, dtype=torch.float64).reshape(-1, 2).T.contiguous(), device)
    numbers = _to(torch.tensor(whole, dtype=torch.int64).reshape(-1, 3).T.contiguous(), device)
    capped = any(stamp.ask.acts and stamp.ask.max_deviation is not None for stamp in stamps)
    return Columns(floats[0], floats[1] if capped else None, numbers[0], numbers[1], numbers[2])


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return tensor
    # Pinned memory is what lets the copy overlap; elsewhere (XPU, ...) a plain copy is right too.
    source = tensor.pin_memory() if device.type == "cuda" else tensor
    return source.to(device, non_blocking=True)
