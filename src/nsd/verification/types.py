"""What crosses the seam of verification: a draft and its law go in, a verdict comes out.

Words, the same everywhere: *drafted* tokens are proposed; *tested* ones were compared before or at the first rejection;
*accepted* = by ratio + *rescued* (kept by the set alone); a rejected token is replaced by a *recovered* one; a *bonus*
follows a fully accepted draft; accepted, recovered and bonus tokens are *committed*.

Ragged batches are flattened: request b drafts lengths[b] tokens, N = sum(lengths); the target gives lengths[b] + 1 rows
for it, M = N + B.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from torch import Tensor

from nsd.errors import ConfigError


class DraftLaw(Enum):
    """How the drafted tokens came about; decides what q is.

    SAMPLED: drawn from q, which is given. POINT: chosen without chance (argmax, lookup), so q is the point mass at x.
    UNKNOWN: drawn from a law that is not available; verified as a point mass, so exact speculation stays exact and a
    cap still holds, but ES is an upper bound only.
    """

    SAMPLED = "sampled"
    POINT = "point"
    UNKNOWN = "unknown"


class Accounting(Enum):
    """How much of the deviation is computed at tested positions."""

    OFF = "off"
    RESCUES = "rescues"
    FULL = "full"


class Branch(IntEnum):
    """What became of one drafted token."""

    RATIO = 0
    RESCUED = 1
    REJECTED = 2
    UNTESTED = 3


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposals for a batch: tokens [N] int64, their lengths per request, and the law they were drawn from.

    q [N, V] holds the processed laws, the very tensors drawn from, iff law is SAMPLED.
    """

    tokens: Tensor
    lengths: tuple[int, ...]
    law: DraftLaw
    q: Tensor | None = None

    def __post_init__(self) -> None:
        if self.tokens.shape != (sum(self.lengths),):
            raise ConfigError(f"draft has {tuple(self.tokens.shape)} tokens for lengths {self.lengths}")
        if (self.law is DraftLaw.SAMPLED) != (self.q is not None):
            raise ConfigError(f"a {self.law.value} draft comes {'with' if self.q is None else 'without'} its law q")


@dataclass(frozen=True, slots=True)
class Uniforms:
    """The chance that verification uses, all of it: one value per row of the target, [M] float64 each.

    accept decides drafted tokens (the entry at a bonus row is unused); residual draws replacements; target is the draw
    of plain decoding: bonus, autoregressive token, sample-and-match's y.
    """

    accept: Tensor
    residual: Tensor
    target: Tensor


@dataclass(frozen=True, slots=True)
class Caps:
    """What a request may still spend on deviation.

    cap [N]: the largest one-step deviation at each drafted position (1 = no limit). floor [B]: the smallest factor by
    which this block may multiply Q = prod(1 - eps) (0 = no limit). Neither may depend on a drafted token.
    """

    cap: Tensor
    floor: Tensor


@dataclass(frozen=True, slots=True)
class Columns:
    """Per drafted token, [N]; NaN (or False) where not computed. All float64 but member.

    p_x, q_x; mass above x (before x in the prefix form); rank; R, ES of the position; eps = lam ES, the deviation
    spent there; lam; member of the set; entropies of p and q in nats; mass of q below x and in all; mass of p below x
    (only for a rule that compares x with the target's own draw).
    """

    p_x: Tensor
    q_x: Tensor
    mass: Tensor
    rank: Tensor
    R: Tensor
    ES: Tensor
    eps: Tensor
    lam: Tensor
    member: Tensor
    entropy_p: Tensor
    entropy_q: Tensor
    q_below: Tensor
    q_mass: Tensor
    p_below: Tensor


@dataclass(frozen=True, slots=True)
class Final:
    """The token that ends each block, [B]: a replacement or the bonus.

    p_x is its target probability; for the trace, mass is the total of the law drawn from (1 for p, R for a residual),
    weight its own mass in that law and below the mass of smaller ids (NaN where not asked).
    """

    token: Tensor
    bonus: Tensor
    p_x: Tensor
    mass: Tensor
    weight: Tensor
    below: Tensor


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found: accepted [B], branch [N] (Branch), the final token, evidence, and guards.

    guard [B]: the residual had no finite mass and p was drawn from instead. invalid [B]: the row of q at the first
    rejection was not finite, the draft counted as rejected there and p was drawn from.
    """

    accepted: Tensor
    branch: Tensor
    final: Final
    columns: Columns
    guard: Tensor
    invalid: Tensor
