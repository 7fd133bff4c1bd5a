"""The table of `nsd vllm check`: complete, and every row names a test that exists; positions behind the cap's coin."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nsd.engines.vllm import v1
from nsd.engines.vllm.branches import BRANCHES, BranchFact
from nsd.engines.vllm.settings import Ask, Stamp

ROOT = Path(__file__).parents[2]
WANTED = (
    "greedy", "sampled", "law is missing", "padded", "grammar", "penalties", "top-k", "top-p", "tensor parallel",
    "asynchronous",
)  # fmt: skip


def test_every_branch_of_the_engine_has_a_row() -> None:
    named = " | ".join(fact.branch for fact in BRANCHES)
    assert [branch for branch in WANTED if branch not in named] == []
    assert {fact.verdict for fact in BRANCHES} == {"exact", "upper bound", "not certified"}


@pytest.mark.parametrize("fact", BRANCHES, ids=lambda fact: fact.branch)
def test_the_test_of_a_row_exists(fact: BranchFact) -> None:
    path, _, name = fact.test.partition("::")
    if path == "none":
        assert fact.verdict == "not certified"
        return
    assert (ROOT / path).exists(), path
    if name:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), fact.test


def test_positions_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """With asynchronous scheduling the host's counts run ahead; the coin's positions come from the device's own."""
    monkeypatch.setattr(v1, "_HERE", v1._Here(stamps={"a": Stamp(Ask("nsd", 0.9, 0.1), 7), "b": Stamp(Ask(), 8)}))
    positions = torch.tensor([40, 41, 42, 90, 91])  # rows of "a": 40 to 42, of "b": 90 and 91
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(req_ids=["a", "b"], num_computed_tokens_cpu=[43, 92]),
        requests={"a": object(), "b": object()},
        positions=positions,
    )
    metadata = SimpleNamespace(
        num_draft_tokens=[2, 1],
        draft_token_ids=torch.tensor([5, 6, 7]),
        logits_indices=torch.arange(5),
        target_logits_indices=torch.tensor([0, 1, 3]),
    )
    step = v1._prepare(runner, metadata)
    assert step is not None and step.positions is not None
    assert step.positions.tolist() == [41, 42, 91], "the row at t draws the token at t + 1"
    runner.positions = positions + 1
    moved = v1._prepare(runner, metadata)
    assert moved is not None and moved.positions is not None
    assert moved.positions.tolist() == [42, 43, 92]
    assert step.columns.theta.tolist() == [0.9, 0.9, 0.0] and step.columns.place.tolist() == [0, 1, 0]
