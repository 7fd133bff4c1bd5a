"""The embedded model in float32: the loop against transformers, against itself, and against float64 arithmetic.

Two ways of computing one logit differ in their last bits, so decisions may differ where they hang by a hair: where the
two best logits lie within 1e-4, or a uniform lies within 1e-5 of the edge that decided. A difference without such a
reason fails.
"""

import pytest
import torch

from nsd.api import Pair
from nsd.drafters.load import load_drafter
from nsd.laws import Purpose, Sampling, laws, uniforms
from nsd.rules import NSD
from nsd.targets.load import load_target

pytestmark = pytest.mark.model

PROMPTS = [
    "Name three rivers of Europe.",
    "Write one sentence about the sea.",
    "Count: one two three one two three one",
]
LOGIT_GAP = 1e-4
CDF_GAP = 1e-5


@pytest.fixture(scope="module")
def target():
    return load_target("smollm2-135m", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def pair(target):
    return Pair(target, load_drafter("ngram", target))


@pytest.fixture(scope="module")
def skipping(target):
    return Pair(target, load_drafter("layer-skip", target))


def logits_after(target, ids):
    _, scores = target.open([ids], 1)
    return scores.logits


def explained(target, prompt, ours, theirs, temperature, seed=0, key=0):
    """Whether two outputs agree, or part at a position that hangs by a hair."""
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a == b:
            continue
        logits = logits_after(target, [*prompt, *ours[:position]])
        if temperature == 0:
            top = logits[0].topk(2).values
            return bool(top[0] - top[1] < LOGIT_GAP)
        law = laws(logits, [Sampling(temperature=temperature)])[0].double()
        running = law.cumsum(0)
        u = float(uniforms(seed, key, position, Purpose.TARGET))
        return bool((running - u * running[-1]).abs().min() < CDF_GAP)
    return True


def test_temperature_0_equals_transformers_generate(pair, target):
    model = target.reference()
    for text in PROMPTS:
        prompt = target.tokenizer.chat([{"role": "user", "content": text}])
        ours = pair.generate(prompt, rule="nsd", temperature=0, max_new_tokens=32, ignore_eos=True)
        ids = torch.tensor([prompt])
        theirs = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32, min_new_tokens=32
        )
        # min_new_tokens forbids the end of text, so compare up to where either would have ended.
        theirs = theirs[0, len(prompt) :].tolist()
        until = next((i for i, t in enumerate(ours.token_ids) if t in target.eos), 32)
        assert explained(target, prompt, ours.token_ids[:until], theirs[:until], 0)


def test_sample_and_match_equals_plain_decoding_at_temperature_1(pair, target):
    plain = Pair(target, None)
    for key, text in enumerate(PROMPTS):
        settings = {"chat": True, "temperature": 1.0, "max_new_tokens": 32, "ignore_eos": True, "seed": key}
        ar = plain.generate(text, rule="sd", **settings)
        match = pair.generate(text, rule="sample-and-match", **settings)
        assert explained(target, ar.request.prompt, ar.token_ids, match.token_ids, 1.0, seed=key)


def test_a_ragged_batch_equals_one_by_one(pair, target):
    settings = {"chat": True, "temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}
    batch = pair.generate(PROMPTS, **settings)
    for text, together in zip(PROMPTS, batch, strict=True):
        alone = pair.generate(text, **settings)
        assert explained(target, alone.request.prompt, alone.token_ids, together.token_ids, 0)


def test_excess_of_real_positions_equals_float64(skipping, target):
    theta, checked = 0.9, 0
    for seed, text in enumerate(PROMPTS):
        answer = skipping.generate(
            text,
            chat=True,
            theta=theta,
            k=4,
            temperature=1.0,
            seed=seed,
            max_new_tokens=80,
            ignore_eos=True,
            accounting="full",
        )
        # Whatever was tested stands behind a committed prefix, so one pass over the whole answer has all the rows.
        p, q = (_laws(model, answer) for model in (target, skipping.drafter.model))
        inside = NSD(theta).whole_set(p)
        over = (q - p).clamp_min(0)
        for tested in (t for block in answer.blocks for t in block.tested):
            at = tested.position
            assert abs(float(over[at].sum()) - tested.R) < 1e-5
            assert abs(float((over[at] * inside[at]).sum()) - tested.ES) < 1e-5
            checked += 1
    assert checked >= 200


def _laws(model, answer):
    """Laws of every output position in float64, from a fresh pass: [len(output) + 1, V]."""
    session, scores = model.open([list(answer.request.prompt)], len(answer.token_ids) + 1)
    rows = session.score([list(answer.token_ids)]).logits
    return torch.softmax(torch.cat([scores.logits, rows]).double(), -1)
