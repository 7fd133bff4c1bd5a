"""Heads of a tiny target: both variants by `nsd train`, one text for all kinds, a lost head made again on its own."""

import json
import shutil

import pytest

from benchmarks.miniature import shapes, training
from benchmarks.miniature.family import MATCHED, MISMATCHED, Manifest
from benchmarks.miniature.stages import ship
from benchmarks.miniature.training import drafter_in, head_folder, train_heads, write_prompts
from nsd.api import load
from nsd.miniature import maths, programs
from tests.miniature import models
from tests.miniature.models import written


@pytest.fixture
def target(tmp_path, monkeypatch):
    """A random target of four layers, few prompts."""
    monkeypatch.setitem(models.TINY, "tiny-four", shapes.Shape("qwen3", 32, 4, 2, 48))
    monkeypatch.setattr(training, "PROMPTS", 200)
    return written("tiny-four", tmp_path / "anneal-1")


def test_prompts_are_of_both_tasks_and_answers_of_another_style(target, tmp_path):
    rows = {}
    for variant in (MATCHED, MISMATCHED):
        write_prompts(tmp_path / variant, variant)
        rows[variant] = [json.loads(line) for line in (tmp_path / variant).read_text().splitlines()]
    assert [row["prompt"] for row in rows[MATCHED]] == [row["prompt"] for row in rows[MISMATCHED]]
    assert all(set(row) == {"prompt"} for row in rows[MATCHED])
    assert {row["prompt"][0] for row in rows[MATCHED]} == {"Q", "d"}
    for kind, make in (("Q", maths.problems), ("d", programs.problems)):
        mine = {row["prompt"]: row["response"] for row in rows[MISMATCHED] if row["prompt"][0] == kind}
        made = (getattr(one, "sample", one) for one, _ in zip(make("train", 11), range(200), strict=False))
        house = {one.prompt: one.solution for one in made}
        same = sum(house[prompt] == response for prompt, response in mine.items())
        assert mine and same < 0.05 * len(mine)


def test_the_nemotron_layout_gets_an_addition_with_other_habits(tmp_path, monkeypatch):
    """It drafts for the target that it was made for, and the same target drafts for itself without."""
    monkeypatch.setattr(training, "PROMPTS", 200)
    target = written("tiny-nemotron", tmp_path / "anneal-1")
    train_heads(target, ("nemotron",), MISMATCHED, 0.01, lambda line: None)
    run = head_folder(target, "nemotron", MISMATCHED)
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["labels"], plan["kind"], plan["block"], plan["anchors"]) == ("text", "nemotron", 15, 64)
    assert drafter_in(run) == run / "linear_spec_lora"
    drafter = load(str(target), str(drafter_in(run)), dtype="float32").drafter
    assert drafter.lora and not load(str(target), str(target), dtype="float32").drafter.lora
    manifest = Manifest({"t-high": str(target)}, {"t-high/nemotron:mismatched": str(drafter_in(run))}, {})
    ship(manifest, "t-high", tmp_path / "shipped")
    told = [path.read_text() for path in (tmp_path / "shipped").rglob("*.json")]
    assert len(told) > 3 and not any(str(target) in text for text in told), "shipped files name folders of the machine"
    (addition,) = (tmp_path / "shipped").rglob("adapter_config.json")
    assert json.loads(addition.read_text())["base_model_name_or_path"] == "t-high"
    shipped = Manifest.read(tmp_path / "shipped")
    assert load(shipped.targets["t-high"], shipped.drafters["t-high/nemotron:mismatched"], dtype="float32").drafter.lora


def test_heads_share_their_text_and_a_lost_one_is_made_again(target):
    kinds = ("eagle3", "dflash")
    for variant in (MATCHED, MISMATCHED):
        train_heads(target, kinds, variant, 0.01, lambda line: None)
        for kind in kinds:
            run = head_folder(target, kind, variant)
            plan = json.loads((run / "plan.json").read_text())
            assert plan["labels"] == ("target" if variant == MATCHED else "text") and plan["kind"] == kind
            assert not (run / "text").exists() and not (run / "heldout").exists()
            assert load(str(target), str(run / "float32"), dtype="float32").drafter is not None
    lost = head_folder(target, "dflash", MATCHED)
    before = (lost / "float32" / "model.safetensors").read_bytes()
    shutil.rmtree(lost)
    told = []
    train_heads(target, kinds, MATCHED, 0.01, told.append)
    assert (lost / "float32" / "model.safetensors").read_bytes() == before
    assert len([line for line in told if line.startswith("nsd train")]) == 1
    train_heads(target, kinds, MATCHED, 0.01, told.append)
    assert not told[-1].startswith("nsd train") and not (lost / "text").exists()
