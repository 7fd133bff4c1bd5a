"""Reading checkpoint folders: one file, several with an index, and everything that can be wrong with the files."""

import json

import pytest
import torch
from safetensors.torch import save_file

from nsd.drafters.checkpoint import open_checkpoint
from nsd.errors import ModelError

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    save_file({"x": torch.arange(6.0).view(2, 3), "n": torch.tensor([3])}, str(tmp_path / "model.safetensors"))
    return tmp_path


def sharded(folder):
    (folder / "model.safetensors").unlink()
    save_file({"x": torch.ones(2, 3)}, str(folder / "model-00001-of-00002.safetensors"))
    save_file({"n": torch.tensor([3])}, str(folder / "model-00002-of-00002.safetensors"))
    names = {"x": "model-00001-of-00002.safetensors", "n": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return folder


def test_one_file(folder):
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == {"a": 1} and checkpoint.shapes == {"x": (2, 3), "n": (1,)}
    tensors = checkpoint.load({"x": (2, 3), "n": (1,)}, CPU, torch.bfloat16)
    assert tensors["x"].dtype is torch.bfloat16 and tensors["n"].dtype is torch.int64
    assert list(checkpoint.load({"x": (2, 3)}, CPU, torch.float32, ignored=["n"])) == ["x"]


def test_several_files(folder):
    checkpoint = open_checkpoint(sharded(folder))
    assert checkpoint.load({"x": (2, 3), "n": (1,)}, CPU, torch.float32)["x"].sum() == 6


def test_ignored_prefixes(folder):
    save_file({"x": torch.ones(1), "head.a": torch.ones(1), "header": torch.ones(1)}, str(folder / "model.safetensors"))
    with pytest.raises(ModelError, match="unknown header;"):
        open_checkpoint(folder).load({"x": (1,)}, CPU, torch.float32, ignored=["head."])


@pytest.mark.parametrize("cut", [5, 40, -3])
def test_a_truncated_file(folder, cut):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelError, match=r"no readable safetensors file.*cut short"):
        open_checkpoint(folder)


def test_pickles_are_never_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"0 safetensors files.*another format"):
        open_checkpoint(folder)


def test_two_files_without_an_index(folder):
    save_file({"y": torch.ones(1)}, str(folder / "other.safetensors"))
    with pytest.raises(ModelError, match="2 safetensors files"):
        open_checkpoint(folder)


def test_an_index_with_a_lost_file(folder):
    (sharded(folder) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"lacks model-00002-of-00002\.safetensors named in"):
        open_checkpoint(folder)


def test_an_index_with_a_lost_tensor(folder):
    index = sharded(folder) / "model.safetensors.index.json"
    names = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": names | {"ghost": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(ModelError, match="names ghost, which its files lack"):
        open_checkpoint(folder)


@pytest.mark.parametrize("entries", [None, {"x": "../model.safetensors"}, {"x": 3}])
def test_an_index_that_leads_nowhere(folder, entries):
    (sharded(folder) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": entries}))
    with pytest.raises(ModelError, match="no weight_map of names to files beside it"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_bad_config(folder, text):
    path = folder / "config.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        open_checkpoint(folder)


def test_no_such_folder(tmp_path):
    with pytest.raises(ModelError, match="neither a folder nor a hub name"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="cannot get nobody/nothing from the hub"):
        open_checkpoint("nobody/nothing")
