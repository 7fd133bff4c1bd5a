"""Prompts, guard, chat frame, stored text, losses, schedule: each against what it promises."""

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch

from nsd.errors import ConfigError
from nsd.laws import laws, members
from nsd.laws.sampling import Sampling
from nsd.targets.base import FINAL_NORM
from nsd.targets.toy import TableTarget, tiny_llama
from nsd.train.chat import frame
from nsd.train.corpus import Corpus, Shard, chain_mask, draft_vocabulary
from nsd.train.evaluate import edges
from nsd.train.guard import Guard, read_excluded, words
from nsd.train.losses import Mix, head_loss, target_law
from nsd.train.prompts import built_in_held_out, fill, read_prompts, set_aside
from nsd.train.schedule import SHARES, Schedule, order, stages, stages_of
from nsd.train.stepper import LeanStepper, SessionStepper, stepper
from nsd.train.text import ANSWERED, ASKED, FORCED, ShardPlan
from nsd.train.writing import Source, Writer

HELD_OUT = "2854ab757ce9ffe610a5fb26950c056b9a4575939a6126e90508ef3f4d717c76"


def test_held_out_prompts_are_the_ones_on_record():
    held_out = built_in_held_out()
    assert len(set(held_out.prompts)) == 48
    assert held_out.digest == HELD_OUT


def test_no_template_touches_a_held_out_prompt():
    guard, chance = Guard(built_in_held_out().prompts), random.Random(0)
    texts = [fill(chance) for _ in range(3000)]
    assert all(guard.overlap(text) is None for text in texts)
    assert not any("{" in text for text in texts)
    assert len(set(texts)) > 2000


def test_thirteen_words_in_a_row_are_refused():
    known = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    guard = Guard([known])
    assert guard.overlap("Well: One, two, three, four, five six seven eight nine ten eleven twelve THIRTEEN!")
    assert guard.overlap("one two three four five six seven eight nine ten eleven twelve and thirteen") is None
    assert guard.overlap("two " + known[4:]) is not None
    assert Guard(["Why do cats purr?"]).overlap("I ask: why do cats purr") == "why do cats purr"
    assert Guard([""]).overlap("anything") is None


def test_rows_that_overlap_are_left_out(tmp_path):
    target = tiny_llama()
    plan = ShardPlan(8, 60, (1.0,), (0, 2, 3), 0)
    Writer.open(target, plan.taps, tmp_path).training(
        plan, 0, Source(own=("count the sheep", "name a river"), sampled_share=0)
    )
    corpus = Corpus.open(tmp_path / "text")
    refused = Guard(["count the sheep"]).refused(corpus, target.tokenizer)
    texts = [target.tokenizer.decode(corpus.ids(row)) for row in range(8)]
    assert refused == {row for row, text in enumerate(texts) if "count the sheep" in text}
    assert 0 < len(refused) < 8
    left = Corpus.open(tmp_path / "text", 1, refused)
    assert len(left.rows) == 8 - len(refused) and left.refused == len(refused)


def test_benchmark_files_give_all_their_strings(tmp_path):
    file = tmp_path / "b.jsonl"
    file.write_text('{"q": "First one", "more": ["second", 3, {"x": "third"}]}\nplain line\n\n', encoding="utf-8")
    assert read_excluded(file) == ["First one", "second", "third", "plain line"]
    assert words("Don't STOP, now") == ["don", "t", "stop", "now"]


def test_prompt_files(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('"one"\n{"prompt": "two"}\n\n{"text": "three"}\n', encoding="utf-8")
    assert read_prompts(file) == ["one", "two", "three"]
    for line, reason in (("{", "is not JSON"), ("{}", "holds no prompt"), ("", "holds no prompts")):
        file.write_text(line, encoding="utf-8")
        with pytest.raises(ConfigError, match=reason):
            read_prompts(file)
    many = [f"prompt {i}" for i in range(400)]
    training, held_out = set_aside(many)
    assert sorted([*training, *held_out.prompts]) == sorted(many)
    assert set_aside(many[::-1])[1] == held_out
    # A share of 0.05 of 400: 20 expected, standard deviation 4.4; the hashes are fixed, so this cannot flicker.
    assert 8 <= len(held_out.prompts) <= 32


def test_the_frame_puts_a_chat_together():
    target = tiny_llama()
    found = frame(target)
    ids = [*found.head, *target.tokenizer.encode("Hi there"), *found.ask]
    assert ids == target.tokenizer.chat([{"role": "user", "content": "Hi there"}])
    assert found.chat and found.again is None


@pytest.mark.parametrize("kind", [LeanStepper, SessionStepper])
def test_steppers_give_the_states_of_the_target(kind):
    target, taps = tiny_llama(), (0, 2, 3)
    tokens = torch.randint(0, 256, (9, 3), generator=torch.Generator().manual_seed(0))
    tokens[:4] = tokens[:4, :1]
    step = kind(target, taps)
    _, states = step.start(tokens[:4, 0].tolist(), 3, 5)
    parts, logits = [states.unsqueeze(1).expand(-1, 3, -1, -1)], None
    for row in tokens[4:]:
        logits, states = step.step(row)
        parts.append(states.unsqueeze(0))
    mine = torch.cat(parts)
    for b in range(3):
        _, scores = target.open([tokens[:, b].tolist()], 1, (*taps, FINAL_NORM))
        assert (mine[:, b] - scores.taps).abs().max() < 1e-4
        assert (logits[b] - scores.logits[0]).abs().max() < 1e-4


def test_other_targets_are_stepped_through_their_session():
    assert isinstance(stepper(tiny_llama(), (0,)), LeanStepper)
    assert isinstance(stepper(TableTarget.over_bytes(), (0, 1)), SessionStepper)


def test_stored_text_follows_the_laws_it_claims(tmp_path):
    target = TableTarget.over_bytes()
    plan = ShardPlan(32, 120, (1.0, 0.5), (0, 1), 3)
    Writer.open(target, plan.taps, tmp_path).training(plan, 0, Source())
    shard = Shard.open(tmp_path / "text" / "0000.json")
    assert set(np.unique(shard.kinds)) <= {FORCED, ASKED, ANSWERED}
    assert shard.temperatures.tolist() == [1.0, 0.5] * 16
    for row, temperature in ((0, 1.0), (1, 0.5)):
        for position in (60, 100):
            context = shard.tokens[: position + 1, row].tolist()
            z = target.logits_after(context) / temperature
            assert shard.lse[position, row] == pytest.approx(float(torch.logsumexp(z, -1)), rel=1e-4)
    # Draws against the law: 16 rows a temperature, cells pooled by mass. Chi-square at a false-alarm rate of 1e-6.
    from scipy.stats import chisquare

    for temperature in (1.0, 0.5):
        bins = np.zeros(10)
        for row in range(int(temperature == 0.5), 32, 2):
            for position in range(30, 120):
                if shard.kinds[position, row] != ANSWERED:
                    continue
                p = torch.softmax(
                    target.logits_after(shard.tokens[: position + 1, row].tolist()).double() / temperature, -1
                )
                token = int(shard.tokens[position + 1, row])
                before = float(p[:token].sum())
                # The randomised rank of the drawn id is uniform if the draw follows p.
                place = before + float(p[token]) * random.Random(f"{row}/{position}").random()
                bins[min(int(place * 10), 9)] += 1
        assert bins.sum() > 500
        assert chisquare(bins).pvalue > 1e-6


def test_batches_hold_what_was_stored(tmp_path):
    target = tiny_llama()
    plan = ShardPlan(4, 50, (1.0, 0.7), (0, 2, 3), 0)
    Writer.open(target, plan.taps, tmp_path).training(plan, 0, Source())
    corpus = Corpus.open(tmp_path / "text")
    batch = corpus.batch([2, 1])
    assert batch.taps.shape == (2, 50, 3, target.hidden) and batch.final.shape == (2, 50, target.hidden)
    assert batch.cold.tolist() == pytest.approx([1.0, 1 / 0.7])
    _, scores = target.open([batch.tokens[0, :-1].tolist()], 1, (0, 2, 3, FINAL_NORM))
    wanted = scores.taps.to(torch.bfloat16)
    assert (batch.taps[0].float() - wanted[:, :-1].float()).abs().max() < 0.05
    p = target_law(batch.final[0], target.model.get_output_embeddings().weight.detach(), batch.lse[0], torch.ones(50))
    assert p.float().sum(-1)[10:] == pytest.approx(np.ones(40), abs=0.03)


def test_the_draft_vocabulary_is_the_most_frequent_ids():
    tokens = np.array([5, 5, 5, 2, 2, 9, 9, 1])
    assert draft_vocabulary(tokens, 12, 3, [7]).tolist() == [2, 5, 7]
    assert draft_vocabulary(tokens, 12, 4, []).tolist() == [1, 2, 5, 9]
    assert len(draft_vocabulary(tokens, 12, 50, [])) == 12


@pytest.mark.parametrize("mix", [Mix(1.0, 0.0), Mix(0.1, 1.0), Mix(0.0, 1.0)])
def test_losses_and_gradients_equal_autograds(mix):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(300, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    gain = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    head = torch.randn(50, 16, generator=generator, dtype=torch.float64)
    p = torch.softmax(torch.randn(400, 50, generator=generator) * 2, -1) * 0.95
    index, cold = torch.randperm(400, generator=generator)[:300], torch.rand(300, generator=generator) + 0.5
    loss, kept = head_loss(states, gain, head, p, index, cold, mix)
    mine = torch.autograd.grad(loss, [states, gain])
    z = (states @ head.T) * (gain.exp() * cold[:, None])
    least = torch.minimum(p[index], torch.softmax(z, -1)).sum(-1)
    plain = mix.total_variation * (1 - least).mean()
    plain = plain - mix.cross_entropy * (p[index] * z.log_softmax(-1)).sum(-1).mean()
    wanted = torch.autograd.grad(plain, [states, gain])
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    assert kept == pytest.approx(least.detach().numpy(), rel=1e-5)
    for a, b in zip(mine, wanted, strict=True):
        assert (a - b).abs().max() < 1e-6


def test_nucleus_edges_are_those_of_the_laws():
    generator = torch.Generator().manual_seed(1)
    head, final = torch.randn(80, 8, generator=generator), torch.randn(40, 8, generator=generator)
    lse = torch.logsumexp(final @ head.T / 0.7, -1)
    found = edges(final, lse, torch.full((40,), 1 / 0.7), head, 0.9)
    p = laws(final @ head.T, [Sampling(temperature=0.7)] * 40)
    assert ((p >= found[:, None] * (1 - 1e-5)) == members(p, 0.9)).all()


def test_chains_are_whole():
    kinds = torch.tensor([[0, 0, 2, 2, 2, 0, 1, 2]])
    assert chain_mask(kinds, 1, ANSWERED).tolist() == [[False, True, True, True, False, False, True, False]]
    assert chain_mask(kinds, 2, ANSWERED).tolist() == [[False, True, True, False, False, False, False, False]]
    assert chain_mask(kinds, 2, ASKED).tolist() == [[False, True, True, False, False, True, False, False]]


def test_shares_of_time_become_steps():
    made = stages(1000.0, {1: 0.5, 2: 0.8, 3: 1.0})
    assert [(s.depths, s.steps) for s in made] == [(1, 600), (2, 250), (3, 500)]
    schedule = Schedule(made, 1e-3)
    assert schedule.steps == 1350 and schedule.progress(1350) == 1
    assert [schedule.depths(i) for i in (0, 599, 600, 850, 1349)] == [1, 1, 2, 3, 3]
    assert schedule.progress(600) == pytest.approx(SHARES[1])
    assert schedule.mix(0) == Mix(1.0, 0.0) and schedule.mix(1349).total_variation == 1.0
    rates = [schedule.rate(i) for i in range(1350)]
    assert max(rates) <= 1e-3 and rates[0] < 1e-5 * 2 and rates[-1] < 2e-5
    assert sum(stage.steps for stage in stages_of(2500)) == 2500


def test_every_epoch_sees_every_row_once():
    seen = Counter(row for step in range(5) for row in order(40, 8, 0, step))
    assert set(seen.values()) == {1} and len(seen) == 40
    assert order(40, 8, 0, 5) != order(40, 8, 0, 0)
    assert order(40, 8, 0, 7) == order(40, 8, 0, 7)


def test_held_out_file_is_one_prompt_per_line():
    from importlib.resources import files

    lines = (files("nsd.train") / "heldout.jsonl").read_text(encoding="utf-8").splitlines()
    assert Counter(json.loads(line)["kind"] for line in lines) == dict.fromkeys(
        ("problem", "code", "list", "rewrite", "letter", "explain"), 8
    )
