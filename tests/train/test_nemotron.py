"""Nemotron's low-rank addition: what is trained is what drafts draw from, the target stays as it was, runs resume."""

import json
import re
from dataclasses import replace

import pytest
import torch

from nsd.api import Pair
from nsd.drafters.base import Ask
from nsd.drafters.load import load_drafter, recognise
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.laws.sampling import Sampling
from nsd.targets.nemotron import load as load_nemotron
from nsd.targets.toy import tiny_llama
from nsd.train.corpus import Corpus
from nsd.train.export import Origin
from nsd.train.export_kinds import export_student
from nsd.train.kinds import drawn_ids, ends, mask_id, new_student
from nsd.train.plan import load
from nsd.train.run import Options, Watcher, default_taps, train
from tests.drafters_c.nemotron_checkpoint import MASK, VOCAB, Plain, write_folder
from tests.train.test_kinds import Recorder, noisy, plan_for, trained_laws

OPTIONS = {
    "kind": "nemotron", "text_tokens": 1_500, "rows": 16, "positions": 40, "batch": 8, "rank": 4, "one_turn": True,
    "dtype": "float32", "temperatures": (1.0,),
}  # fmt: skip


def opened(folder):
    return load_nemotron(str(folder), dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return opened(write_folder(tmp_path_factory.mktemp("nemotron") / "tiny", block_size=8, spread=0.2))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    ids = [i for i in range(VOCAB - 1) if i not in (MASK, 11)]
    rows = [json.dumps({"prompt": f"w{a} w{ids[(n + 7) % len(ids)]} w{n % 5}"}) for n, a in enumerate(ids)]
    file.write_text("\n".join(rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(target, prompts, tmp_path_factory):
    """A finished run, its options and what it told."""
    options = Options(target.name, tmp_path_factory.mktemp("run"), prompts=prompts, steps=24, peak=2e-2, **OPTIONS)
    watcher = Recorder()
    figures = train(options, target, watcher)
    return options, watcher, figures


def test_a_run_keeps_more_and_resumes_exactly(run, target, tmp_path, monkeypatch):
    options, watcher, figures = run
    assert sum(watcher.kept[-6:]) > sum(watcher.kept[:6]) + 0.1, "six values of 1 - TV"
    assert load(options.out).block == 7 and load(options.out).layers == 0, "the block that the target fills in"
    assert all(len(f.kept) == 6 and 1 <= f.tau_sd[3] <= f.tau_nsd[3] for f in figures)
    assert sorted(path.name for path in (options.out / "linear_spec_lora").iterdir()) == [
        "SHA256", "adapter_config.json", "adapter_model.safetensors",
    ]  # fmt: skip
    monkeypatch.setattr("nsd.train.trainer.SAVE_EVERY", 5)
    killed = replace(options, out=tmp_path / "killed", text=options.out)
    with pytest.raises(KeyboardInterrupt):
        train(killed, target, Recorder(13))
    again = Recorder()
    train(killed, target, again)
    assert "resumed at step 10" in again.lines and again.losses == watcher.losses[10:]
    for name in ("linear_spec_lora/adapter_model.safetensors", "linear_spec_lora/adapter_config.json", "figures.json"):
        assert (killed.out / name).read_bytes() == (options.out / name).read_bytes(), name


def test_text_has_no_blank_and_no_id_without_an_entry(run, target):
    corpus = Corpus.open(run[0].out / "text")
    said = set(corpus.sampled_tokens().tolist())
    assert said and not said & set(target.absent.nonzero().flatten().tolist())


def test_what_is_loaded_drafts_by_the_law_that_wastrained_laws(target, tmp_path):
    """YaRN, the query scale, shared key heads and the addition, all with noise in every weight."""
    plan = replace(_plan(target), block=7, rank=4)
    student = noisy(new_student(target, plan, torch.arange(target.vocab), 0), 0.3)
    ids = drawn_ids("nemotron", target, torch.arange(target.vocab))
    assert MASK not in ids and VOCAB - 1 not in ids and len(ids) == VOCAB - 2
    origin = Origin(ids, target.vocab, ends(target, ids).head, default_taps(target.layers), 256, target.name)
    (place,) = export_student(student, origin, target, tmp_path)
    drafter = load_drafter(place, target)
    assert drafter.lora and recognise(str(place)).name == "nemotron"
    prompt = [3, 17, 8, 30, 21, 2, 9, 14, 25, 6, 7, 19, 33, 1, 28, 4, 10, 12]  # past the 16 of the original context
    tokens = [*prompt, 20, *([13] * 9)]
    draft = _drafted(target, drafter, prompt, 20, 7)
    laws = trained_laws(target, student, ids, tokens, len(prompt) - 1, 7)
    assert (draft.q - laws).abs().max() < 1e-5
    plain = _drafted(target, load_drafter(target.name, target), prompt, 20, 7)
    assert (plain.q - laws).abs().sum(-1).min() > 0.05, "an addition without effect would prove nothing"
    assert (laws[0] - laws[1]).abs().sum() > 0.01


def test_the_first_step_sees_the_targets_own_draft(target):
    student = new_student(target, replace(_plan(target), block=7, rank=4), torch.arange(target.vocab), 0)
    student.narrow = False
    ids = drawn_ids("nemotron", target, torch.arange(target.vocab))
    prompt = [3, 17, 8, 30]
    laws = trained_laws(target, student, ids, [*prompt, 20, *([13] * 9)], 3, 7)
    wanted = Plain(target.folder).block([*prompt, 20], 7).clone()
    wanted[:, [MASK, VOCAB - 1]] = -torch.inf
    assert (laws - wanted.softmax(-1)).abs().max() < 1e-5


def test_an_addition_beside_the_weights_is_found(run, tmp_path):
    """Put into the target's folder it is the drafter that --drafter auto takes; the target's own law is as before."""
    options = run[0]
    folder = write_folder(tmp_path / "tiny", block_size=8, spread=0.2)
    before = opened(folder).open([[1, 2, 3]], 1)[1].logits
    (options.out / "linear_spec_lora").rename(tmp_path / "tiny" / "linear_spec_lora")
    try:
        target = opened(folder)
        assert load_drafter("auto", target).lora
        assert not load_drafter("auto", target, lora=False).lora
        assert torch.equal(target.open([[1, 2, 3]], 1)[1].logits, before)
    finally:
        (tmp_path / "tiny" / "linear_spec_lora").rename(options.out / "linear_spec_lora")


def test_a_pair_decodes_with_a_trained_addition(run, target):
    """Native speculation is plain decoding, token for token, whatever drafts; this drafter is used."""
    pair = Pair(target, load_drafter(run[0].out / "linear_spec_lora", target))
    assert pair.drafter.describe()["lora_parameters"] == 3 * 4 * (60 + 40)
    told = {"max_new_tokens": 24, "seed": 1, "ignore_eos": True, "temperature": 1.0}
    drafted = pair.generate("w3 w7 w1", rule="sample-and-match", k=4, **told)
    assert drafted.text == Pair(target, None).generate("w3 w7 w1", **told).text
    assert drafted.stats.drafted > 0


def test_an_addition_of_any_scale_starts_a_run(run, target, tmp_path):
    place = run[0].out / "linear_spec_lora"
    plan, ids = load(run[0].out), torch.arange(target.vocab)
    whole, exported = (new_student(target, plan, ids, 0, one) for one in (run[0].out, place))
    assert whole.anchors == plan.anchors == 64
    assert all(torch.equal(whole[name], exported[name]) for name in whole.names)
    other = tmp_path / "other"
    other.mkdir()
    settings = json.loads((place / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(settings | {"lora_alpha": 4}))  # a quarter of the scale
    (other / "adapter_model.safetensors").write_bytes((place / "adapter_model.safetensors").read_bytes())
    quarter = new_student(target, plan, ids, 0, other)
    down, up = whole.pairs[1]
    assert torch.equal(quarter[down], whole[down]) and torch.allclose(quarter[up], whole[up] / 4)


def test_a_stray_addition_in_the_targets_own_folder_is_not_taken(target, run, tmp_path):
    folder = write_folder(tmp_path / "tiny", block_size=8, spread=0.2)
    (folder / "adapter_config.json").write_text((run[0].out / "linear_spec_lora" / "adapter_config.json").read_text())
    mine = opened(folder)
    assert not load_drafter("auto", mine).lora and not load_drafter(mine.name, mine).lora


def test_a_block_longer_than_the_mechanism_is_drafted_in_part(tmp_path):
    long = opened(write_folder(tmp_path / "long", block_size=64))
    assert (load_drafter("auto", long).default_k, load_drafter("auto", long).max_k) == (31, 31)
    assert new_student(long, replace(_plan(long), block=31, rank=4), torch.arange(VOCAB), 0).limit == 31
    with pytest.raises(ConfigError, match=re.escape("--block is 32, wanted 1..31")):
        new_student(long, replace(_plan(long), block=32, rank=4), torch.arange(VOCAB), 0)


def test_given_text_is_learned_as_it_stands(target, tmp_path):
    """Habits of another corpus: every answer is one word over and over, and that is what is drafted then."""
    ids = [i for i in range(VOCAB - 1) if i not in (MASK, 11)]
    rows = [json.dumps({"prompt": f"w{a} w{b}", "response": " ".join(["w9"] * 12)}) for a in ids for b in ids[:3]]
    file = tmp_path / "given.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    options = Options(
        target.name,
        tmp_path / "run",
        prompts=file,
        labels="text",
        steps=40,
        peak=5e-2,
        **{**OPTIONS, "text_tokens": 900},
    )
    train(options, target, Watcher())
    drafter, own = load_drafter(options.out / "linear_spec_lora", target), load_drafter(target.name, target)
    share = [float(_drafted(target, one, [3, 17, 9, 9], 9, 4).q[:, 9].mean()) for one in (drafter, own)]
    assert share[0] > 0.6 > 0.2 > share[1]


def test_refusals_are_one_line(target, run, prompts, tmp_path):
    options = Options(target.name, tmp_path, prompts=prompts, **OPTIONS)
    with pytest.raises(ConfigError, match="--layers is 2, but --kind nemotron runs the target's own"):
        train(replace(options, layers=2), target, Watcher())
    with pytest.raises(ConfigError, match=re.escape("--block is 8, wanted 1..7")):
        train(replace(options, block=8), target, Watcher())
    with pytest.raises(ConfigError, match="was made with rank 4, got 5"):
        train(replace(run[0], rank=5), target, Watcher())
    with pytest.raises(ConfigError, match="was made with anchors 64, got 9"):
        train(replace(run[0], anchors=9), target, Watcher())
    causal = opened(write_folder(tmp_path / "causal", block_size=8, dlm_paradigm="autoregressive"))
    with pytest.raises(ModelError, match="trained for another paradigm than bidirectional"):
        train(options, causal, Watcher())
    with pytest.raises(ModelError, match="take --kind nemotron"):
        train(replace(options, kind="eagle3"), target, Watcher())
    llama = tiny_llama(layers=6)
    with pytest.raises(ModelError, match="fills in no blanks, wanted Nemotron-Labs-Diffusion"):
        train(options, llama, Watcher())
    place = run[0].out / "linear_spec_lora"
    with pytest.raises(PairMismatch, match="adds to Nemotron models, got"):
        load_drafter(place, llama)
    with pytest.raises(ConfigError, match="wanted one of the two"):
        load_drafter(place, target, lora=False)
    settings = json.loads((place / "adapter_config.json").read_text())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "adapter_model.safetensors").write_bytes((place / "adapter_model.safetensors").read_bytes())
    for changed, wanted in (
        ({"r": 3}, "tensors of wrong shape"),
        ({"target_modules": ["q_proj"]}, "wanted o_proj alone"),
    ):
        (tmp_path / "bad" / "adapter_config.json").write_text(json.dumps(settings | changed))
        with pytest.raises(ModelError, match=wanted):
            load_drafter(tmp_path / "bad", target)


def test_the_blank_is_the_mask(target):
    assert mask_id(target, Corpus.__new__(Corpus)) == MASK


def _plan(target):
    return replace(plan_for(target), kind="nemotron")


def _drafted(target, drafter, prompt, anchor, k):
    """What the drafter draws, behind prompt and anchor."""
    session, _ = target.open([prompt], 10, ())
    drafts = drafter.open_beside(session, [prompt], None, 20)
    u = torch.rand(1, k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return drafts.propose([Ask(k, anchor, prompt, [anchor], Sampling())], u)
