"""Which number format a model computes in, and why."""

from __future__ import annotations

import json
import os
import platform
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nsd.errors import ConfigError
from nsd.nn import Dense, Projection
from nsd.nn.onednn import lacks_w8a8, packed
from nsd.targets.store import cache_root

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
}
QUANTISED = ("int8", "int4", "w8a8")
"""Formats of weights; activations stay bfloat16. w8a8 rounds them to a byte at every projection, row by row."""
WANTED_GAIN = 1.15
"""bfloat16 rounds the law (KL about 0.002 on the default model), so it has to be clearly faster than float32."""


@dataclass(frozen=True, slots=True)
class Format:
    """dtype of activations; weights "dense" (of the same dtype) or one of QUANTISED; reason to show."""

    dtype: torch.dtype
    weights: str
    reason: str


def choose_format(dtype: str, device: torch.device) -> Format:
    """`choose_dtype` with the formats of weights. Raises ConfigError for an unknown name, or none for this device."""
    if dtype not in QUANTISED:
        chosen, reason = choose_dtype(dtype, device)
        return Format(chosen, "dense", reason)
    if device.type != "cpu":
        raise ConfigError(f"got dtype '{dtype}' on {device.type}, wanted a CPU for it; try --dtype bfloat16")
    if dtype == "w8a8" and (lack := lacks_w8a8()):
        raise ConfigError(f"got dtype 'w8a8', but {lack}; try --dtype int8")
    between = ", rounded to bytes row by row at every product" if dtype == "w8a8" else ""
    weights = "int8" if dtype == "w8a8" else dtype
    return Format(torch.bfloat16, dtype, f"{weights} weights as asked, activations bfloat16{between}")


def choose_dtype(dtype: str, device: torch.device) -> tuple[torch.dtype, str]:
    """The dtype and a reason to show. Raises ConfigError for an unknown name.

    auto weighs float32 against bfloat16 only: coarser weights change the law by more than rounding does (the default
    model: mean TV 0.02 in bfloat16, 0.04 in int8), so they are for the user to ask for.
    """
    if dtype != "auto":
        if dtype not in DTYPES:
            known = ", ".join((*DTYPES, *QUANTISED))
            raise ConfigError(f"got dtype '{dtype}', wanted auto, {known}; try --dtype auto")
        return DTYPES[dtype], "as asked"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported():
            return torch.bfloat16, "bfloat16 is native on this GPU"
        return torch.float16, "this GPU has no bfloat16"
    if device.type != "cpu":
        return torch.float32, f"no probe for {device.type}"
    gain = _remembered_gain()
    if gain >= WANTED_GAIN:
        return torch.bfloat16, f"probe: bfloat16 is {gain:.1f}x as fast as float32 on this CPU"
    return torch.float32, f"probe: bfloat16 is only {gain:.1f}x as fast as float32 on this CPU"


def choose_device(device: str) -> torch.device:
    """cuda where there is one, else cpu, or the device named. Raises ConfigError if it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"got device '{device}', wanted auto, cpu, cuda or cuda:N; try --device auto") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("got device 'cuda', but torch sees no CUDA GPU; try --device cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"got device '{device}', but torch sees {torch.cuda.device_count()} GPUs; try --device auto")
    return chosen


def measured_gain() -> float:
    """Time of a small layer in float32 over bfloat16, at one and at eight rows; the best of a few rounds."""
    weight = torch.randn(1536, 576, generator=torch.Generator().manual_seed(0))
    cases = [(w, x) for w in (weight, weight.bfloat16()) for x in (w.new_ones(1, 576), w.new_ones(8, 576))]
    copies = [([packed(Dense(w.clone())) for _ in range(24)], x) for w, x in cases]
    for weights, x in copies:
        _time(weights, x)
    best = [min(times) for times in zip(*([_time(w, x) for w, x in copies] for _ in range(7)), strict=True)]
    return float((best[0] + best[1]) / (best[2] + best[3]))


def _time(weights: list[Projection], x: Tensor) -> float:
    """Seconds for a product with each of several weights, too many for a small cache to hold."""
    started = time.perf_counter()
    for weight in weights:
        weight(x)
    return time.perf_counter() - started


def _remembered_gain() -> float:
    """The probe's result for this machine, torch and thread count, from the cache or measured now."""
    key = "|".join([platform.node(), _cpu_name(), torch.__version__, str(torch.get_num_threads()), "laid out"])
    path = cache_root() / "dtype-probe.json"
    known: dict[str, float] = {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    if isinstance(known.get(key), float):
        return known[key]
    gain = measured_gain()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, json.dumps({**known, key: gain}))
    return gain


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
