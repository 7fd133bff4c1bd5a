"""Verification rules. NSD and standard speculation, and the relaxed baselines that users compare with.

Every module of this package is read once; a class that derives from Rule and has a name is in the catalogue.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from typing import Any

from nsd.errors import ConfigError
from nsd.rules.base import Evidence, Need, Recovery, Rule, batched, group_key, passes_ratio
from nsd.rules.exact import SD, Greedy, SampleAndMatch
from nsd.rules.ratio_or_set import NSD, RatioOrSet


def _catalogue() -> dict[str, type[Rule]]:
    found: dict[str, type[Rule]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Rule) and not inspect.isabstract(kind) and "name" in vars(kind):
                found[kind.name] = kind
    return dict(sorted(found.items(), key=lambda item: (item[0] not in ("sd", "nsd"), not item[1].lossless, item[0])))


RULES: dict[str, type[Rule]] = _catalogue()
"""Every rule by name: standard speculation and NSD first, then the exact ones, then the relaxed baselines."""


def make_rule(name: str, /, **numbers: Any) -> Rule:
    """The rule of this name with the given numbers; None means its default. Errors name what is known."""
    if name not in RULES:
        close = difflib.get_close_matches(name, RULES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(RULES)}"
        raise ConfigError(f"unknown rule '{name}'; {hint} (nsd list rules)")
    kind = RULES[name]
    known = inspect.signature(kind).parameters
    given = {key: value for key, value in numbers.items() if value is not None}
    for key in given:
        if key not in known:
            takes = ", ".join(known) or "no numbers"
            raise ConfigError(f"rule {name} has no {key}; it takes {takes} (nsd list rules)")
    return kind(**given)


__all__ = [
    "NSD",
    "RULES",
    "SD",
    "Evidence",
    "Greedy",
    "Need",
    "RatioOrSet",
    "Recovery",
    "Rule",
    "SampleAndMatch",
    "batched",
    "group_key",
    "make_rule",
    "passes_ratio",
]
