"""Drafters by name, by folder, by hub name, or recognised by a folder's config.json.

Nothing heavy is imported before a drafter is made. A new mechanism adds one line to DRAFTERS (if it has a name of its
own) or to KINDS (if it comes as a folder).
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsd.drafters.recognise import is_dflash, is_dspark, is_eagle3, is_mtp, is_nemotron
from nsd.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from nsd.drafters.base import Drafter
    from nsd.targets.base import Target

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """A drafter with a name: factory "module:function" is called as factory(target, **options)."""

    name: str
    factory: str
    doc: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A drafter that comes as a folder or hub name; factory is called as factory(target, source, **options).

    recognise looks at the parsed config.json. in_target: the folder of the target itself is such a drafter.
    """

    name: str
    factory: str
    doc: str
    recognise: Callable[[Config], bool]
    in_target: bool = False


def is_causal_lm(config: Config) -> bool:
    """A plain language model, by the names that transformers gives its classes (or none given)."""
    endings = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
    return "model_type" in config and all(name.endswith(endings) for name in _architectures(config))


def _architectures(config: Config) -> list[str]:
    names = config.get("architectures") or []
    return [str(name) for name in names] if isinstance(names, list) else [str(names)]


DRAFTERS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("ngram", "nsd.drafters.ngram:ngram_drafter", "prompt lookup: copies what followed an earlier occurrence"),
        Entry("layer-skip", "nsd.drafters.layer_skip:layer_skip_drafter", "the target itself with some layers skipped"),
        Entry("draft-model", "nsd.drafters.draft_model:model_drafter", "a smaller model with the target's tokenizer"),
        Entry(
            "smollm2-eagle3", "nsd.drafters.shipped:smollm2_eagle3", "EAGLE-3 layer for smollm2-135m, shipped inside"
        ),
        Entry("none", "nsd.drafters.none:no_drafter", "no drafting: plain decoding"),
    )
}
"""Drafters that are asked for by name; `auto` and a folder or hub name work beside them."""

KINDS: list[Kind] = [
    Kind("nemotron", "nsd.drafters.nemotron:load", "Nemotron: the target fills in blanks", is_nemotron, in_target=True),
    Kind("dspark", "nsd.drafters.dspark:load", "DSpark: a block of masks, corrected from left to right", is_dspark),
    Kind("dflash", "nsd.drafters.dflash:load", "DFlash: a block of masks filled in by one pass", is_dflash),
    Kind("eagle3", "nsd.drafters.eagle3:load", "EAGLE-3: a layer over target features, token by token", is_eagle3),
    Kind("mtp", "nsd.drafters.mtp:load", "the multi-token prediction layer of the target", is_mtp, in_target=True),
    Kind("draft-model", "nsd.drafters.draft_model:model_drafter", "a smaller language model", is_causal_lm),
]
"""Folders by what their config.json says; the first that recognises it wins, so special ones stand first."""

SHIPPED = {"smollm2-135m": "smollm2-eagle3"}
"""Targets for which a drafter comes with the package."""

FALLBACK = "ngram"
"""What `auto` means where no drafter was made for the target."""


def load_drafter(name: Any, target: Target, **options: Any) -> Drafter:
    """The drafter of this name, folder, hub name or loaded model, for this target; options of None are left out.

    auto takes the folder given as `source`, else the drafter shipped for the target, else what the target's own folder
    holds, else ngram.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if not isinstance(name, str | Path):
        return _make(DRAFTERS["draft-model"].factory, "draft-model", target, name, **given)
    text = str(name)
    if text == "auto" and "source" not in given:
        return _make_auto(target, given)
    if text in DRAFTERS:
        return _make(DRAFTERS[text].factory, text, target, **given)
    source = str(given.pop("source")) if text == "auto" else text
    kind = recognise(source)
    return _make(kind.factory, kind.name, target, source, **given)


def recognise(source: str) -> Kind:
    """What a built-in model name, folder or hub name holds, by its config.json."""
    if "/" not in source and not Path(source).exists() and _is_built_in_model(source):
        return KINDS[-1]
    config = read_config(source)
    if (kind := kind_of(config)) is not None:
        return kind
    names = ", ".join(_architectures(config)) or "no architectures"
    known = ", ".join(kind.name for kind in KINDS)
    raise ModelError(f"{source} is no drafter that is known here: its config names {names}, known: {known}")


def kind_of(config: Config) -> Kind | None:
    """What a folder with this config.json (or these settings of an addition) is, None if no drafter."""
    return next((kind for kind in KINDS if kind.recognise(config)), None)


def read_config(source: str) -> dict[str, Any]:
    """config.json of a local folder or of a hub name (owner/name), or the settings of an addition."""
    path = Path(source) / "config.json"
    if [file.name for file in Path(source).glob("*.safetensors")] == ["adapter_model.safetensors"]:
        path = Path(source) / "adapter_config.json"
    if not Path(source).is_dir():
        if "/" not in source:
            raise _unknown(source)
        if not _is_hub_name(source):
            raise ModelError(f"there is no folder {source}, wanted one with a config.json; check the path")
        path = _from_hub(source)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ModelError(f"{path} is unreadable ({problem}), wanted the config of a model; check the folder") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} holds {type(config).__name__}, wanted a JSON object; check the folder")
    return config


def _is_hub_name(source: str) -> bool:
    """owner/name, and no path."""
    return source.count("/") == 1 and not source.startswith((".", "/", "~"))


def _from_hub(source: str) -> Path:
    from transformers.utils.hub import cached_file

    from nsd.targets.load import hub_in_reach

    try:
        return Path(str(cached_file(source, "config.json", local_files_only=not hub_in_reach())))
    except OSError as problem:
        reason = str(problem).splitlines()[0]
        raise ModelError(f"cannot get {source} from the hub ({reason}); give a local folder instead") from None


def _make_auto(target: Target, options: dict[str, Any]) -> Drafter:
    """The drafter shipped for this target, or the one inside the target's own folder; else the fallback."""
    if target.name in SHIPPED:
        name = SHIPPED[target.name]
        return _make(DRAFTERS[name].factory, name, target, **options)
    folder = str(getattr(target, "folder", None) or target.name)
    if (Path(folder) / "config.json").is_file() or _is_hub_name(folder):
        config = read_config(folder)
        for kind in KINDS:
            if kind.in_target and kind.recognise(config):
                return _make(kind.factory, kind.name, target, target.name, **options)
    return _make(DRAFTERS[FALLBACK].factory, FALLBACK, target, **options)


def _make(factory: str, name: str, *arguments: Any, **options: Any) -> Drafter:
    """Import the factory, check the options against its signature, and call it."""
    module, function = factory.split(":")
    make = getattr(importlib.import_module(module), function)
    known = list(inspect.signature(make).parameters)[len(arguments) :]
    for key in options:
        if key not in known:
            takes = ", ".join(known) or "no options"
            raise ConfigError(f"drafter {name} has no {key}; it takes {takes} (nsd list drafters)")
    missing = [
        parameter.name
        for parameter in list(inspect.signature(make).parameters.values())[len(arguments) :]
        if parameter.default is parameter.empty and parameter.name not in options
    ]
    if missing:
        raise ConfigError(f"drafter {name} needs {', '.join(missing)}; give it, or name the folder as the drafter")
    made: Drafter = make(*arguments, **options)
    return made


def _is_built_in_model(name: str) -> bool:
    from nsd.targets.load import MODELS

    return name in MODELS


def _unknown(name: str) -> ConfigError:
    names = [*DRAFTERS, "auto"]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}, a folder, or owner/name on the hub"
    return ConfigError(f"unknown drafter '{name}'; {hint} (nsd list drafters)")
