"""Replacing names in modules that may not have been imported yet.

vLLM loads plugins before most of its own modules, and a plugin that imported them all would slow every process down.
An action therefore runs right after the module that it changes was executed, or at once if that has happened.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]
MARK = "_nsd_stock"


class _After(importlib.abc.Loader):
    """A module's own loader, followed by the actions that waited for the module."""

    def __init__(self, inner: Any, actions: list[Action]) -> None:
        self.inner, self.actions = inner, actions

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        for action in self.actions:
            action(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds as the other finders do, and puts the waiting actions behind what they found."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Action]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        actions = self.waiting.pop(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader, actions)
        return spec


_finder = _Finder()


def when_imported(name: str, action: Action) -> None:
    """Run action(module) as soon as the module of this name has been executed."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        action(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(action)


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace owner.name by make(stock), once; the stock one stays reachable as an attribute of the new one."""
    stock = getattr(owner, name)
    if hasattr(stock, MARK):
        return
    replacement = make(stock)
    setattr(replacement, MARK, stock)
    setattr(owner, name, replacement)


def stock_of(function: Any) -> Any:
    """The function that `wrap` replaced, or the function itself if it was not."""
    return getattr(function, MARK, function)
