"""The shipped drafter as a plain EAGLE-3 checkpoint in float32, which other engines read (vLLM's `eagle3`).

Head rows are multiplied out from the target's own, so smollm2-135m must be at hand; its embedding stays the target's.
Layout and layer ids: `nsd.train.export`. Source: vllm-project/vllm vllm/model_executor/models/llama_eagle3.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from nsd.drafters.checkpoint import SINGLE, open_checkpoint
from nsd.drafters.packed import unpacked
from nsd.drafters.shipped import FOLDER, NAME, require_whole
from nsd.errors import ConfigError
from nsd.targets.load import load_target
from nsd.targets.smollm2 import NAME as TARGET
from nsd.targets.store import cache_root, ensure


def export_drafter(folder: Path) -> None:
    """Write config.json and model.safetensors (40 MB) into a folder, which must be new or empty.

    Raises ConfigError for a folder that holds files, ModelError for a damaged drafter or an absent target.
    """
    require_new(folder)
    require_whole()
    target = load_target(TARGET, dtype="float32", device="cpu", engine="lean")
    checkpoint = unpacked(open_checkpoint(FOLDER), target)
    tensors = checkpoint.load(dict(checkpoint.shapes), torch.device("cpu"), torch.float32)
    config = {key: value for key, value in checkpoint.config.items() if key != "packing"}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / SINGLE, metadata={"format": "pt"})
    (folder / SINGLE).chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n", encoding="utf-8")


def exported_folder() -> Path:
    """The same in the cache, written once for each drafter that is shipped."""
    digest = (FOLDER / "SHA256").read_text(encoding="utf-8")[:12]
    return ensure(cache_root() / f"{NAME}-{digest}-exported", export_drafter)


def require_new(folder: Path) -> None:
    """Raise ConfigError unless there is nothing at this place, or an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty, wanted a new folder; name another one")
