from __future__ import annotations

from pathlib import Path

import pytest

from nsd.rules import make_rule
from nsd.trace.schema import Trace
from tests.trace.world import Run, decode


@pytest.fixture(scope="session")
def runs() -> dict[str, Run]:
    """Recorded runs: NSD plain, capped, budgeted; sd; with whole laws; a point-mass draft; sample-and-match."""
    from nsd.verification import DraftLaw

    return {
        "nsd": decode("nsd", seed=5, requests=2, tokens=24),
        "capped": decode(make_rule("nsd", max_deviation=0.1), seed=6, requests=2, tokens=24),
        "budget": decode("nsd", seed=7, requests=2, tokens=24, agreement=0.5, policy="front"),
        "sd": decode("sd", seed=8, requests=2, tokens=24),
        "laws": decode(make_rule("nsd", theta=0.8), seed=9, requests=2, tokens=24, full_laws=16),
        "point": decode("nsd", DraftLaw.POINT, seed=10, requests=2, tokens=24),
        "match": decode("sample-and-match", seed=11, requests=4, tokens=40),
    }


@pytest.fixture(scope="session")
def files(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    return {name: run.record(folder / f"{name}.jsonl") for name, run in runs.items()}


@pytest.fixture(scope="session")
def traces(files: dict[str, Path]) -> dict[str, Trace]:
    from nsd.trace.read import read_trace

    return {name: read_trace(path) for name, path in files.items()}
