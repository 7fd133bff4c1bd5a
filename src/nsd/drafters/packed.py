"""EAGLE-3 checkpoints packed to bytes: int8 rows with a scale each, and a head that is the target's own, scaled.

    weight    = int8 row * scale of the row       matrices; norms stay in float32
    lm_head   = head_gain * target's head[ids]    ids = index + d2t: not stored
    t2d       from d2t

What is read from such a folder looks like any other checkpoint: `unpacked` puts the missing tensors back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsd.drafters.checkpoint import Checkpoint
from nsd.errors import ModelError
from nsd.nn import Shapes
from nsd.targets.base import Target

PACKING = "int8-rows"
SCALE, GAIN = ".scale", "head_gain"


def pack(tensors: Mapping[str, Tensor], gain: float) -> dict[str, Tensor]:
    """Pack float tensors of an EAGLE-3 head with a reduced vocabulary; lm_head and t2d are left out."""
    packed: dict[str, Tensor] = {GAIN: torch.tensor([gain], dtype=torch.float32)}
    for name, tensor in tensors.items():
        if name in ("lm_head.weight", "t2d"):
            continue
        if name == "d2t":
            packed[name] = tensor.to(torch.int32)
        elif tensor.dim() < 2:
            packed[name] = tensor.float()
        else:
            scale = tensor.float().abs().amax(-1).clamp_min(1e-12) / 127
            packed[name + SCALE] = scale
            packed[name] = (tensor.float() / scale.unsqueeze(-1)).round().to(torch.int8)
    return {name: tensor.contiguous() for name, tensor in packed.items()}


def unpacked(checkpoint: Checkpoint, target: Target) -> Checkpoint:
    """The checkpoint with its full tensors, if it is packed; else as it is. Raises ModelError for unknown packings."""
    packing = checkpoint.config.get("packing")
    if packing is None:
        return checkpoint
    if packing != PACKING:
        raise ModelError(f"{checkpoint.where}: packing is {packing!r}, wanted {PACKING!r}; update nsd")
    shapes = {name: shape for name, shape in checkpoint.shapes.items() if name != GAIN and not name.endswith(SCALE)}
    if "d2t" not in shapes or GAIN not in checkpoint.shapes:
        raise ModelError(f"{checkpoint.folder} lacks d2t or {GAIN}, wanted a packed head; fetch it again")
    (count,) = shapes["d2t"]
    shapes |= {"lm_head.weight": (count, target.hidden), "t2d": (target.vocab,)}
    return Packed(checkpoint.folder, checkpoint.config, checkpoint.files, shapes, checkpoint.shapes, target)


@dataclass(frozen=True, slots=True)
class Packed(Checkpoint):
    """A checkpoint whose tensors are made while they are read; stored are the shapes in the file."""

    stored: Mapping[str, tuple[int, ...]]
    target: Target

    def load(
        self, wanted: Shapes, device: torch.device, dtype: torch.dtype, ignored: Iterable[str] = ()
    ) -> dict[str, Tensor]:
        """The wanted tensors; multiplied out in float32, then rounded to dtype once."""
        self.check(wanted, ignored)
        raw = Checkpoint(self.folder, self.config, self.files, self.stored).load(
            dict(self.stored), device, torch.float32
        )
        ids = torch.arange(len(raw["d2t"]), device=device) + raw["d2t"].long()
        made = {"d2t": raw["d2t"].long()}
        if "t2d" in wanted:
            made["t2d"] = torch.zeros(self.target.vocab, dtype=torch.bool, device=device).index_fill_(0, ids, True)
        if "lm_head.weight" in wanted:
            made["lm_head.weight"] = (head_rows(self.target, ids).float() * raw[GAIN]).to(dtype)
        for name in wanted:
            if name not in made:
                scale = raw.get(name + SCALE)
                value = raw[name].float() if scale is None else raw[name].float() * scale.unsqueeze(-1)
                made[name] = value.to(dtype)
        return made


def head_rows(target: Target, ids: Tensor) -> Tensor:
    """Rows of the target's head [len(ids), hidden]. Raises ModelError for a target that has none to lend."""
    rows: Any = getattr(target, "head_rows", None)
    if rows is None:
        raise ModelError(f"{target.name} lends no head, wanted a target that holds its own weights")
    lent: Tensor = rows(ids)
    return lent
