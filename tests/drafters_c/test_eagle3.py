"""EAGLE-3: every layout against the network written anew, its cache path, layer ids, limits, facts and bad input."""

import json

import pytest
import torch

from nsd.drafters import eagle3
from nsd.drafters.base import Ask
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.laws import Sampling
from nsd.verification import DraftLaw
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_by_hand as networks
from tests.drafters_c import chain_tools as chains

CASES = {
    "DeepSpec": chains.eagle_deepspec,
    "SafeAILab": chains.eagle_safeai,
    "SafeAILab, whole vocabulary": lambda: chains.eagle_safeai(reduced=False),
    "SpecForge 3.1": lambda: chains.eagle_safeai(fc_norm=True, norm_output=True),
    "norm before fc": lambda: chains.eagle_safeai(norm_before_fc=True),
    "speculators": chains.eagle_speculators,
    "speculators, plain residual": lambda: chains.eagle_speculators(norm_before_residual=False, norm_output=True),
}


@pytest.fixture(scope="module")
def target():
    return tools.PlainTarget()


def proposed(drafter, k, sampling=None, n=1, seed=2):
    g = torch.Generator().manual_seed(seed)
    taps = torch.randn(3, len(drafter.taps), tools.HIDDEN, generator=g)
    session = drafter.open([[3, 1, 4]] * n, taps.repeat(n, 1, 1), 9)
    asks = [Ask(k, 7, [3, 1, 4], [7], sampling or Sampling())] * n
    return session.propose(asks, torch.rand(n, max(k, 1), generator=g, dtype=torch.float64))


@pytest.mark.parametrize("name", CASES)
def test_rounds_in_a_ragged_batch_equal_recomputation(name, target, tmp_path):
    made = CASES[name]()
    drafter = eagle3.load(target, made.write(tmp_path))
    embedding = target.model.get_input_embeddings().weight

    def by_hand(taps, ids, drafted):
        return networks.eagle_by_hand(made, embedding, taps, ids, drafted)

    networks.run_rounds(drafter, tools.HIDDEN, by_hand, most=4)


def test_the_targets_own_states_are_what_it_reads(target, tmp_path):
    """From the target's prefill to q, and again after a block of which a part was accepted."""
    made = chains.eagle_deepspec()
    drafter = eagle3.load(target, made.write(tmp_path))
    prompt = [3, 1, 4, 1, 5]
    opened, scores = target.open([prompt], 9, drafter.taps)
    session = drafter.open([prompt], scores.taps, 9)
    ids = [*prompt, 7]
    for step in range(2):
        draft = session.propose(
            [Ask(3, ids[-1], prompt, ids[5:], Sampling())], torch.full((1, 3), 0.37 + 0.2 * step).double()
        )
        drafted = draft.tokens.tolist()
        _, taps = target.states([ids[:-1]], drafter.taps)
        torch.testing.assert_close(
            draft.q.double(), networks.eagle_by_hand(made, None, taps, ids, drafted), rtol=1e-5, atol=1e-5
        )
        scores = opened.score([[ids[-1], *drafted]])
        opened.keep([2])
        session.commit([[drafted[0], 9]], scores.taps[:2])
        ids += [drafted[0], 9]


CONVENTIONS = {
    "DeepSpec: outputs of layers": (chains.eagle_deepspec, (1, 2, 4, 6, 7)),
    "SafeAILab: inputs of layers 2, n // 2, n - 3": (chains.eagle_safeai, (2, 4, 5)),
    "eagle_config from 1: outputs": (
        lambda: chains.eagle_safeai(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}),
        (2, 4, 5),
    ),
    "eagle_config from 2: inputs": (
        lambda: chains.eagle_safeai(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}),
        (2, 4, 5),
    ),
    "speculators: taps": (chains.eagle_speculators, (1, 3, 8)),
    "speculators without ids": (
        lambda: chains.eagle_speculators(eagle_aux_hidden_state_layer_ids=None),
        (2, 4, 5),
    ),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_layer_id_conventions(name, target, tmp_path):
    make, taps = CONVENTIONS[name]
    assert eagle3.load(target, make().write(tmp_path)).taps == taps


def test_the_convention_can_be_settled_by_hand(target, tmp_path):
    made = chains.eagle_safeai(eagle_config={"eagle_aux_hidden_state_layer_ids": [3, 4, 5]})
    assert eagle3.load(target, made.write(tmp_path), tap_shift=1).taps == (4, 5, 6)


def test_ids_outside_the_draft_vocabulary_have_no_mass(target, tmp_path):
    made = chains.eagle_safeai()
    drafter = eagle3.load(target, made.write(tmp_path))
    draft = proposed(drafter, 3, n=200)
    inside = made.tensors["t2d"]
    assert draft.q.shape == (600, tools.VOCAB) and (draft.q[:, ~inside] == 0).all() and (draft.q[:, inside] > 0).all()
    assert inside[draft.tokens].all()


def test_fewer_proposals_are_the_beginning_of_more(target, tmp_path):
    drafter = eagle3.load(target, chains.eagle_deepspec().write(tmp_path))
    long, short = proposed(drafter, 7), proposed(drafter, 1)
    assert long.tokens[:1].tolist() == short.tokens.tolist() and torch.equal(long.q[:1], short.q)
    assert proposed(drafter, 0).lengths == (0,)


def test_more_than_the_checkpoints_steps_are_refused_with_the_limit(target, tmp_path):
    folder = chains.eagle_deepspec().write(tmp_path)
    drafter = eagle3.load(target, folder)
    assert (drafter.default_k, drafter.max_k, drafter.block_unit(7)) == (7, 7, 7)
    with pytest.raises(ConfigError, match=r"8 tokens per block, wanted 0 to 7 .*-k 7"):
        proposed(drafter, 8)
    with pytest.raises(ConfigError, match="9 tokens per block"):
        eagle3.load(target, folder, default_k=9)


def test_other_layouts_have_a_default_and_no_limit(target, tmp_path):
    drafter = eagle3.load(target, chains.eagle_speculators().write(tmp_path / "a"))
    assert (drafter.default_k, drafter.max_k) == (5, None)
    assert proposed(drafter, 9).lengths == (9,)
    drafter = eagle3.load(target, chains.eagle_safeai().write(tmp_path / "b"), default_k=2)
    assert (drafter.default_k, drafter.max_k) == (2, None)


def test_greedy_drafts_are_point_masses_at_the_argmax(target, tmp_path):
    folder = chains.eagle_safeai().write(tmp_path)
    drafter = eagle3.load(target, folder, greedy=True)
    draft = proposed(drafter, 3, Sampling(temperature=0.7))
    cold = proposed(eagle3.load(target, folder), 3, Sampling(temperature=0.0))
    assert draft.law is DraftLaw.POINT and draft.q is None
    assert draft.tokens.tolist() == cold.tokens.tolist() and (cold.q.max(-1).values == 1).all()


def test_penalties_see_the_drafted_prefix(target, tmp_path):
    drafter = eagle3.load(target, chains.eagle_deepspec().write(tmp_path))
    plain = proposed(drafter, 3, seed=4)
    draft = proposed(drafter, 3, Sampling(frequency_penalty=1e3, banned=(2,)), seed=4)
    assert (draft.q[:, 2] == 0).all() and (draft.q[0, 7], draft.q[1, draft.tokens[0]]) == (0.0, 0.0)
    assert (plain.q[:, 2] > 0).all()


def test_bfloat16_stays_near_float32(target, tmp_path):
    """The same weights and states in bfloat16: an honest q of its own, near the one in float32."""
    folder = chains.eagle_safeai().write(tmp_path)
    exact = proposed(eagle3.load(target, folder), 1)
    low = tools.PlainTarget()
    low.model, low.dtype = low.model.bfloat16(), torch.bfloat16
    drafter = eagle3.load(low, folder)
    draft = proposed(drafter, 3)
    assert drafter.net.decoder.dtype is torch.bfloat16 and draft.q.dtype is torch.float32
    assert (draft.q.sum(-1) - 1).abs().max() < 1e-5
    assert (draft.q[0] - exact.q[0]).abs().sum() < 0.2


def test_facts_for_doctor(target, tmp_path):
    made = chains.eagle_safeai()
    facts = eagle3.load(target, made.write(tmp_path)).describe()
    numbers = sum(t.numel() for name, t in made.tensors.items() if name not in ("d2t", "t2d"))
    assert facts == {
        "drafter": "eagle3",
        "law": "sampled",
        "k": 7,
        "max_k": None,
        "block_length": 7,
        "target_layers": [2, 4, 5],
        "parameters": numbers,
        "mechanism": "EAGLE-3",
        "layout": "SafeAILab/SpecForge",
        "mode": "sampled",
        "embedding": "the target's",
        "draft_vocab": 23,
    }


def test_configs_are_recognised():
    for make in CASES.values():
        assert eagle3.recognises(make().config)
    for made in (tools.zlab(), tools.deepspec(), chains.mtp_qwen(), chains.mtp_speculators()):
        assert not eagle3.recognises(made.config)
    assert not eagle3.recognises({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


def broken(make, drop=(), add=(), reshape=(), d2t=None, t2d=None, **config):
    made = make(**config)
    for name in drop:
        del made.tensors[name]
    for name in add:
        made.tensors[name] = torch.zeros(2)
    for name in reshape:
        made.tensors[name] = torch.zeros(3, 5)
    if d2t is not None:
        made.tensors["d2t"] = d2t
    if t2d is not None:
        made.tensors["t2d"] = t2d
    return made


def without(key):
    made = chains.eagle_deepspec()
    del made.config[key]
    return made


STEPS = torch.arange(chains.DRAFT_VOCAB)
BAD = {
    "missing and extra tensors, all at once": (
        lambda: broken(
            chains.eagle_safeai, drop=("fc.weight", "midlayer.hidden_norm.weight"), add=("odd.weight", "bias")
        ),
        ModelError,
        r"lacks fc\.weight, midlayer\.hidden_norm\.weight and has unknown (odd\.weight, bias|bias, odd\.weight)",
    ),
    "wrong shapes, all at once": (
        lambda: broken(chains.eagle_deepspec, reshape=("norm.weight", "fc.weight")),
        ModelError,
        r"wrong shape: fc\.weight \[3, 5\] \(wanted \[36, 180\]\), norm\.weight \[3, 5\] \(wanted \[36\]\)",
    ),
    "no map": (lambda: broken(chains.eagle_safeai, drop=("d2t",)), ModelError, "lacks d2t"),
    "d2t outside": (lambda: broken(chains.eagle_safeai, d2t=STEPS * 3), ModelError, r"outside the vocabulary of 61"),
    "d2t below zero": (
        lambda: broken(chains.eagle_safeai, d2t=-1 - STEPS),
        ModelError,
        r"outside the vocabulary of 61",
    ),
    "d2t twice": (lambda: broken(chains.eagle_safeai, d2t=-STEPS), ModelError, "two draft ids to one target id"),
    "t2d of others": (
        lambda: broken(chains.eagle_safeai, t2d=torch.ones(61, dtype=torch.bool)),
        ModelError,
        "name different ids",
    ),
    "layers beyond the target": (
        lambda: chains.eagle_deepspec(target_layer_ids=[0, 1, 3, 5, 9]),
        ModelError,
        r"target layers \[9\] do not exist",
    ),
    "the last layer, which DeepSpec forbids": (
        lambda: chains.eagle_deepspec(target_layer_ids=[0, 1, 3, 5, 7]),
        ModelError,
        r"target layers \[7\] do not exist or cannot be read",
    ),
    "layer ids that are no list": (
        lambda: chains.eagle_deepspec(target_layer_ids="all"),
        ModelError,
        "wanted a list of layer numbers",
    ),
    "no layer ids": (lambda: without("target_layer_ids"), ModelError, "has no target_layer_ids"),
    "no steps": (lambda: without("ttt_length"), ModelError, "has no ttt_length"),
    "steps that are no number": (lambda: chains.eagle_deepspec(ttt_length="7"), ModelError, "'7' steps per block"),
    "two draft layers": (lambda: chains.eagle_deepspec(draft_num_hidden_layers=2), ModelError, "2 draft layers"),
    "no vocabulary": (lambda: without("vocab_size"), ModelError, "has no vocab_size"),
    "another target": (
        lambda: chains.eagle_deepspec(num_target_layers=36, target_hidden_size=40),
        ModelError,
        r"hidden size 40 \(target 36\), made for 36 target layers \(target 8\)",
    ),
    "another vocabulary": (lambda: chains.eagle_deepspec(vocab_size=99), PairMismatch, r"vocabulary 99 \(target 61\)"),
    "no layer settings": (
        lambda: chains.eagle_speculators(transformer_layer_config=None),
        ModelError,
        "has no transformer_layer_config",
    ),
    "another activation": (lambda: chains.eagle_deepspec(hidden_act="gelu"), ModelError, "wanted 'silu'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoints_get_one_typed_error(name, target, tmp_path):
    make, kind, message = BAD[name]
    with pytest.raises(kind, match=message) as caught:
        eagle3.load(target, make().write(tmp_path))
    assert "\n" not in str(caught.value)


def test_truncated_and_foreign_files(target, tmp_path):
    folder = chains.eagle_deepspec().write(tmp_path / "short")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cut short"):
        eagle3.load(target, folder)
    other = tmp_path / "pickle"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(chains.eagle_safeai().config))
    (other / "pytorch_model.bin").write_bytes(b"0")
    with pytest.raises(ModelError, match="weights in another format"):
        eagle3.load(target, other)
