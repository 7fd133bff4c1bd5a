"""EAGLE-3 against speculators' own model: every step of its unrolled training pass, at every position."""

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from nsd.drafters import eagle3
from tests.drafters_c import block_tools as tools
from tests.drafters_c.hybrid_models import randomised
from tests.drafters_c.peers import peer

STEPS, LENGTH = 4, 9
COMMON = {
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 61,
    "pad_token_id": None,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "qwen3": (Qwen3Config, {"num_hidden_layers": 1}, {"draft_vocab_size": 61}),
    "qwen3 reduced": (Qwen3Config, {"num_hidden_layers": 1}, {"draft_vocab_size": 23, "norm_before_residual": True}),
    "llama, biases, two layers": (
        LlamaConfig,
        {"num_hidden_layers": 2, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
        {"draft_vocab_size": 23},
    ),
    "llama, normed output": (LlamaConfig, {"num_hidden_layers": 1}, {"draft_vocab_size": 23, "norm_output": True}),
    "llama, one norm before fc": (
        LlamaConfig,
        {"num_hidden_layers": 1},
        {"draft_vocab_size": 23, "norm_before_fc": True},
    ),
    "llama, a norm each": (LlamaConfig, {"num_hidden_layers": 1}, {"draft_vocab_size": 23, "fc_norm": True}),
}


def theirs(name):
    """speculators' model with random weights, its vocabulary map set."""
    core = peer("speculators.models.eagle3", "speculators")
    config_class, layer, head = CASES[name]
    tl = config_class(**(COMMON | layer))
    tl._attn_implementation = "eager"
    spec = peer("speculators.config", "speculators")
    greedy = peer("speculators.proposals.greedy", "speculators").GreedyTokenProposalConfig(speculative_tokens=3)
    config = core.Eagle3SpeculatorConfig(
        transformer_layer_config=tl,
        eagle_aux_hidden_state_layer_ids=[2, 4, 5],
        speculators_config=spec.SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[greedy],
            default_proposal_method="greedy",
            verifier=spec.VerifierConfig(name_or_path=None, architectures=[]),
        ),
        **head,
    )
    model = randomised(core.Eagle3DraftModel(config), sorted(CASES).index(name), 0.2)
    if head["draft_vocab_size"] < 61:
        ids = torch.randperm(61, generator=torch.Generator().manual_seed(1))[:23].sort().values
        model.load_vocab_mappings(torch.zeros(61, dtype=torch.bool).scatter(0, ids, True), ids - torch.arange(23))
    return model


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_every_step_at_every_position(name, tmp_path):
    model = theirs(name)
    model.save_pretrained(tmp_path)
    drafter = eagle3.load(tools.PlainTarget(), tmp_path)
    g = torch.Generator().manual_seed(7)
    states = torch.randn(LENGTH, 3, 36, generator=g)
    after = torch.randint(61, (LENGTH + STEPS,), generator=g)  # after[i] is the token behind position i
    logits = []
    model.lm_head.register_forward_hook(lambda _, __, output: logits.append(output[0]))
    documents = torch.zeros(1, LENGTH, dtype=torch.long)
    model(states.flatten(1)[None], after[None, :LENGTH], documents, ttt_steps=STEPS)
    # One request per position: position i has seen i + 1 pairs, then goes on from its own states.
    net, counts = drafter.net, list(range(1, LENGTH + 1))
    cache = net.decoder.cache(LENGTH, 2)
    rows = cache.rows(counts)
    seen = torch.cat([torch.arange(n) for n in counts])
    carried = net.step(net.features(states)[seen], after[seen], rows, cache)[torch.tensor(counts).cumsum(0) - 1]
    cache.append(rows)
    ids = torch.arange(61) if net.ids is None else net.ids
    for step in range(STEPS):
        # Positions whose next given tokens run past the end are padded with 0 by them.
        whole = LENGTH - step
        ours = net.logits(carried, 61)
        torch.testing.assert_close(ours[:whole, ids], logits[step][:whole], rtol=1e-5, atol=1e-5)
        if len(ids) < 61:
            outside = torch.ones(61, dtype=torch.bool).scatter(0, ids, False)
            assert (ours[:, outside] == -torch.inf).all()
        rows = cache.rows([1] * LENGTH)
        carried = net.step(carried, after[torch.arange(LENGTH) + step + 1], rows, cache)
        cache.append(rows)
