"""EAGLE-3 and MTP from the command line: plain decoding, standard and nucleus speculation on tiny folders.

At temperature 0, and under sample-and-match with any temperature, the tokens are those of plain decoding.
"""

import json
import string

import pytest
import torch

from nsd.cli.main import main
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import qwen35
from tests.drafters_c.nemotron_checkpoint import write_tokenizer


@pytest.fixture(scope="module")
def eagle(tmp_path_factory):
    """A target folder, a drafter folder, and a prompt in the target's words."""
    root = tmp_path_factory.mktemp("eagle")
    target = tools.PlainTarget()
    target.model.lm_head.weight.mul_(0.2)  # soft laws, so that random proposals are accepted now and then
    target.model.save_pretrained(root / "target")
    write_tokenizer(root / "target", tools.VOCAB)
    made = chains.eagle_deepspec()
    made.tensors["lm_head.weight"].mul_(0.2)
    return str(root / "target"), str(made.write(root / "drafter")), "w3 w7 w1"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """One folder as Qwen3.5 is published: text model under the names of the whole, MTP head, two files."""
    folder = tmp_path_factory.mktemp("qwen") / "tiny"
    made = chains.mtp_qwen()
    own = {name: tensor for name, tensor in qwen35().state_dict().items() if name != "lm_head.weight"}
    own["model.norm.weight"] -= 0.9
    own = {name.replace("model.", "model.language_model."): tensor for name, tensor in own.items()}
    own["model.visual.patch_embed.proj.bias"] = torch.zeros(3)  # of no use to a text model
    made.tensors["mtp.norm.weight"] -= 1.5
    chains.write_sharded(made, folder, own)
    write_letters(folder)
    return str(folder), "auto", "dhb"


def write_letters(folder):
    """A byte-level tokenizer of single letters, the kind that transformers makes for this model type by itself."""
    letters = (string.ascii_letters + string.digits)[: tools.VOCAB]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def answer(capsys, monkeypatch, prompt, model, drafter, *more):
    call = ["nsd", "generate", prompt, "--model", model, "--drafter", drafter, "--dtype", "float32", "--json"]
    monkeypatch.setattr("sys.argv", [*call, "--max-new-tokens", "24", "--seed", "1", *more])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    assert ended.value.code == 0, out.err
    return json.loads(out.out)


@pytest.mark.parametrize("pair", ["eagle", "qwen"])
def test_three_arms_and_the_exact_ones_agree(pair, request, capsys, monkeypatch):
    model, drafter, prompt = request.getfixturevalue(pair)
    name, k = {"eagle": ("eagle3", 7), "qwen": ("mtp", 2)}[pair]
    plain = answer(capsys, monkeypatch, prompt, model, "none", "--temperature", "1")
    cold = answer(capsys, monkeypatch, prompt, model, "none", "--temperature", "0")
    for rule in ("sd", "nsd", "sample-and-match"):
        got = answer(capsys, monkeypatch, prompt, model, drafter, "--rule", rule, "--temperature", "1")
        stats = got["stats"]
        assert (got["drafter"], got["draft_law"], got["k"]) == (name, "sampled", k)
        assert stats["output_tokens"] == 24 or got["finish_reason"] == "eos"
        assert 0 < stats["accepted"] < stats["drafted"] or rule == "sample-and-match"
        assert stats["tested"] == stats["accepted"] + stats["rejected"]
        if rule == "sample-and-match":
            assert got["token_ids"] == plain["token_ids"]
    frozen = answer(capsys, monkeypatch, prompt, model, drafter, "--rule", "sd", "--temperature", "0", "-k", "2")
    assert frozen["token_ids"] == cold["token_ids"] and frozen["k"] == 2


def test_more_proposals_than_the_checkpoint_allows_are_refused(eagle, capsys, monkeypatch):
    model, drafter, _ = eagle
    monkeypatch.setattr("sys.argv", ["nsd", "generate", "w3", "--model", model, "--drafter", drafter, "-k", "9"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "7" in capsys.readouterr().err


def test_a_model_saved_without_its_head_says_so(tmp_path, capsys, monkeypatch):
    model = qwen35()
    model.save_pretrained(tmp_path / "saved")
    config = tmp_path / "saved" / "config.json"
    assert json.loads(config.read_text())["mtp_num_hidden_layers"] == 1
    write_tokenizer(tmp_path / "saved", tools.VOCAB)
    monkeypatch.setattr("sys.argv", ["nsd", "generate", "w3", "--model", str(tmp_path / "saved"), "--drafter", "auto"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "transformers leaves MTP layers out" in " ".join(capsys.readouterr().err.split())
    assert torch.is_tensor(model.lm_head.weight)
