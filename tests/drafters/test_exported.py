"""The shipped drafter written for other engines is, read back, the drafter itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nsd.drafters import eagle3, shipped
from nsd.drafters.exported import export_drafter
from nsd.errors import ConfigError
from nsd.targets.load import load_target

pytestmark = pytest.mark.model


def test_it_reads_back_as_the_same_drafter(tmp_path: Path) -> None:
    export_drafter(tmp_path / "out")
    target = load_target("smollm2-135m", dtype="float32", device="cpu", engine="lean")
    mine, theirs = shipped.smollm2_eagle3(target), eagle3.load(target, tmp_path / "out")
    assert theirs.facts["layout"] == mine.facts["layout"]
    taps = torch.randn(5, len(theirs.net.shape.taps), target.hidden, generator=torch.Generator().manual_seed(0))
    features = theirs.net.features(taps)
    assert torch.equal(features, mine.net.features(taps))
    assert torch.equal(theirs.net.logits(features, target.vocab), mine.net.logits(features, target.vocab))
    config = json.loads((tmp_path / "out/config.json").read_text("utf-8"))
    assert "packing" not in config
    assert config["draft_vocab_size"] == len(theirs.net.ids)
    assert config["eagle_aux_hidden_state_layer_ids"] == list(theirs.net.shape.taps)


def test_a_folder_that_holds_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="not empty"):
        export_drafter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
