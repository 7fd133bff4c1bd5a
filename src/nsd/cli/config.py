"""`--config FILE`: a TOML file whose values are the defaults of every command's options."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nsd.errors import ConfigError

FLAG = "--config"


def split_config(
    arguments: list[str], commands: Iterable[str], groups: Mapping[str, Iterable[str]] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """The arguments without --config FILE, and the defaults for each command that the file gives.

    groups names commands of commands. Names are those of the options, with - or _; a command takes those that it has,
    and what is typed wins. What follows a bare -- belongs to somebody else.
    """
    rest, path = [], None
    given = iter(arguments)
    for argument in given:
        if argument == "--":
            rest += [argument, *given]
        elif argument == FLAG:
            path = next(given, None)
            if path is None:
                raise ConfigError(f"{FLAG} got nothing, wanted a TOML file; nsd sweep writes one")
        elif argument.startswith(f"{FLAG}="):
            path = argument.removeprefix(f"{FLAG}=")
        else:
            rest.append(argument)
    if path is None:
        return arguments, {}
    values = read_config(Path(path).expanduser())
    nested = {group: dict.fromkeys(inner, values) for group, inner in (groups or {}).items()}
    return rest, {**dict.fromkeys(commands, values), **nested}


def read_config(path: Path) -> dict[str, Any]:
    """The values of a configuration file by the name of the parameter."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}), wanted a TOML file; nsd sweep writes one"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{path} is not TOML ({error}), wanted lines like theta = 0.95; nsd sweep writes one"
        ) from None
    tables = [name for name, value in found.items() if isinstance(value, dict)]
    if tables:
        raise ConfigError(f"{path} has a table [{tables[0]}], wanted plain lines like theta = 0.95")
    return {name.replace("-", "_"): value for name, value in found.items()}
