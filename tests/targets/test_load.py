"""Loading by name, folder and object, and everything that can be wrong with them: one line each."""

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import MambaConfig, PreTrainedTokenizerFast

from nsd.errors import ConfigError, ModelError
from nsd.targets import dtypes
from nsd.targets.load import check_folder, load_target
from nsd.targets.toy import LetterTokenizer, TableTarget
from tests.targets.zoo import FAMILIES, VOCAB, model_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny Llama as a folder, as anyone would download it."""
    folder = tmp_path_factory.mktemp("saved")
    model_of(FAMILIES["llama"]()).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to damage."""
    for path in saved.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def one_line(error, *parts):
    text = str(error.value)
    assert "\n" not in text and len(text) < 400, text
    for part in parts:
        assert part in text, text


def test_a_folder_loads(saved):
    target = load_target(saved, dtype="float32", device="cpu")
    assert (target.vocab, target.layers, target.eos) == (VOCAB, 4, {2})
    assert target.tokenizer.decode(target.tokenizer.encode("w3 w4")) == "w3 w4"
    assert load_target(str(saved), dtype="float64", device="cpu").dtype == torch.float64
    assert load_target(target) is target


def test_objects_load_with_their_tokenizer():
    model = model_of(FAMILIES["llama"]())
    target = load_target((model, LetterTokenizer(VOCAB)))
    assert target.model is model and target.dtype_reason == "as loaded"
    with pytest.raises(ModelError) as error:
        load_target(model)
    one_line(error, "pass (model, tokenizer)")
    with pytest.raises(ModelError) as error:
        load_target(42)
    one_line(error, "got a int")


def test_the_toy_loads_by_name():
    toy = load_target("toy")
    assert isinstance(toy, TableTarget) and toy.vocab == 257


@pytest.mark.parametrize("name", ["smollm2-135", "smolm2-135m", "smollm2_135m"])
def test_a_misspelt_name_gets_a_suggestion(name):
    with pytest.raises(ModelError) as error:
        load_target(name)
    one_line(error, name, "did you mean smollm2-135m?")


@pytest.mark.parametrize("name", ["no-such-model-anywhere", "nobody/no-such-model"])
def test_an_unknown_name_without_a_connection(name):
    with pytest.raises(ModelError) as error:
        load_target(name)
    one_line(error, name, "smollm2-135m", "hub")


def test_a_path_that_is_no_folder():
    with pytest.raises(ModelError) as error:
        load_target("./no/such/folder")
    one_line(error, "no model folder ./no/such/folder")


def damage_config_missing(folder):
    (folder / "config.json").unlink()
    return "no config.json"


def damage_config_garbled(folder):
    (folder / "config.json").write_text('{"model_type": ')
    return "broken configuration"


def damage_config_list(folder):
    (folder / "config.json").write_text("[]")
    return "not a JSON object"


def damage_weights_cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    return "broken or cut short"


def damage_weights_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])
    return "broken or cut short"


def damage_weights_empty(folder):
    (folder / "model.safetensors").write_bytes(b"")
    return "model.safetensors"


def damage_weights_absent(folder):
    (folder / "model.safetensors").unlink()
    return "no *.safetensors"


def damage_pickle_only(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    return "no *.safetensors"


def damage_shard_missing(folder):
    index = {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return "lacks model-00002-of-00002.safetensors"


def damage_tensor_missing(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return "model.layers.2.mlp.up_proj.weight"


def damage_shape(folder):
    config = json.loads((folder / "config.json").read_text())
    config["hidden_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    return "cannot load"


def damage_unknown_kind(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    return "cannot load"


def damage_own_code(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "own"
    config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('code of a checkpoint was run')")
    return "cannot load"


def damage_recurrent(folder):
    MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2).save_pretrained(folder)
    return "rolled back"


def damage_tokenizer_absent(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    return "cannot load"


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__.removeprefix("damage_"))
def test_a_damaged_folder_is_one_line(folder, damage):
    wanted = damage(folder)
    with pytest.raises(ModelError) as error:
        load_target(folder, dtype="float32", device="cpu")
    one_line(error, wanted)


def test_an_unreadable_folder_is_one_line(folder, monkeypatch):
    """Permission bits do not bind every user who runs tests, so the refusal itself is played."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(folder), "read_text", refuse)
    with pytest.raises(ModelError) as error:
        check_folder(folder)
    one_line(error, "Permission denied", "permissions")


def test_settings_out_of_range():
    for keywords, part in (
        ({"dtype": "int3"}, "bfloat16"),
        ({"device": "abacus"}, "cuda"),
        ({"threads": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError) as error:
            load_target("smollm2-135m", **keywords)
        one_line(error, part)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(ConfigError) as error:
        load_target("smollm2-135m", device="cuda")
    one_line(error, "no CUDA GPU", "--device cpu")


@pytest.mark.parametrize(("gain", "chosen"), [(2.0, torch.bfloat16), (1.0, torch.float32), (0.2, torch.float32)])
def test_auto_dtype_follows_the_probe_and_remembers_it(monkeypatch, tmp_path, gain, chosen):
    monkeypatch.setenv("NSD_CACHE", str(tmp_path))
    calls = []
    monkeypatch.setattr(dtypes, "measured_gain", lambda: calls.append(1) or gain)
    for _ in range(2):
        dtype, reason = dtypes.choose_dtype("auto", torch.device("cpu"))
        assert dtype == chosen and f"{gain:.1f}x" in reason
    assert calls == [1]
    (tmp_path / "dtype-probe.json").write_text("[")
    assert dtypes.choose_dtype("auto", torch.device("cpu"))[0] == chosen
    assert calls == [1, 1]


def test_the_probe_itself_gives_a_plausible_ratio():
    assert 0.01 < dtypes.measured_gain() < 100


def test_the_hub_is_not_asked_where_its_name_does_not_resolve(monkeypatch):
    """transformers would retry for 20 seconds; so the folder of files fetched earlier is looked at, and that is all."""
    import socket

    from huggingface_hub import constants

    from nsd.targets import load

    def nowhere(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(load, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    load.hub_in_reach.cache_clear()
    assert load._options("nobody/no-such-model", None)["local_files_only"]
    monkeypatch.setattr(load, "getproxies", lambda: {"https": "proxy"})
    load.hub_in_reach.cache_clear()
    assert load._options("nobody/no-such-model", "main") == {
        "trust_remote_code": False,
        "local_files_only": False,
        "revision": "main",
    }
    load.hub_in_reach.cache_clear()
