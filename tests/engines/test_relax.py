"""The decision that all engines share, against nsd.verification's plain-Python reference in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from nsd.engines import relax
from nsd.engines.relax import decide, edge_without_wait, passes
from nsd.fidelity import one_step
from nsd.laws import one_hot, threshold
from nsd.rules import NSD
from nsd.verification.reference import excess, nucleus

INF = float("inf")


def rows(count: int, size: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """p, q [count, size], some of their ids impossible, and x [count] drawn from q."""
    g = torch.Generator().manual_seed(seed)
    p = (torch.randn(count, size, generator=g, dtype=torch.float64) * 2).masked_fill(
        torch.rand(count, size, generator=g) < 0.2, -INF
    )
    p[:, 0] = 0.0
    q = torch.randn(count, size, generator=g, dtype=torch.float64) * 2
    p, q = p.softmax(-1).to(dtype), q.softmax(-1).to(dtype)
    return p, q, torch.multinomial(q, 1, generator=g).squeeze(-1)


def column(value: float, count: int) -> Tensor:
    return torch.full((count,), value, dtype=torch.float64)


@pytest.mark.parametrize("theta", [0.0, 1e-6, 0.3, 0.7, 0.95, 1.0])
@pytest.mark.parametrize("cap", [INF, 0.2, 0.03, 0.0])
def test_as_the_reference_says(theta: float, cap: float) -> None:
    p, q, x = rows(300, 7, 1)
    coin = torch.rand(300, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    got = decide(p, x, column(theta, 300), eps=column(cap, 300), draft_probs=q, coin=coin)
    for i in range(300):
        inside = nucleus(p[i].tolist(), theta)
        es = excess(p[i].tolist(), q[i].tolist(), inside)[1]
        lam = 1.0 if es <= cap else cap / es
        assert got.es is not None and abs(float(got.es[i]) - es) < 1e-12
        assert abs(float(got.lam[i]) - lam) < 1e-9
        assert bool(got.member[i]) == (int(x[i]) in inside)
        assert bool(got.forced[i]) == (int(x[i]) in inside and (lam == 1 or float(coin[i]) < lam))


def test_theta_is_a_column() -> None:
    p, q, x = rows(200, 9, 3)
    thetas = torch.linspace(0, 1, 200, dtype=torch.float64)
    together = decide(p, x, thetas, draft_probs=q, account=True)
    for i in range(0, 200, 17):
        alone = decide(p[i : i + 1], x[i : i + 1], thetas[i : i + 1], draft_probs=q[i : i + 1], account=True)
        assert bool(alone.forced) == bool(together.forced[i])
        assert alone.es is not None and together.es is not None and float(alone.es) == float(together.es[i])


def test_more_theta_never_forces_less() -> None:
    p, _, x = rows(500, 40, 4)
    counts = [decide(p, x, torch.full((500,), t)).forced for t in (0.0, 0.2, 0.5, 0.8, 0.95, 1.0)]
    for fewer, more in itertools.pairwise(counts):
        assert not bool((fewer & ~more).any())
    assert int(counts[0].sum()) == 0 < int(counts[2].sum()) < int(counts[-1].sum())


def test_impossible_and_missing_tokens_are_never_forced() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0]] * 5)
    x = torch.tensor([2, -1, 3, 99, 0])
    got = decide(p, x, torch.ones(5))
    assert got.forced.tolist() == [False, False, False, False, True]


def test_a_row_that_is_not_a_law_is_not_forced() -> None:
    p = torch.tensor([[float("nan")] * 3, [0.2, 0.3, 0.5]])
    q = torch.tensor([[0.2, 0.3, 0.5], [float("nan")] * 3])
    zero = torch.zeros(2, dtype=torch.float64)
    got = decide(p, torch.tensor([1, 2]), torch.ones(2), eps=zero + 0.1, draft_probs=q, coin=zero + 0.5)
    assert got.forced.tolist() == [False, False]


def test_point_masses_need_no_rows() -> None:
    p, _, x = rows(200, 6, 5)
    theta, cap = torch.full((200,), 0.8), torch.full((200,), 0.1, dtype=torch.float64)
    coin = torch.rand(200, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    short = decide(p, x, theta, eps=cap, coin=coin)
    whole = decide(p, x, theta, eps=cap, coin=coin, draft_probs=one_hot(x, p))
    assert torch.equal(short.forced, whole.forced)
    torch.testing.assert_close(short.es, whole.es, rtol=0, atol=1e-12)


def test_missing_law_is_a_bound() -> None:
    """A draft from q taken for a point mass keeps the cap: the law averaged over x ~ q is off p by at most eps."""
    p, q, _ = rows(60, 5, 7)
    for theta, cap in itertools.product((0.5, 0.9), (0.02, 0.1, 0.4)):
        emitted = torch.zeros_like(p)
        bound = torch.zeros(60, dtype=torch.float64)
        for x in range(5):
            token = torch.full((60,), x)
            got = decide(p, token, column(theta, 60), eps=column(cap, 60), coin=torch.zeros(60))
            assert got.spent is not None
            lam = torch.where(got.member, got.lam, 0.0)
            kept = p[:, x] + lam * (1 - p[:, x])
            others = p.clone()
            others[:, x] = 0.0
            others = torch.where(p[:, x : x + 1] < 1, others / (1 - p[:, x : x + 1]), 0.0)
            emitted += q[:, x : x + 1] * (one_hot(token, p) * kept.unsqueeze(-1) + others * (1 - kept).unsqueeze(-1))
            bound += q[:, x] * got.spent
        tv = 0.5 * (emitted - p).abs().sum(-1)
        assert bool((tv <= bound + 1e-12).all()) and float(bound.max()) <= cap + 1e-12


@pytest.mark.parametrize("cap", [None, 0.05])
def test_the_emitted_law_is_the_exact_one(cap: float | None) -> None:
    """Forcing with probability lam beside the exact test gives the closed form of nsd.fidelity, to rounding."""
    p, q, _ = rows(40, 6, 8)
    for theta in (0.3, 0.8, 1.0):
        accepted = torch.zeros_like(p)
        for x in range(6):
            token = torch.full((40,), x)
            eps = column(INF if cap is None else cap, 40)
            got = decide(p, token, column(theta, 40), eps=eps, draft_probs=q, coin=torch.zeros(40))
            share = torch.where(got.member, got.lam, 0.0)
            ratio = (p[:, x] / q[:, x]).clamp(max=1.0)
            accepted[:, x] = q[:, x] * (ratio + share * (1 - ratio))
        residual = (p - q).clamp_min(0)
        emitted = accepted + (1 - accepted.sum(-1, keepdim=True)) * residual / residual.sum(-1, keepdim=True)
        for i in range(40):
            exact = one_step(p[i], q[i], NSD(theta=theta, max_deviation=cap))
            torch.testing.assert_close(emitted[i], torch.tensor(exact.emitted, dtype=torch.float64), rtol=0, atol=1e-9)


def test_shorter_draft_vocabulary() -> None:
    p, q, x = rows(100, 8, 9)
    short = (q[:, :6] / q[:, :6].sum(-1, keepdim=True)).contiguous()
    padded = torch.cat([short, torch.zeros(100, 2, dtype=short.dtype)], -1)
    theta = torch.full((100,), 0.9)
    ours = decide(p, x, theta, draft_probs=short, account=True)
    theirs = decide(p, x, theta, draft_probs=padded, account=True)
    assert torch.equal(ours.q_x, theirs.q_x)
    torch.testing.assert_close(ours.es, theirs.es, rtol=0, atol=1e-12)


def test_the_edge_found_without_waiting() -> None:
    p, _, _ = rows(200, 500, 10, torch.float32)
    p[150:] = 1.0 / 500
    thetas = torch.linspace(0, 1, 200, dtype=torch.float64)
    ours, theirs = edge_without_wait(p, thetas), threshold(p, thetas)
    for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(p[row] >= a, p[row] >= b) or bool((p[row] > 0).eq(p[row] >= a).all() and thetas[row] >= 1)


def test_the_way_of_accelerators_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """ES by the fixed-shape search, which a device with kernels of its own takes, equals the one taken here."""
    p, q, x = rows(150, 300, 11, torch.float32)
    theta = torch.full((150,), 0.9, dtype=torch.float64)
    here = decide(p, x, theta, draft_probs=q, account=True).es
    assert here is not None
    inside = p >= edge_without_wait(p, theta).unsqueeze(-1)
    there = ((q - p).clamp_min(0) * inside).double().sum(-1)
    torch.testing.assert_close(here, there, rtol=0, atol=1e-6)
    called = []
    monkeypatch.setattr(relax, "threshold", lambda *a: called.append(1) or threshold(*a))
    decide(p, x, theta, draft_probs=q, account=True)
    assert called, "the comparison above looked at one way only"


def test_ranks_agree() -> None:
    """Equal rows decide alike, whatever batch they stand in: the shards of a rank, or all of them."""
    p, q, x = rows(64, 1000, 12, torch.float32)
    theta = torch.full((64,), 0.9)
    eps, coin = torch.full((64,), 0.05, dtype=torch.float64), torch.rand(64, generator=torch.Generator().manual_seed(1))
    whole = decide(p, x, theta, eps=eps, draft_probs=q, coin=coin)
    for part in (slice(0, 32), slice(32, 64), slice(5, 6)):
        shard = decide(p[part], x[part], theta[part], eps=eps[part], draft_probs=q[part], coin=coin[part])
        assert torch.equal(shard.forced, whole.forced[part])
        assert torch.equal(shard.lam, whole.lam[part])


def test_nothing_given_is_written_to() -> None:
    p, q, x = rows(50, 30, 13, torch.float32)
    theta, eps, coin = torch.full((50,), 0.9), torch.full((50,), 0.1), torch.rand(50)
    given = (p, x, theta, eps, q, coin)
    before = [tensor.clone() for tensor in given]
    decide(p, x, theta, eps=eps, draft_probs=q, coin=coin)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_a_cap_wants_a_coin() -> None:
    with pytest.raises(ValueError, match="a cap wants a coin"):
        decide(torch.tensor([[1.0]]), torch.tensor([0]), torch.ones(1), eps=torch.ones(1))


def test_passes_is_the_exact_test() -> None:
    p, q, x = rows(100, 5, 14)
    u = torch.rand(100, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    got = passes(decide(p, x, torch.zeros(100), draft_probs=q), u)
    for i in range(100):
        p_x, q_x = float(p[i, x[i]]), float(q[i, x[i]])
        assert bool(got[i]) == (p_x > 0 and float(u[i]) * q_x < p_x)
