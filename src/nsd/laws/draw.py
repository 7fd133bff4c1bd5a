"""Draws from given uniforms by the inverse distribution function, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def draw(law: Tensor, u: Tensor) -> Tensor:
    """The id at which the running mass first exceeds u * total: law [N, V] (unnormalised allowed), u [N] -> [N].

    The comparison is strict, so an id without mass is never drawn, not even for u = 0.
    """
    if len(law) == 1 and law.device.type == "cpu":
        found = draw_one(law.numpy(force=True)[0], float(u))
        return torch.tensor([law.shape[-1] - 1 if found < 0 else found])
    running = law.cumsum(-1, dtype=torch.float64)
    total = running[:, -1:]
    aim = (u.to(running).unsqueeze(-1) * total).minimum(torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, aim, right=True).squeeze(-1).clamp_max(law.shape[-1] - 1)


def draw_one(law: npt.NDArray[Any], u: float) -> int:
    """The same for one row [V] on a CPU, with fewer and lighter operations; -1 where it has no finite mass."""
    running = law.cumsum(dtype=np.float64)
    total = float(running[-1])
    if not 0.0 < total < math.inf:
        return -1
    aim = min(u * total, math.nextafter(total, 0.0))
    return min(int(running.searchsorted(aim, side="right")), len(law) - 1)


def total_mass(law: Tensor) -> Tensor:
    """The total that `draw` multiplies u with, in float64: law [N, V] -> [N]."""
    return law.cumsum(-1, dtype=torch.float64)[:, -1]


def mass_below(law: Tensor, ids: Tensor) -> Tensor:
    """Mass of all ids smaller than the given one, in float64: law [N, V], ids [N] -> [N].

    An id drawn by `draw` with u satisfies mass_below <= u * total < mass_below + law[id].
    """
    running = law.cumsum(-1, dtype=torch.float64)
    before = running.gather(-1, (ids - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    return torch.where(ids > 0, before, torch.zeros_like(before))
