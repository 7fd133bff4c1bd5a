"""DSpark's heads and blocks against the PyPI package speculators."""

import pytest
import torch

from nsd.drafters import dspark
from nsd.drafters.base import Ask
from nsd.laws import Sampling
from tests.drafters_c import block_tools as tools
from tests.drafters_c.peers import peer

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def target():
    return tools.PlainTarget()


def their_model(made, target):
    models = peer("speculators.models", "speculators")
    config = models.DSparkSpeculatorConfig(**made.config)
    config.transformer_layer_config._attn_implementation = "eager"
    model = models.DSparkDraftModel(config).eval()
    lost, surplus = model.load_state_dict(made.tensors, strict=False)
    assert not surplus
    assert set(lost) <= {"embed_tokens.weight", "lm_head.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    with torch.no_grad():
        model.embed_tokens.weight.copy_(target.model.get_input_embeddings().weight)
        if model.lm_head.weight.shape[0] == tools.VOCAB:
            model.lm_head.weight.copy_(target.model.lm_head.weight)
    return model


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("from_anchor", [True, False])
@pytest.mark.parametrize("reduced", [False, True])
@torch.no_grad()
def test_corrected_laws_of_drafted_blocks(target, tmp_path, kind, from_anchor, reduced):
    """What we draw, slot by slot, from what we call q: their corrected logits for the same tokens say the same."""
    made = tools.speculators("dspark", kind, seed=7, reduced=reduced, sample_from_anchor=from_anchor)
    drafter = dspark.load(target, made.write(tmp_path))
    model = their_model(made, target)

    g = torch.Generator().manual_seed(2)
    ids = torch.randint(59, (1, 24), generator=g)
    taps = torch.randn(24, 3, tools.HIDDEN, generator=g)
    torch.manual_seed(0)
    hidden, logits, _, _, rows = model._backbone_forward(
        taps.flatten(1)[None], ids, torch.ones(1, 24), torch.zeros(1, 24, tools.HIDDEN),
        torch.zeros(1, 24, dtype=torch.long), max_anchors=6,
    )  # fmt: skip
    blocks = rows.view(6, 5)[:, 0].tolist()
    prefixes = [ids[0, :n].tolist() for n in blocks]
    anchors = [int(ids[0, n]) for n in blocks]
    session = drafter.open(prefixes, torch.cat([taps[:n] for n in blocks]), 8)
    k = drafter.max_k
    assert k == (5 if from_anchor else 4)
    asks = [Ask(k, a, p, [a], Sampling()) for a, p in zip(anchors, prefixes, strict=True)]
    draft = session.propose(asks, torch.rand(6, k, generator=g, dtype=torch.float64))
    x = draft.tokens.view(6, k)
    before = [torch.tensor(anchors)[:, None]] * (1 if from_anchor else 2) + [x[:, :-1]]
    bias = model.markov_head.block_bias(prev_token_ids=torch.cat(before, 1), hidden_states=hidden.view(6, 5, -1))
    theirs, base = (torch.softmax(x[:, 5 - k :], -1) for x in (logits.view(6, 5, -1) + bias, logits.view(6, 5, -1)))
    assert (theirs - base).abs().max() > 0.1, "the head makes a difference"
    if reduced:
        theirs = torch.zeros(6, k, tools.VOCAB).masked_scatter(made.tensors["t2d"].expand(6, k, -1), theirs)
        assert made.tensors["t2d"][x].all()
    torch.testing.assert_close(draft.q.view(6, k, -1), theirs, **CLOSE)


@pytest.mark.parametrize("with_token", [True, False])
@torch.no_grad()
def test_confidences(target, tmp_path, with_token):
    """Both forms of the confidence head, on the same states and tokens."""
    made = tools.speculators("dspark", seed=8, confidence_head_with_markov=with_token)
    if not with_token:
        weight = made.tensors["confidence_head.proj.weight"]
        made.tensors["confidence_head.proj.weight"] = weight[:, : tools.HIDDEN]
    model = their_model(made, target)
    drafter = dspark.load(target, made.write(tmp_path), threshold=0.5)
    g = torch.Generator().manual_seed(3)
    state = torch.randn(9, tools.HIDDEN, generator=g)
    previous = torch.randint(tools.VOCAB, (9,), generator=g)
    features = torch.cat((state, model.markov_head.prev_embeddings(previous)), -1) if with_token else state
    theirs = torch.sigmoid(model.confidence_head(features))
    torch.testing.assert_close(drafter.head.confident(previous, state), theirs, **CLOSE)
    assert theirs.std() > 0.05


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_speculators_stores_what_our_list_says(target, kind):
    for reduced in (False, True):
        made = tools.speculators("dspark", kind, reduced=reduced)
        model = their_model(made, target)
        saved = {k: tuple(v.shape) for k, v in model.state_dict().items() if k not in model._keys_to_ignore_on_save}
        assert saved == {k: tuple(v.shape) for k, v in made.tensors.items()}
