"""Calling vLLM's own V1 rejection sampler without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nsd.engines.vllm.settings import Ask
from nsd.engines.vllm.v1 import step_of, with_step


def load_sampler() -> ModuleType:
    """vLLM's rejection sampler with its CPU kernels, as a worker has it."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    import vllm.v1.sample.rejection_sampler as module

    current_platform.register_triton_kernel_overrides()
    return module


def metadata(temperature: Tensor, top_k: Tensor | None = None, seeds: Sequence[int] = ()) -> Any:
    """Sampling metadata of a batch; seeds give each request a generator of its own."""
    from vllm.v1.sample.metadata import SamplingMetadata

    B = len(temperature)
    greedy = temperature == 0
    return SamplingMetadata(
        temperature=None if bool(greedy.all()) else temperature,
        all_greedy=bool(greedy.all()),
        all_random=not bool(greedy.any()),
        top_p=None,
        top_k=top_k,
        generators={i: torch.Generator().manual_seed(seed) for i, seed in enumerate(seeds)},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(B),
        presence_penalties=torch.zeros(B),
        repetition_penalties=torch.ones(B),
        output_token_ids=[[] for _ in range(B)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=None,
    )


@dataclass
class Batch:
    """B requests with K drafts each: logits [B * K, V] processed, x [B * K], q [B * K, V] or None, temperature [B]."""

    logits: Tensor
    x: Tensor
    q: Tensor | None
    temperature: Tensor
    seeded: bool = False

    @property
    def size(self) -> int:
        return len(self.temperature)

    @property
    def k(self) -> int:
        return len(self.x) // self.size

    def arguments(self, seed: int) -> tuple[Any, ...]:
        """The positional arguments of `rejection_sample`, fresh generators included."""
        B, K = self.size, self.k
        seeds = [seed * 1000 + i for i in range(B)] if self.seeded else []
        ends = torch.arange(1, B + 1, dtype=torch.int32) * K
        bonus = torch.full((B, 1), 1, dtype=torch.int32)
        named = metadata(self.temperature, seeds=seeds)
        return self.x.int(), [K] * B, K, ends, self.q, self.logits.clone(), bonus, named

    def step(self, asks: Sequence[Ask], seed: int) -> Any:
        """A step in which request i asks asks[i] and its coins have the seed `seed + i`."""
        places = torch.arange(self.k).repeat(self.size)
        return step_of(list(asks), [self.k] * self.size, [seed * 10**6 + i for i in range(self.size)], places)

    def run(self, module: ModuleType, seed: int, asks: Sequence[Ask] | None = None) -> Tensor:
        """Emitted ids [B, K + 1], -1 where nothing was emitted; without asks as vLLM runs when nobody asks."""
        torch.manual_seed(seed)
        arguments = self.arguments(seed)
        if asks is None:
            return module.rejection_sample(*arguments)
        with with_step(self.step(asks, seed)):
            return module.rejection_sample(*arguments)


def random_batch(B: int, K: int, V: int, seed: int = 0, greedy: bool = False, seeded: bool = False) -> Batch:
    """A batch of random laws; with greedy, every third request is greedy and its first draft is the argmax."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(B * K, V, generator=g) * 2
    q = (logits + torch.randn(B * K, V, generator=g)).softmax(-1)
    x = torch.multinomial(q, 1, generator=g).squeeze(-1)
    temperature = torch.ones(B)
    if greedy:
        temperature[::3] = 0.0
        x.view(B, K)[::3, 0] = logits.view(B, K, V)[::3, 0].argmax(-1)
    return Batch(logits, x, q, temperature, seeded)


def emitted(output: Tensor) -> Tensor:
    """How many tokens each request got: [B]."""
    return (output != -1).sum(-1)
