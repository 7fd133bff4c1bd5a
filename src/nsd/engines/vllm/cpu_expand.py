"""Cures for two faults of vLLM's on the CPU.

`expand_batch_to_tokens`: there, vLLM's stand-in for its Triton kernel fills an int64 copy of a float32 or int32 buffer
and drops it, so that the temperature, top-k and top-p of drafted positions are whatever the memory held: at
temperature > 0 no acceptance figure means anything. Source: vllm/utils/cpu_triton_utils.py, `_expand_kernel_impl`, in
0.29 to 0.33 (vllm-project/vllm issue 55005). The function is asked two small questions before its first real use on a
CPU; only if it gets one wrong is it replaced.

`apply_sampling_constraints`: a step without drafts, such as a prompt's own, hands it no rows, and where some request
sets top_k and none top_p the engine ends in the maximum of nothing. Source: vllm/v1/sample/ops/topk_topp_sampler.py,
`apply_top_k_only`, in 0.32 and 0.33. No rows are given back as they are.

Other devices are left alone.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nsd.engines.vllm.patching import wrap
from nsd.engines.vllm.state import log


def expand(x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Tensor:
    """Each request's value at each of its draft positions: x [B], cumulative counts [B] -> [num_tokens]."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    value = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return value.repeat_interleave(counts.long(), output_size=num_tokens)


def is_sound(function: Any) -> bool:
    """Whether the function expands two float32 examples rightly on the CPU."""
    ends = torch.tensor([2, 3, 6], dtype=torch.int32)
    examples = (torch.tensor([0.5, 0.0, 2.0]), torch.tensor([3.25, 7.0, 0.0]))
    return all(torch.equal(function(x, ends, 6, 0, 1), expand(x, ends, 6, 0, 1)) for x in examples)


def cure(module: ModuleType) -> None:
    """Replace the module's `expand_batch_to_tokens` where it is wrong."""

    def make(stock: Any) -> Any:
        sound: list[bool] = []

        def expand_batch_to_tokens(
            x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
        ) -> Tensor:
            if x.device.type == "cpu":
                if not sound:
                    sound.append(is_sound(stock))
                    if not sound[0]:
                        log.warning("nsd: vLLM's expand_batch_to_tokens is wrong on this CPU and was replaced")
                if not sound[0]:
                    return expand(x, cu_num_tokens, num_tokens, replace_from, replace_to)
            expanded: Tensor = stock(x, cu_num_tokens, num_tokens, replace_from, replace_to)
            return expanded

        return expand_batch_to_tokens

    wrap(module, "expand_batch_to_tokens", make)


def spare_empty_steps(module: ModuleType) -> None:
    """Keep steps without drafts away from the module's `apply_sampling_constraints`."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        def apply_sampling_constraints(logits: Tensor, *rest: Any, **named: Any) -> Tensor:
            if logits.device.type == "cpu" and not len(logits):
                return logits
            processed: Tensor = stock(logits, *rest, **named)
            return processed

        return apply_sampling_constraints

    wrap(module, "apply_sampling_constraints", make)
