"""Every kind of drafter: the loss falls, runs resume exactly, and what is loaded drafts by the law that was trained."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from nsd.drafters.base import Ask
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.load import load_drafter
from nsd.errors import ConfigError, ModelError
from nsd.laws.sampling import Sampling
from nsd.targets.base import FINAL_NORM
from nsd.targets.hf import HfTarget
from nsd.targets.toy import tiny_llama
from nsd.train.corpus import Batch, Corpus
from nsd.train.evaluate import DEPTHS
from nsd.train.export import Origin
from nsd.train.export_kinds import export_student
from nsd.train.kinds import KINDS, depths_of, ends, mask_id, new_student, target_ends
from nsd.train.losses import Mix, head_loss, logits
from nsd.train.plan import Plan, load
from nsd.train.run import Options, Watcher, default_taps, train
from nsd.train.schedule import stages_of
from nsd.train.student import Rows
from nsd.train.text import ANSWERED
from tests.drafters_c.hybrid_models import hybrid_target

OPTIONS = {"text_tokens": 1_000, "rows": 16, "positions": 56, "draft_vocab": 120, "batch": 8, "block": 4, "rank": 8}
LLAMA = [kind for kind in KINDS if kind != "nemotron"]
"""Kinds for a target of the Llama family; Nemotron's own is tested in test_nemotron.py."""
OTHERS = [kind for kind in LLAMA if kind != "eagle3"]


class Recorder(Watcher):
    """Keeps what it is told; stops the run at a step."""

    def __init__(self, stop=None):
        self.stop, self.losses, self.kept, self.lines = stop, [], [], []

    def note(self, line):
        self.lines.append(line)

    def step(self, progress):
        self.losses.append(progress.loss)
        self.kept.append(progress.kept)
        if progress.step == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def target():
    return tiny_llama(layers=6, scale=0.15)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"Say {i}."}) for i in range(40)), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def text(target, prompts, tmp_path_factory):
    """A run whose text all others train on."""
    options = Options("tiny", tmp_path_factory.mktemp("text"), prompts=prompts, steps=1, **OPTIONS)
    train(options, target, Watcher())
    return options.out


@pytest.mark.parametrize("kind", OTHERS)
def test_a_run_of_each_kind(target, prompts, text, tmp_path, kind, monkeypatch):
    """The loss falls, a killed run ends as a whole one, and all files are there."""
    monkeypatch.setattr("nsd.train.trainer.SAVE_EVERY", 3)
    options = Options("tiny", tmp_path / "whole", prompts=prompts, text=text, kind=kind, steps=14, peak=4e-3, **OPTIONS)
    watcher = Recorder()
    figures = train(options, target, watcher)
    assert watcher.losses[4] < watcher.losses[0]  # steps 1..5 have one loss, cross-entropy
    # A random separate model starts from a flat law; the others from the target's layers, which leaves less to gain.
    assert sum(watcher.kept[-4:]) > sum(watcher.kept[:4]) + (0.01 if kind == "mtp" else 0.05)
    expected = 4 if kind in ("dspark", "dflash") else DEPTHS
    assert all(len(f.kept) == expected and 0 < min(f.kept) and 1 <= f.tau_sd[3] <= f.tau_nsd[3] for f in figures)
    for name in ("plan.json", "checkpoint.pt", "log.jsonl", "curve.svg", "figures.json", "float32/config.json"):
        assert (options.out / name).is_file(), name
    assert not (options.out / "text").exists()
    killed = replace(options, out=tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        train(killed, target, Recorder(8))
    again = Recorder()
    train(killed, target, again)
    assert "resumed at step 6" in again.lines and again.losses == watcher.losses[6:]
    for name in ("float32/model.safetensors", "figures.json", "log.jsonl", "plan.json"):
        assert (killed.out / name).read_bytes() == (options.out / name).read_bytes(), name


def plan_of(text, kind):
    changed = {"kind": kind, "layers": 1 if kind == "mtp" else 2, "block": 4, "rank": 8, "width": 16}
    return replace(load(text), draft_vocab=120, **changed)


def noisy(student, spread=0.1):
    """Noise in every weight, so that every part matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name in student.names:
            student[name].add_(torch.randn(student[name].shape, generator=generator) * spread)
    student.narrow = False
    return student


def loaded(target, student, ids, folder, kind):
    """The drafter that its export gives."""
    origin = Origin(ids, target.vocab, ends(target, ids).head, default_taps(target.layers), target.context, target.name)
    (place, *_) = export_student(student, origin, target, folder)
    if kind != "draft-model":
        return load_drafter(place, target)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    return ModelDrafter(HfTarget(model, target.tokenizer, "small"), "small")


def drafted(target, drafter, prompt, anchor, k):
    """A draft behind prompt and anchor, by the drafter itself."""
    taps = tuple(getattr(drafter, "taps", ()))
    _, scores = target.open([prompt], 10, taps)
    session = drafter.open([prompt], scores.taps, 20)
    u = torch.rand(1, k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return session.propose([Ask(k, anchor, prompt, [anchor], Sampling())], u)


def trained_laws(target, student, ids, tokens, start, k):
    """Laws of the chain at `start` by the training code: [k, V]."""
    _, scores = target.open([tokens[:-1]], 1, (*default_taps(target.layers), FINAL_NORM))
    shape = (1, len(tokens) - 1)
    kinds = torch.full(shape, ANSWERED)
    states = scores.taps.unsqueeze(0)
    batch = Batch(torch.tensor([tokens]), states[:, :, :-1], states[:, :, -1], torch.zeros(shape), kinds, torch.ones(1))
    embedding, head = target_ends(target)
    whole = torch.zeros(k, target.vocab)
    with torch.no_grad():
        for depth, rows in enumerate(student.rows(batch, embedding, k, ANSWERED, None)):
            (at,) = (rows.at == start).nonzero().squeeze(-1).tolist()
            read = None if rows.read is None else rows.read[at : at + 1]
            z = logits(rows.states[at : at + 1], student.lent(head[ids]), read, student.map()) * student.gain().exp()
            whole[depth, ids] = torch.softmax(z, -1)[0]
    return whole


@pytest.mark.parametrize("kind", LLAMA)
def test_what_is_loaded_drafts_by_the_law_that_was_trained(target, text, tmp_path, kind):
    plan = plan_of(text, kind)
    ids = torch.arange(20, 140) if kind in ("eagle3", "dspark", "dflash") else torch.arange(target.vocab)
    student = noisy(new_student(target, plan, ids, mask=200))
    drafter = loaded(target, student, ids, tmp_path, kind)
    prompt = torch.randint(0, 250, (9,), generator=torch.Generator().manual_seed(2)).tolist()
    draft = drafted(target, drafter, prompt, 77, 4)
    tokens = [*prompt, 77, *draft.tokens.tolist(), 0, 0]
    laws = trained_laws(target, student, ids, tokens, len(prompt) - 1, 4)
    assert (draft.q - laws).abs().max() < 1e-5
    assert (laws[0] - laws[1]).abs().sum() > 0.01, "depths that agree anyway would prove nothing"


def test_a_block_may_use_the_whole_vocabulary(target, text, tmp_path):
    ids = torch.arange(target.vocab)
    student = noisy(new_student(target, plan_of(text, "dspark"), ids, mask=200))
    drafter = loaded(target, student, ids, tmp_path, "dspark")
    assert drafter.describe()["head"] == "the target's" and drafter.describe()["draft_vocab"] == target.vocab
    prompt = [5, 9, 200, 31, 8]
    draft = drafted(target, drafter, prompt, 40, 3)
    laws = trained_laws(target, student, ids, [*prompt, 40, *draft.tokens.tolist(), 0, 0], 4, 3)
    assert (draft.q - laws).abs().max() < 1e-5


def test_the_confidence_head_learns_what_is_kept(target, text, tmp_path):
    """Its loss moves nothing else, and the loaded head gives the same numbers."""
    ids = torch.arange(120)
    student = noisy(new_student(target, plan_of(text, "dspark"), ids, mask=200))
    generator = torch.Generator().manual_seed(0)
    states, read = (torch.randn(40, n, generator=generator, requires_grad=True) for n in (target.hidden, 8))
    kept = torch.rand(40, generator=generator)
    loss = student.aside(Rows(states, torch.arange(40), read), kept)
    loss.backward()
    moved = {name for name in student.names if student[name].grad is not None and student[name].grad.abs().max() > 0}
    assert moved == {"confidence_head.proj.weight", "confidence_head.proj.bias"} and states.grad is None
    drafter, states = loaded(target, student, ids, tmp_path, "dspark"), states.detach()
    before = torch.tensor([3, 250])
    own = torch.cat((states[:2], student["markov_head.markov_w1.weight"][before]), -1)
    wanted = torch.sigmoid(own @ student["confidence_head.proj.weight"][0] + student["confidence_head.proj.bias"])
    assert (drafter.head.confident(before, states[:2]) - wanted).abs().max() < 1e-6


def test_mtp_of_a_hybrid_target(tmp_path):
    """Qwen3.5's own layout: gated queries, norms as 1 + w, a part of each head turned."""
    target = hybrid_target()
    target.tokenizer.prefix = ()
    plan = replace(plan_for(target), kind="mtp")
    ids = torch.arange(target.vocab)
    student = noisy(new_student(target, plan, ids, 0))
    drafter = loaded(target, student, ids, tmp_path, "mtp")
    assert drafter.describe()["layout"] == "Qwen3.5"
    prompt = [3, 14, 15, 9, 26, 5]
    draft = drafted(target, drafter, prompt, 35, 3)
    laws = trained_laws(target, student, ids, [*prompt, 35, *draft.tokens.tolist(), 0, 0], len(prompt) - 1, 3)
    assert (draft.q - laws).abs().max() < 1e-5
    config = json.loads((tmp_path / "float32" / "config.json").read_text(encoding="utf-8"))
    assert config["mtp_num_hidden_layers"] == 1 and config["model_type"] == "qwen3_5_text"


@pytest.mark.parametrize("kind", ["mtp", "draft-model", "eagle3"])
def test_ids_that_the_target_never_says_have_no_mass(kind, tmp_path):
    """The learned p sums to 1 though its log-sum-exp leaves those ids out; no head of the target drafts them."""
    target = hybrid_target(eos_token_id=7)
    target.tokenizer.prefix = ()
    target.absent = torch.arange(target.vocab) % 3 == 2
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(f"{i} {i + 1}") for i in range(10, 50)), encoding="utf-8")
    target.tokenizer.chat = _no_template
    options = Options("tiny", tmp_path / "run", prompts=file, kind=kind, one_turn=True, steps=1, **OPTIONS)
    train(replace(options, text_tokens=400, positions=24, draft_vocab=target.vocab), target, Watcher())
    corpus = Corpus.open(options.out / "text")
    said = torch.from_numpy(corpus.sampled_tokens()).long()
    assert len(said) > 100 and not target.absent[said].any()
    ids = torch.load(options.out / "checkpoint.pt", weights_only=True)["ids"]
    assert target.absent[ids].any() == (kind == "draft-model")
    batch = corpus.batch(range(4))
    cold = batch.cold[:, None].expand_as(batch.lse).flatten()
    p = ends(target, ids).law(batch.final.flatten(0, 1), batch.lse.flatten(), cold).float()
    assert (p.sum(-1) - 1).abs().max() < 0.02 and p[:, target.absent[ids]].sum() == 0


def _no_template(messages):
    raise ModelError("no template")


def plan_for(target):
    taps = default_taps(target.layers)
    return Plan(
        target.name, "float32", 0, taps, (1.0,), 8, 40, 1, 0.0, target.vocab, 4, 1e-3, stages_of(4), "none", layers=1
    )


def test_a_hybrid_target_trains_from_prompts_without_a_template(tmp_path):
    target = hybrid_target(eos_token_id=7)
    target.tokenizer.prefix = ()

    def chat(messages):
        raise ModelError("no template")

    target.tokenizer.chat = chat
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(f"{i} {i + 1} {i + 2}") for i in range(10, 50)), encoding="utf-8")
    options = Options("tiny", tmp_path / "run", prompts=file, kind="mtp", one_turn=True, steps=6, **OPTIONS)
    options = replace(options, text_tokens=500, positions=24, peak=4e-3)
    watcher = Recorder()
    train(options, target, watcher)
    assert watcher.losses[1] < watcher.losses[0]
    corpus = Corpus.open(options.out / "text")
    for number in range(len(corpus.rows)):
        ids = corpus.ids(number)
        assert ids[1] == ids[0] + 1 and ids[2] == ids[0] + 2, "a row begins with its prompt, as decoding does"
        kinds = corpus.batch([number]).kinds[0].tolist()
        if 7 in ids[3:]:  # behind the end of the answer nothing is trained
            assert not any(kinds[ids.index(7, 3) :])
        assert kinds[:2] == [0, 0] and kinds[2] == ANSWERED


@pytest.mark.parametrize("kind", ["dspark", "mtp", "draft-model"])
def test_a_warm_start_of_each_kind(target, prompts, text, tmp_path, kind):
    options = Options("tiny", tmp_path / "one", prompts=prompts, text=text, kind=kind, steps=2, **OPTIONS)
    train(options, target, Recorder())
    plan, ids = load(options.out), torch.load(options.out / "checkpoint.pt", weights_only=True)["ids"]
    one = new_student(target, plan, ids, 0, options.out)
    two = new_student(target, plan, ids, 0, options.out / "float32")
    batch_free = [name for name in one.names if name not in ("norm.weight", "log_gain")]
    assert all((one[name] - two[name]).abs().max() < 1e-6 for name in batch_free)
    if kind == "dspark":
        name = "markov_head.markov_w2.weight"
        other = new_student(target, plan, torch.arange(target.vocab), 0, options.out / "float32")
        assert torch.equal(other[name][ids], two[name])
        assert torch.allclose(one["norm.weight"] * one["log_gain"].exp(), two["norm.weight"], atol=1e-6)
    with pytest.raises(ModelError, match=r"lacks \S+, wanted a drafter of the kind being trained"):
        new_student(target, plan, ids, 0, text)


def test_refusals_are_one_line(target, prompts, text, tmp_path):
    options = Options("tiny", tmp_path, prompts=prompts, **OPTIONS)
    with pytest.raises(ConfigError, match="--kind is 'medusa', wanted one of eagle3, dspark"):
        train(replace(options, kind="medusa"), target, Watcher())
    with pytest.raises(ConfigError, match="--kind mtp has one layer that is run again"):
        train(replace(options, kind="mtp", layers=2), target, Watcher())
    with pytest.raises(ConfigError, match="--width is 20, wanted a multiple of 8"):
        train(replace(options, kind="draft-model", width=20), target, Watcher())
    with pytest.raises(ConfigError, match=re.escape("holds no plan.json, wanted a run whose text is written")):
        train(replace(options, text=tmp_path / "none"), target, Watcher())
    with pytest.raises(ConfigError, match=r"was written with prompts_digest|was written with held_out_digest"):
        train(replace(options, prompts=None, text=text), target, Watcher())
    with pytest.raises(ConfigError, match="was made with kind eagle3, got dflash"):
        train(replace(options, out=text, kind="dflash"), target, Watcher())


def test_depths_follow_the_kind():
    shares = {1: 0.3, 2: 0.7}
    assert depths_of("dspark", 5, shares) == {5: 1.0} and depths_of("draft-model", 5, shares) == {1: 1.0}
    assert depths_of("mtp", 5, shares) == shares


def test_the_mask_is_an_id_that_text_does_not_need(target):
    tokens = np.array([i for i in range(256) if i != 90])
    assert mask_id(target, tokens) == 90
    assert mask_id(target, np.array([1])) == 255


def test_a_map_beside_the_head_has_the_gradients_of_autograd():
    generator = torch.Generator().manual_seed(0)

    def made(*shape, grad=True):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=grad)

    for width in (16, 0):  # 0: the map is all there is
        states, read, own, head = made(300, width), made(300, 6), made(50, 6), made(50, width, grad=False)
        p = torch.softmax(made(300, 50, grad=False).float() * 2, -1) * 0.95
        index, cold = torch.arange(300), torch.rand(300, generator=generator) + 0.5
        gain = torch.zeros((), dtype=torch.float64, requires_grad=True)
        loss, kept = head_loss(states, gain, head, p, index, cold, Mix(0.1, 1.0), read, own)
        leaves = [states, read, own] if width else [read, own]
        mine = torch.autograd.grad(loss, leaves)
        z = (states @ head.T + read @ own.T) * cold[:, None]
        least = torch.minimum(p, torch.softmax(z, -1)).sum(-1)
        plain = (1 - least).mean() - 0.1 * (p * z.log_softmax(-1)).sum(-1).mean()
        assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
        assert kept.numpy() == pytest.approx(least.detach().numpy(), rel=1e-5)
        for a, b in zip(mine, torch.autograd.grad(plain, leaves), strict=True):
            assert (a - b).abs().max() < 1e-6
