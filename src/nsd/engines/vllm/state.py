"""What one process knows of itself: the server's default, what went wrong, what the rejection sampler is."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from nsd.engines.vllm.settings import Ask
from nsd.errors import ConfigError

log = logging.getLogger("vllm.nsd")


class Stopped(ConfigError):
    """NSD was asked for and cannot be given; the process must not go on without it."""


@dataclass
class State:
    """One per process: the environment's default, why no request can have NSD (or None), vLLM's version, what is known
    of the rejection sampler, modules whose hooks are in place, how many requests under NSD were admitted, and whether
    ES is computed where no cap needs it."""

    default: Ask | None = None
    problem: str | None = None
    version: str = "?"
    sampler: dict[str, Any] = field(default_factory=dict)
    hooked: set[str] = field(default_factory=set)
    admitted: int = 0
    full: bool = False

    @property
    def asked(self) -> bool:
        """Whether every request shall have NSD unless it says otherwise."""
        return self.default is not None and self.default.acts

    def trouble(self, problem: str) -> None:
        """End the process if the environment asks for NSD; otherwise note why requests must be refused."""
        if self.asked:
            raise Stopped(f"NSD was asked for ({self.default}) and cannot be given: {problem}")
        if self.problem is None:
            log.error("nsd is off, requests that ask for it are refused: %s", problem)
            self.problem = problem


STATE = State()
