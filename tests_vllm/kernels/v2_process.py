"""Runs V2's own rejection kernels on the CPU, under Triton's interpreter, with the hooks in place; prints JSON.

A process of its own: with the interpreter and a "cpu" backend in Triton, vLLM would take itself for a Triton machine.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from triton.backends import Backend, backends

backends["cpu"] = Backend(compiler=object, driver=types.SimpleNamespace(is_active=lambda: True))

from nsd.engines.vllm import v2  # noqa: E402 - after the interpreter was switched on
from nsd.engines.vllm.metrics import LEDGER  # noqa: E402
from nsd.engines.vllm.patching import stock_of  # noqa: E402
from nsd.engines.vllm.plugin import register  # noqa: E402
from nsd.engines.vllm.settings import EXACT, Ask, Stamp  # noqa: E402

os.environ["NSD_ACCOUNTING"] = "full"
register()

import vllm.v1.worker.gpu.spec_decode.rejection_sampler as module  # noqa: E402
import vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils as utils  # noqa: E402

from nsd.engines.vllm.v2_uniforms import kernel_uniforms  # noqa: E402

utils.tldevice = types.SimpleNamespace(log1p=lambda x: utils.tl.log(1.0 + x))
CPU = torch.device("cpu")


def batch(p_logits: Tensor, x: Tensor, q_logits: Tensor | None, temperature: Tensor, seed: int) -> dict[str, Any]:
    """The arguments of one call: p_logits [B, K + 1, V] processed, x [B, K], q_logits [B, K, V] before temperature."""
    B, K = x.shape
    row = torch.arange(B).repeat_interleave(K + 1)
    place = torch.arange(K + 1).repeat(B)
    sampled = torch.cat([torch.zeros(B, 1, dtype=x.dtype), x], 1).reshape(-1)
    return {
        "target_logits": p_logits.reshape(B * (K + 1), -1).contiguous(),
        "draft_logits": q_logits,
        "draft_sampled": sampled,
        "cu_num_logits": torch.arange(B + 1, dtype=torch.int32) * (K + 1),
        "pos": 10 + place.long(),
        "idx_mapping": torch.arange(B, dtype=torch.int32),
        "expanded_idx_mapping": row.int(),
        "expanded_local_pos": place.int(),
        "temperature": temperature,
        "seed": torch.arange(B, dtype=torch.int64) * 7919 + seed,
        "num_speculative_steps": K,
    }


def run(given: dict[str, Any], asks: list[Ask] | None) -> tuple[list[list[int]], list[int]]:
    """Emitted tokens and how many there are per request; without asks as vLLM calls it when nobody asks."""
    B = len(given["seed"])
    v2._HERE.slots = None
    if asks is not None:
        rows = LEDGER.rows_of([f"request {i}" for i in range(B)], CPU)
        stamps = {
            i: (Stamp(ask, int(given["seed"][i])), row) for i, (ask, row) in enumerate(zip(asks, rows, strict=True))
        }
        v2._HERE.slots = v2.by_slot(stamps, B, CPU)
    before = given["target_logits"].clone()
    sampled, number = module.rejection_sample(**given)
    assert torch.equal(before, given["target_logits"]), "the target's logits were written to"
    numbers = number.tolist()
    return [row[:n] for row, n in zip(sampled.tolist(), numbers, strict=True)], numbers


def mixed() -> dict[str, Any]:
    """One batch of 12 x 3 drafts over two of the kernel's blocks of ids: greedy, exact, NSD; masked, padded drafts."""
    torch.manual_seed(3)
    B, K, V = 12, 3, 8300
    p_logits = torch.randn(B, K + 1, V) * 4
    p_logits[:, :, 100:200] = -torch.inf
    q_logits = p_logits[:, :K].clamp_min(-20) + torch.randn(B, K, V)
    x = torch.multinomial(q_logits.reshape(B * K, V).softmax(-1), 1).reshape(B, K)
    masked, placeholder = [2, 3], [6, 7]
    x[masked, 1], x[placeholder, 1] = 150, -1
    x[::4] = p_logits[::4, :K].argmax(-1)
    temperature = torch.where(torch.arange(B) % 4 == 1, 0.0, 1.0)
    given = batch(p_logits, x, q_logits, temperature, 1)
    strict, numbers = run(given, None)
    stock = stock_of(module.rejection_sample)(**given)
    asks = [(EXACT, Ask("nsd", 0.95), Ask("nsd", 0.95), Ask("nsd", 1.0))[i % 4] for i in range(B)]
    relaxed = run(given, asks)
    point = run({**given, "draft_logits": None, "temperature": torch.ones(B)}, [Ask("nsd", 1.0)] * B)
    u = kernel_uniforms(given["seed"], given["expanded_idx_mapping"], given["pos"]).reshape(B, K + 1)
    p, q = p_logits.softmax(-1), q_logits.softmax(-1)
    predicted = []
    for i in range(B):
        kept = 0
        while kept < K and x[i, kept] >= 0 and u[i, kept] * q[i, kept, x[i, kept]] < p[i, kept, x[i, kept]]:
            kept += 1
        predicted.append(kept + 1)
    return {
        "stock": [row[:n] for row, n in zip(stock[0].tolist(), stock[1].tolist(), strict=True)],
        "strict": strict,
        "strict_numbers": numbers,
        "no_theta": run(given, [Ask("nsd", 0.0)] * B)[0],
        "relaxed": relaxed[0],
        "by_theta": [run(given, [Ask("nsd", theta)] * B)[1] for theta in (0.3, 0.9, 1.0)],
        "point_numbers": point[1],
        "greedy": (temperature == 0).tolist(),
        "masked": masked,
        "placeholder": placeholder,
        "predicted": predicted,
    }


def laws(count: int) -> dict[str, Any]:
    """The first emitted token of many one-draft requests with the same p and q, for NSD and for the cap."""
    torch.manual_seed(5)
    p = torch.tensor([0.36, 0.26, 0.16, 0.12, 0.06, 0.04])
    q = torch.tensor([0.10, 0.45, 0.05, 0.25, 0.05, 0.10])
    x = torch.multinomial(q.expand(count, -1), 1)
    p_logits = p.log().expand(count, 2, -1).contiguous()
    q_logits = q.log().expand(count, 1, -1).contiguous()
    told: dict[str, Any] = {"p": p.tolist(), "q": q.tolist(), "count": count, "runs": {}}
    asks = {"exact": EXACT, "nsd": Ask("nsd", 0.7), "cap": Ask("nsd", 0.7, 0.05)}
    for number, (name, ask) in enumerate(asks.items()):
        given = batch(p_logits, x, q_logits, torch.ones(count), 1 + 10**6 * number)
        emitted, _ = run(given, [ask] * count)
        told["runs"][name] = {
            "theta": ask.theta,
            "cap": ask.max_deviation,
            "counts": torch.bincount(torch.tensor([row[0] for row in emitted]), minlength=6).tolist(),
        }
    told["totals"] = LEDGER.fetch()["totals"]
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"mixed": mixed(), "laws": laws(int(sys.argv[1]))}))
