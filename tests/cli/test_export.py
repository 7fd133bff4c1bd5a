"""`nsd export`: what it refuses, and that the model it writes is the one in the cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from nsd.cli.main import app
from nsd.errors import ConfigError
from nsd.targets import smollm2


def _export(*arguments: str) -> None:
    result = CliRunner().invoke(app, ["export", *arguments])
    if result.exception is not None:
        raise result.exception


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="smollm2-135m or smollm2-eagle3"):
        _export("smollm2", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2-eagle3"])
def test_a_folder_that_holds_files_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(ConfigError, match="not empty"):
        _export(name, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_model_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "cache"
    source.mkdir()
    for name in ("config.json", "model.safetensors", "manifest.json"):
        (source / name).write_text(name, encoding="utf-8")
    monkeypatch.setattr(smollm2, "smollm2_folder", lambda: source)
    _export("smollm2-135m", str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.safetensors"}
