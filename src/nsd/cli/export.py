"""`nsd export`: what is built in, as a folder that other engines read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from nsd.cli.console import note


def export(
    name: Annotated[str, typer.Argument(help="smollm2-135m (the model) or smollm2-eagle3 (its drafter).")],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """Write a built-in model or drafter as float32 safetensors, for vLLM and others."""
    from nsd.drafters import shipped
    from nsd.drafters.exported import export_drafter, require_new
    from nsd.errors import ConfigError
    from nsd.targets import smollm2
    from nsd.targets.store import MANIFEST

    if name == shipped.NAME:
        export_drafter(out)
        note(f"written: {out}; vLLM reads it with method eagle3 beside {smollm2.NAME}")
    elif name == smollm2.NAME:
        require_new(out)
        shutil.copytree(smollm2.smollm2_folder(), out, ignore=shutil.ignore_patterns(MANIFEST), dirs_exist_ok=True)
        note(f"written: {out}; vLLM reads it as --model")
    else:
        raise ConfigError(f"got '{name}', wanted {smollm2.NAME} or {shipped.NAME}; try nsd export {shipped.NAME} OUT")
