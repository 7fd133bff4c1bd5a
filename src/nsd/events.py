"""What one step of decoding tells its listeners. Streaming, statistics, traces and the command line are views of this.

One `Block` is one request's share of one step: what was drafted, what became of it, what was committed. Everything is a
plain Python value, so that a recorder can write it down and a reader needs no tensor library. EVENT_VERSION changes
with the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

EVENT_VERSION = 1


class Origin(StrEnum):
    """Where a token came from; the first five are the colours of a coloured stream."""

    RATIO = "ratio"
    RESCUED = "rescued"
    RECOVERED = "recovered"
    BONUS = "bonus"
    REJECTED = "rejected"
    TARGET = "target"
    """Drawn from the target without a draft: the first token of a request, and every token of plain decoding."""


class FinishReason(StrEnum):
    """Why a request ended; the earliest reason inside a block wins."""

    EOS = "eos"
    STOP = "stop"
    LENGTH = "length"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Law:
    """A recorded law: its most probable ids with their probabilities, and the mass of all others."""

    top: tuple[tuple[int, float], ...]
    rest: float


@dataclass(frozen=True, slots=True)
class Tested:
    """One tested proposal x at output position `position`; None where the accounting level did not compute a value.

    origin RATIO, RESCUED or REJECTED; u its accept uniform; p and q its probabilities; mass the target mass above x
    (before x in the prefix form); rank its place by probability, from 1; R the standard rejection probability there and
    ES the uncapped deviation; eps = lam ES the deviation spent; member whether x is in the set; weight_factor =
    min(1, p(x)/pi(x)) for an accepted x, pi the emitted law; entropies in nats; q_below and p_below the mass of q and p
    on smaller ids, q_mass all of q (a drawn x has q_below <= u' q_mass < q_below + q, u' its draft uniform); p_law and
    q_law the laws themselves, where a trace asks for them.
    """

    position: int
    token: int
    origin: Origin
    u: float
    p: float
    q: float
    mass: float | None = None
    rank: int | None = None
    R: float | None = None
    ES: float | None = None
    eps: float | None = None
    lam: float | None = None
    member: bool | None = None
    weight_factor: float | None = None
    entropy_p: float | None = None
    entropy_q: float | None = None
    q_below: float | None = None
    q_mass: float | None = None
    p_below: float | None = None
    p_law: Law | None = None
    q_law: Law | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """The token that ended a block: RECOVERED, BONUS, or TARGET where nothing was drafted.

    u its uniform; p its target probability; for a trace, mass is the total of the law drawn from (1, or R for a
    residual), weight the token's mass in it, below the mass of smaller ids: below <= u mass < below + weight.
    """

    position: int
    token: int
    origin: Origin
    u: float
    p: float
    mass: float | None = None
    weight: float | None = None
    below: float | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """One emitted token: its text as far as it can be shown (held-back bytes come with a later token)."""

    token: int
    origin: Origin
    text: str
    logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of the whole step, shared by all requests of the batch: draft, target pass, decision, the rest."""

    draft_s: float
    score_s: float
    decide_s: float
    commit_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the step."""
        return self.draft_s + self.score_s + self.decide_s + self.commit_s


@dataclass(frozen=True, slots=True)
class Block:
    """One request's share of one step.

    request its number in the batch; number the block, 0 for the prefill; position the output position of the first
    token of the block; drafted all proposals; tested those up to the cut; drawn the final token, None if the cut came
    before it; committed what was emitted, in order; rejected_text the text of the rejected proposal for display;
    guard and invalid as in a verdict; batch how many requests shared the step and its timing.
    """

    request: int
    number: int
    position: int
    drafted: tuple[int, ...]
    tested: tuple[Tested, ...]
    drawn: Drawn | None
    committed: tuple[Committed, ...]
    rejected_text: str
    guard: bool
    invalid: bool
    finish_reason: FinishReason | None
    timing: Timing
    batch: int
    seconds_since_start: float

    @property
    def text(self) -> str:
        """The text this block adds."""
        return "".join(c.text for c in self.committed)

    @property
    def accepted(self) -> int:
        """Proposals that were accepted and not cut off."""
        return sum(t.origin in (Origin.RATIO, Origin.RESCUED) for t in self.tested)
