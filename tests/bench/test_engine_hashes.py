"""What a manifest says of the weights: of shipped, local and cached models, and of what `auto` stands for."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from nsd.api import load
from nsd.bench.engine import OwnEngine, hash_of
from nsd.drafters import shipped


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_auto_is_hashed_as_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new drafter shipped under the old name must not go on with an old run; another one here bears its name."""
    pair = load("toy", "auto")
    monkeypatch.setattr(pair.drafter, "name", shipped.NAME)
    facts = OwnEngine(pair, "toy", "auto").facts()
    wanted = (shipped.FOLDER / "SHA256").read_text(encoding="utf-8").split()[0]
    assert facts["drafter"] == shipped.NAME and facts["drafter_hash"] == {"SHA256": wanted}
    toy = OwnEngine(load("toy", "auto"), "toy", "auto").facts()
    assert toy["drafter_hash"] == {"reason": "ngram has no files of its own"}


def test_a_folder_is_hashed_with_the_low_rank_part_inside(tmp_path: Path) -> None:
    for name in (
        "config.json",
        "model.safetensors",
        "lora/adapter_model.safetensors",
        "lora/adapter_config.json",
        "x.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = hash_of(str(tmp_path), None)
    assert found == {name: digest(name) for name in found} and "x.txt" not in found
    assert set(found) == {
        "config.json",
        "model.safetensors",
        "lora/adapter_model.safetensors",
        "lora/adapter_config.json",
    }


def test_a_model_of_the_hub_is_known_by_its_revision_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laid out as the hub's cache does: a snapshot of links to blobs, large ones named by their SHA-256."""
    revision = "1" * 40
    home = tmp_path / "models--org--tiny"
    snapshot, blobs = home / "snapshots" / revision, home / "blobs"
    for folder in (snapshot, blobs, home / "refs"):
        folder.mkdir(parents=True)
    (home / "refs" / "main").write_text(revision)
    large = "a" * 64
    for name, blob in (("config.json", "b" * 40), ("model.safetensors", large)):
        (blobs / blob).write_text(name)
        (snapshot / name).symlink_to(blobs / blob)
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    wanted = {"revision": revision, "config.json": digest("config.json"), "model.safetensors": large}
    assert hash_of("org/tiny", None) == wanted
    assert hash_of("org/absent", None) == {"reason": "org/absent is no local folder and not in the hub's cache"}
    assert hash_of("no folder at all", None)["reason"].startswith("no folder at all is no local folder")
