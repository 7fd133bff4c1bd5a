"""What a drafter's checkpoint needs beside its tensors: the target's ends, its layers as taps, and whether it fits.

Reading the files themselves is `nsd.nn.checkpoint`, whose names are at hand here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nsd.errors import ModelError, PairMismatch
from nsd.nn.checkpoint import INDEX, SINGLE, Checkpoint, full_config, open_checkpoint, read_json, required
from nsd.targets.base import FINAL_NORM, Target

__all__ = [
    "INDEX",
    "SINGLE",
    "Checkpoint",
    "Map",
    "full_config",
    "lent_ends",
    "misfits",
    "open_checkpoint",
    "read_json",
    "reduced_ids",
    "require_fit",
    "required",
    "spread",
    "tap_ids",
]

Map = Callable[[Tensor], Tensor]


def lent_ends(target: Target) -> tuple[Map, Map]:
    """The target's embedding (ids [N] -> [N, hidden]) and head (states [N, hidden] -> logits), without scaling.

    Raises ModelError for a target that has none to lend.
    """
    embed, head = getattr(target, "embed", None), getattr(target, "logits", None)
    if embed is not None and head is not None:
        return embed, head
    model: Any = getattr(target, "model", None)  # a transformers module in a target that is not one of ours
    if model is None or not hasattr(model, "get_input_embeddings"):
        raise ModelError(f"{target.name} lends no embedding and head, wanted a target that holds its own weights")
    weight, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    return lambda ids: functional.embedding(ids, weight), head


def spread(logits: Tensor, ids: Tensor, vocab: int) -> Tensor:
    """Logits over a reduced vocabulary [N, n] at ids [n] of the whole one: [N, vocab], -inf elsewhere."""
    whole = logits.new_full((logits.shape[0], vocab), -torch.inf)
    whole[:, ids] = logits
    return whole


def reduced_ids(offsets: Tensor, mask: Tensor | None, vocab: int, where: str) -> Tensor:
    """Target ids of a reduced vocabulary from d2t (id = index + offset) [n], checked against t2d [V] where given.

    Source: SafeAILab/EAGLE eagle/model/cnets.py, speculators src/speculators/model.py.
    """
    ids = torch.arange(len(offsets), device=offsets.device) + offsets
    outside = ((ids < 0) | (ids >= vocab)).nonzero().squeeze(-1).tolist()
    if outside:
        first = outside[0]
        raise ModelError(
            f"{where}: d2t sends {len(outside)} ids outside the vocabulary of {vocab} (draft id {first} to "
            f"{int(ids[first])}); wanted ids 0..{vocab - 1}, fetch the checkpoint again"
        )
    if len(set(ids.tolist())) != len(ids):
        raise ModelError(f"{where}: d2t sends two draft ids to one target id; fetch the checkpoint again")
    if mask is not None and (mask.nonzero().squeeze(-1).tolist() != sorted(ids.tolist())):
        raise ModelError(f"{where}: t2d and d2t name different ids; fetch the checkpoint again")
    return ids


def tap_ids(layer_ids: Any, shift: int, layers: int, where: str, last: str) -> tuple[int, ...]:
    """Taps (residual stream after i layers) from a layout's layer ids, which lie `shift` below them.

    last says what the state after the last layer is in this layout: "normed" (read after the final norm), "raw" (the
    residual stream) or "none" (refused).
    """
    if not isinstance(layer_ids, list | tuple) or not layer_ids or not all(type(i) is int for i in layer_ids):
        raise ModelError(f"{where}: target layer ids are {layer_ids!r}, wanted a list of layer numbers")
    taps = [i + shift for i in layer_ids]
    highest = layers if last != "none" else layers - 1
    outside = [i for i, tap in zip(layer_ids, taps, strict=True) if not 0 <= tap <= highest]
    if outside:
        raise ModelError(
            f"{where}: target layers {outside} do not exist or cannot be read, wanted ids {-shift}..{highest - shift} "
            f"for a target of {layers} layers; take the drafter made for this target"
        )
    return tuple(FINAL_NORM if tap == layers and last == "normed" else tap for tap in taps)


def misfits(target: Target, hidden: int, vocab: int | None, layers: int | None, mask: int | None) -> list[str]:
    """What of a drafter does not fit a target, in words; empty if all does. None is not compared."""
    problems = []
    if hidden != target.hidden:
        problems.append(f"hidden size {hidden} (target {target.hidden})")
    if vocab is not None and vocab != target.vocab:
        problems.append(f"vocabulary {vocab} (target {target.vocab})")
    if layers is not None and layers != target.layers:
        problems.append(f"made for {layers} target layers (target {target.layers})")
    if mask is not None and not 0 <= mask < target.vocab:
        problems.append(f"mask id {mask} (vocabulary {target.vocab})")
    return problems


def require_fit(target: Target, problems: Sequence[str], where: str) -> None:
    """Raise if anything does not fit: PairMismatch if it is the vocabulary, ModelError otherwise; all in one line."""
    if not problems:
        return
    kind = PairMismatch if any(p.startswith("vocabulary") for p in problems) else ModelError
    raise kind(f"{where} does not fit {target.name}: {', '.join(problems)}; take the drafter made for this target")
