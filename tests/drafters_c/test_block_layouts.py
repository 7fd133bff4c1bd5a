"""DFlash and DSpark folders: recognised, read in every layout, described, and refused where something is wrong."""

import json

import pytest
import torch

from nsd.drafters import dflash, dspark
from nsd.drafters.base import Ask
from nsd.drafters.load import load_drafter
from nsd.drafters.recognise import is_dflash, is_dspark
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.laws import Sampling
from nsd.targets.base import FINAL_NORM
from tests.drafters_c import block_tools as tools

LAYOUTS = {
    "dflash z-lab": (dflash, tools.zlab, {"layout": "z-lab", "max_k": 5, "embedding": "the target's"}),
    "dflash z-lab nested": (dflash, lambda: tools.zlab(nested_block=True), {"layout": "z-lab", "max_k": 5}),
    "dflash DeepSpec": (dflash, lambda: tools.deepspec(None), {"layout": "DeepSpec", "max_k": 5, "head": "own"}),
    "dflash speculators": (dflash, lambda: tools.speculators("dflash"), {"layout": "speculators", "max_k": 4}),
    "dflash speculators reduced": (
        dflash,
        lambda: tools.speculators("dflash", reduced=True),
        {"max_k": 4, "draft_vocab": 23, "embedding": "the target's", "head": "own"},
    ),
    "dspark DeepSpec": (
        dspark,
        tools.deepspec,
        {"layout": "DeepSpec", "max_k": 5, "embedding": "own", "markov_head": "vanilla"},
    ),
    "dspark nested": (dspark, tools.nested, {"layout": "SpecForge/SGLang", "max_k": 5, "embedding": "the target's"}),
    "dspark speculators": (dspark, lambda: tools.speculators("dspark"), {"layout": "speculators", "max_k": 5}),
}


@pytest.fixture(scope="module")
def target():
    return tools.PlainTarget()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_recognised_and_described(name, target, tmp_path):
    module, make, facts = LAYOUTS[name]
    made = make()
    assert [is_dflash(made.config), is_dspark(made.config)] == [module is dflash, module is dspark]
    folder = made.write(tmp_path)
    drafter = module.load(target, folder)
    described = drafter.describe()
    assert facts.items() <= described.items()
    assert described["drafter"] == name.split()[0] == drafter.name
    # Layer ids 1, 3, 4 mean the outputs of those layers, counted from 0; speculators stores 2, 4, 5 for the same.
    assert drafter.taps == (2, 4, 5) and described["target_layers"] == [2, 4, 5]
    assert described["mask_id"] == 59 and described["law"] == "sampled"
    own = sum(t.numel() for n, t in made.tensors.items() if n not in ("d2t", "t2d"))
    assert described["parameters"] == own
    assert described["k"] == drafter.default_k == drafter.max_k
    first = 0 if described["max_k"] == made.config.get("block_size", 6) else 1
    assert [drafter.block_unit(k) for k in (1, 3)] == [1 + first, 3 + first]
    assert described["block_length"] == described["max_block_length"]
    assert type(load_drafter(str(folder), target)) is type(drafter)


def test_other_folders_are_not_recognised():
    for config in (
        tools.qwen3_keys() | {"architectures": ["Qwen3ForCausalLM"]},
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
        {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [1, 2]},
        {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]},
        {},
    ):
        assert not is_dflash(config) and not is_dspark(config)


def test_the_paper_s_block_lengths(target, tmp_path):
    """DFlash b16 drafts 15, DSpark's block 7 drafts 7, DeepSpec's DFlash block 7 drafts 7."""
    assert dflash.load(target, tools.zlab(block=16).write(tmp_path / "a")).max_k == 15
    assert dspark.load(target, tools.deepspec(block=7).write(tmp_path / "b")).max_k == 7
    assert dflash.load(target, tools.deepspec(None, block=7).write(tmp_path / "c")).max_k == 7


@pytest.mark.parametrize("name", ["dflash z-lab", "dspark DeepSpec"])
def test_k_above_the_block_is_refused_with_the_limit(name, target, tmp_path):
    module, make, _ = LAYOUTS[name]
    folder = make().write(tmp_path)
    assert module.load(target, folder, default_k=2).default_k == 2
    with pytest.raises(ConfigError, match=r"k is 6, wanted 0\.\.5.*-k 5"):
        module.load(target, folder, default_k=6)
    drafter = module.load(target, folder)
    _, taps = target.states([[1, 2]], drafter.taps)
    with pytest.raises(ConfigError, match=r"k is 6, wanted 0\.\.5"):
        drafter.open([[1, 2]], taps, 9).propose([Ask(6, 3, [1, 2], [3], Sampling())], torch.rand(1, 6))


def test_the_last_layer_in_each_layout(target, tmp_path):
    """z-lab reads transformers' last entry, which is normed; speculators stores the raw one; DeepSpec forbids it."""
    last = tools.TARGET_LAYERS - 1
    made = tools.zlab()
    made.config["dflash_config"]["target_layer_ids"] = [1, 3, last]
    assert dflash.load(target, made.write(tmp_path / "a")).taps == (2, 4, FINAL_NORM)
    made = tools.speculators("dflash", aux_hidden_state_layer_ids=[0, 4, last + 1])
    assert dflash.load(target, made.write(tmp_path / "b")).taps == (0, 4, last + 1)
    made = tools.deepspec(target_layer_ids=[-1, 3, last - 1])
    assert dspark.load(target, made.write(tmp_path / "c")).taps == (0, 4, last)
    made = tools.deepspec(target_layer_ids=[1, 3, last])
    with pytest.raises(ModelError, match=r"target layers \[7\].*wanted ids -1\.\.6 for a target of 8 layers"):
        dspark.load(target, made.write(tmp_path / "d"))


def test_zlab_scales_and_softcap(target, tmp_path):
    """Settings of newer checkpoints: scaled embedding, scaled and soft-capped logits."""
    made = tools.zlab(input_embedding_scale=3.0, output_multiplier=0.5, final_logit_softcapping=2.0)
    drafter = dflash.load(target, made.write(tmp_path))
    prompt = [1, 2, 3]
    _, taps = target.states([prompt], drafter.taps)
    q = drafter.open([prompt], taps, 9).propose([Ask(5, 4, prompt, [4], Sampling())], torch.rand(1, 5)).q
    table = target.model.get_input_embeddings().weight
    states = tools.plain_block(made, taps, 4, lambda ids: 3.0 * table[ids], 6)[1:]
    logits = 2.0 * torch.tanh(0.5 * (states @ target.model.lm_head.weight.T) / 2.0)
    torch.testing.assert_close(q, torch.softmax(logits, -1), rtol=1e-5, atol=1e-5)


def broken(name):
    """A checkpoint with one fault, the module that loads it, the error, and words of its message."""
    made = {"speculators": tools.speculators("dspark", reduced=True)}.get(name.split(":")[0]) or tools.deepspec()
    config, tensors = made.config, made.tensors
    match name.split(": ")[1]:
        case "missing and surplus tensors":
            del tensors["layers.1.mlp.up_proj.weight"], tensors["markov_head.markov_w2.weight"]
            tensors |= {"layers.3.input_layernorm.weight": torch.ones(3), "who": torch.ones(1)}
            words = r"lacks layers\.1\.mlp\.up_proj\.weight, markov_head\.markov_w2\.weight and has unknown .*who"
            return made, ModelError, words
        case "wrong shapes":
            tensors["fc.weight"] = tensors["fc.weight"][:, :-1]
            tensors["norm.weight"] = torch.ones(7)
            return (
                made,
                ModelError,
                r"fc\.weight \[36, 107\] \(wanted \[36, 108\]\), norm\.weight \[7\] \(wanted \[36\]\)",
            )
        case "d2t outside the vocabulary":
            tensors["d2t"][-1] = 100
            return made, ModelError, r"d2t sends 1 ids outside the vocabulary of 61 \(draft id 22 to 122\)"
        case "d2t twice the same":
            tensors["d2t"][1] = tensors["d2t"][0] - 1
            return made, ModelError, "two draft ids to one"
        case "t2d does not match":
            tensors["t2d"] = ~tensors["t2d"]
            return made, ModelError, "t2d and d2t name different ids"
        case "mask id outside":
            config["mask_token_id"] = 61
            return made, ModelError, r"mask id 61 \(vocabulary 61\)"
        case "no mask id":
            del config["mask_token_id"]
            return made, ModelError, "has no mask_token_id"
        case "no block size":
            del config["block_size"]
            return made, ModelError, "has no block_size"
        case "block size zero":
            config["block_size"] = 0
            return made, ModelError, "block_size 0, wanted a whole number of at least 1"
        case "no such layers":
            config["target_layer_ids"] = [1, 30, 99]
            return made, ModelError, r"target layers \[30, 99\] do not exist"
        case "no layers":
            del config["target_layer_ids"]
            return made, ModelError, "target layer ids are None"
        case "hidden size and layers":
            config |= {"hidden_size": 44, "num_target_layers": 36}
            return made, ModelError, r"hidden size 44 \(target 36\), made for 36 target layers \(target 8\)"
        case "vocabulary":
            config |= {"vocab_size": 99}
            return made, PairMismatch, r"vocabulary 99 \(target 61\)"
        case "unknown head":
            config["markov_head_type"] = "transformer"
            return made, ModelError, "'transformer', wanted one of vanilla, gated, rnn"
        case "interleaved rotary":
            config["rope_is_neox_style"] = False
            return made, ModelError, "rotary channels interleaved"
        case "causal block":
            config["is_causal"] = True
            return made, ModelError, "causal blocks"
        case "sliding window":
            config["layer_types"] = ["sliding_attention"] * 3
            return made, ModelError, "sliding-window"
        case "size missing":
            del config["hidden_size"], config["intermediate_size"]
            return made, ModelError, "lacks hidden_size, intermediate_size"


@pytest.mark.parametrize(
    "name",
    [
        "DeepSpec: missing and surplus tensors",
        "DeepSpec: wrong shapes",
        "speculators: d2t outside the vocabulary",
        "speculators: d2t twice the same",
        "speculators: t2d does not match",
        "DeepSpec: mask id outside",
        "DeepSpec: no mask id",
        "DeepSpec: no block size",
        "DeepSpec: block size zero",
        "DeepSpec: no such layers",
        "DeepSpec: no layers",
        "DeepSpec: hidden size and layers",
        "DeepSpec: vocabulary",
        "DeepSpec: unknown head",
        "DeepSpec: interleaved rotary",
        "DeepSpec: causal block",
        "DeepSpec: sliding window",
        "DeepSpec: size missing",
    ],
)
def test_one_typed_error_for_each_fault(name, target, tmp_path):
    made, kind, words = broken(name)
    folder = made.write(tmp_path)
    with pytest.raises(kind, match=words) as caught:
        dspark.load(target, folder)
    assert "\n" not in str(caught.value)


def test_a_target_without_ends_to_lend(target, tmp_path):
    class Bare(tools.PlainTarget):
        def __init__(self):
            super().__init__()
            del self.model

    folder = tools.zlab().write(tmp_path / "a")
    with pytest.raises(ModelError, match="lends no embedding and head"):
        dflash.load(Bare(), folder)
    assert dspark.load(Bare(), tools.deepspec().write(tmp_path / "b")).max_k == 5, "it brings its own"


def test_the_gate_needs_a_confidence_head(target, tmp_path):
    made = tools.deepspec(enable_confidence_head=False)
    folder = made.write(tmp_path)
    assert dspark.load(target, folder).describe()["gate"] == "off", "its tensors may lie there unread"
    with pytest.raises(ConfigError, match="no confidence head"):
        dspark.load(target, folder, threshold=0.3)
    with pytest.raises(ConfigError, match=r"threshold is 1\.5"):
        dspark.load(target, folder, threshold=1.5)
    on = dspark.load(target, tools.deepspec().write(tmp_path / "on"), threshold=0.3)
    assert "confidence below 0.3" in on.describe()["gate"]


def test_a_confidence_head_without_bias(target, tmp_path):
    made = tools.deepspec()
    bias = made.tensors.pop("confidence_head.proj.bias")
    drafter = dspark.load(target, made.write(tmp_path / "a"), threshold=0.5)
    state, previous = torch.randn(4, tools.HIDDEN), torch.tensor([1, 2, 3, 4])
    with_bias = dspark.load(target, tools.deepspec().write(tmp_path / "b"), threshold=0.5)
    logits = [d.head.confident(previous, state).logit() for d in (drafter, with_bias)]
    torch.testing.assert_close(logits[0] + bias, logits[1], rtol=1e-3, atol=1e-3)


def test_confidence_gate_may_leave_no_proposal(target, tmp_path):
    made = tools.deepspec()
    made.tensors["confidence_head.proj.bias"] = torch.tensor([-50.0])
    drafter = dspark.load(target, made.write(tmp_path), threshold=0.5)
    _, taps = target.states([[1, 2]] * 2, drafter.taps)
    asks = [Ask(5, 3, [1, 2], [3], Sampling()), Ask(0, 3, [1, 2], [3], Sampling())]
    draft = drafter.open([[1, 2]] * 2, taps, 9).propose(asks, torch.rand(2, 5))
    assert draft.lengths == (0, 0) and draft.q.shape == (0, tools.VOCAB)


def test_config_json_round_trip_of_speculators_defaults(target, tmp_path):
    """What equals Qwen3's defaults is left out by speculators when it saves; those defaults are filled in again."""
    made = tools.speculators("dflash")
    inner = json.loads((made.write(tmp_path) / "config.json").read_text())["transformer_layer_config"]
    assert "rms_norm_eps" not in inner and "hidden_size" in inner
    shape = dflash.load(target, tmp_path).net.shape
    assert shape.decoder.eps == 1e-6 and shape.decoder.rope.theta == 1e6
