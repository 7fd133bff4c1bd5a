"""Hidden-state taps against what transformers itself returns."""

import pytest
import torch

from nsd.errors import ModelError
from nsd.targets.base import FINAL_NORM
from tests.targets.zoo import target_of


def states(target, ids):
    with torch.no_grad():
        return target.model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True).hidden_states


@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral", "gpt2"])
def test_taps_are_the_hidden_states_of_real_positions(family):
    target = target_of(family)
    layers = target.layers
    taps = (2, 0, FINAL_NORM, layers)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]
    session, scores = target.open(prompts, 10, taps)
    assert scores.taps.shape == (11, 4, target.hidden)
    inputs = [[1, 2], [3, 4, 5, 6]]
    later = session.score(inputs).taps
    for before, new, first, then in zip(prompts, inputs, scores.taps.split([8, 3]), later.split([2, 4]), strict=True):
        whole = states(target, before + new)
        got = torch.cat([first, then])
        for column, state in ((0, whole[2]), (1, whole[0]), (2, whole[-1])):
            torch.testing.assert_close(got[:, column], state[0], atol=1e-5, rtol=1e-5)
        norm = getattr(target.model.base_model, "norm", None) or target.model.base_model.ln_f
        with torch.no_grad():
            torch.testing.assert_close(norm(got[:, 3]), whole[-1][0], atol=1e-5, rtol=1e-5)


def test_hooks_are_gone_after_a_pass():
    target = target_of("llama")
    session, _ = target.open([[1, 2], [3]], 4, (0, 4, FINAL_NORM))
    session.score([[1], [2]])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in target.model.modules())


def test_no_taps_no_states():
    session, scores = target_of("llama").open([[1, 2]], 4)
    assert scores.taps is None
    assert session.score([[1]]).taps is None


@pytest.mark.parametrize("tap", [5, -2])
def test_unknown_taps_are_refused(tap):
    with pytest.raises(ModelError, match=r"taps 0\.\.4 and -1"):
        target_of("llama").open([[1, 2]], 4, (tap,))
