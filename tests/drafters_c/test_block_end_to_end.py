"""DFlash and DSpark from the command line: plain decoding, standard and nucleus speculation on tiny folders.

At temperature 0, and under sample-and-match with any temperature, the tokens are those of plain decoding.
"""

import json
from pathlib import Path

import pytest

import nsd
from nsd.cli.main import main
from nsd.errors import ConfigError
from tests.drafters_c import block_tools as tools
from tests.drafters_c.nemotron_checkpoint import write_tokenizer

CASES = {
    "dflash z-lab": (tools.zlab, "dflash", 5),
    "dflash DeepSpec": (lambda: tools.deepspec(None), "dflash", 5),
    "dspark DeepSpec": (tools.deepspec, "dspark", 5),
    "dspark speculators": (lambda: tools.speculators("dspark", "rnn", reduced=True), "dspark", 5),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A target folder with soft laws, so that random proposals are accepted now and then."""
    folder = tmp_path_factory.mktemp("block") / "target"
    plain = tools.PlainTarget()
    plain.model.lm_head.weight.mul_(0.2)
    plain.model.save_pretrained(folder)
    write_tokenizer(folder, tools.VOCAB)
    return str(folder)


@pytest.fixture(params=CASES)
def drafter(request, tmp_path):
    """A drafter folder, the name of its mechanism and its limit."""
    make, name, k = CASES[request.param]
    made = make()
    if "lm_head.weight" in made.tensors:
        made.tensors["lm_head.weight"].mul_(0.2)
    return str(made.write(tmp_path / "drafter")), name, k


def answer(capsys, monkeypatch, model, drafter, *more):
    call = ["nsd", "generate", "w3 w7 w1", "--model", model, "--drafter", drafter, "--dtype", "float32", "--json"]
    monkeypatch.setattr("sys.argv", [*call, "--max-new-tokens", "24", "--seed", "1", *more])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr()
    assert ended.value.code == 0, out.err
    return json.loads(out.out)


def test_three_arms_and_the_exact_ones_agree(target, drafter, capsys, monkeypatch):
    folder, name, k = drafter
    plain = answer(capsys, monkeypatch, target, "none", "--temperature", "1")
    cold = answer(capsys, monkeypatch, target, "none", "--temperature", "0")
    for rule in ("sd", "nsd", "sample-and-match"):
        got = answer(capsys, monkeypatch, target, folder, "--rule", rule, "--temperature", "1")
        stats = got["stats"]
        assert (got["drafter"], got["draft_law"], got["k"]) == (name, "sampled", k)
        assert stats["output_tokens"] == 24 or got["finish_reason"] == "eos"
        assert stats["tested"] == stats["accepted"] + stats["rejected"]
        assert stats["drafted"] > 0
        assert stats["accepted"] > 0 or rule == "sample-and-match"
        if rule == "sample-and-match":
            assert got["token_ids"] == plain["token_ids"]
    frozen = answer(capsys, monkeypatch, target, folder, "--rule", "sd", "--temperature", "0", "-k", "2")
    assert frozen["token_ids"] == cold["token_ids"] and frozen["k"] == 2


def test_block_length_is_the_mechanisms_unit(target, drafter, capsys, monkeypatch):
    folder, _, k = drafter
    anchor = 1 if json.loads((Path(folder) / "config.json").read_text())["architectures"] == ["DFlashDraftModel"] else 0
    got = answer(capsys, monkeypatch, target, folder, "--block-length", "4")
    assert got["k"] == 4 - anchor
    monkeypatch.setattr("sys.argv", ["nsd", "generate", "w3", "--model", target, "--drafter", folder, "-k", str(k + 1)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"at most {k} a block" in " ".join(capsys.readouterr().err.split())


def test_a_ragged_batch_with_the_gate_on(target, tmp_path):
    """Gated blocks come in all lengths; exact speculation stays exact, which its guarantee says."""
    made = tools.deepspec()
    made.tensors["lm_head.weight"].mul_(0.2)
    made.tensors["confidence_head.proj.weight"].mul_(0.5)
    pair = nsd.load(target, str(made.write(tmp_path)), dtype="float32", draft={"threshold": 0.5})
    run = pair.run(
        [[3, 7, 1], [9], [4, 4, 8, 15, 16]], rule="sd", max_new_tokens=30, seed=5, temperature=1.0, ignore_eos=True
    )
    lengths = {len(block.drafted) for block in run if block.number > 0}
    assert len(lengths) >= 3 and max(lengths) <= 5
    answers = run.completions()
    assert [len(answer.token_ids) for answer in answers] == [30, 30, 30]
    assert all(answer.fidelity.guarantee.value == 1.0 for answer in answers)


def test_greedy_drafts_through_the_front_door(target, tmp_path):
    pair = nsd.load(target, str(tools.zlab().write(tmp_path)), dtype="float32", draft={"greedy": True})
    plain = nsd.load(target, None, dtype="float32")
    settings = {"max_new_tokens": 16, "seed": 2, "temperature": 0.9}
    exact = pair.generate([3, 7, 1], rule="sample-and-match", **settings)
    assert exact.token_ids == plain.generate([3, 7, 1], **settings).token_ids
    with pytest.raises(ConfigError, match="drafter dflash has no threshold"):
        nsd.load(target, str(tmp_path), dtype="float32", draft={"threshold": 0.5})
