"""Settings as users give them, checked once at the boundary; the hot loop sees plain values only."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nsd.errors import ConfigError

DEFAULT_THETA = 0.95
DEFAULT_MAX_NEW_TOKENS = 128


class Settings(BaseModel):
    """How to decode. None means: the rule's, the drafter's or the model's default.

    rule by name with its numbers in theta, max_deviation and rule_numbers; k proposals per block (block_length is the
    mechanism's own unit for the same thing); banned ids are never drawn; processors are called as transformers calls
    its own, (input_ids [1, n], scores [1, V]) -> scores; agreement is a whole-sequence budget in (0, 1). trace computes
    what a recorder needs at every tested position, trace_laws also so many of the most probable ids of p and q there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    rule: str = "nsd"
    theta: float | None = None
    ties: Literal["all", "smallest"] | None = None
    max_deviation: float | None = None
    agreement: float | None = None
    policy: Literal["even", "greedy", "front"] = "front"
    rule_numbers: dict[str, float] = Field(default_factory=dict)
    k: int | None = None
    block_length: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    stop: tuple[str, ...] = ()
    banned: tuple[int, ...] = ()
    processors: tuple[Any, ...] = ()
    seed: int = 0
    ignore_eos: bool = False
    logprobs: Literal["processed", "raw"] | None = None
    accounting: Literal["off", "rescues", "full"] = "rescues"
    trace: bool = False
    trace_laws: int = Field(default=0, ge=0)


def settings_from(given: Mapping[str, Any]) -> Settings:
    """Settings from keyword arguments; errors are one line and name what is known."""
    try:
        return Settings(**given)
    except ValidationError as problem:
        first = problem.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(Settings.model_fields)}"
            raise ConfigError(f"unknown setting '{name}'; {hint}") from None
        raise ConfigError(f"{name} is {first['input']!r}: {first['msg'].lower()}; nsd generate --help") from None
