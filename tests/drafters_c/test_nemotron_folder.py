"""Folders: what is read from a good one, and one clear error for each bad one."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from nsd.api import Pair
from nsd.drafters.nemotron import load as nemotron_drafter
from nsd.drafters.nemotron import recognises
from nsd.errors import ConfigError, ModelError, NSDError, PairMismatch
from nsd.targets.nemotron import load as load_nemotron
from tests.drafters.prefix_model import PrefixModel
from tests.drafters_c.nemotron_checkpoint import CONFIG, LAYERS, LORA_SHAPES, VOCAB, write_folder, write_lora


def load(folder, **options):
    return load_nemotron(str(folder), dtype="float32", device="cpu", **options)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "tiny", lora=True)


def test_facts_of_a_folder(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [11, 2], "temperature": 0.8}))
    target = load(folder)
    assert (target.vocab, target.hidden, target.layers, target.context) == (37, 40, 3, 256)
    assert target.eos == {2, 11} and target.default_temperature == 0.8
    assert target.tokenizer.encode("w3 w7") == [3, 7]
    assert target.absent.nonzero().flatten().tolist() == [5, 36], "the mask id, and the id without a tokenizer entry"
    parameters = sum(t.numel() for t in load_file(folder / "model.safetensors").values())
    facts = nemotron_drafter(target).describe()
    assert facts == {
        "drafter": "nemotron",
        "law": "sampled",
        "k": 31,
        "max_k": 31,
        "mechanism": "Nemotron linear self-speculation",
        "block_length": 32,
        "max_block_length": 32,
        "target_layers": [],
        "mask_id": 5,
        "mask_id_excluded": True,
        "parameters": parameters + LAYERS * 4 * (60 + 40),
        "lora_parameters": LAYERS * 4 * (60 + 40),
        "cache": "the target's, read only",
    }


def test_a_sharded_folder_reads_the_same(folder):
    whole = load(folder)
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, mine in shards.items():
        save_file({name: tensors[name] for name in mine}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, mine in shards.items() for name in mine}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(load(folder).open([[1, 2]], 1)[1].logits, whole.open([[1, 2]], 1)[1].logits)


def test_block_length_counts_the_anchor_and_k_does_not(folder):
    target = load(folder)
    for length in (8, 24, 32):
        drafter = nemotron_drafter(target, block_length=length)
        assert (drafter.default_k, drafter.max_k) == (length - 1, 31)
        assert Pair(target, drafter).proposals(None) == length - 1
        assert Pair(target, drafter).proposals(1) == 1
    for length in (7, 33):
        with pytest.raises(ConfigError, match=rf"block length is {length}, wanted 8\.\.32"):
            nemotron_drafter(target, block_length=length)
    with pytest.raises(ConfigError, match="k is 32, nemotron drafts at most 31"):
        Pair(target, nemotron_drafter(target)).proposals(32)
    short = load(write_folder(folder.parent / "short", block_size=6))
    assert nemotron_drafter(short).default_k == 5


def test_the_scale_of_the_addition(folder):
    target = load(folder)

    def scales(**changes):
        write_lora(folder, **changes)
        return {layer.o_extra.scale for layer in nemotron_drafter(target, lora=True).decoder.layers}

    assert scales() == {4.0}
    assert scales(lora_alpha=6) == {1.5}
    assert scales(use_rslora=True) == {8.0}
    assert scales(target_modules="o_proj") == {4.0}
    shutil.rmtree(folder / "linear_spec_lora")
    assert not nemotron_drafter(target).lora
    with pytest.raises(ModelError, match="no linear_spec_lora folder"):
        nemotron_drafter(target, lora=True)


def test_recognised_by_its_config_alone():
    assert recognises(CONFIG)
    assert recognises({"architectures": ["NemotronLabsDiffusionModel"]})
    assert not recognises({"model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"]})


def edited(folder, **changes):
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    config = {key: value for key, value in config.items() if value != "gone"}
    (folder / "config.json").write_text(json.dumps(config))


def retensored(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def lost(tensors):
    del tensors["encoder.norm.weight"], tensors["encoder.layers.2.mlp.up_proj.weight"]
    tensors["encoder.layers.0.self_attn.q_norm.weight"] = torch.ones(10)


def misshapen(tensors):
    tensors["encoder.layers.1.self_attn.o_proj.weight"] = torch.zeros(60, 40)
    tensors["diffusion_head.weight"] = torch.zeros(36, 40)


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BAD_TARGETS = {
    "no-block-size": (lambda f: edited(f, block_size="gone"), "has no block_size"),
    "no-mask-id": (lambda f: edited(f, mask_token_id="gone"), "has no mask_token_id"),
    "mask-id-outside": (lambda f: edited(f, mask_token_id=37), r"mask_token_id is 37, wanted an id in 0\.\.36"),
    "block-of-one": (lambda f: edited(f, block_size=1), "block_size is 1"),
    "tied": (lambda f: edited(f, tie_word_embeddings=True), "tied embeddings"),
    "window": (lambda f: edited(f, sliding_window=64), "sliding-window"),
    "no-layers": (lambda f: edited(f, num_hidden_layers="gone"), "lacks num_hidden_layers"),
    "missing-and-unknown": (
        lambda f: retensored(f, lost),
        r"lacks encoder\.norm\.weight, encoder\.layers\.2\.mlp\.up_proj\.weight and has unknown .*q_norm",
    ),
    "shapes": (lambda f: retensored(f, misshapen), r"diffusion_head\.weight \[36, 40\] .*o_proj\.weight \[60, 40\]"),
    "cut-short": (cut_short, "no readable safetensors"),
    "no-weights": (lambda f: (f / "model.safetensors").unlink(), "0 safetensors files"),
    "no-tokenizer": (lambda f: [(f / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")], "tokenizer"),
    "no-json": (lambda f: (f / "config.json").write_text("{"), "config.json is unreadable"),
}


@pytest.mark.parametrize("name", BAD_TARGETS)
def test_a_bad_folder_is_one_typed_error(folder, name):
    spoil, message = BAD_TARGETS[name]
    load(folder)
    spoil(folder)
    with pytest.raises(ModelError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def other_modules(folder):
    write_lora(folder, target_modules=["o_proj", "q_proj"])


def lora_for_q(folder):
    write_lora(folder, {name.replace("o_proj", "q_proj"): shape for name, shape in LORA_SHAPES.items()})


def lora_shape(folder):
    write_lora(folder, {name: shape[::-1] for name, shape in LORA_SHAPES.items()})


def lora_cut_short(folder):
    path = folder / "linear_spec_lora" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


BAD_ADDITIONS = {
    "other-modules": (other_modules, "adds to o_proj, q_proj, wanted o_proj alone"),
    "other-tensors": (lora_for_q, r"lacks .*o_proj\.lora_A.* and has unknown .*q_proj\.lora_A"),
    "shapes": (lora_shape, "wrong shape"),
    "dora": (lambda f: write_lora(f, use_dora=True), "sets use_dora"),
    "rank": (lambda f: write_lora(f, r=0), "rank r is 0"),
    "no-rank": (lambda f: write_lora(f, r=None), "has no r;"),
    "cut-short": (lora_cut_short, "no readable safetensors"),
    "no-settings": (lambda f: (f / "linear_spec_lora" / "adapter_config.json").unlink(), "adapter_config.json"),
}


@pytest.mark.parametrize("name", BAD_ADDITIONS)
def test_a_bad_addition_is_one_typed_error_and_drafting_without_goes_on(folder, name):
    spoil, message = BAD_ADDITIONS[name]
    target = load(folder)
    assert nemotron_drafter(target).lora
    spoil(folder)
    with pytest.raises(ModelError, match=message) as caught:
        nemotron_drafter(target)
    assert "\n" not in str(caught.value)
    assert not nemotron_drafter(target, lora=False).lora


def test_it_drafts_for_itself_alone(folder):
    target = load(folder)
    with pytest.raises(PairMismatch, match="drafts for itself only, got prefix as the target; try --model"):
        nemotron_drafter(PrefixModel(), str(folder))
    with pytest.raises(PairMismatch, match="drafts for itself only"):
        nemotron_drafter(target, str(write_folder(folder.parent / "another")))
    assert nemotron_drafter(target, f"{folder}/.").target is target
    drafter = nemotron_drafter(target)
    session, _ = load(folder).open([[1]], 4)
    with pytest.raises(ConfigError, match="a session of another target"):
        drafter.open_beside(session, [[1]], None, 4)
    with pytest.raises(ConfigError, match="open_beside"):
        drafter.open([[1]], None, 4)


def test_other_training_paradigms_are_targets_only(tmp_path):
    target = load(write_folder(tmp_path / "ar", dlm_paradigm="autoregressive"))
    assert target.open([[1, 2]], 1)[1].logits.shape == (1, VOCAB)
    with pytest.raises(ModelError, match="bidirectional"):
        nemotron_drafter(target)


def test_a_prompt_that_cannot_be_read_is_refused(folder):
    target = load(folder)
    for prompts in ([], [[]], [[37]], [[1] * 256]):
        with pytest.raises(NSDError):
            target.open(prompts, 4)
    with pytest.raises(ModelError, match=r"tap 4, .* has taps 0\.\.3"):
        target.open([[1]], 4, (4,))


@pytest.mark.parametrize("rule", ["sd", "nsd", "sample-and-match"])
def test_the_folder_is_model_and_drafter_on_the_command_line(folder, capsys, monkeypatch, rule):
    from nsd.cli.main import main

    arguments = ["--model", str(folder), "--rule", rule, "--temperature", "1", "--max-new-tokens", "40", "--json"]
    texts = {}
    for drafter in ("auto", str(folder), "none"):
        call = ["nsd", "generate", "w3 w7 w1", *arguments, "--drafter", drafter, "--dtype", "float32"]
        monkeypatch.setattr("sys.argv", call)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["drafter"] == ("none" if drafter == "none" else "nemotron")
        assert answer["k"] == (0 if drafter == "none" else 31)
        texts[drafter] = answer["token_ids"]
    assert texts["auto"] == texts[str(folder)]
    if rule == "sample-and-match":
        assert texts["auto"] == texts["none"]
