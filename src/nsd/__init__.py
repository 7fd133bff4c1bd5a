"""Nucleus speculative decoding: faster generation with a price tag that is known exactly.

    import nsd
    pair = nsd.load("smollm2-135m")
    print(pair.generate("Name three rivers.", chat=True, theta=0.95).text)

Names are resolved on first use, so that importing this package loads no tensor library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nsd.api import Pair, load
    from nsd.decoding import Completion, Request, Stats
    from nsd.laws import Sampling
    from nsd.rules import NSD, RULES, SD, Rule, make_rule
    from nsd.verification import Accounting, Draft, DraftLaw, verify

_HOMES = {
    "Accounting": "nsd.verification",
    "Completion": "nsd.decoding",
    "Draft": "nsd.verification",
    "DraftLaw": "nsd.verification",
    "NSD": "nsd.rules",
    "Pair": "nsd.api",
    "RULES": "nsd.rules",
    "Request": "nsd.decoding",
    "Rule": "nsd.rules",
    "SD": "nsd.rules",
    "Sampling": "nsd.laws",
    "Stats": "nsd.decoding",
    "load": "nsd.api",
    "make_rule": "nsd.rules",
    "verify": "nsd.verification",
}

__all__ = [
    "NSD",
    "RULES",
    "SD",
    "Accounting",
    "Completion",
    "Draft",
    "DraftLaw",
    "Pair",
    "Request",
    "Rule",
    "Sampling",
    "Stats",
    "__version__",
    "load",
    "make_rule",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "transformers":
        return importlib.import_module("nsd.transformers")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'nsd' has no attribute '{name}'")
