"""Loads a target by name, from a folder or the hub, or around a model that is loaded already.

Weights come from safetensors files only, and no code of a checkpoint is ever run.
"""

from __future__ import annotations

import difflib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from nsd.errors import ConfigError, ModelError
from nsd.targets import smollm2
from nsd.targets.base import Target
from nsd.targets.dtypes import Format, choose_device, choose_format
from nsd.targets.recognise import is_nemotron

if TYPE_CHECKING:
    from nsd.targets.hf import HfTarget


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A model with a name of its own: a line about it, and its folder (None = made in memory)."""

    doc: str
    folder: Callable[[], Path] | None


ENGINES = ("auto", "lean", "transformers")

MODELS: dict[str, BuiltIn] = {
    smollm2.NAME: BuiltIn(smollm2.DESCRIPTION, smollm2.smollm2_folder),
    "toy": BuiltIn("a table of random laws over bytes, for tests and documentation; instant, speaks gibberish", None),
}


def load_target(
    source: Any,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    revision: str | None = None,
    engine: str = "auto",
) -> Target:
    """A target from a built-in name, a local folder, a hub name, a (model, tokenizer) pair, or a Target as it is.

    engine is "lean" (this project's decoder; Llama-like checkpoints), "transformers", or "auto": lean on a CPU wherever
    it can. int8, int4 and w8a8 are lean's alone. threads sets torch's thread count for the whole process. Raises
    ModelError or ConfigError, one line each.
    """
    if threads is not None:
        if threads < 1:
            raise ConfigError(f"got threads {threads}, wanted at least 1; leave it out for torch's own choice")
        torch.set_num_threads(threads)
    if engine not in ENGINES:
        raise ConfigError(f"got engine '{engine}', wanted {', '.join(ENGINES)}; try --engine auto")
    if isinstance(source, Target):
        return source
    if not isinstance(source, str | Path):
        return _around(source)
    name = str(source)
    entry = MODELS.get(name)
    if entry is not None and entry.folder is None:
        from nsd.targets.toy import TableTarget

        return TableTarget.over_bytes()
    where = choose_device(device)
    form = choose_format(dtype, where)
    if form.weights != "dense" and engine == "transformers":
        raise ConfigError(f"got dtype '{dtype}' with engine transformers, which has no such weights; try --engine lean")
    if entry is not None and entry.folder is not None:
        return _either(engine, name, str(entry.folder()), form, where, None)
    if Path(name).is_dir():
        check_folder(Path(name))
    elif _names_a_path(name):
        raise ModelError(f"there is no model folder {name}; check the path, or see nsd list models")
    elif close := _misspelt(name):
        raise ModelError(f"there is no model '{name}'; did you mean {close}?")
    if is_nemotron(_raw_config(name, revision)):
        from nsd.targets.nemotron import load

        return load(name, dtype, device, revision)
    return _either(engine, name, name, form, where, revision)


def _either(engine: str, name: str, place: str, form: Format, device: torch.device, revision: str | None) -> Target:
    """Load on the engine asked for. What auto cannot read as a lean target goes to transformers, which says why not."""
    must = engine == "lean" or form.weights != "dense"
    if must or (engine == "auto" and device.type == "cpu" and form.dtype is not torch.float16):
        try:
            return _lean(name, place, form, device, revision)
        except ModelError:
            if must:
                raise
    return _read(name, place, form.dtype, device, form.reason, revision)


def _lean(name: str, place: str, form: Format, device: torch.device, revision: str | None) -> Target:
    """Load on this project's own decoder; whatever is raised becomes one line."""
    from nsd.targets.lean import lean_target, shape_of
    from nsd.targets.tokenizer import HfTokenizer

    config, _ = _inspect(name, place, revision)
    complete = config.to_dict()
    shape_of(complete, name)
    from transformers import AutoTokenizer

    try:
        tokenizer = HfTokenizer(AutoTokenizer.from_pretrained(place, **_options(place, revision)))
        folder = _fetched(place, revision)
        return lean_target(folder, complete, tokenizer, name, form.dtype, form.weights, device, form.reason)
    except ModelError:
        raise
    except Exception as error:
        raise _explained(name, place, error) from error


def _fetched(place: str, revision: str | None) -> Path:
    """The folder itself, or the one that a hub name's files are fetched to."""
    if Path(place).is_dir():
        return Path(place)
    from huggingface_hub import snapshot_download

    files = ["*.json", "model*.safetensors"]
    offline = bool(_options(place, revision)["local_files_only"])
    return Path(snapshot_download(place, revision=revision, local_files_only=offline, allow_patterns=files))


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be a checkpoint, with the first reason: config, weights, shards, headers."""
    config = folder / "config.json"
    try:
        if not isinstance(json.loads(config.read_text(encoding="utf-8")), dict):
            raise ModelError(f"{config} is not a JSON object; download the model again")
        weights = sorted(folder.glob("*.safetensors"))
        index = folder / "model.safetensors.index.json"
        wanted = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values() if index.is_file() else []
    except FileNotFoundError:
        raise ModelError(f"{folder} has no config.json, wanted a model folder; check the path") from None
    except OSError as error:
        raise ModelError(f"cannot read {folder} ({error.strerror}); check its permissions") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder} has a broken configuration ({_short(error)}); download the model again") from None
    missing = sorted(set(wanted) - {path.name for path in weights})
    if missing:
        raise ModelError(f"{folder} lacks {missing[0]} of its {len(set(wanted))} weight files; download it again")
    if not weights:
        raise ModelError(f"{folder} has no *.safetensors weights, other formats are not read; convert it")
    for path in weights:
        _check_weights(path)


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if not list(file.keys()):
                raise ModelError(f"{path} holds no weights; download the model again")
    except SafetensorError as error:
        raise ModelError(f"{path} is broken or cut short ({_short(error)}); download the model again") from None
    except OSError as error:
        raise ModelError(f"cannot read {path} ({error.strerror or error}); check its permissions") from None


def _read(
    name: str, place: str, dtype: torch.dtype, device: torch.device, reason: str, revision: str | None
) -> HfTarget:
    """Load with transformers; whatever it raises becomes one line."""
    from nsd.targets.hf import HfTarget
    from nsd.targets.support import require_supported
    from nsd.targets.tokenizer import HfTokenizer

    config, model_class = _inspect(name, place, revision)
    kind = _kind(config)
    if kind is HfTarget:
        require_supported(config, model_class, name)
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **_options(place, revision))
        model, info = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, use_safetensors=True, output_loading_info=True, **_options(place, revision)
        )
        model = model.to(device)
    except Exception as error:
        raise _explained(name, place, error) from error
    finally:
        if bar:
            logging.enable_progress_bar()
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(f"{name} lacks {len(missing)} of its weights, such as {missing[0]}; download the model again")
    return kind(model, HfTokenizer(tokenizer), name, reason)


def _kind(config: Any) -> type[HfTarget]:
    """The target class for a transformers configuration."""
    from nsd.targets.hf import HfTarget
    from nsd.targets.hybrid import HybridTarget, is_hybrid

    return HybridTarget if is_hybrid(config) else HfTarget


def _raw_config(name: str, revision: str | None) -> dict[str, Any]:
    """config.json of a folder or hub name as it is, whatever model type it names."""
    from transformers import PreTrainedConfig

    try:
        raw: dict[str, Any] = PreTrainedConfig.get_config_dict(name, **_options(name, revision))[0]
    except Exception as error:
        raise _explained(name, name, error) from error
    return raw


def _inspect(name: str, place: str, revision: str | None) -> tuple[Any, Any]:
    """Configuration and model class, before any weight is read."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    try:
        config = AutoConfig.from_pretrained(place, **_options(place, revision))
        model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    except Exception as error:
        raise _explained(name, place, error) from error
    if model_class is None and not getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{name} ({config.model_type}) is not a causal language model; see nsd list models")
    return config, model_class


def _options(place: str, revision: str | None) -> dict[str, Any]:
    """Never code of a checkpoint; no network for a folder, nor where the hub cannot be found (it retries for 20 s)."""
    options: dict[str, Any] = {
        "trust_remote_code": False,
        "local_files_only": Path(place).is_dir() or not hub_in_reach(),
    }
    return options if revision is None else {**options, "revision": revision}


@cache
def hub_in_reach() -> bool:
    """Whether the hub's name resolves; with a proxy that is the proxy's business."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or getproxies():
        return not constants.HF_HUB_OFFLINE
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def _misspelt(name: str) -> str | None:
    """The built-in name that a bare name comes close to."""
    close = [] if "/" in name else difflib.get_close_matches(name, MODELS, n=1)
    return close[0] if close else None


def _explained(name: str, place: str, error: Exception) -> ModelError:
    """One line for whatever loading raised."""
    if Path(place).is_dir():
        return ModelError(f"cannot load {name} ({type(error).__name__}: {_short(error)}); try nsd doctor")
    hint = f"built in: {', '.join(MODELS)}"
    if isinstance(error, OSError):
        return ModelError(
            f"there is no model '{name}' here: not built in, no folder, not to be had from the hub; {hint}"
        )
    return ModelError(f"cannot load {name} ({type(error).__name__}: {_short(error)}); {hint}")


def _around(source: Any) -> HfTarget:
    """A model object, alone or with its tokenizer."""
    from nsd.targets.tokenizer import HfTokenizer

    model, tokenizer = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not hasattr(model, "config") or not isinstance(model, torch.nn.Module):
        raise ModelError(f"got a {type(model).__name__}, wanted a model name, a folder or a transformers causal model")
    if tokenizer is None:
        tokenizer = _tokenizer_of(model)
    adapted = HfTokenizer(tokenizer) if hasattr(tokenizer, "get_vocab") else tokenizer
    return _kind(model.config)(model, adapted)


def _tokenizer_of(model: Any) -> Any:
    from transformers import AutoTokenizer

    place = getattr(model.config, "_name_or_path", "")
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except Exception as error:
        raise ModelError("found no tokenizer for the model object; pass (model, tokenizer)") from error


def _names_a_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name


def _short(error: BaseException) -> str:
    """The first line of a message, cut to fit on one line."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]
