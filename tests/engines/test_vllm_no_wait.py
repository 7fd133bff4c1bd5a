"""Nothing of a step waits for the device: the decision runs on tensors that have no values to be waited for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nsd.engines import coin, relax
from nsd.engines.vllm import v1, v2
from nsd.engines.vllm.metrics import Ledger
from nsd.engines.vllm.rows import Columns

META = torch.device("meta")
B, K, V = 3, 2, 40
N = B * K


def real(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def whole(*shape: int) -> Tensor:
    return real(*shape, dtype=torch.int64)


def columns(rows: int) -> Columns:
    double = real(rows, dtype=torch.float64)
    return Columns(double, double, whole(rows), whole(rows), whole(rows))


def test_these_tensors_do_end_whoever_looks_at_them() -> None:
    for look in (lambda t: t.item(), lambda t: bool(t), lambda t: t.tolist(), lambda t: t.reshape(1).nonzero()):
        with pytest.raises((RuntimeError, NotImplementedError)):
            look(whole(1).squeeze(0))


@pytest.mark.parametrize("q", [real(N, V), None], ids=["laws", "point masses"])
def test_the_decision(q: Tensor | None) -> None:
    double = real(N, dtype=torch.float64)
    made = relax.decide(
        real(N, V), whole(N), double, eps=double, draft_probs=q, coin=coin.coins(whole(N), whole(N)), account=True
    )
    assert made.forced.device == META and relax.passes(made, double).shape == (N,)


def test_the_v1_runners_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger()
    ledger.table = real(8, 8, dtype=torch.float64)
    monkeypatch.setattr(v1, "LEDGER", ledger)
    given: dict[str, Any] = {
        "target_logits": real(N, V),
        "draft_probs": real(N, V),
        "draft_token_ids": whole(N),
        "cu_num_draft_tokens": whole(B),
    }
    made = v1.decide_step(columns(N), whole(N), given)
    v1._count(columns(N), made, real(N, dtype=torch.float64), given, whole(B, K + 1))
    assert made.es is not None and made.es.device == META


def test_the_v2_runners_step() -> None:
    rows = B * (K + 1)
    given: dict[str, Any] = {
        "target_logits": real(rows, V),
        "draft_logits": real(B, K, V),
        "draft_sampled": whole(rows),
        "cu_num_logits": whole(B + 1),
        "pos": whole(rows),
        "expanded_idx_mapping": whole(rows),
        "expanded_local_pos": whole(rows),
        "temperature": real(B),
        "seed": whole(B),
    }
    these = v2.at_rows(columns(B), given)
    made = v2.decide_step(these, given)
    assert v2.certain(given["target_logits"], v2.drafts(given), made.forced).shape == (rows, V)
