"""The drafter that comes with the package: an EAGLE-3 layer for smollm2-135m, 5 MB, made by `nsd train`.

Its head rows and embedding are the target's. How it was made and what it reaches: smollm2/MODEL_CARD.md.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from nsd.drafters import eagle3
from nsd.drafters.checkpoint import SINGLE
from nsd.drafters.feature_chain import ChainDrafter
from nsd.errors import ModelError
from nsd.targets.base import Target

NAME = "smollm2-eagle3"
FOLDER = Path(__file__).parent / "smollm2"
DEFAULT_KS = {"float32": 4, "bfloat16": 4, "int8": 3, "int4": 3, "w8a8": 4}
"""Proposals per block by the target's format: `python -m benchmarks.local --cells k` prints the fastest.

int8 verification on a CPU takes four rows at the price of one (anchor and three drafts) and a fifth at that of two;
bfloat16 and w8a8 take eight at the price of one.
"""
OTHER_K = 3


def smollm2_eagle3(target: Target, greedy: bool = False, default_k: int | None = None) -> ChainDrafter:
    """Load it for smollm2-135m, or a model of its shape. Raises ModelError for a damaged file or another target."""
    require_whole()
    k = DEFAULT_KS.get(target.dtype_name, OTHER_K) if default_k is None else default_k
    drafter = eagle3.load(target, FOLDER, greedy=greedy, default_k=k)
    drafter.name = NAME
    return drafter


def require_whole() -> None:
    """Compare the weights with the checksum beside them. Raises ModelError."""
    path = FOLDER / SINGLE
    try:
        wanted = (FOLDER / "SHA256").read_text(encoding="utf-8").split()[0]
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, IndexError) as problem:
        raise ModelError(f"the shipped drafter is incomplete ({problem}), wanted {path}; reinstall nsd") from None
    if found != wanted:
        raise ModelError(f"{path} has sha256 {found[:12]}..., wanted {wanted[:12]}...; reinstall nsd")
