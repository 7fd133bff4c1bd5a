"""What this package asks of others, read from its own metadata: which versions are fit, and what to type if not."""

from __future__ import annotations

import importlib.metadata
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

DISTRIBUTION = "nucleus-speculative-decoding"
BARE = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy", "scipy")
"""What is looked for where the package itself is not installed and so has no metadata."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A distribution and the versions that are supported, such as ">=2.9,<3"; "" is any."""

    name: str
    range: str

    def installed(self) -> str | None:
        """The installed version, None where there is none."""
        try:
            return importlib.metadata.version(self.name)
        except importlib.metadata.PackageNotFoundError:
            return None

    def allows(self, version: str) -> bool:
        """Whether a version is supported."""
        try:
            from packaging.specifiers import SpecifierSet
        except ImportError:
            return _within(version, self.range)
        return SpecifierSet(self.range).contains(version, prereleases=True)

    @property
    def fix(self) -> str:
        """What to type."""
        return f"pip install '{self.name}{self.range}'" if self.range else f"pip install {self.name}"


def requirements() -> list[Requirement]:
    """The packages that are always needed, extras left out."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return [Requirement(name, "") for name in BARE]
    return [_parsed(line) for line in lines if "extra ==" not in line]


def _parsed(line: str) -> Requirement:
    """A line of the metadata: name, then versions; extras and markers are passed over."""
    found = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)", line)
    assert found is not None, f"the metadata has a requirement without a name: {line}"
    return Requirement(found[1], found[2].replace(" ", ""))


def _within(version: str, wanted: str) -> bool:
    """The comparison of released versions, for where `packaging` is missing too."""
    for part in filter(None, wanted.split(",")):
        found = re.match(r"(>=|<=|==|!=|>|<)(.+)", part)
        if found is None:
            continue
        mine, theirs = zip(*zip_longest(_numbers(version), _numbers(found[2]), fillvalue=0), strict=True)
        if not _COMPARE[found[1]](mine, theirs):
            return False
    return True


def _numbers(version: str) -> list[int]:
    """The release numbers of a version: 2.13.0+cpu -> [2, 13, 0]."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else [0]
