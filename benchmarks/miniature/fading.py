"""A threshold that falls with the target's confidence, to be compared with the cap at the same calls a token.

    theta(p) = theta (1 - max p ^ power)

Where the target is sure of its token, as of a digit, the nucleus shrinks to nothing and the test is the standard one;
where it hesitates between phrasings, the threshold is nearly theta. A higher power falls later. This arm belongs to the
miniature alone and is no rule of the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from nsd.laws import is_member, threshold
from nsd.rules.base import Evidence, Need, Number, asked
from nsd.rules.ratio_or_set import RatioOrSet


@dataclass(frozen=True)
class FadingNSD(RatioOrSet):
    """NSD whose threshold is theta (1 - max p ^ power); theta in [0, 1] (0.95), power > 0 (4). No cap."""

    theta: Number = 0.95
    power: Number = 4.0

    name = "fading-nsd"
    formula = "u < p/q or x in nucleus(p, theta (1 - max p ^ power))"
    source = "this repository"
    ranges: ClassVar = {
        "theta": ("a number in [0, 1]", lambda v: 0 <= v <= 1),
        "power": ("a number above 0", lambda v: v > 0),
    }

    @property
    def needs(self) -> Need:
        """The mass that decides membership, and the target's confidence."""
        return Need.MASS_ABOVE | Need.MAX_P

    def faded(self, most: Tensor) -> Tensor:
        """theta at a confidence of max p."""
        theta: Tensor = self.theta * (1.0 - most.double() ** self.power)
        return theta.clamp(0.0, 1.0)

    def contains(self, e: Evidence) -> Tensor:
        """Nucleus membership at the faded threshold."""
        return is_member(e.p_x, asked(e.mass), self.faded(asked(e.max_p)))

    def edge(self, p: Tensor) -> Tensor:
        """Smallest probability in the nucleus."""
        return threshold(p, self.faded(p.amax(-1)))
