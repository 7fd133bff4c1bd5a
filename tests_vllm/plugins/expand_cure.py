"""A vLLM plugin without NSD: it only replaces the CPU's broken expand_batch_to_tokens, to compare NSD at theta 0 with.

Source: vllm-project/vllm issue 55005; vllm/v1/sample/rejection_sampler.py (what the function has to return).
"""

from __future__ import annotations

from typing import Any

import torch


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = _expand  # type: ignore[assignment]  # the point of this plugin


def _expand(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    rows = torch.repeat_interleave(x, counts, output_size=num_tokens)
    return torch.where(rows == replace_from, torch.full_like(rows, replace_to), rows)
