"""What a trace holds: a header, the events block by block, a footer. Plain values only; no tensor library is needed.

One JSON object per line; `kind` says which. The blocks are the events of `nsd.events`, unchanged. VERSION changes with
the fields of any of these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nsd.events import EVENT_VERSION, Block

VERSION = 1
FORMAT = "nsd-trace"


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """One request as it was asked for.

    request its number in the blocks; seed and key name its stream of uniforms; rule and numbers the verification rule
    (theta, ties, max_deviation, ... by name; an infinite number is the string "inf"); sampling the processing of both
    laws; k proposals per block at most; agreement and policy the whole-sequence budget.
    """

    request: int
    seed: int
    rule: str
    numbers: dict[str, Any]
    sampling: dict[str, Any]
    k: int
    max_new_tokens: int
    key: int = 0
    prompt: str | None = None
    prompt_tokens: int | None = None
    agreement: float | None = None
    policy: str | None = None

    @property
    def cap(self) -> float | None:
        """The cap on the one-step deviation, None without one."""
        value = self.numbers.get("max_deviation")
        return None if value is None else float(value)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything that was known before the first token.

    draft_law how proposals came about (sampled, point, unknown); accounting the level of it; k_unit what k counts and
    block_length the same in the mechanism's own unit; vocab ids of the target; eos the ids that end a text; logprobs
    what the tokens' logprob is; versions of nsd, python, torch, transformers; revision of the source.
    """

    target: str
    drafter: str
    draft_law: str
    requests: tuple[RequestInfo, ...]
    accounting: str = "full"
    k_unit: str = "proposals per block"
    block_length: int | None = None
    vocab: int | None = None
    eos: tuple[int, ...] = ()
    logprobs: str | None = None
    dtype: str | None = None
    device: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    revision: str | None = None
    machine: str | None = None
    created: str | None = None
    format: str = FORMAT
    version: int = VERSION
    events: int = EVENT_VERSION

    def request(self, number: int) -> RequestInfo:
        """The request with this number; KeyError if there is none."""
        for info in self.requests:
            if info.request == number:
                return info
        raise KeyError(number)


@dataclass(frozen=True, slots=True)
class RequestTotals:
    """What a request came to, counted by the recorder; fidelity as the decoder reported it."""

    request: int
    blocks: int = 0
    output_tokens: int = 0
    drafted: int = 0
    tested: int = 0
    by_ratio: int = 0
    rescued: int = 0
    rejected: int = 0
    recovered: int = 0
    bonus: int = 0
    target: int = 0
    guards: int = 0
    invalid: int = 0
    finish_reason: str | None = None
    fidelity: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a finished trace: totals by request, blocks in all, seconds from the first line to the last."""

    requests: tuple[RequestTotals, ...]
    blocks: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read.

    footer is None if recording was not finished; torn if the file ends inside a line; broken_lines are the lines
    (from 1) whose running hash is not what it should be; chain is the hash after the last whole line.
    """

    header: Header
    blocks: tuple[Block, ...]
    footer: Footer | None
    torn: bool = False
    broken_lines: tuple[int, ...] = ()
    chain: str = ""

    def of(self, request: int) -> tuple[Block, ...]:
        """The blocks of one request."""
        return tuple(block for block in self.blocks if block.request == request)
