"""Drafters by name, by folder, by config.json; and every way to get that wrong."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from nsd.drafters import load
from nsd.drafters.base import Ask
from nsd.drafters.draft_model import ModelDrafter
from nsd.drafters.load import DRAFTERS, KINDS, Kind, load_drafter, read_config, recognise
from nsd.drafters.ngram import NGramDrafter
from nsd.drafters.none import NoDrafter
from nsd.errors import ConfigError, ModelError, PairMismatch
from nsd.laws import Sampling
from tests.drafters.prefix_model import PrefixModel

TOY = Kind(
    "toy-head", f"{__name__}:toy_drafter", "for tests", lambda config: config.get("model_type") == "toy-head", True
)


def toy_drafter(target, source, width=2):
    return SimpleNamespace(name="toy-head", target=target, source=source, width=width)


def entries(*texts):
    return SimpleNamespace(token_text=lambda i: texts[i] if i < len(texts) else None)


@pytest.fixture
def target():
    model = PrefixModel()
    model.tokenizer = entries("a", "b", "c", "d", "e")
    return model


@pytest.fixture
def with_toy(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr(load, "KINDS", [TOY, *KINDS])


def folder(tmp_path, config):
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(tmp_path)


def test_by_name(target):
    made = load_drafter("ngram", target, max_n=3, min_n=None)
    assert isinstance(made, NGramDrafter) and (made.max_n, made.min_n) == (3, 2)
    assert isinstance(load_drafter("none", target), NoDrafter)


def test_every_name_has_a_line_and_a_factory_that_takes_the_target():
    for name, entry in DRAFTERS.items():
        module, _, function = entry.factory.partition(":")
        assert entry.name == name and entry.doc and module.startswith("nsd.drafters.") and function


def test_a_loaded_model_drafts_after_the_pair_was_compared(target):
    small = PrefixModel(4, absent=None)
    small.tokenizer = entries("a", "b", "c", "d")
    made = load_drafter(small, target, greedy=True, default_k=2)
    assert isinstance(made, ModelDrafter)
    assert (made.settings.vocab, made.default_k, made.law.value) == (5, 2, "point")
    small.tokenizer = entries("a", "b", "x", "d")
    with pytest.raises(PairMismatch, match="token 2 is 'c' for prefix and 'x' for prefix"):
        load_drafter(small, target)
    assert isinstance(load_drafter("draft-model", target, source=target), ModelDrafter)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("ngrm", {}, ConfigError, "unknown drafter 'ngrm'; did you mean ngram?"),
        ("layerskip", {}, ConfigError, "did you mean layer-skip?"),
        ("zzz", {}, ConfigError, "unknown drafter 'zzz'; known: ngram, layer-skip, "),
        ("./no/such/folder", {}, ModelError, "there is no folder ./no/such/folder"),
        ("ngram", {"n": 3}, ConfigError, "drafter ngram has no n; it takes max_n, min_n, default_k"),
        ("none", {"k": 3}, ConfigError, "drafter none has no k; it takes no options"),
        ("draft-model", {}, ConfigError, "drafter draft-model needs source"),
        ("ngram", {"min_n": 9}, ConfigError, "ngram sizes are 9 to 4"),
    ],
)
def test_wrong_names_and_options_are_one_line(target, name, options, error, message):
    with pytest.raises(error) as caught:
        load_drafter(name, target, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("with_toy")
def test_a_folder_is_recognised_by_its_config(target, tmp_path):
    source = folder(tmp_path, {"model_type": "toy-head"})
    made = load_drafter(source, target, width=5)
    assert (made.name, made.source, made.width) == ("toy-head", source, 5)
    assert load_drafter("auto", target, source=source).source == source
    with pytest.raises(ConfigError, match="drafter toy-head has no depth; it takes width"):
        load_drafter(source, target, depth=1)


def test_a_language_model_folder_is_a_draft_model(tmp_path):
    source = folder(tmp_path, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    assert recognise(source).name == "draft-model"


def test_a_built_in_model_is_a_draft_model():
    assert recognise("smollm2-135m").name == "draft-model"


@pytest.mark.usefixtures("with_toy")
def test_auto_takes_what_the_target_folder_holds_else_ngram(target, tmp_path):
    assert isinstance(load_drafter("auto", target), NGramDrafter)
    target.name = folder(tmp_path, {"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    assert isinstance(load_drafter("auto", target), NGramDrafter)
    folder(tmp_path, {"model_type": "toy-head"})
    assert load_drafter("auto", target).source == target.name


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["WeirdHead"]}, "its config names WeirdHead, known: "),
        ({}, "its config names no architectures"),
        ("{broken", "is unreadable"),
        ("[1]", "holds list, wanted a JSON object"),
        (None, "is unreadable"),
    ],
)
def test_a_folder_that_is_no_drafter_is_refused(target, tmp_path, config, message):
    if config is not None:
        folder(tmp_path, config)
    with pytest.raises(ModelError) as caught:
        load_drafter(str(tmp_path), target)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_name_without_the_hub_is_one_line(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise OSError("no connection\nand a second line")

    monkeypatch.setattr("transformers.utils.hub.cached_file", refuse)
    with pytest.raises(ModelError, match=r"cannot get owner/name from the hub \(no connection\); give a local folder"):
        read_config("owner/name")


def test_listing_drafters_needs_no_torch():
    code = "import sys; from nsd.drafters.load import DRAFTERS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_proposals_lie_on_the_targets_device(target):
    target.device = torch.device("meta")
    asks = [Ask(2, 1, [1, 2, 1], [2, 1], Sampling())]
    for name in ("ngram", "none"):
        draft = load_drafter(name, target).open([[1, 2, 1]], None, 4).propose(asks, torch.zeros(1, 2))
        assert draft.tokens.device.type == "meta"
