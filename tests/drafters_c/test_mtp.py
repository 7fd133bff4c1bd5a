"""MTP: every layout against the network written anew, its cache path, the hybrid target, facts and bad input."""

import pytest
import torch

from nsd.drafters import mtp
from nsd.drafters.base import Ask
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.laws import Sampling
from nsd.targets.base import FINAL_NORM
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_by_hand as networks
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import hybrid_target

QWEN_NAMES = (
    "mtp.layers.0.",
    "mtp.fc.weight",
    "mtp.pre_fc_norm_hidden.weight",
    "mtp.pre_fc_norm_embedding.weight",
    "mtp.norm.weight",
)


def layernorms(at):
    return (
        at,
        *(f"{at}{part}.weight" for part in ("input_proj", "hidden_layernorm", "token_layernorm", "final_layernorm")),
    )


DEEPSEEK_NAMES = (
    "model.layers.8.",
    *(f"model.layers.8.{p}.weight" for p in ("eh_proj", "hnorm", "enorm", "shared_head.norm")),
)
CASES = {
    "Qwen3.5": (chains.mtp_qwen, networks.QWEN, QWEN_NAMES, False),
    "MiMo": (chains.mtp_mimo, networks.DENSE, layernorms("model.mtp_layers.0."), True),
    "DeepSeek form": (chains.mtp_deepseek, networks.DENSE, DEEPSEEK_NAMES, False),
    "speculators": (chains.mtp_speculators, networks.DENSE, layernorms("mtp_layers.0."), False),
}


@pytest.fixture(scope="module")
def dense():
    return tools.PlainTarget()


@pytest.fixture(scope="module")
def hybrid():
    return hybrid_target()


def ends(target):
    return target.model.get_input_embeddings().weight.detach(), target.model.get_output_embeddings().weight.detach()


@pytest.mark.parametrize("name", CASES)
def test_rounds_in_a_ragged_batch_equal_recomputation(name, dense, hybrid, tmp_path):
    make, plain, names, state_first = CASES[name]
    made, target = make(), hybrid if name == "Qwen3.5" else dense
    drafter = mtp.load(target, made.write(tmp_path))

    def by_hand(taps, ids, drafted):
        return networks.mtp_by_hand(made, plain, names, *ends(target), taps[:, 0], ids, drafted, state_first)

    networks.run_rounds(drafter, tools.HIDDEN, by_hand, most=4)


def checkpoint_of(target, made, folder):
    """The target's own tensors and the head's in one sharded checkpoint, named as in the whole model."""
    own = {name.replace("model.", "model.language_model.", 1): t for name, t in target.model.state_dict().items()}
    own.pop("lm_head.weight", None)  # tied
    return chains.write_sharded(made, folder, own)


@torch.no_grad()
def test_with_its_own_target_over_blocks(hybrid, tmp_path):
    """Head and hybrid target from one sharded folder: q from the target's true final states, block after block."""
    made = chains.mtp_qwen()
    drafter = mtp.load(hybrid, checkpoint_of(hybrid, made, tmp_path))
    assert drafter.taps == (FINAL_NORM,)
    prompts = [[3, 1, 4, 1, 5], [9, 2]]
    opened, scores = hybrid.open(prompts, 30, drafter.taps)
    session = drafter.open(prompts, scores.taps, 30)
    texts = [[*prompt, 7 + b] for b, prompt in enumerate(prompts)]
    for step, accepted in enumerate(((2, 0), (1, 2), (0, 1))):
        asks = [Ask(2, t[-1], p, t[len(p) :], Sampling()) for t, p in zip(texts, prompts, strict=True)]
        draft = session.propose(asks, torch.full((2, 2), 0.21 + 0.3 * step).double())
        drafted = draft.tokens.view(2, 2).tolist()
        for b, text in enumerate(texts):
            output = hybrid.model(input_ids=torch.tensor([text[:-1]]), use_cache=False, output_hidden_states=True)
            mine = networks.mtp_by_hand(
                made, networks.QWEN, QWEN_NAMES, *ends(hybrid), output.hidden_states[-1][0], text, drafted[b]
            )
            torch.testing.assert_close(draft.q.view(2, 2, -1)[b].double(), mine, rtol=1e-4, atol=1e-5)
        scores = opened.score([[t[-1], *d] for t, d in zip(texts, drafted, strict=True)])
        opened.keep([n + 1 for n in accepted])
        new = [[*d[:n], 11] for d, n in zip(drafted, accepted, strict=True)]
        kept = [3 * b + i for b, n in enumerate(accepted) for i in range(n + 1)]
        session.commit(new, scores.taps[kept])
        for text, ids in zip(texts, new, strict=True):
            text.extend(ids)
    assert opened.positions == 7 + 3 * 6, "the target saw its prompts and three blocks of anchor and two drafts, once"


def proposed(drafter, k, sampling=None):
    g = torch.Generator().manual_seed(2)
    session = drafter.open([[3, 1, 4]], torch.randn(3, 1, tools.HIDDEN, generator=g), 9)
    ask = Ask(k, 7, [3, 1, 4], [7], sampling or Sampling())
    return session.propose([ask], torch.rand(1, max(k, 1), generator=g, dtype=torch.float64))


def test_the_unit_is_k_and_the_layer_runs_as_often_as_asked(dense, tmp_path):
    drafter = mtp.load(dense, chains.mtp_mimo().write(tmp_path))
    assert (drafter.default_k, drafter.max_k, drafter.block_unit(2)) == (2, None, 2)
    assert torch.equal(proposed(drafter, 5).q[:2], proposed(drafter, 2).q)
    with pytest.raises(ConfigError, match="-1 tokens per block, wanted 0 or more"):
        mtp.load(dense, tmp_path, default_k=-1)


def test_greedy_drafts_are_the_argmax(dense, tmp_path):
    folder = chains.mtp_deepseek().write(tmp_path)
    cold = proposed(mtp.load(dense, folder), 3, Sampling(temperature=0.0))
    draft = proposed(mtp.load(dense, folder, greedy=True), 3)
    assert draft.q is None and draft.tokens.tolist() == cold.tokens.tolist()


def test_facts_for_doctor(hybrid, tmp_path):
    made = chains.mtp_qwen()
    facts = mtp.load(hybrid, made.write(tmp_path)).describe()
    assert facts == {
        "drafter": "mtp",
        "law": "sampled",
        "k": 2,
        "max_k": None,
        "block_length": 2,
        "target_layers": ["final norm"],
        "parameters": sum(t.numel() for t in made.tensors.values()),
        "mechanism": "MTP",
        "layout": "Qwen3.5",
        "mode": "sampled",
        "embedding": "the target's",
        "draft_vocab": 61,
    }


def test_configs_are_recognised():
    for make, *_ in CASES.values():
        assert mtp.recognises(make().config)
    plain = chains.mtp_qwen().config
    plain["text_config"] = {k: v for k, v in plain["text_config"].items() if k != "mtp_num_hidden_layers"}
    for config in (plain, tools.zlab().config, chains.eagle_deepspec().config, chains.eagle_speculators().config):
        assert not mtp.recognises(config)


def broken(make, drop=(), add=(), reshape=(), **config):
    made = make()
    made.config.update(config)
    for name in drop:
        del made.tensors[name]
    for name in add:
        made.tensors[name] = torch.zeros(2)
    for name in reshape:
        made.tensors[name] = torch.zeros(3, 5)
    return made


def emptied():
    made = chains.mtp_mimo()
    made.tensors.clear()
    made.tensors["model.norm.weight"] = torch.ones(36)
    return made


BAD = {
    "missing and extra tensors, all at once": (
        lambda: broken(
            chains.mtp_mimo,
            drop=("model.mtp_layers.0.input_proj.weight", "model.mtp_layers.0.self_attn.q_proj.bias"),
            add=("model.mtp_layers.0.odd.weight", "model.mtp_layers.1.input_proj.weight"),
        ),
        ModelError,
        r"lacks model\.mtp_layers\.0\.input_proj\.weight, model\.mtp_layers\.0\.self_attn\.q_proj\.bias and has "
        r"unknown model\.mtp_layers\.0\.odd\.weight, model\.mtp_layers\.1\.input_proj\.weight",
    ),
    "wrong shapes, all at once": (
        lambda: broken(chains.mtp_deepseek, reshape=("model.layers.8.enorm.weight", "model.layers.8.eh_proj.weight")),
        ModelError,
        r"wrong shape: model\.layers\.8\.eh_proj\.weight \[3, 5\].*, model\.layers\.8\.enorm\.weight \[3, 5\]",
    ),
    "no MTP tensors": (emptied, ModelError, "transformers leaves MTP layers out"),
    "experts": (
        lambda: broken(chains.mtp_deepseek, add=("model.layers.8.mlp.experts.0.gate_proj.weight",)),
        ModelError,
        "has unknown model.layers.8.mlp.experts.0.gate_proj.weight",
    ),
    "three layers": (lambda: broken(chains.mtp_mimo, num_nextn_predict_layers=3), ModelError, "3 MTP layers, wanted 1"),
    "another target": (lambda: broken(chains.mtp_mimo, num_hidden_layers=36), ModelError, "made for 36 target layers"),
    "another width": (lambda: broken(chains.mtp_mimo, hidden_size=40), ModelError, r"hidden size 40 \(target 36\)"),
    "another vocabulary": (
        lambda: broken(chains.mtp_mimo, vocab_size=99),
        PairMismatch,
        r"vocabulary 99 \(target 61\)",
    ),
    "no vocabulary": (lambda: broken(chains.mtp_mimo, vocab_size=None), ModelError, "has no vocab_size"),
    "no layer settings": (
        lambda: broken(chains.mtp_speculators, transformer_layer_config=None),
        ModelError,
        "has no transformer_layer_config",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoints_get_one_typed_error(name, dense, tmp_path):
    make, kind, message = BAD[name]
    with pytest.raises(kind, match=message) as caught:
        mtp.load(dense, make().write(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_shard_cut_short_or_missing(hybrid, tmp_path):
    folder = checkpoint_of(hybrid, chains.mtp_qwen(), tmp_path)
    shard = folder / "model-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-50])
    with pytest.raises(ModelError, match="cut short"):
        mtp.load(hybrid, folder)
    shard.unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.safetensors"):
        mtp.load(hybrid, folder)
