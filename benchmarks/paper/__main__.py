"""`python -m benchmarks.paper [CONFIG] [--dry-run | --tiny] [options of nsd bench]`: one experiment of the paper.

Without CONFIG the experiments are listed. --dry-run says what a run takes; models that are not at hand are known by
shapes/. --tiny runs the whole pipeline on tiny random checkpoints on a CPU: every step real, every score meaningless.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from benchmarks.paper.tiny import write_drafter, write_target

HERE = Path(__file__).parent
CONFIGS, SHAPES = HERE / "configs", HERE / "shapes"
SAMPLES = HERE.parents[1] / "tests" / "bench" / "fixtures"
"""Two problems of each task, in the format of the real files."""
TINY = ["--limit", "1", "--max-new-tokens", "12", "--dtype", "float32", "--device", "cpu", "--engine", "auto"]


def names() -> list[str]:
    """All experiments."""
    return sorted(path.stem for path in CONFIGS.glob("*.toml"))


def config_of(name: str) -> tuple[Path, dict[str, Any]]:
    """The file of an experiment, by name or path, and its values."""
    path = Path(name) if name.endswith(".toml") else CONFIGS / f"{name}.toml"
    if not path.is_file():
        sys.exit(f"there is no experiment {name}, wanted one of {', '.join(names())}; try python -m benchmarks.paper")
    return path, tomllib.loads(path.read_text(encoding="utf-8"))


def shape_of(name: str) -> dict[str, Any]:
    """config.json of a model of the paper, as stated in shapes/."""
    found: dict[str, Any] = json.loads((SHAPES / f"{name.replace('/', '--')}.json").read_text(encoding="utf-8"))
    return found


def tiny_arguments(values: dict[str, Any], folder: Path) -> list[str]:
    """Options that put tiny checkpoints in the place of the named ones; a drafter inside its target stays there."""
    target = write_target(folder / "target", shape_of(values["model"]))
    found = ["--model", str(target), *TINY]
    if "/" not in values["drafter"]:
        return [*found, "--drafter", "auto"]
    drafter = write_drafter(folder / "drafter", shape_of(values["drafter"]), shape_of(values["model"]))
    return [*found, "--drafter", str(drafter)]


def main(arguments: list[str]) -> None:
    """Hand an experiment to `nsd bench`."""
    from nsd.cli.main import main as nsd

    if not arguments or arguments[0].startswith("-"):
        for name in names():
            path, _ = config_of(name)
            print(f"{name:24} {path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}")
        return
    path, values = config_of(arguments[0])
    rest = [a for a in arguments[1:] if a != "--tiny"]
    if "--dry-run" in rest:
        rest += ["--shapes", str(SHAPES)]
    elif "--name" not in rest:
        rest += ["--name", path.stem]
    with tempfile.TemporaryDirectory(prefix="nsd-tiny-") as folder:
        if "--tiny" in arguments:
            rest = [*tiny_arguments(values, Path(folder)), *rest]
            rest += [] if "--data-dir" in rest else ["--data-dir", str(SAMPLES)]
        sys.argv = ["nsd", "bench", "--config", str(path), *rest]
        nsd()


if __name__ == "__main__":
    main(sys.argv[1:])
