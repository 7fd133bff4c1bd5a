"""`nsd vllm check` beside a real vLLM: all hooks of both runners are there; what would silence the plugin is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests_vllm.engines import PLUGIN, STOCK, environment


@pytest.mark.parametrize(("given", "code"), [(PLUGIN, 0), (STOCK, 1)], ids=["in order", "left out by VLLM_PLUGINS"])
def test_check(given: dict[str, str], code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nsd", "vllm", "check", "--json"]
    done = subprocess.run(
        command, env=environment(given), capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300
    )
    assert done.returncode == code, done.stderr[-3000:]
    told = json.loads(done.stdout[done.stdout.index('{"schema_version"') :])
    assert told["ok"] is (code == 0) and len(told["problems"]) == code
    assert [hook["where"] for hook in told["hooks"] if not hook["ok"]] == []
    assert {hook["runner"] for hook in told["hooks"]} == {"both", "V1", "V2"}
