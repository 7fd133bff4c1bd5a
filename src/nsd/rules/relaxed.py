"""Relaxed baselines that keep the ratio test's shape: lenience, lossy epsilon, static ensemble.

Each accepts at least as often as the standard test and replaces from the residual, so that
TV(emitted, p) = the extra accepted mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from nsd.rules.base import Evidence, Number, Rule, ratio


@dataclass(frozen=True)
class Lenience(Rule):
    """Scale the ratio: accept iff u < p(x) / (l q(x)).

    l in (0, 1] (1 = exact). Lossy; every token is emitted with probability at most p(x)/l. On failure the residual.
    """

    l: Number = 0.5  # noqa: E741 - the paper's symbol, and the option's name

    name = "lenience"
    formula = "u < p/(l q)"
    source = "Leviathan et al. 2023, appendix on lenience"
    widens_ratio = True
    ranges: ClassVar = {"l": ("a number in (0, 1]", lambda v: 0 < v <= 1)}

    def acceptance(self, e: Evidence) -> Tensor:
        """min(1, p / (l q))."""
        scaled: Tensor = e.p_x.double() / (self.l * e.q_x.double())
        return scaled.nan_to_num(nan=0.0).clamp_max(1.0)


@dataclass(frozen=True)
class LossyEpsilon(Rule):
    """Shift the ratio: accept iff u < min(1, p(x)/q(x) + epsilon).

    epsilon in [0, 1] (0 = exact). Lossy by at most epsilon. On failure the residual.
    """

    epsilon: Number = 0.1

    name = "lossy-epsilon"
    formula = "u < min(1, p/q + epsilon)"
    source = "YichiCS/Secure-Speculative-Decoding, securesd/verifier/common.py"
    widens_ratio = True
    ranges: ClassVar = {"epsilon": ("a number in [0, 1]", lambda v: 0 <= v <= 1)}

    def acceptance(self, e: Evidence) -> Tensor:
        """min(1, p/q + epsilon)."""
        shifted: Tensor = ratio(e) + self.epsilon
        return shifted.clamp_max(1.0)


@dataclass(frozen=True)
class Ensemble(Rule):
    """Speculation for the mixture v = w p + (1-w) q, without the tokens that the target forbids.

    w in [0, 1] (1 = exact). Lossy by (1-w) times the sum of (q-p)+ over p > 0. Where q gives nothing to ids with p = 0
    that is (1-w) R and the emitted law is v; a draft with p(x) = 0 < q(x) is rejected all the same, and what v has
    there goes to the residual. On failure the residual (v-q)+, which is w (p-q)+.
    """

    w: Number = 0.7

    name = "ensemble"
    formula = "u < (w p + (1-w) q)/q"
    source = "static ensemble; huggingface/transformers pull request 45979 (assistant_ensemble_weight)"
    widens_ratio = True
    ranges: ClassVar = {"w": ("a number in [0, 1]", lambda v: 0 <= v <= 1)}

    def acceptance(self, e: Evidence) -> Tensor:
        """min(1, w p/q + 1 - w), from r so that q = 0 needs no care."""
        over = (e.p_x.double() / e.q_x.double()).nan_to_num(nan=0.0)
        mixed: Tensor = self.w * over + (1.0 - self.w)
        return mixed.clamp_max(1.0)
