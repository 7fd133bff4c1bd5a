"""DFlash and DSpark from the command line: plain decoding, standard and nucleus speculation on tiny folders.

At temperature 0, and under sample-and-match with any temperature, the tokens are those of plain decoding.
"""

import json

import pytest
import torch

from nsd.api import Pair
from nsd.cli.main import main
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
        assert 0 < stats["drafted"]
        assert stats["accepted"] > 0 or rule == "sample-and-match"
        if rule == "sample-and-match":
            assert got["token_ids"] == plain["token_ids"]
    frozen = answer(capsys, monkeypatch, target, folder, "--rule", "sd", "--temperature", "0", "-k", "2")
    assert frozen["token_ids"] == cold["token_ids"] and frozen["k"] == 2


def test_block_length_is_the_mechanisms_unit(target, drafter, capsys, monkeypatch):
    folder, name, k = drafter
    anchor = 1 if json.loads(open(f"{folder}/config.json").read())["architectures"] == ["DFlashDraftModel"] else 0
    got = answer(capsys, monkeypatch, target, folder, "--block-length", "4")
    assert got["k"] == 4 - anchor
    monkeypatch.setattr("sys.argv", ["nsd", "generate", "w3", "--model", target, "--drafter", folder, "-k", str(k + 1)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"at most {k} a block" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("case", ["dflash z-lab", "dspark DeepSpec"])
def test_a_ragged_batch_equals_its_requests_alone(target, case, tmp_path):
    make, _, _ = CASES[case]
    made = make()
    pair = Pair.load(target, str(made.write(tmp_path)), dtype="float32")
    prompts = [[3, 7, 1], [9], [4, 4, 8, 15, 16]]
    settings = {"rule": "nsd", "max_new_tokens": 12, "seed": 5, "temperature": 1.0}
    run = pair.run(prompts, **settings)
    together = [list(r.token_ids) for r in run.finish()] if hasattr(run, "finish") else None
    if together is None:
        for _ in run:
            pass
        together = [list(c.token_ids) for c in run.completions]
    assert len({tuple(ids) for ids in together}) == 3 and all(together)
    assert torch.tensor(together[0]).max() < tools.VOCAB
