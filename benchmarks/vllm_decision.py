"""The time of the plugin's decision in the V1 runner beside vLLM's own work on the same rows, without an engine.

vLLM's own: `rejection_sample`, from processed logits to the ids kept, with a softmax of every row and a replacement for
it, and what the sampler does for the bonus rows. The decision (a softmax of its own, the mass above the draft, ES, the
counts) is the hooked call less the stock one, interleaved. Laws have about 2 nats; on flat ones ES costs more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from nsd.engines.vllm.patching import stock_of
from nsd.engines.vllm.settings import Ask
from nsd.engines.vllm.v1 import step_of, with_step

VOCABULARIES = (49_152, 151_936)


def table(batches: Sequence[int], k: int, theta: float, laps: int, threads: int) -> list[str]:
    """Markdown rows, medians in milliseconds."""
    module = _hooked()
    torch.set_num_threads(threads)
    lines = [
        "| V | batch | rows | rejection_sample ms | bonus sampling ms | with NSD ms | NSD adds ms | adds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for vocabulary in VOCABULARIES:
        for batch in batches:
            stock, bonus, hooked = _times(module, vocabulary, batch, k, theta, laps)
            own = stock + bonus
            lines.append(
                f"| {vocabulary:,} | {batch} | {batch * k} | {stock:.2f} | {bonus:.2f} | {hooked:.2f} "
                f"| {hooked - stock:.2f} | {(hooked - stock) / own:+.0%} |"
            )
    return lines


def _hooked() -> Any:
    """vLLM's module of the V1 rejection sampler, with CPU kernels and the plugin's hooks."""
    from nsd.engines.vllm.plugin import register

    register()
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    from vllm.v1.sample import rejection_sampler

    current_platform.register_triton_kernel_overrides()
    return rejection_sampler


def _times(module: Any, vocabulary: int, batch: int, k: int, theta: float, laps: int) -> tuple[float, float, float]:
    """Milliseconds of the stock call, of sampling the bonus rows, and of the call under NSD."""
    from vllm.v1.sample.metadata import SamplingMetadata
    from vllm.v1.sample.sampler import Sampler

    generator = torch.Generator().manual_seed(0)
    logits = _peaked(batch * k, vocabulary, generator)
    q = (logits + torch.randn(batch * k, vocabulary, generator=generator)).softmax(-1)
    drafted = torch.multinomial(q, 1, generator=generator).squeeze(1).int()
    last = _peaked(batch, vocabulary, generator)
    ones, zeros = torch.ones(batch), torch.zeros(batch)
    metadata = SamplingMetadata(
        temperature=ones,
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=zeros,
        presence_penalties=zeros,
        repetition_penalties=ones,
        output_token_ids=[[] for _ in range(batch)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=_no_processors(),
    )
    ends = torch.arange(1, batch + 1, dtype=torch.int32) * k
    bonus = torch.zeros(batch, 1, dtype=torch.int32)
    given = ([k] * batch, k, ends, q)
    sampler = Sampler()
    step = step_of([Ask("nsd", theta)] * batch, [k] * batch, list(range(batch)), torch.arange(batch * k))

    def under_nsd() -> Any:
        with with_step(step):
            return module.rejection_sample(drafted, *given, logits.clone(), bonus, metadata)

    stock, own, hooked = _interleaved(
        laps,
        lambda: stock_of(module.rejection_sample)(drafted, *given, logits.clone(), bonus, metadata),
        lambda: sampler(last.clone(), metadata),
        under_nsd,
    )
    return stock, own, hooked


def _peaked(rows: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """Logits of laws of about 2 nats, such as text has: Zipf's with exponent 2 over shuffled ids."""
    zipf = -2 * torch.arange(1, vocabulary + 1).float().log()
    return torch.stack([zipf[torch.randperm(vocabulary, generator=generator)] for _ in range(rows)])


def _no_processors() -> Any:
    from vllm.v1.sample.logits_processor import LogitsProcessors

    return LogitsProcessors()


def _interleaved(laps: int, *works: Callable[[], Any]) -> list[float]:
    seen: list[list[float]] = [[] for _ in works]
    for lap in range(laps + 1):
        for mine, work in zip(seen, works, strict=True):
            started = time.perf_counter()
            work()
            if lap:
                mine.append(1000 * (time.perf_counter() - started))
    return [median(mine) for mine in seen]
