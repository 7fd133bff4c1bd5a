"""Starting a run from a drafter that another run trained: its weights alone, never its optimiser or schedule.

The head's rows come from the target, so the two draft vocabularies may differ. What must agree is the shape of every
tensor and the layers of the target that are read. A drafter of fewer layers may start one of more: the further layers
begin without effect, so the first step sees the old drafter exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.drafters.checkpoint import SINGLE
from nsd.drafters.nemotron import ADAPTER, ADAPTER_WEIGHTS, LORA_FOLDER, LORA_SCALE, lora_scale
from nsd.errors import ModelError
from nsd.nn.checkpoint import open_checkpoint, read_json
from nsd.train.plan import PLAN, load

CHECKPOINT = "checkpoint.pt"

_FIT = 1e-2
"""How far, relative to its size, a stored head may lie from the target's rows times one gain (bfloat16: 4e-3)."""


@dataclass(frozen=True, slots=True)
class Warm:
    """Weights to start from, by name, with log_gain; taps and ids [n] of the draft vocabulary (None: not said); the
    file they were read from."""

    tensors: Mapping[str, Tensor]
    taps: tuple[int, ...] | None
    ids: Tensor | None
    path: Path


def weights_file(folder: Path) -> Path:
    """The file of weights that `--init FOLDER` means: a run's checkpoint, or an export. Raises ModelError."""
    if folder.is_file() and folder.name == CHECKPOINT:
        return folder
    for name in (CHECKPOINT, SINGLE, f"float32/{SINGLE}", ADAPTER_WEIGHTS, f"{LORA_FOLDER}/{ADAPTER_WEIGHTS}"):
        if (folder / name).is_file():
            return folder / name
    raise ModelError(
        f"{folder} holds no {CHECKPOINT} and no {SINGLE}, wanted a run of nsd train or what it exported; check --init"
    )


def file_digest(folder: Path) -> str:
    """sha256 of the file that `--init FOLDER` means."""
    return hashlib.sha256(weights_file(folder).read_bytes()).hexdigest()


def read_warm(folder: Path, head: Tensor) -> Warm:
    """Weights of a drafter in float32; head [V, H] is the target's whole one. Raises ModelError."""
    path = weights_file(folder)
    if path.name == CHECKPOINT:
        plan = load(path.parent) if (path.parent / PLAN).is_file() else None
        tensors, ids = _from_checkpoint(path)
        return Warm(tensors, None if plan is None else plan.taps, ids, path)
    if path.name == ADAPTER_WEIGHTS:
        return Warm(_from_addition(path.parent), None, None, path)
    return Warm(*_from_export(path.parent, head), path)


def _from_addition(folder: Path) -> dict[str, Tensor]:
    """A low-rank addition of any scale, as one of ours: what its second matrices lack is theirs."""
    settings = read_json(folder / ADAPTER, "the settings of a low-rank addition")
    scale = lora_scale(settings, str(folder / ADAPTER)) / LORA_SCALE
    checkpoint = open_checkpoint(folder, settings)
    tensors = checkpoint.load(dict(checkpoint.shapes), torch.device("cpu"), torch.float32)
    return {name: tensor * scale if ".lora_B." in name else tensor for name, tensor in tensors.items()}


def _from_checkpoint(path: Path) -> tuple[dict[str, Tensor], Tensor | None]:
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return {name: tensor.float() for name, tensor in state["weights"].items()}, state.get("ids")
    except Exception as problem:  # torch raises whatever its unpickler met
        raise ModelError(f"{path} is unreadable ({problem}), wanted a checkpoint of nsd train; check --init") from None


def _from_export(folder: Path, head: Tensor) -> tuple[dict[str, Tensor], tuple[int, ...] | None, Tensor | None]:
    """Weights, taps and ids of a float32 export; the gain of EAGLE-3 is read off the head's rows."""
    checkpoint = open_checkpoint(folder)
    if checkpoint.config.get("packing") is not None:
        raise ModelError(f"{folder} is packed to bytes, wanted float weights; take the float32 folder beside it")
    tensors = checkpoint.load(dict(checkpoint.shapes), torch.device("cpu"), torch.float32)
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"] if "d2t" in tensors else None
    if ids is not None and "fc.weight" in tensors and "hidden_norm.weight" not in tensors:
        tensors["log_gain"] = _log_gain(tensors, ids, head, folder)
    taps = checkpoint.config.get(
        "eagle_aux_hidden_state_layer_ids", checkpoint.config.get("aux_hidden_state_layer_ids")
    )
    if ids is None and "markov_head.markov_w2.weight" in tensors:
        ids = torch.arange(len(tensors["markov_head.markov_w2.weight"]))
    return tensors, None if taps is None else tuple(taps), ids


def _log_gain(tensors: Mapping[str, Tensor], ids: Tensor, head: Tensor, folder: Path) -> Tensor:
    stored = tensors["lm_head.weight"]
    fits = stored.shape[1] == head.shape[1] and 0 <= int(ids.min()) and int(ids.max()) < len(head)
    if fits:
        rows = head[ids].float()
        gain = float((rows * stored).sum() / rows.square().sum())
        if gain > 0 and (stored - gain * rows).norm() <= _FIT * stored.norm():
            return torch.tensor(gain).log()
    raise ModelError(f"the head in {folder} is not the target's times a gain, wanted a drafter trained for this target")


def require_fit(warm: Warm, wanted: Mapping[str, Tensor], taps: tuple[int, ...], further: tuple[str, ...]) -> None:
    """Refuse weights of another drafter. Tensors whose names begin with one of `further` may be missing.

    Raises ModelError for missing layers, surplus ones, other shapes, other layers of the target.
    """
    missing = [n for n in wanted if n not in warm.tensors and not (further and n.startswith(further))]
    if missing:
        raise ModelError(f"{warm.path} lacks {missing[0]}, wanted a drafter of the kind being trained; check --init")
    for name, mine in wanted.items():
        theirs = warm.tensors.get(name, mine)
        if theirs.shape != mine.shape:
            raise ModelError(
                f"{warm.path} has {name} of shape {list(theirs.shape)}, wanted {list(mine.shape)}; "
                "start from a drafter of this target and shape"
            )
    surplus = [n for n in warm.tensors if "layers." in n and n not in wanted]
    if surplus:
        raise ModelError(f"{warm.path} has {surplus[0]} and other layers too many; raise --layers, or check --init")
    if warm.taps is not None and warm.taps != taps:
        raise ModelError(f"{warm.path} reads target layers {list(warm.taps)}, wanted {list(taps)}; check --init")


def named(folder: Path) -> str:
    """The file as plan.json names it: its folder and itself, nothing of the machine."""
    path = weights_file(folder).resolve()
    return f"{path.parent.name}/{path.name}"
