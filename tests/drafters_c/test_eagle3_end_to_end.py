"""EAGLE-3 and MTP from the command line: plain decoding, standard and nucleus speculation on tiny folders.

At temperature 0, and under sample-and-match with any temperature, the tokens are those of plain decoding.
"""

import json

import pytest
import torch

from nsd.cli.main import main
from tests.drafters_c import block_tools as tools
from tests.drafters_c import chain_tools as chains
from tests.drafters_c.hybrid_models import TEXT_CONFIG, qwen35
from tests.drafters_c.nemotron_checkpoint import write_tokenizer


@pytest.fixture(scope="module")
def eagle(tmp_path_factory):
    """A target folder and a drafter folder."""
    root = tmp_path_factory.mktemp("eagle")
    target = tools.PlainTarget()
    target.model.lm_head.weight.mul_(0.2)  # soft laws, so that random proposals are accepted now and then
    target.model.save_pretrained(root / "target")
    write_tokenizer(root / "target", tools.VOCAB)
    made = chains.eagle_deepspec()
    made.tensors["lm_head.weight"].mul_(0.2)
    return str(root / "target"), str(made.write(root / "drafter"))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """One folder for the hybrid target and its MTP head, in two files; `auto` finds the head."""
    folder = tmp_path_factory.mktemp("qwen") / "tiny"
    made = chains.mtp_qwen()
    made.config.clear()
    made.config.update({**TEXT_CONFIG, "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"})
    own = {name: tensor for name, tensor in qwen35().state_dict().items() if name != "lm_head.weight"}
    own["model.norm.weight"] -= 0.9
    made.tensors["mtp.norm.weight"] -= 1.5
    chains.write_sharded(made, folder, own)
    write_tokenizer(folder, tools.VOCAB)
    return str(folder), "auto"


def answer(capsys, monkeypatch, model, drafter, *more):
    call = ["nsd", "generate", "w3 w7 w1", "--model", model, "--drafter", drafter, "--dtype", "float32", "--json"]
    monkeypatch.setattr("sys.argv", [*call, "--max-new-tokens", "24", "--seed", "1", *more])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    assert ended.value.code == 0, out.err
    return json.loads(out.out)


@pytest.mark.parametrize("pair", ["eagle", "qwen"])
def test_three_arms_and_the_exact_ones_agree(pair, request, capsys, monkeypatch):
    model, drafter = request.getfixturevalue(pair)
    name, k = {"eagle": ("eagle3", 7), "qwen": ("mtp", 2)}[pair]
    plain = answer(capsys, monkeypatch, model, "none", "--temperature", "1")
    cold = answer(capsys, monkeypatch, model, "none", "--temperature", "0")
    for rule in ("sd", "nsd", "sample-and-match"):
        got = answer(capsys, monkeypatch, model, drafter, "--rule", rule, "--temperature", "1")
        stats = got["stats"]
        assert (got["drafter"], got["draft_law"], got["k"]) == (name, "sampled", k)
        assert stats["output_tokens"] == 24 or got["finish_reason"] == "eos"
        assert 0 < stats["accepted"] < stats["drafted"] or rule == "sample-and-match"
        assert stats["tested"] == stats["accepted"] + stats["rejected"]
        if rule == "sample-and-match":
            assert got["token_ids"] == plain["token_ids"]
    frozen = answer(capsys, monkeypatch, model, drafter, "--rule", "sd", "--temperature", "0", "-k", "2")
    assert frozen["token_ids"] == cold["token_ids"] and frozen["k"] == 2


def test_more_proposals_than_the_checkpoint_allows_are_refused(eagle, capsys, monkeypatch):
    model, drafter = eagle
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
