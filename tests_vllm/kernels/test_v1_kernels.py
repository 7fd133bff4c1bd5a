"""vLLM's own V1 rejection sampler with the hooks in place, against exact laws. Statistical tests: false alarm 1e-6.

Nothing is mocked: the C++ kernels of the CPU wheel run, through the functions that the worker calls.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from nsd.engines.relax import decide
from nsd.engines.vllm import cpu_expand, v1
from nsd.engines.vllm.metrics import LEDGER
from nsd.engines.vllm.patching import MARK, stock_of
from nsd.engines.vllm.plugin import register
from nsd.engines.vllm.settings import EXACT, Ask
from nsd.fidelity import one_step
from nsd.laws import one_hot
from nsd.rules import NSD
from tests_vllm.kernels.kit import Batch, emitted, load_sampler, random_batch

pytestmark = pytest.mark.xdist_group("v1 kernels")

SEEDS = range(5)
P = torch.tensor([0.36, 0.26, 0.16, 0.12, 0.06, 0.04])
Q = torch.tensor([0.10, 0.45, 0.05, 0.25, 0.05, 0.10])
ALARM = 1e-6


@dataclass
class Sampler:
    """The module with hooks, and what it gave before it had any."""

    module: ModuleType
    absent: dict[tuple[str, int], torch.Tensor]


def shapes() -> dict[str, Batch]:
    return {
        "random": random_batch(24, 3, 300, 1),
        "mixed": random_batch(24, 3, 300, 2, greedy=True),
        "seeded": random_batch(24, 3, 300, 3, greedy=True, seeded=True),
    }


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    module = load_sampler()
    assert not hasattr(module.rejection_sample, MARK)
    absent = {(name, seed): batch.run(module, seed) for name, batch in shapes().items() for seed in SEEDS}
    register()
    assert hasattr(module.rejection_sample, MARK)
    return Sampler(module, absent)


@pytest.mark.parametrize("name", ["random", "mixed", "seeded"])
def test_theta_zero_changes_no_bit(sampler: Sampler, name: str) -> None:
    batch = shapes()[name]
    for seed in SEEDS:
        before = sampler.absent[name, seed]
        assert torch.equal(before, batch.run(sampler.module, seed)), (
            "loading the plugin changed a step nobody asked for"
        )
        for ask in (EXACT, Ask("nsd", 0.0), Ask("nsd", 0.9, 0.0)):
            assert torch.equal(before, batch.run(sampler.module, seed, [ask] * batch.size))
        asks = [EXACT if i % 2 else Ask("nsd", 0.95) for i in range(batch.size)]
        beside = batch.run(sampler.module, seed, asks)
        assert torch.equal(before[1::2], beside[1::2]), "an exact request changed because of its neighbours"
    assert not torch.equal(before, beside)


@pytest.mark.parametrize("name", ["mixed", "seeded"])
def test_greedy_rows_are_untouched(sampler: Sampler, name: str) -> None:
    batch = shapes()[name]
    greedy = batch.temperature == 0
    for seed in SEEDS:
        after = batch.run(sampler.module, seed, [Ask("nsd", 1.0)] * batch.size)
        assert torch.equal(sampler.absent[name, seed][greedy], after[greedy])
        assert not torch.equal(sampler.absent[name, seed], after)


def check_monotone(module: ModuleType) -> None:
    """More theta never means fewer tokens, request by request; the ends are what they must be."""
    batch = random_batch(40, 3, 200, 5)
    thetas = (0.0, 0.2, 0.5, 0.8, 0.95, 1.0)
    counts = [emitted(batch.run(module, 1, [Ask("nsd", theta)] * batch.size)) for theta in thetas]
    assert torch.equal(counts[0], emitted(batch.run(module, 1)))
    for fewer, more in itertools.pairwise(counts):
        assert bool((fewer <= more).all())
    assert int(counts[0].sum()) < int(counts[3].sum()) < int(counts[-1].sum())
    assert bool((counts[-1] == 4).all()), "theta 1 keeps every draft with p(x) > 0"


def test_more_theta_keeps_more(sampler: Sampler) -> None:
    check_monotone(sampler.module)


def test_a_hook_that_ignores_theta_is_caught(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v1, "decide", lambda p, x, theta, **rest: decide(p, x, torch.full_like(theta, 0.9), **rest))
    with pytest.raises(AssertionError):
        check_monotone(sampler.module)


def chi_square(tokens: torch.Tensor, law: Any) -> float:
    """The p-value of these tokens under that law; ids of probability 0 must not occur."""
    seen = torch.bincount(tokens.long(), minlength=len(law)).double()
    wanted = torch.tensor(law, dtype=torch.float64) * len(tokens)
    possible = wanted > 1e-9
    assert int(seen[~possible].sum()) == 0
    if int(possible.sum()) == 1:
        return 1.0
    statistic = float(((seen - wanted)[possible] ** 2 / wanted[possible]).sum())
    return float(chi2.sf(statistic, int(possible.sum()) - 1))


RULES = [
    Ask("nsd", 0.0),
    Ask("nsd", 0.3),
    Ask("nsd", 0.7),
    Ask("nsd", 0.7, 0.05),
    Ask("nsd", 1.0, 0.2),
    Ask("nsd", 0.9),
]


@pytest.mark.parametrize("ask", RULES, ids=str)
def test_emitted_law(sampler: Sampler, ask: Ask) -> None:
    """First token, and second where the first draft stood, of 6000 requests; and the law is not the target's own."""
    B, K = 6000, 2
    g = torch.Generator().manual_seed(11)
    x = torch.multinomial(Q.expand(B * K, -1), 1, generator=g).squeeze(-1)
    batch = Batch(P.log().expand(B * K, -1).contiguous(), x, Q.expand(B * K, -1).contiguous(), torch.ones(B))
    output = batch.run(sampler.module, 21, [ask] * B)
    exact = one_step(P.double(), Q.double(), NSD(theta=ask.theta, max_deviation=ask.max_deviation))
    assert chi_square(output[:, 0], exact.emitted) > ALARM
    second = output[output[:, 1] != -1, 1]
    assert chi_square(second, exact.emitted) > ALARM
    if exact.deviation > 0.04:
        assert chi_square(output[:, 0], P.tolist()) < ALARM, "the test could not tell NSD from the exact method"


@pytest.mark.parametrize("ask", [Ask("nsd", 0.0), Ask("nsd", 0.7), Ask("nsd", 0.7, 0.1)], ids=str)
@pytest.mark.parametrize("x", [1, 3])
def test_emitted_law_of_point_masses(sampler: Sampler, ask: Ask, x: int) -> None:
    B = 4000
    token = torch.full((B,), x)
    batch = Batch(P.log().expand(B, -1).contiguous(), token, None, torch.ones(B))
    output = batch.run(sampler.module, 22, [ask] * B)
    law = one_hot(token[:1], P.double().unsqueeze(0))[0]
    exact = one_step(P.double(), law, NSD(theta=ask.theta, max_deviation=ask.max_deviation))
    assert chi_square(output[:, 0], exact.emitted) > ALARM


def test_seeded_requests_repeat_with_their_coins(sampler: Sampler) -> None:
    batch = random_batch(24, 3, 300, 6, seeded=True)
    ask = [Ask("nsd", 0.95, 0.1)] * batch.size
    first, again = batch.run(sampler.module, 4, ask), batch.run(sampler.module, 4, ask)
    assert torch.equal(first, again)
    assert not torch.equal(first, batch.run(sampler.module, 5, ask))


def test_never_accepted(sampler: Sampler) -> None:
    """Masked ids and placeholders stay out at theta 1, with and without draft laws."""
    batch = random_batch(30, 2, 50, 7)
    batch.logits.view(30, 2, 50)[:10, 0, 7] = -torch.inf
    batch.x.view(30, 2)[:10, 0] = 7
    batch.x.view(30, 2)[10:20, 0] = -1
    for q in (batch.q, None):
        batch.q = q
        for seed in SEEDS:
            output = batch.run(sampler.module, seed, [Ask("nsd", 1.0)] * 30)
            assert bool((output[:10, 0] != 7).all()) and bool((output[:20, 1] == -1).all())
            assert bool((output[10:20, 0] >= 0).all())
            assert bool((output[20:, 2] != -1).all())


def test_processed_law_decides(sampler: Sampler) -> None:
    """With top-k 2 the law is (4/7, 3/7); its nucleus at theta 0.5 lacks the second id, which the raw law's has."""
    from tests_vllm.kernels.kit import metadata

    raw = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().expand(2, -1).contiguous()
    named = metadata(torch.ones(2), top_k=torch.tensor([2, 4], dtype=torch.int32))
    ends = torch.tensor([1, 2], dtype=torch.int32)
    processed = sampler.module.apply_sampling_constraints(raw.clone(), ends, named)
    assert torch.isinf(processed[0, 2:]).all() and torch.isfinite(processed[1]).all()
    step = v1.step_of([Ask("nsd", 0.5)] * 2, [1, 1], [1, 2], torch.zeros(2, dtype=torch.int64))
    given = {"target_logits": processed, "draft_token_ids": torch.tensor([1, 1]), "draft_probs": None}
    assert v1.decide_step(step.columns, step.positions, given).forced.tolist() == [False, True]


def test_nothing_given_is_written_to(sampler: Sampler) -> None:
    batch = random_batch(10, 3, 100, 8)
    arguments = batch.arguments(1)
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in arguments[:7]]
    with v1.with_step(batch.step([Ask("nsd", 0.9, 0.1)] * 10, 1)):
        sampler.module.rejection_sample(*arguments)
    for was, is_now in zip(before, arguments[:7], strict=True):
        assert torch.equal(was, is_now) if isinstance(was, torch.Tensor) else was == is_now


def test_the_ledger_adds_up(sampler: Sampler) -> None:
    """Kept drafts are ordinary or rescued; rescues occur about as often as was spent (5 standard deviations)."""
    batch = random_batch(400, 3, 60, 9)
    before = LEDGER.fetch()["totals"]
    output = batch.run(sampler.module, 3, [Ask("nsd", 0.9, 0.3)] * 400)
    told = {name: value - before[name] for name, value in LEDGER.fetch()["totals"].items()}
    kept = int((emitted(output) - 1).sum())
    assert told["blocks"] == 400 and told["ordinary"] + told["rescued"] == kept
    assert told["tested"] == int(emitted(output).clamp(max=3).sum())
    assert abs(told["rescued"] - told["spent"]) < 5 * told["spent"] ** 0.5
    assert 0 < told["spent"] <= told["excess"] and told["bound"] == 0


def test_self_draft_keeps_everything_once_cured(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Target and drafter are one: every draft stands, K + 1 tokens. Stock vLLM on the CPU fails this."""
    B, K, V = 40, 4, 300
    g = torch.Generator().manual_seed(1)
    logits = torch.randn(B * K, V, generator=g) * 2
    q = logits.softmax(-1)
    x = torch.multinomial(q, 1, generator=g).squeeze(-1)
    ends = torch.arange(1, B + 1, dtype=torch.int32) * K

    def tokens() -> float:
        # Freed memory that is likely to be handed out again, so that stock vLLM cannot be right by luck.
        del_me = [torch.full((B * K,), 0.01) for _ in range(8)]
        del del_me
        batch = Batch(logits, x, q, torch.ones(B))
        named = batch.arguments(1)[-1]
        batch.logits = sampler.module.apply_sampling_constraints(logits.clone(), ends, named)
        return float(emitted(batch.run(sampler.module, 1)).float().mean())

    assert tokens() == K + 1
    stock = stock_of(sampler.module.expand_batch_to_tokens)
    assert not cpu_expand.is_sound(stock) and cpu_expand.is_sound(sampler.module.expand_batch_to_tokens)
    monkeypatch.setattr(sampler.module, "expand_batch_to_tokens", stock)
    assert tokens() < K + 1


def test_a_step_without_drafts_survives_top_k_alone(sampler: Sampler) -> None:
    """A prompt's own step has no drafted rows: there, stock vLLM takes the maximum of nothing, and its engine ends."""
    from tests_vllm.kernels.kit import metadata

    named = metadata(torch.ones(2), top_k=torch.tensor([5, 300], dtype=torch.int32))
    nothing, ends = torch.zeros(0, 300), torch.zeros(2, dtype=torch.int32)
    assert sampler.module.apply_sampling_constraints(nothing, ends, named).shape == (0, 300)
    with pytest.raises(RuntimeError, match=r"max\(\)"):
        stock_of(sampler.module.apply_sampling_constraints)(nothing, ends, named)


def test_expand_is_like_a_loop() -> None:
    x = torch.tensor([0.0, 2.0, 5.0])
    assert cpu_expand.expand(x, torch.tensor([2, 2, 5]), 5, 0, 1).tolist() == [1.0, 1.0, 5.0, 5.0, 5.0]
    assert cpu_expand.expand(x.int(), torch.tensor([1, 3, 4]), 4).dtype == torch.int32


@pytest.mark.parametrize("asked", ["0.9", ""])
def test_a_renamed_symbol_stops_the_process(asked: str) -> None:
    """A vLLM whose function has another name: the import ends the worker if NSD was asked for, else NSD is off."""
    code = (
        "from nsd.engines.vllm.patching import when_imported\n"
        "def rename(m): m.make_uniform_probs = m.__dict__.pop('generate_uniform_probs')\n"
        "when_imported('vllm.v1.sample.rejection_sampler', rename)\n"
        "from nsd.engines.vllm.plugin import register\n"
        "register()\n"
        "import vllm.v1.sample.rejection_sampler\n"
        "from nsd.engines.vllm.state import STATE\n"
        "assert 'generate_uniform_probs' in STATE.problem\n"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("NSD_")} | {"NSD_THETA": asked}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(asked), done.stderr
    assert "generate_uniform_probs" in done.stderr
