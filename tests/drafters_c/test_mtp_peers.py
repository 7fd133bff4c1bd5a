"""MTP against speculators' own model, and its layer against transformers' Qwen3.5."""

import pytest
import torch
from transformers import Qwen3_5TextConfig, Qwen3Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

from nsd.drafters import mtp
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import TEXT_CONFIG, hybrid_target, randomised
from tests.drafters_c.peers import peer

LENGTH, STEPS = 11, 3
QWEN3 = {
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 61,
    "attention_bias": True,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
CASES = {"qwen3": Qwen3Config(**QWEN3), "qwen3.5": Qwen3_5TextConfig(**TEXT_CONFIG)}


def theirs(config):
    """speculators' model with random weights."""
    core = peer("speculators.models.mtp", "speculators")
    spec = peer("speculators.config", "speculators")
    greedy = peer("speculators.proposals.greedy", "speculators").GreedyTokenProposalConfig(speculative_tokens=STEPS)
    speculators_config = spec.SpeculatorsConfig(
        algorithm="mtp",
        proposal_methods=[greedy],
        default_proposal_method="greedy",
        verifier=spec.VerifierConfig(name_or_path=None, architectures=[]),
    )
    whole = core.MTPSpeculatorConfig(transformer_layer_config=config, speculators_config=speculators_config)
    return randomised(core.MTPDraftModel(whole), 3, 0.2)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_step_at_every_position(name, tmp_path):
    """Their step s runs over the whole sequence from the states of step s - 1, and so does this comparison."""
    model = theirs(CASES[name])
    model.save_pretrained(tmp_path)
    target = tools.PlainTarget() if name == "qwen3" else hybrid_target()
    embedding, head = target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight
    model.embed_tokens.weight.copy_(embedding)
    model.lm_head.weight.copy_(head)
    drafter = mtp.load(target, tmp_path)
    assert drafter.default_k == 2 and drafter.net.shape.layout is mtp.Layout.SPECULATORS
    g = torch.Generator().manual_seed(7)
    ids, states = torch.randint(61, (LENGTH,), generator=g), torch.randn(LENGTH, 36, generator=g)
    logits, _, _ = model(ids[None], states[None])
    carried, whole = drafter.net.features(states[:, None]), LENGTH - STEPS - 1
    assert len(logits) == STEPS
    for step in range(STEPS):
        cache = drafter.net.decoder.cache(1, LENGTH)
        tokens = ids[step + 1 : step + 1 + whole]
        carried = drafter.net.step(carried[:whole], tokens, cache.rows([whole]), cache)
        torch.testing.assert_close(drafter.net.logits(carried, 61), logits[step][0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_layer_is_transformers_qwen35_layer(tmp_path):
    """One full-attention layer and final norm of transformers, fed with fc of the two normed halves."""
    made = chains.mtp_qwen()
    target = hybrid_target()
    drafter = mtp.load(target, made.write(tmp_path))
    config = Qwen3_5TextConfig(**(TEXT_CONFIG | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}))
    model = Qwen3_5TextModel(config).eval()
    layer = {name.removeprefix("mtp."): t for name, t in made.tensors.items() if name.startswith(("mtp.l", "mtp.norm"))}
    missing, unexpected = model.load_state_dict(layer, strict=False)
    assert missing == ["embed_tokens.weight"] and not unexpected
    g = torch.Generator().manual_seed(3)
    ids, states = torch.randint(61, (LENGTH,), generator=g), torch.randn(LENGTH, 36, generator=g)
    norm = type(model.norm)

    def normed(name, x):
        module = norm(36)
        module.weight.copy_(made.tensors[name])
        return module(x)

    word = normed("mtp.pre_fc_norm_embedding.weight", target.model.get_input_embeddings()(ids))
    both = torch.cat((word, normed("mtp.pre_fc_norm_hidden.weight", states)), -1)
    expected = model(inputs_embeds=(both @ made.tensors["mtp.fc.weight"].T)[None], use_cache=False).last_hidden_state[0]
    cache = drafter.net.decoder.cache(1, LENGTH)
    got = drafter.net.step(states, ids, cache.rows([LENGTH]), cache)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
