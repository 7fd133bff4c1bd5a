"""MTP beside its hybrid target: drafts follow the returned q, decoding follows the target's law, NSD deviates by ES."""

import pytest

from nsd.drafters import mtp
from nsd.targets.hybrid import HybridTarget
from tests.drafters_c import chain_laws
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import Ids, qwen35

VOCAB = 11


@pytest.fixture(scope="module")
def target():
    """One DeltaNet layer and one of attention; the final norm's weights make its laws soft."""
    layers = ["linear_attention", "full_attention"]
    model = qwen35(vocab_size=VOCAB, num_hidden_layers=2, layer_types=layers)
    model.model.norm.weight.data -= 0.5
    return HybridTarget(model, Ids(), "tiny-qwen3.5")


@pytest.fixture(scope="module")
def drafter(target, tmp_path_factory):
    made = chains.mtp_qwen()
    made.config["text_config"] = {**made.config["text_config"], "vocab_size": VOCAB, "num_hidden_layers": 2}
    made.tensors["mtp.norm.weight"] -= 1.2
    return mtp.load(target, made.write(tmp_path_factory.mktemp("mtp")))


@pytest.mark.parametrize("sampling", chain_laws.SAMPLINGS)
def test_q_is_the_law_of_the_draw(drafter, target, sampling):
    chain_laws.check_draws(target, drafter, chain_laws.SAMPLINGS[sampling])


def test_standard_speculation_emits_the_targets_law(drafter, target):
    chain_laws.check_decoding(target, drafter, count=8_000)


def test_nucleus_speculation_deviates_by_ES(drafter, target):
    chain_laws.check_nucleus(target, drafter)
