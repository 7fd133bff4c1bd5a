"""Rules that keep the target's law exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nsd.rules.base import Evidence, Need, Recovery, Rule, asked, passes_ratio, ratio


@dataclass(frozen=True)
class SD(Rule):
    """Standard speculative decoding: accept iff u < p(x)/q(x).

    No parameters. Lossless. On failure the residual (p-q)+ / R.
    """

    name = "sd"
    formula = "u < p/q"
    source = "Leviathan et al. 2023; Chen et al. 2023"
    lossless = True
    widens_ratio = True

    def acceptance(self, e: Evidence) -> Tensor:
        """min(1, p/q)."""
        return ratio(e)

    def decide(self, e: Evidence, u: Tensor) -> Tensor:
        """u q(x) < p(x), strict."""
        return passes_ratio(e, u)


@dataclass(frozen=True)
class SampleAndMatch(Rule):
    """Draw y from p as plain decoding would; keep the draft iff it equals y; emit y either way.

    No parameters. Lossless for every q, even an unknown one, and token for token equal to plain decoding with the same
    seed. Accepts with probability p(x), so less often than the standard test. On failure y.
    """

    name = "sample-and-match"
    formula = "x = y, y drawn from p"
    source = "the native standard speculation of DFlash and of Nemotron's linear self-speculation"
    lossless = True
    needs_q = False
    recovery = Recovery.TARGET

    @property
    def needs(self) -> Need:
        """The draw of plain decoding."""
        return Need.TARGET_DRAW

    def acceptance(self, e: Evidence) -> Tensor:
        """p(x)."""
        return e.p_x.double()

    def decide(self, e: Evidence, u: Tensor) -> Tensor:
        """x equals the target's own draw; u is not used."""
        return (asked(e.target_draw) == e.x) & (e.p_x > 0)

    def emitted(self, p: Tensor, q: Tensor) -> Tensor:
        """p: the emitted token is y itself."""
        return p.double()


@dataclass(frozen=True)
class Greedy(Rule):
    """Accept iff x is the target's most probable token (lowest id among equals).

    No parameters. Lossless for greedy decoding (temperature 0); above temperature 0 tested positions are decided as if
    it were 0, only the bonus is sampled. On failure the argmax.
    """

    name = "greedy"
    formula = "x = argmax p"
    source = "Stern et al. 2018, blockwise parallel decoding"
    needs_q = False
    recovery = Recovery.ARGMAX

    @property
    def needs(self) -> Need:
        """The argmax of p."""
        return Need.ARGMAX

    def acceptance(self, e: Evidence) -> Tensor:
        """1 at the argmax, else 0."""
        return (e.x == asked(e.argmax)).to(torch.float64)
