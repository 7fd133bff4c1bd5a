"""Probability laws: from logits to p and q, the nucleus, the excess, keyed uniforms and draws from them.

p is the target's law, q the law a draft was really drawn from, x a drafted token, u a uniform in [0, 1), theta the
nucleus threshold. Rows are positions: p [N, V].
"""

from nsd.laws.draw import draw, mass_below, total_mass
from nsd.laws.excess import excess_masses, excess_masses_in, point_excess_masses, residual
from nsd.laws.nucleus import Ties, is_member, mass_above, mass_before, members, members_by_sort, threshold
from nsd.laws.rng import MAX_SEED, Purpose, uniforms
from nsd.laws.rows import argmax, entropy, one_hot, row_sum
from nsd.laws.sampling import History, Processor, Sampling, laws

__all__ = [
    "MAX_SEED",
    "History",
    "Processor",
    "Purpose",
    "Sampling",
    "Ties",
    "argmax",
    "draw",
    "entropy",
    "excess_masses",
    "excess_masses_in",
    "is_member",
    "laws",
    "mass_above",
    "mass_before",
    "mass_below",
    "members",
    "members_by_sort",
    "one_hot",
    "point_excess_masses",
    "residual",
    "row_sum",
    "threshold",
    "total_mass",
    "uniforms",
]
