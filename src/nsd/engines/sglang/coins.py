"""The verification kernels' coins: 0 where a draft lies in the nucleus, untouched elsewhere. Kernel-tested only.

Shapes: B requests, n = num_draft_tokens slots, slot 0 the newest committed token; candidates [B, n]; coins
uniform_samples [B, n], the one at j - 1 tests candidate j; target_probs [B, n, V], row j - 1 judges candidate j;
draft_probs [B, n - 1, V] in the chain kernel, an empty canvas in the tree kernel, whose test is u < p(x).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsd.engines.coin import coins
from nsd.engines.relax import decide
from nsd.engines.sglang.requests import Asked, asked_now

CHAIN = "sglang.kernels.ops.speculative.reject_sampling.chain_speculative_sampling_triton"
TREE = "sglang.kernels.ops.speculative.sampling.tree_speculative_sampling_target_only"

_POSITIONAL = (
    *("predicts", "accept_index", "accept_token_num", "candidates", "retrive_index", "retrive_next_token"),
    *("retrive_next_sibling", "uniform_samples", "uniform_samples_for_final_sampling", "target_probs", "draft_probs"),
    *("threshold_single", "threshold_acc", "deterministic"),
)


def before_chain(*args: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """BEFORE hook of the chain kernel, which tests u q(x) < p(x) with the draft's own law."""
    return _relaxed({**dict(zip(_POSITIONAL, args, strict=False)), **named}, sampled=True)


def before_tree(*args: Any, **named: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """BEFORE hook of the tree kernel, which knows target laws only: every draft is a point mass to it."""
    return _relaxed({**dict(zip(_POSITIONAL, args, strict=False)), **named}, sampled=False)


def _relaxed(named: dict[str, Any], sampled: bool) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    batch, slots = named["candidates"].shape
    asked = asked_now(batch, named["candidates"].device)
    if asked is None or slots < 2:
        return None
    if named.get("block_verification"):
        raise RuntimeError("nsd: block verification weighs whole blocks, which the nucleus cannot join; turn it off")
    forced = forced_drafts(named, asked, sampled)
    zeroed = named["uniform_samples"].clone()
    zeroed[:, : slots - 1] = torch.where(forced, 0.0, zeroed[:, : slots - 1])
    return (), {**named, "uniform_samples": zeroed}


def forced_drafts(named: dict[str, Any], asked: Asked, sampled: bool) -> Tensor:
    """Which drafts must stand: [B, n - 1] bool. Drafts of a row that is no chain never do."""
    candidates, p, q = named["candidates"], named["target_probs"], named["draft_probs"]
    batch, slots = candidates.shape
    rows = batch * (slots - 1)
    law = p[:, : slots - 1].reshape(rows, -1)
    drawn_from = q[:, : slots - 1].reshape(rows, -1) if sampled else None
    theta = asked.theta.repeat_interleave(slots - 1)
    eps = coin = None
    if asked.eps is not None:
        eps, coin = asked.eps.repeat_interleave(slots - 1), cap_coins(asked, batch, slots - 1, law.device)
    decision = decide(law, candidates[:, 1:].reshape(rows), theta, eps=eps, draft_probs=drawn_from, coin=coin)
    forced = decision.forced if drawn_from is None else decision.forced & (decision.q_x > 0)
    chain = is_chain(named["retrive_next_token"], named["retrive_next_sibling"])
    return forced.reshape(batch, slots - 1) & chain.unsqueeze(-1)


def is_chain(next_token: Tensor, next_sibling: Tensor) -> Tensor:
    """Whether slot j follows slot j - 1 and none has a sibling: [B, n], [B, n] -> [B] bool, without a host's look."""
    order = torch.arange(1, next_token.shape[1], device=next_token.device)
    in_order = (next_token[:, :-1] == order) | (next_token[:, :-1] < 0)
    return in_order.all(-1) & (next_sibling < 0).all(-1)


def cap_coins(asked: Asked, batch: int, slots: int, device: torch.device) -> Tensor:
    """The cap's own coins [B * slots]: keyed by seed and position where the batch is seeded, fresh ones elsewhere.

    SGLang broadcasts what rank 0 accepted, so ranks may draw different ones. SGLang's own seeded coins are hashes of
    another kind, so that these are independent of them.
    """
    if asked.seeds is None or asked.positions is None:
        return torch.rand(batch * slots, dtype=torch.float64, device=device)
    place = asked.positions.long().unsqueeze(-1) + torch.arange(slots, device=device)
    return coins(asked.seeds.long().repeat_interleave(slots), place.reshape(-1))
