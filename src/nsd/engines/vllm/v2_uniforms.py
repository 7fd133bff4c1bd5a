"""The uniforms that V2's kernel draws, from its own function: imported only where vLLM runs with Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from vllm.v1.worker.gpu.sample.gumbel import tl_rand32


@triton.jit  # type: ignore[untyped-decorator]  # Triton has no types where it is not installed
def _draw(out_ptr: Any, seed_ptr: Any, slot_ptr: Any, pos_ptr: Any) -> None:
    row = tl.program_id(0)
    seed = tl.load(seed_ptr + tl.load(slot_ptr + row))
    tl.store(out_ptr + row, tl_rand32(seed, tl.load(pos_ptr + row), includes_zero=False))


def kernel_uniforms(seed: Tensor, slot: Tensor, pos: Tensor) -> Tensor:
    """u of every logits row: seed [slots], slot and pos [N] -> [N] float32 in (0, 1)."""
    out = torch.empty(len(pos), dtype=torch.float32, device=pos.device)
    _draw[(len(pos),)](out, seed, slot, pos)
    return out
