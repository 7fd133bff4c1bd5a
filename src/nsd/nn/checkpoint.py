"""Reading a checkpoint of our own modelling: config.json and safetensors, nothing that can run code.

Every tensor is checked by name and shape before one is loaded. All missing and surplus names are reported together, and
so are all wrong shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nsd.errors import ModelError
from nsd.nn.weights import Shapes

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder with its parsed config and the file of every tensor; shapes are read from headers, not from data."""

    folder: Path
    config: dict[str, Any]
    files: Mapping[str, Path]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def where(self) -> str:
        """The config's path, for messages."""
        return str(self.folder / "config.json")

    def load(
        self, wanted: Shapes, device: torch.device, dtype: torch.dtype, ignored: Iterable[str] = ()
    ) -> dict[str, Tensor]:
        """The wanted tensors, floats in dtype, whole numbers and flags as stored.

        ignored are names (or prefixes ending in a dot) that may be there and are not read. Raises ModelError naming all
        missing and surplus tensors, or all wrong shapes.
        """
        self.check(wanted, ignored)
        return {name: tensor for name, tensor in self._read(wanted, device, dtype)}

    def check(self, wanted: Shapes, ignored: Iterable[str] = ()) -> None:
        """Raise ModelError unless exactly the wanted tensors (and ignored ones) are there, in the wanted shapes."""
        skip = tuple(ignored)
        surplus = [
            name
            for name in self.shapes
            if name not in wanted and not any(name == s or (s.endswith(".") and name.startswith(s)) for s in skip)
        ]
        missing = [name for name in wanted if name not in self.shapes]
        if missing or surplus:
            lists = [f"lacks {_listed(missing)}"] * bool(missing) + [f"has unknown {_listed(surplus)}"] * bool(surplus)
            raise ModelError(f"{self.folder} {' and '.join(lists)}; wanted the tensors its config describes")
        wrong = [
            f"{name} {list(self.shapes[name])} (wanted {list(shape)})"
            for name, shape in wanted.items()
            if self.shapes[name] != tuple(shape)
        ]
        if wrong:
            raise ModelError(f"{self.folder} has tensors of wrong shape: {', '.join(wrong)}; check its config.json")

    def _read(self, names: Iterable[str], device: torch.device, dtype: torch.dtype) -> Iterable[tuple[str, Tensor]]:
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.files[name], []).append(name)
        for path, mine in by_file.items():
            with _opened(path) as file:
                for name in mine:
                    tensor = file.get_tensor(name)
                    yield name, tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)


def open_checkpoint(
    source: str | Path, config: Mapping[str, Any] | None = None, inside: str = "", revision: str | None = None
) -> Checkpoint:
    """The checkpoint in a local folder, or of a hub name (owner/name), whose files are fetched first.

    config is given where it was read already; inside names a subfolder that holds the weights;
    revision is the hub's. Raises ModelError.
    """
    folder = _folder(str(source), revision) / inside
    if config is None:
        config = read_json(folder / "config.json", "the config of a model")
    files = _files(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(set(files.values())):
        with _opened(path) as file:
            mine = [name for name in file.keys() if files.get(name) == path]  # noqa: SIM118 (a file, not a dict)
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in mine}
    gone = [name for name in files if name not in shapes]
    if gone:
        raise ModelError(f"{folder / INDEX} names {_listed(gone)}, which its files lack; fetch the folder again")
    return Checkpoint(folder, dict(config), files, shapes)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelError(f"{path} is unreadable ({problem}), wanted {what}; check the folder") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, wanted {what}; check the folder")
    return value


def _folder(source: str, revision: str | None) -> Path:
    path = Path(source)
    if path.is_dir():
        return path
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ModelError(f"{source} is neither a folder nor a hub name (owner/name); check the path")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=["*.json", "*.jinja", "*.safetensors"]))
    except (OSError, ValueError, HfHubHTTPError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"cannot get {source} from the hub ({reason}); give a local folder instead") from None


def _files(folder: Path) -> dict[str, Path]:
    """The file of every tensor: from the index, or from the one file there is."""
    if (folder / INDEX).is_file():
        entries = read_json(folder / INDEX, "an index of safetensors files").get("weight_map")
        if not isinstance(entries, dict) or not all(isinstance(v, str) and Path(v).name == v for v in entries.values()):
            raise ModelError(f"{folder / INDEX} has no weight_map of names to files beside it; fetch the folder again")
        lost = sorted({name for name in entries.values() if not (folder / name).is_file()})
        if lost:
            raise ModelError(f"{folder} lacks {_listed(lost)} named in {INDEX}; fetch the folder again")
        return {name: folder / file for name, file in entries.items()}
    found = sorted(folder.glob("*.safetensors"))
    if len(found) != 1:
        other = "; it has weights in another format" * any(folder.glob(p) for p in ("*.bin", "*.pt", "*.pth"))
        wanted = f"{SINGLE} or several with {INDEX}"
        raise ModelError(f"{folder} has {len(found)} safetensors files, wanted {wanted}{other}")
    with _opened(found[0]) as file:
        return dict.fromkeys(file.keys(), found[0])


def _opened(path: Path) -> Any:  # the library's reader carries no types
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as problem:
        text = f"{path} is no readable safetensors file ({problem}); it may be cut short, fetch it again"
        raise ModelError(text) from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def required(config: Mapping[str, Any], key: str, where: str) -> Any:
    """A key that a config must have."""
    if config.get(key) is None:
        raise ModelError(f"{where} has no {key}; wanted the config of a complete checkpoint")
    return config[key]


def full_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A config as saved by transformers with all that equals its model type's defaults left out, filled in again."""
    from transformers import AutoConfig

    kind = config.get("model_type", "qwen3")
    given = {key: value for key, value in config.items() if key != "model_type"}
    try:
        filled: dict[str, Any] = AutoConfig.for_model(kind, **given).to_dict()
    except (ValueError, KeyError, TypeError) as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"{where}: no {kind} config can be made of it ({reason}); check config.json") from None
    return filled
