"""The commands: exit codes, JSON, text on stdout and talk on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def nsd(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsd", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_audit_says_clean_violated_or_unreadable(files: dict[str, Path], tmp_path: Path) -> None:
    clean = nsd("audit", files["nsd"])
    assert clean.returncode == 0
    assert clean.stdout.startswith("clean\n")
    assert "executes neither caches nor kernels" in clean.stdout
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(files["nsd"].read_bytes().replace(b'"rescued"', b'"ratio"', 1))
    violated = nsd("audit", broken, "--json")
    assert violated.returncode == 1
    document = json.loads(violated.stdout)
    assert (document["verdict"], document["kind"], document["exit_code"]) == ("violated", "audit", 1)
    assert document["schema_version"] >= 1
    assert {"sha256", "origin"} <= {finding["field"] for finding in document["findings"]}
    missing = nsd("audit", tmp_path / "missing.jsonl")
    assert missing.returncode == 2
    assert missing.stdout == ""
    assert "cannot be read" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_view_convert_and_analyze(files: dict[str, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = nsd("view", files["sd"], "-o", page, "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["page"] == str(page)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    table = tmp_path / "t.parquet"
    assert nsd("convert", files["sd"], "-o", table).stdout.strip() == str(table)
    assert nsd("audit", table).returncode == 0
    result = nsd("analyze", files["sd"], files["nsd"], "--json", "--figures", tmp_path / "figures")
    assert result.returncode == 0
    document = json.loads(result.stdout)
    assert document["estimates"]["rejections_in_nucleus"]["paper"] == 0.526
    assert len(document["figures"]) == 6
    assert "figures in" in result.stderr
    plain = nsd("analyze", table, files["nsd"])
    assert "rejections in nucleus" in plain.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "{sd}", "-o", "t.txt"), "wanted a name that ends in .parquet or .jsonl"),
        (("analyze", "{sd}", "--core", "2"), "wanted a number in (0, 1]"),
        (("view", "{sd}", "-o", "no/such/folder/p.html"), "cannot be written"),
        (("analyze", "missing.jsonl"), "cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(
    files: dict[str, Path], arguments: tuple[str, ...], message: str
) -> None:
    done = nsd(*(argument.format(sd=files["sd"]) for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
