"""Muon for matrices inside the layers, AdamW for the rest, and a schedule of warm-up, stable phase and decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

PEAK = 6e-3
WARM_UP = 100
WEIGHT_DECAY = 0.01
CLIP = 1.0


class Optimiser:
    """Two optimisers that step together; update sizes are matched, so that one learning rate serves both."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], peak: float = PEAK) -> None:
        parameters = [(name, p) for name, p in named if p.requires_grad]
        outer = ("embed", "head")
        matrices = [p for name, p in parameters if p.dim() == 2 and not any(word in name for word in outer)]
        chosen = {id(p) for p in matrices}
        others = [p for _, p in parameters if id(p) not in chosen]
        self._peak = peak
        self._all = [p for _, p in parameters]
        self._parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=peak, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=peak, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=True),
        ]

    def step(self, factor: float) -> float:
        """One update at factor times the peak learning rate -> norm of the gradient before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._all, CLIP))
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = self._peak * factor
            part.step()
            part.zero_grad(set_to_none=True)
        return norm

    def state(self) -> list[dict[str, Any]]:
        """What is needed to go on."""
        return [part.state_dict() for part in self._parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Go on from what `state` gave."""
        for part, one in zip(self._parts, state, strict=True):
            part.load_state_dict(one)


def stable(step: int) -> float:
    """Linear warm-up, then 1."""
    return min(1.0, (step + 1) / WARM_UP)


def decay(step: int, steps: int) -> float:
    """Linear from 1 to nearly 0 over the steps of an anneal."""
    return 1.0 - (step + 0.5) / steps
