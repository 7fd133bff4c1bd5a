"""The target with layers left out: shared weights, own cache, exact laws."""

import pytest
import torch

from nsd.drafters.layer_skip import default_skip, layer_skip_drafter, skipped_target
from nsd.errors import ConfigError, ModelError
from nsd.targets.toy import TableTarget
from tests.targets.zoo import target_of

PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [10, 11]]


def by_hand(target, ids, skip):
    """Logits of the model whose skipped layers pass their input on: [n, V]."""
    layers = target.reader.layers
    hooks = [
        layers[i].register_forward_hook(lambda m, a, k, out: a[0] if a else k["hidden_states"], with_kwargs=True)
        for i in skip
    ]
    with torch.no_grad():
        logits = target.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen2-mixed", "mistral"])
@pytest.mark.parametrize("skip", [(1,), (0, 2), (1, 2, 3)])
def test_its_law_is_that_of_the_kept_layers(family, skip):
    target = target_of(family)
    skipped = skipped_target(target, skip)
    assert skipped.layers == 4 - len(skip)
    session, scores = skipped.open(PROMPTS, 8)
    expected = torch.stack([by_hand(target, p, skip)[-1] for p in PROMPTS])
    torch.testing.assert_close(scores.logits, expected, atol=1e-5, rtol=1e-5)
    session.score([[3, 4], [5]])
    session.keep([1, 0])
    later = session.score([[6], [7, 8]]).logits
    a, b = by_hand(target, [*PROMPTS[0], 3, 6], skip), by_hand(target, [*PROMPTS[1], 7, 8], skip)
    torch.testing.assert_close(later, torch.stack([a[-1], b[-2], b[-1]]), atol=1e-5, rtol=1e-5)


def test_nothing_is_copied_and_the_target_is_untouched():
    target = target_of("llama")
    before = target.open(PROMPTS, 4)[1].logits
    skipped = skipped_target(target, (1, 2))
    ours = {p.data_ptr() for p in target.model.parameters()}
    assert {p.data_ptr() for p in skipped.model.parameters()} < ours
    assert target.model.config.num_hidden_layers == 4 and len(target.reader.layers) == 4
    assert torch.equal(target.open(PROMPTS, 4)[1].logits, before)


def test_its_cache_is_its_own():
    target = target_of("llama")
    skipped = skipped_target(target, (1,))
    session, _ = target.open(PROMPTS, 8)
    expected = session.score([[1], [2]]).logits
    session.keep([0, 0])
    other, _ = skipped.open(PROMPTS, 8)
    other.score([[3, 4], [5]])
    assert torch.equal(session.score([[1], [2]]).logits, expected)
    assert other.cache.used_layers == 3 and session.cache.used_layers == 4


def test_skipping_nothing_is_the_target_itself():
    target = target_of("qwen3")
    assert torch.equal(skipped_target(target, ()).open(PROMPTS, 4)[1].logits, target.open(PROMPTS, 4)[1].logits)


@pytest.mark.parametrize(
    ("skip", "part"), [((4,), "layer 4"), ((-1,), "layer -1"), ((1, 1), "twice"), ((0, 1, 2, 3), "at least one left")]
)
def test_wrong_layers_are_refused(skip, part):
    with pytest.raises(ConfigError, match=part):
        skipped_target(target_of("llama"), skip)


def test_only_models_with_layers_can_skip_them():
    with pytest.raises(ModelError, match="transformers or lean model"):
        skipped_target(TableTarget(), (1,))


def test_the_default_leaves_both_ends():
    assert default_skip(30) == (8, 10, 12, 14, 16, 18, 20, 22)
    for layers in range(3, 100):
        skip = default_skip(layers)
        assert skip and 0 not in skip and layers - 1 not in skip and len(set(skip)) == len(skip)
    assert default_skip(2) == default_skip(1) == ()


def test_the_drafter_drafts_from_the_shorter_model():
    target = target_of("llama")
    drafter = layer_skip_drafter(target)
    assert drafter.name == "layer-skip" and drafter.model.layers == 4 - len(default_skip(4))
    assert layer_skip_drafter(target, (0, 1), default_k=2).default_k == 2
