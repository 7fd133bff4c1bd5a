"""Models are built once into NSD_CACHE (a folder of the temporary directory unless set); engines run in `workplace`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NSD_CACHE", str(Path(tempfile.gettempdir()) / "nsd-vllm-models"))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engines of one file put jobs, results and logs."""
    return tmp_path_factory.mktemp("engines")
