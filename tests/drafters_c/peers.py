"""Independent implementations that tests compare with: PyPI packages, installed without their dependencies.

    pip install --no-deps dflash==0.1.0 speculators==0.9.0

Their pins would replace the versions of torch, transformers and datasets used here. What their model files import is
here anyway, but for three packages that speculators' data loading imports by the way and its models never call; those
are stood in for where they are missing.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

_NEVER_CALLED = ("openai", "datasets", "hs_connectors")
REASON = (
    "needs {0}, an independent implementation to compare with: pip install --no-deps dflash==0.1.0 speculators==0.9.0"
)


class _StandIn(ModuleType):
    """A module whose every attribute is a class that nobody makes an instance of."""

    __path__: list[str] = []  # noqa: RUF012 (a module attribute, read by the import system)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder:
    """Finds the stand-ins and their submodules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] in self.missing:
            return importlib.util.spec_from_loader(name, self)
        return None

    def __init__(self, missing: set[str]) -> None:
        self.missing = missing

    def create_module(self, spec: Any) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def peer(name: str, package: str) -> Any:
    """A module of a peer package, or a skip that says how to install it."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(REASON.format(package))
    missing = {p for p in _NEVER_CALLED if importlib.util.find_spec(p) is None}
    finder = _Finder(missing)
    if missing:
        sys.meta_path.append(finder)
    try:
        return importlib.import_module(name)
    finally:
        if missing:
            sys.meta_path.remove(finder)
            for module in [m for m in sys.modules if m.split(".")[0] in missing]:
                del sys.modules[module]
