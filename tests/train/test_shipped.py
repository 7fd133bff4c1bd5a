"""The drafter inside the package: whole, small, and drafting what its card says, on the embedded model in float32."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch

from nsd.api import Pair
from nsd.drafters import shipped
from nsd.drafters.load import load_drafter
from nsd.errors import ModelError
from nsd.laws import Purpose, Sampling, laws, uniforms
from nsd.targets.load import load_target
from nsd.train.prompts import built_in_held_out

CARD = (shipped.FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8")
WEIGHTS = shipped.FOLDER / "model.safetensors"
LIMIT = 12_000_000

PROMPTS = ("Name three rivers of Europe.", "Explain how a sundial tells the time.")
EXPECTED = json.loads((Path(__file__).parent / "shipped_reference.json").read_text(encoding="utf-8"))
"""Token ids of both prompts at T = 1, and how many drafts stood: made by this test's own settings."""

CDF_GAP = 1e-5


def test_the_file_is_whole_and_small():
    digest = hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert (shipped.FOLDER / "SHA256").read_text(encoding="utf-8").split()[0] == digest
    assert digest in CARD
    assert sum(path.stat().st_size for path in shipped.FOLDER.iterdir()) <= LIMIT
    shipped.require_whole()


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    for path in shipped.FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    raw = bytearray(WEIGHTS.read_bytes())
    raw[-1] ^= 1
    (tmp_path / WEIGHTS.name).write_bytes(raw)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    with pytest.raises(ModelError, match=r"wanted .*; reinstall nsd"):
        shipped.require_whole()
    (tmp_path / WEIGHTS.name).unlink()
    with pytest.raises(ModelError, match="is incomplete"):
        shipped.require_whole()


def test_the_card_names_the_held_out_prompts():
    assert built_in_held_out().digest in CARD


@pytest.fixture(scope="module")
def target():
    return load_target("smollm2-135m", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def drafter(target):
    return load_drafter(shipped.NAME, target)


def explained(target, prompt, ours, wanted, key):
    """Whether two outputs agree, or part where the uniform hangs by a hair between two ids."""
    for position, (a, b) in enumerate(zip(ours, wanted, strict=True)):
        if a == b:
            continue
        _, scores = target.open([[*prompt, *ours[:position]]], 1)
        running = laws(scores.logits, [Sampling(temperature=1.0)])[0].double().cumsum(0)
        u = float(uniforms(key, 0, position, Purpose.TARGET))
        return bool((running - u * running[-1]).abs().min() < CDF_GAP)
    return True


@pytest.mark.model
def test_token_ids_and_accepted_drafts_are_the_recorded_ones(target, drafter):
    pair = Pair(target, drafter)
    for key, text in enumerate(PROMPTS):
        answer = pair.generate(
            text, chat=True, rule="sample-and-match", temperature=1.0, k=3, seed=key, max_new_tokens=40, ignore_eos=True
        )
        assert explained(target, answer.request.prompt, answer.token_ids, EXPECTED[key]["ids"], key)
        # The ids follow the target's law alone; what stood of the drafts tells whether the drafter is the same.
        assert abs(answer.stats.accepted - EXPECTED[key]["accepted"]) <= 2


@pytest.mark.model
def test_rounding_to_bytes_costs_what_the_card_says(target, drafter):
    """The float weights are not shipped. Noise as large as the rounding, put on top, moves q as much as it did."""
    stated = float(re.search(r"int8 against float32: mean TV ([0-9.]+)", CARD).group(1))
    noisy = load_drafter(shipped.NAME, target)
    generator = torch.Generator().manual_seed(0)
    layer = noisy.net.decoder.layers[0]
    for part in (layer.qkv, layer.o, layer.gate_up, layer.down, noisy.net.fuse):
        step = part.weight.abs().amax(-1, keepdim=True) / 127
        part.weight.add_((torch.rand(part.weight.shape, generator=generator) - 0.5) * step)
    prompt = target.tokenizer.chat([{"role": "user", "content": PROMPTS[1]}])
    ids = [*prompt, *EXPECTED[1]["ids"]]
    _, scores = target.open([ids], 1, drafter.taps)
    q, q_noisy = (first_depth(d, scores.taps, ids) for d in (drafter, noisy))
    distance = float((q - q_noisy).abs().sum(-1).mean() / 2)
    assert 0.2 * stated < distance < 2.0 * stated


@torch.no_grad()
def first_depth(drafter, taps, ids):
    """q after every true feature: [len(ids) - 1, V]."""
    net = drafter.net
    cache = net.decoder.cache(1, len(ids))
    rows = cache.rows([len(ids) - 1])
    states = net.step(net.features(taps[:-1]), torch.tensor(ids[1:]), rows, cache)
    return torch.softmax(net.logits(states, drafter.pen.vocab), -1)


@pytest.mark.model
def test_it_refuses_other_targets():
    from nsd.targets.toy import tiny_llama

    with pytest.raises(ModelError, match="take the drafter made for this target"):
        load_drafter(shipped.NAME, tiny_llama())
