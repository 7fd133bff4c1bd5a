"""Models are built once into NSD_CACHE (a folder of the temporary directory unless set); engines run in `workplace`.

Tests that share an engine, or a process that was changed, are one `xdist_group`; the longest groups start first, so
that two processes end together.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NSD_CACHE", str(Path(tempfile.gettempdir()) / "nsd-vllm-models"))

LONGEST = ("test_requests", "test_server", "test_agreement", "test_bench_vllm", "test_v2_kernels", "test_v1_kernels")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files named in LONGEST first, in that order; the others as they are."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engines of one file put jobs, results and logs."""
    return tmp_path_factory.mktemp("engines")
