"""The V2 model runner (GPU's default): the same decision, handed to kernels that draw their uniforms inside.

`RejectionSampler.__call__` knows the requests of the batch; `rejection_sample`, as that module sees it, gets the
processed target logits (after vLLM's and custom logits processors, temperature, min-p, top-k, top-p), the drafts' own
logits, and everything else of the step. V2 hashes u from (seed, position) inside its kernel, so a forced draft is made
certain instead: in a new tensor its row keeps its law but for 64 nats less on every other id, so that p(x) = 1 and the
kernel's test cannot fail. The row's residual is not used then. Other rows keep their bits.

The public way, a custom logits processor, was not taken: it runs before temperature, top-k and top-p, so it would have
to compute p a second time, and the V1 runner refuses speculative decoding with any such processor installed.
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
from nsd.engines.relax import Decision, decide
from nsd.engines.vllm.metrics import LEDGER
from nsd.engines.vllm.patching import wrap
from nsd.engines.vllm.rows import Columns, columns, stamp_of
from nsd.engines.vllm.settings import EXACT, Stamp
from nsd.engines.vllm.state import STATE, Stopped
from nsd.engines.vllm.worker import watch_sampler

_CERTAIN = 64.0
"""exp(-64) times any vocabulary vanishes beside 1 in float32."""


@dataclass
class _Here:
    """Of this worker: parameters by slot, and by slot the columns of the batch being sampled."""

    params: dict[int, Any] = field(default_factory=dict)
    slots: Columns | None = None
    seen: tuple[Any, ...] = ()


_HERE = _Here()


def know_requests(module: ModuleType) -> None:
    """Hook `Sampler.add_request`: remember what the request in each slot was admitted with."""

    def make(stock: Any) -> Any:
        @functools.wraps(stock)
        def add_request(self: Any, req_idx: int, sampling_params: Any, *rest: Any, **named: Any) -> None:
            _HERE.params[int(req_idx)] = sampling_params
            stock(self, req_idx, sampling_params, *rest, **named)

        return add_request

    wrap(module.Sampler, "add_request", make)


def decide_drafts(module: ModuleType) -> None:
    """Hook the rejection sampler: `__call__` prepares the batch, `rejection_sample` decides chunk by chunk."""

    def call(stock: Any) -> Any:
        @functools.wraps(stock)
        def __call__(self: Any, logits: Tensor, input_batch: Any, *rest: Any, **named: Any) -> Any:
            _HERE.slots = _prepare(self, input_batch, logits.device)
            try:
                return stock(self, logits, input_batch, *rest, **named)
            finally:
                _HERE.slots = None

        return __call__

    def sample(stock: Any) -> Any:
        signature = inspect.signature(stock)

        @functools.wraps(stock)
        def rejection_sample(*args: Any, **kwargs: Any) -> Any:
            if _HERE.slots is None:
                return stock(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            if given.get("use_block_verification") or given.get("synthetic_conditional_rates") is not None:
                raise Stopped("the rejection sampler runs block or synthetic acceptance, wanted 'standard'")
            if given.get("fly_window_size"):
                raise Stopped("the rejection sampler runs fly acceptance, wanted 'standard'")
            these = at_rows(_HERE.slots, given)
            decision = decide_step(these, given)
            given["target_logits"] = certain(given["target_logits"], drafts(given), decision.forced)
            sampled, num_sampled = stock(*bound.args, **bound.kwargs)
            _count(these, decision, given, num_sampled)
            return sampled, num_sampled

        return rejection_sample

    watch_sampler(module.RejectionSampler, "V2")
    wrap(module.RejectionSampler, "__call__", call)
    wrap(module, "rejection_sample", sample)


def _prepare(sampler: Any, batch: Any, device: torch.device) -> Columns | None:
    """Columns by slot if any request of the batch is under NSD, else None; known on the host, nothing is waited for."""
    slots = [int(slot) for slot in batch.idx_mapping_np]
    stamps = [stamp_of(request, _HERE.params.get(slot)) for request, slot in zip(batch.req_ids, slots, strict=False)]
    if not any(stamp.ask.acts for stamp in stamps):
        return None
    states = sampler.sampler.req_states
    LEDGER.alive = lambda request: request in states.req_id_to_index
    rows = LEDGER.rows_of(list(batch.req_ids), device)
    return by_slot(dict(zip(slots, zip(stamps, rows, strict=True), strict=False)), states.max_num_reqs, device)


def by_slot(known: dict[int, tuple[Stamp, int]], size: int, device: torch.device) -> Columns:
    """Columns with one entry per slot; slots that are not in the batch stay exact."""
    seen = (tuple(sorted(known.items(), key=lambda item: item[0])), size)
    if _HERE.seen and _HERE.seen[0] == seen:
        kept: Columns = _HERE.seen[1]
        return kept
    nobody = (Stamp(EXACT, 0), 0)
    entries = [known.get(slot, nobody) for slot in range(size)]
    made = columns([stamp for stamp, _ in entries], [1] * size, [row for _, row in entries], device)
    _HERE.seen = (seen, made)
    return made


def at_rows(slots: Columns, given: dict[str, Any]) -> Columns:
    """The columns of every logits row: by slot [R] -> by row [N]; greedy requests and bonus rows are left alone."""
    slot = given["expanded_idx_mapping"].long()
    greedy = given["temperature"][slot] == 0
    return Columns(
        torch.where(greedy, 0.0, slots.theta[slot]),
        None if slots.eps is None else slots.eps[slot],
        slots.key[slot],
        slots.row[slot],
        given["expanded_local_pos"].long(),
    )


def drafts(given: dict[str, Any]) -> Tensor:
    """The draft that each logits row tests, -1 at bonus rows: draft_sampled is one ahead. [N] int64."""
    following = given["draft_sampled"].long()
    shifted = torch.cat([following[1:], following.new_full((1,), -1)])
    last = given["cu_num_logits"][1:].long() - 1
    return shifted.index_fill(0, last, -1)


def decide_step(these: Columns, given: dict[str, Any]) -> Decision:
    """Decide the drafts of one call of `rejection_sample` from the arguments it was given."""
    coin = None if these.eps is None else coins(these.key, given["pos"].long() + 1)
    probs, draft_probs = given["target_logits"].float().softmax(dim=-1), draft_laws(given)
    account = STATE.full or draft_probs is None
    return decide(probs, drafts(given), these.theta, eps=these.eps, draft_probs=draft_probs, coin=coin, account=account)


def draft_laws(given: dict[str, Any]) -> Tensor | None:
    """q of every row as V2 itself forms it, draft logits over temperature: [N, Vq], or None without draft logits."""
    logits = given["draft_logits"]
    if logits is None:
        return None
    slot = given["expanded_idx_mapping"].long()
    place = given["expanded_local_pos"].long().clamp(0, logits.shape[1] - 1)
    temperature = given["temperature"][slot].float()
    temperature = torch.where(temperature == 0, 1.0, temperature)
    law: Tensor = (logits[slot, place].float() / temperature.unsqueeze(-1)).softmax(dim=-1)
    return law


def certain(logits: Tensor, drafted: Tensor, forced: Tensor) -> Tensor:
    """A new tensor whose forced rows give their draft all the mass; the other rows keep their bits: [N, V]."""
    x = drafted.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
    lowered = logits - torch.where(forced, _CERTAIN, 0.0).to(logits.dtype).unsqueeze(-1)
    at_x = torch.where(forced.unsqueeze(-1), logits.amax(-1, keepdim=True), logits.gather(-1, x))
    return lowered.scatter_(-1, x, at_x)


def _count(these: Columns, decision: Decision, given: dict[str, Any], num_sampled: Tensor) -> None:
    drafted = drafts(given)
    counts = torch.diff(given["cu_num_logits"]).long()
    kept = (num_sampled.long() - 1).repeat_interleave(counts, output_size=len(drafted))
    bound = given["draft_logits"] is None and STATE.sampler.get("drafting") != "point"
    acts = (these.theta > 0) & (drafted >= 0)
    LEDGER.add(these.row, these.place, kept, decision, passed(decision, these, given), acts, bound)


def passed(decision: Decision, these: Columns, given: dict[str, Any]) -> Tensor:
    """Which rows would have passed V2's own test, with the uniforms its kernel draws: [N] bool."""
    from nsd.engines.vllm.v2_uniforms import kernel_uniforms

    u = kernel_uniforms(given["seed"], given["expanded_idx_mapping"], given["pos"])
    ratio = decision.p_x.double().log() > u.double().log() + decision.q_x.double().log()
    return (decision.p_x > 0) & ratio
