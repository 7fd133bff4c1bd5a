"""The analysis of the embedded model as a command, on the toy model: reused, refused, without speeds under load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import embedded_analysis as analysis
from nsd.bench.bundle import MANIFEST, read_run
from nsd.cli.main import main as nsd


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small grid for both temperatures, and traces."""
    root = tmp_path_factory.mktemp("embedded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "KS", (2, 3))
        patch.setattr(analysis, "THETAS", (0.8, 0.95))
        patch.setattr(analysis, "subprocess", SimpleNamespace(run=in_this_process))
        call(patch, root)
    return root


def in_this_process(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
    """`python -m nsd ...` without a new interpreter, which would take longer than the run."""
    assert command[1:3] == ["-m", "nsd"] and not check
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nsd", *command[3:]])
        with pytest.raises(SystemExit) as ended:
            nsd()
    return subprocess.CompletedProcess(command, int(ended.value.code or 0))


def call(patch: pytest.MonkeyPatch, root: Path, *more: str) -> str:
    given = [
        "--limit",
        "3",
        "--runs",
        str(root / "runs"),
        "--out",
        str(root / "out"),
        "--model",
        "toy",
        "--drafter",
        "ngram",
    ]
    patch.setattr(sys, "argv", ["embedded_analysis", *given, *more])
    analysis.main()
    return (root / "out" / "README.md").read_text(encoding="utf-8")


def settle(root: Path, load: float) -> None:
    """Say in every manifest what load the sessions found."""
    for path in (root / "runs").glob(f"*/{MANIFEST}"):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        for session in manifest["sessions"]:
            session["hardware"] |= {"load": load, "cores": 2, "threads": 1, "gpus": []}
        path.chmod(0o644)
        path.write_text(json.dumps(manifest), encoding="utf-8")


def test_speeds_are_left_out_under_load_and_all_else_is_the_same(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(runs, 0.1)
    quiet = call(monkeypatch, runs, "--page-only")
    settle(runs, 4.0)
    busy = call(monkeypatch, runs, "--page-only")
    assert "Nothing else ran" in quiet and "| over AR |" in quiet and "Fastest over plain decoding" in quiet
    assert "Other work ran on the machine" in busy and "4 on 2 cores" in busy
    assert "over AR" not in busy and "Fastest" not in busy and "x [" not in busy
    rows = [
        [line.split(" | ")[:8] for line in text.splitlines() if line[:4] in ("| 2 ", "| 3 ")] for text in (quiet, busy)
    ]
    assert len(rows[0]) == 2 * 2 * 3 and [r[:7] for r in rows[0]] == [r[:7] for r in rows[1]]
    for text in (quiet, busy):
        assert "Longest nucleus setting: NSD" in text and "τ, acceptance, ES, scores" in text
    assert "speed-ups are noise" in (runs / "out" / "grid-t1" / "report.md").read_text(encoding="utf-8")


def test_a_run_that_is_there_is_not_made_again_unless_its_weights_are_others(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs / "runs" / "embedded-grid-t1-n3"
    before = read_run(folder).records
    monkeypatch.setattr(analysis, "subprocess", SimpleNamespace(run=lambda *_, **__: pytest.fail("made again")))
    call(monkeypatch, runs)
    assert read_run(folder).records == before and len(before) == 3 * (1 + 2 * 3)
    monkeypatch.setattr(analysis, "hash_of", lambda name, model: {"weights": "others"})
    with pytest.raises(SystemExit, match="was made with other weights of the target, wanted today's"):
        call(monkeypatch, runs)
