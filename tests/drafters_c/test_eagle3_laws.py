"""EAGLE-3: drafted tokens follow the returned q, decoding follows the target's law, NSD deviates by ES."""

import pytest

from nsd.drafters import eagle3
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_laws
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import Ids

VOCAB = 9


def small(made):
    """The same checkpoint over 9 ids (5 of them in a reduced vocabulary), with soft laws."""
    made.config.get("transformer_layer_config", made.config)["vocab_size"] = VOCAB
    w = made.tensors
    if "embed_tokens.weight" in w:
        w["embed_tokens.weight"] = w["embed_tokens.weight"][:VOCAB]
    if "d2t" in w:
        made.config["draft_vocab_size"] = 5
        ids = chains.torch.tensor([0, 2, 3, 6, 8])
        w["d2t"] = ids - chains.torch.arange(5)
        w["t2d"] = chains.torch.zeros(VOCAB, dtype=chains.torch.bool).scatter(0, ids, True)
    w["lm_head.weight"] = 0.35 * w["lm_head.weight"][: 5 if "d2t" in w else VOCAB]
    return made


CASES = {"DeepSpec": chains.eagle_deepspec, "reduced vocabulary": chains.eagle_safeai}


@pytest.fixture(scope="module")
def target():
    made = tools.PlainTarget(vocab=VOCAB, seed=5)
    made.model.lm_head.weight.mul_(0.2)
    made.tokenizer = Ids()
    return made


@pytest.fixture(params=CASES)
def drafter(request, target, tmp_path):
    return eagle3.load(target, small(CASES[request.param]()).write(tmp_path))


@pytest.mark.parametrize("sampling", chain_laws.SAMPLINGS)
def test_q_is_the_law_of_the_draw(drafter, target, sampling):
    chain_laws.check_draws(target, drafter, chain_laws.SAMPLINGS[sampling])


def test_standard_speculation_emits_the_targets_law(drafter, target):
    chain_laws.check_decoding(target, drafter)


def test_nucleus_speculation_deviates_by_ES(drafter, target):
    chain_laws.check_nucleus(target, drafter)
