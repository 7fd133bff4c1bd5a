"""Reads hidden states out of a pass, and lets the head compute only the rows that are wanted.

Hooks live for one pass only, so that a model shared by two sessions stays clean; two threads must not run one model at
the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from nsd.errors import ModelError
from nsd.targets.base import FINAL_NORM


class Reader:
    """Hidden states of one pass: kept[tap] [B, n, H]."""

    def __init__(self, model: nn.Module, head: nn.Module | None, layers: nn.ModuleList | None) -> None:
        self.model, self.head, self.layers = model, head, layers

    @contextmanager
    def reading(self, taps: Sequence[int], wanted: Tensor | None) -> Iterator[dict[int, Tensor]]:
        """During one pass, collect taps; with `wanted` [M] (indices into B * n) the head sees only those rows."""
        kept: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            if self.head is not None and (wanted is not None or FINAL_NORM in taps):
                hooks.callback(self.head.register_forward_pre_hook(_at_head(kept, taps, wanted)).remove)
            for tap in taps:
                if tap != FINAL_NORM:
                    hooks.callback(self._hook(tap, kept).remove)
            yield kept

    def _hook(self, tap: int, kept: dict[int, Tensor]) -> Any:
        assert self.layers is not None

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept[tap] = args[0] if args else kwargs["hidden_states"]

        def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            kept[tap] = output if isinstance(output, Tensor) else output[0]

        if tap < len(self.layers):
            return self.layers[tap].register_forward_pre_hook(before, with_kwargs=True)
        return self.layers[-1].register_forward_hook(after)

    def check(self, taps: Sequence[int], name: str) -> None:
        """Refuse taps that this model does not have."""
        if not taps:
            return
        if self.layers is None or self.head is None:
            raise ModelError(
                f"{name} has no list of layers or no head to read hidden states from; take another drafter"
            )
        wrong = [tap for tap in taps if tap != FINAL_NORM and not 0 <= tap <= len(self.layers)]
        if wrong:
            raise ModelError(f"got hidden-state tap {wrong[0]}, {name} has taps 0..{len(self.layers)} and {FINAL_NORM}")


def _at_head(kept: dict[int, Tensor], taps: Sequence[int], wanted: Tensor | None) -> Any:
    def before(_: nn.Module, args: tuple[Any, ...]) -> Any:
        hidden = args[0]
        if FINAL_NORM in taps:
            kept[FINAL_NORM] = hidden
        if wanted is None:
            return None
        return (hidden.flatten(0, -2).index_select(0, wanted.to(hidden.device)).unsqueeze(0), *args[1:])

    return before


def stack(kept: dict[int, Tensor], taps: Sequence[int], real: Tensor | None) -> Tensor | None:
    """Taps in the order asked for, real rows only: [M', n, H]; None without taps."""
    if not taps:
        return None
    missing = [tap for tap in taps if tap not in kept]
    if missing:
        raise ModelError(
            f"the model did not pass through the layer of hidden-state tap {missing[0]}; take another drafter"
        )
    rows = [kept[tap].flatten(0, 1) for tap in taps]
    return torch.stack([r if real is None else r.index_select(0, real.to(r.device)) for r in rows], 1)


def layer_list(model: Any, count: int) -> tuple[nn.Module, nn.ModuleList] | None:
    """The module that holds the decoder layers and its list of them; None if there is none of that length."""
    for module in model.modules():
        for child in module.children():
            if isinstance(child, nn.ModuleList) and len(child) == count:
                return module, child
    return None
