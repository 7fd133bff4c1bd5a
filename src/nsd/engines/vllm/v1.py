"""The V1 model runner (CPU always; GPU as a fallback): who owns which row, and which drafts are forced.

`GPUModelRunner._sample` knows the requests of the batch; `rejection_sample` gets the processed target logits: after
penalties, allowed ids, bad words, min_tokens, the grammar's mask, temperature, top-k and top-p. Their softmax is p, the
law vLLM itself samples from. A forced draft gets the uniform 0 in `generate_uniform_probs`, which its kernel compares
with p/q, so the kernels, the residual, the bonus token and the order of random draws stay as they are. Greedy requests
never read a uniform and are never forced.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from nsd.engines.coin import coins
from nsd.engines.relax import Decision, decide, passes
from nsd.engines.vllm.metrics import LEDGER
from nsd.engines.vllm.patching import wrap
from nsd.engines.vllm.rows import Columns, columns, stamp_of
from nsd.engines.vllm.settings import Ask, Stamp
from nsd.engines.vllm.state import STATE, Stopped
from nsd.engines.vllm.worker import watch_sampler


@dataclass
class _Step:
    """What the three hooks of one step tell each other."""

    columns: Columns
    positions: Tensor | None
    decision: Decision | None = None
    placeholder: Tensor | None = None
    uniforms: Tensor | None = None


@dataclass
class _Here:
    """Of this worker: the step being sampled, stamps by request, and the columns of the batch seen last."""

    step: _Step | None = None
    stamps: dict[str, Stamp] = field(default_factory=dict)
    seen: tuple[Any, ...] = ()
    columns: Columns | None = None


_HERE = _Here()


def know_rows(module: ModuleType) -> None:
    """Hook `GPUModelRunner._sample`: prepare the step if any request in it is under NSD."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
            if spec_decode_metadata is None:
                return stock(self, logits, spec_decode_metadata)
            _HERE.step = _prepare(self, spec_decode_metadata)
            try:
                return stock(self, logits, spec_decode_metadata)
            finally:
                _HERE.step = None

        return _sample

    wrap(module.GPUModelRunner, "_sample", make)


def _prepare(runner: Any, metadata: Any) -> _Step | None:
    requests = list(runner.input_batch.req_ids)
    counts = metadata.num_draft_tokens
    stamps = [_stamp(runner, request) for request in requests]
    if not any(stamp.ask.acts and count for stamp, count in zip(stamps, counts, strict=True)):
        return None
    LEDGER.alive = runner.requests.__contains__
    device = metadata.draft_token_ids.device
    rows = LEDGER.rows_of(requests, device)
    seen = (tuple(stamps), tuple(counts), tuple(rows))
    if seen != _HERE.seen or _HERE.columns is None:
        _HERE.seen, _HERE.columns = seen, columns(stamps, counts, rows, device)
    positions = None
    if _HERE.columns.eps is not None:
        # The row at position t draws the token at t + 1; these positions are right on the device also when the host's
        # counts run ahead of it (asynchronous scheduling).
        at = metadata.logits_indices[metadata.target_logits_indices.long()].long()
        positions = runner.positions[at].long() + 1
    return _Step(_HERE.columns, positions)


def _stamp(runner: Any, request: str) -> Stamp:
    if request not in _HERE.stamps:
        if len(_HERE.stamps) > 4 * len(runner.requests) + 64:
            _HERE.stamps = {name: stamp for name, stamp in _HERE.stamps.items() if name in runner.requests}
        _HERE.stamps[request] = stamp_of(request, runner.requests[request].sampling_params)
    return _HERE.stamps[request]


def decide_drafts(module: ModuleType) -> None:
    """Hook the rejection sampler: `rejection_sample` decides, `generate_uniform_probs` lets forced drafts pass."""

    def sample(stock: Any) -> Any:
        signature = inspect.signature(stock)

        @functools.wraps(stock)
        def rejection_sample(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            step = _HERE.step or _rehearsal(given)
            if step is None or given["sampling_metadata"].all_greedy:
                return stock(*args, **kwargs)
            if given.get("synthetic_mode") or given.get("fly_window_size") is not None:
                raise Stopped("the rejection sampler runs synthetic or fly acceptance, wanted 'standard'")
            decision = decide_step(step.columns, step.positions, given)
            before, _HERE.step = _HERE.step, step
            step.decision = decision
            step.placeholder = (given["draft_token_ids"] < 0) & (step.columns.theta > 0)
            try:
                output = stock(*args, **kwargs)
            finally:
                _HERE.step = before
            if before is not None and step.uniforms is not None:
                _count(step.columns, decision, step.uniforms, given, output)
            return output

        return rejection_sample

    def uniform(stock: Any) -> Any:
        @functools.wraps(stock)
        def generate_uniform_probs(*args: Any, **kwargs: Any) -> Tensor:
            drawn: Tensor = stock(*args, **kwargs)
            step = _HERE.step
            if step is None or step.decision is None or step.placeholder is None:
                return drawn
            step.uniforms = drawn
            # A comparison with NaN fails, so vLLM's kernel, which reads beside the row for id -1, turns it down.
            drawn = torch.where(step.placeholder, torch.nan, drawn)
            return torch.where(step.decision.forced, 0.0, drawn)

        return generate_uniform_probs

    watch_sampler(module.RejectionSampler, "V1")
    wrap(module, "generate_uniform_probs", uniform)
    wrap(module, "rejection_sample", sample)


def decide_step(these: Columns, positions: Tensor | None, given: dict[str, Any]) -> Decision:
    """Decide the drafts of one call of `rejection_sample` from the arguments it was given."""
    coin = None if these.eps is None or positions is None else coins(these.key, positions)
    probs, draft_probs = given["target_logits"].softmax(dim=-1, dtype=torch.float32), given["draft_probs"]
    return decide(
        probs,
        given["draft_token_ids"],
        these.theta,
        eps=None if coin is None else these.eps,
        draft_probs=draft_probs,
        coin=coin,
        account=STATE.full or draft_probs is None,
    )


def _count(these: Columns, decision: Decision, u: Tensor, given: dict[str, Any], output: Tensor) -> None:
    counts = torch.diff(given["cu_num_draft_tokens"], prepend=given["cu_num_draft_tokens"].new_zeros(1)).long()
    per_request = (output != -1).sum(-1) - 1
    kept = per_request.repeat_interleave(counts, output_size=len(u))
    bound = given["draft_probs"] is None and STATE.sampler.get("drafting") != "point"
    LEDGER.add(these.row, these.place, kept, decision, passes(decision, u), these.theta > 0, bound)


def _rehearsal(given: dict[str, Any]) -> _Step | None:
    """A step for the calls by which vLLM measures its memory, so that what a decision needs is measured with them."""
    if not STATE.asked or STATE.default is None:
        return None
    counts = given["num_draft_tokens"]
    stamp = Stamp(STATE.default, 0)
    these = columns([stamp] * len(counts), counts, [0] * len(counts), given["target_logits"].device)
    return _Step(these, torch.zeros_like(these.key))


def step_of(asks: list[Ask], counts: list[int], seeds: list[int], positions: Tensor) -> _Step:
    """A step made by hand, for calling the hooked `rejection_sample` without an engine: `with_step(step)`."""
    stamps = [Stamp(ask, seed) for ask, seed in zip(asks, seeds, strict=True)]
    rows = LEDGER.rows_of([f"by hand {i}" for i in range(len(asks))], positions.device)
    return _Step(columns(stamps, counts, rows, positions.device), positions)


class with_step:
    """Run vLLM's own `rejection_sample` under a step made by `step_of`."""

    def __init__(self, step: _Step) -> None:
        self.step = step

    def __enter__(self) -> None:
        _HERE.step = self.step

    def __exit__(self, *_: object) -> None:
        _HERE.step = None
