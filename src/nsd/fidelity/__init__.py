"""What relaxed acceptance costs: exact one-step quantities, guarantees, the ledger, budgets, sequence laws, speed.

Names are loaded when they are asked for, so that plain arithmetic (`agreement`, `horizon`, `speedup`) needs no tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsd.fidelity.budget import Budget, expected_rescues_at_most, join
    from nsd.fidelity.enumerate import Enumeration, SequenceLaw, World, random_worlds
    from nsd.fidelity.guarantee import WRONG_LAW, Guarantee, guarantee_of
    from nsd.fidelity.ledger import Fidelity, Ledger, weight_factor, weight_factor_of
    from nsd.fidelity.sequence import agreement, horizon
    from nsd.fidelity.speed import Speed, speedup, tau
    from nsd.fidelity.step import OneStep, OneStepRows, along_theta, check_law, one_step, one_step_rows

_ROOMS = {
    "budget": ("Budget", "expected_rescues_at_most", "join"),
    "enumerate": ("Enumeration", "SequenceLaw", "World", "random_worlds"),
    "guarantee": ("WRONG_LAW", "Guarantee", "guarantee_of"),
    "ledger": ("Fidelity", "Ledger", "weight_factor", "weight_factor_of"),
    "sequence": ("agreement", "horizon"),
    "speed": ("Speed", "speedup", "tau"),
    "step": ("OneStep", "OneStepRows", "along_theta", "check_law", "one_step", "one_step_rows"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = [
    "WRONG_LAW",
    "Budget",
    "Enumeration",
    "Fidelity",
    "Guarantee",
    "Ledger",
    "OneStep",
    "OneStepRows",
    "SequenceLaw",
    "Speed",
    "World",
    "agreement",
    "along_theta",
    "check_law",
    "expected_rescues_at_most",
    "guarantee_of",
    "horizon",
    "join",
    "one_step",
    "one_step_rows",
    "random_worlds",
    "speedup",
    "tau",
    "weight_factor",
    "weight_factor_of",
]
