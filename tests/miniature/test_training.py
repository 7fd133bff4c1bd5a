"""Training computes what decoding computes, and goes on after a kill as if there had been none."""

import pytest
import torch

from benchmarks.miniature.delta_net import DeltaNet
from benchmarks.miniature.layouts import block_mask
from benchmarks.miniature.net import Net
from benchmarks.miniature.optimiser import decay, stable
from benchmarks.miniature.rows import RESULT_WEIGHT, Mixture, batch, row, tokenizer
from nsd.api import load
from nsd.drafters.base import Ask
from nsd.laws import Sampling
from nsd.miniature.tokens import END
from tests.miniature.models import config, random_model, run, written

PROMPT = "Q: Marta has 24 apples. Then Marta buys 17 more. How many are left?\nA: First we add so 24 + 17 ="


def ids(text=PROMPT):
    return tokenizer().encode(text).ids


def test_the_net_is_the_qwen3_of_transformers():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = config("tiny-qwen3")
    trained = random_model("tiny-qwen3")
    net = Net(shape, "qwen3", 0, torch.float32)
    net.load(trained.tensors())
    theirs = Qwen3ForCausalLM(Qwen3Config(**{k: v for k, v in shape.items() if k != "dtype"})).float().eval()
    theirs.load_state_dict(trained.tensors())
    some = torch.tensor([ids(), ids()[::-1]])
    with torch.no_grad():
        assert torch.allclose(net.logits(net(some)), theirs(input_ids=some).logits, atol=1e-4)


def exact(name):
    """The random model's net in float32."""
    model = random_model(name)
    if name == "tiny-qwen35":
        net = DeltaNet(config(name), 0, torch.float32)
    else:
        net = Net(config(name), model.layout, 0, torch.float32)
    net.load(model.tensors())
    return net


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-nemotron", "tiny-qwen35"])
def test_a_checkpoint_is_loaded_as_the_model_that_was_trained(name, tmp_path):
    pair = load(str(written(name, tmp_path)), None, dtype="float32")
    net = exact(name)
    with torch.no_grad():
        wanted = net.logits(net(torch.tensor([ids()])))[0, -1]
    _, scores = pair.target.open([ids()], 4)
    assert torch.allclose(scores.logits[0], wanted, atol=1e-3)
    assert pair.target.eos == {tokenizer().get_vocab()[END]}


def test_blocks_see_the_clean_text_before_them_and_themselves():
    seen = block_mask(torch.tensor([0, 0, 1, 1, 1])).int().tolist()
    assert seen[3] == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert seen[5] == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0]
    assert seen[8] == [1, 1, 0, 0, 0, 0, 0, 1, 1, 1]


def proposed(pair, k):
    """q [k, V] of the first block after PROMPT, whose last token is the anchor."""
    session, scores = pair.target.open([ids()[:-1]], 40, pair.drafter.taps)
    drafting = pair.drafter.open_beside(session, [ids()[:-1]], scores.taps, 40)
    ask = Ask(k, ids()[-1], ids()[:-1], ids()[-1:], Sampling())
    return drafting.propose([ask], torch.full((1, k), 0.5, dtype=torch.float64))


def test_a_trained_block_is_the_block_that_is_drafted(tmp_path):
    pair = load(str(written("tiny-nemotron", tmp_path)), "auto", dtype="float32")
    k, mask, known = 5, config("tiny-nemotron")["mask_token_id"], ids()
    net = exact("tiny-nemotron")
    block = torch.tensor([0] * (len(known) - 1) + [1] * (k + 1))
    clean = torch.tensor([[*known, *[mask] * k]])
    places = torch.arange(clean.shape[1]).repeat(2)
    with torch.no_grad():
        states = net(torch.cat((clean, clean), 1), places, block_mask(block)[None, None])
    logits = net.logits(states[0, -k:])
    logits[:, mask] = -torch.inf
    assert torch.allclose(proposed(pair, k).q, logits.softmax(-1), atol=1e-4)


def test_a_trained_mtp_step_is_the_step_that_is_drafted(tmp_path):
    pair = load(str(written("tiny-qwen35", tmp_path)), "auto", dtype="float32")
    net, known = exact("tiny-qwen35"), torch.tensor([ids()])
    with torch.no_grad():
        wanted = net.logits(net.ahead(net(known[:, :-1]), known[:, 1:])[0, -1]).softmax(-1)
    assert torch.allclose(proposed(pair, 1).q[0], wanted, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-nemotron", "tiny-qwen35"])
def test_training_lowers_the_loss(name, tiny):
    from benchmarks.miniature.optimiser import Optimiser

    model = random_model(name, spread=1.0)
    optimiser, losses = Optimiser(model.module.named_parameters()), []
    for step in range(16):
        loss = model.loss(batch(Mixture(rows=4), 0, 0), 0)  # one batch again and again
        loss.backward()
        optimiser.step(stable(step) * 10)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize("kill", [1, 2, 3])
def test_a_killed_training_run_goes_on_bit_for_bit(kill, tiny, tmp_path):
    whole = run("tiny-qwen3", tmp_path / "whole").finish()[0]
    lines = []

    def watch(line):
        lines.append(line)
        if len(lines) == kill:
            raise Killed

    with pytest.raises(Killed):
        run("tiny-qwen3", tmp_path / "killed", watch=watch).finish()
    again = run("tiny-qwen3", tmp_path / "killed", watch=lines.append).finish()[0]
    assert (again / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    before = len(lines)
    run("tiny-qwen3", tmp_path / "killed", watch=lines.append).finish()
    assert len(lines) == before  # nothing is trained twice


def test_batches_are_a_function_of_their_number():
    mixture = Mixture(rows=4)
    later = batch(mixture, 0, 5)
    for step in (0, 9, 5):
        again = batch(mixture, 0, step)
    assert torch.equal(later.ids, again.ids) and torch.equal(later.weights, again.weights)
    assert not torch.equal(batch(mixture, 1, 5).ids[:, :8], later.ids[:, :8])


def test_weights_lie_on_the_solution_and_heavier_on_results():
    tokens, weights = row("Q: Marta has 24 apples.\nA:", " So 24 + 17 = 41. Thus 41.")
    names = tokenizer().encode
    texts = [tokenizer().id_to_token(i) for i in tokens]
    heavy = [text for text, weight in zip(texts, weights, strict=True) if weight == RESULT_WEIGHT]
    assert heavy == [" 4", "1", " 4", "1"]
    assert weights[: len(names("Q: Marta has 24 apples.\nA:").ids)].count(0.0) == len(
        names("Q: Marta has 24 apples.\nA:").ids
    )
    drilled = row("", " 2 + 2 = 4; 9 * 9 = 81;", drill=True)[1]
    assert sorted(set(drilled)) == [0.0, RESULT_WEIGHT] and drilled.count(RESULT_WEIGHT) == 3


def test_parts_of_a_batch_weigh_as_the_whole():
    whole = batch(Mixture(rows=8), 0, 0)
    model = random_model("tiny-qwen3")
    parts = sum(share * float(model.loss(part, 0).detach()) for part, share in whole.parts(3))
    assert parts == pytest.approx(float(model.loss(whole, 0).detach()), rel=1e-2)  # bfloat16


def test_the_schedule_warms_up_stays_and_falls():
    assert stable(0) < 0.02 and stable(99) == stable(5000) == 1
    falling = [decay(i, 10) for i in range(10)]
    assert falling == sorted(falling, reverse=True) and falling[0] > 0.9 and 0 < falling[-1] < 0.1
