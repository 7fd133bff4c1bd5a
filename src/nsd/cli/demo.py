"""`nsd demo`: a real model answers one prompt three ways."""

from __future__ import annotations

from typing import Annotated

import typer

from nsd.cli import options as o
from nsd.cli.console import note

_PROMPT = "List five everyday uses of a spoon, then repeat the list in the same words with one more use added."
_TEMPERATURE = 0.7


def demo(
    prompt: Annotated[str, typer.Argument(help="What the model is asked.")] = _PROMPT,
    model: o.Model = "smollm2-135m",
    drafter: o.DrafterName = "auto",
    theta: o.Theta = 0.95,
    k: o.K = None,
    temperature: o.Temperature = _TEMPERATURE,
    max_new_tokens: o.MaxNewTokens = 120,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    engine: o.Engine = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    json_output: o.Json = False,
) -> None:
    """Watch AR, SD and NSD answer the same prompt, token by token, and see what each cost."""
    from nsd.api import check_settings
    from nsd.cli.compare import run_comparison
    from nsd.cli.generate import load_pair, pair_facts

    settings = o.without_none(
        theta=theta, k=k, temperature=temperature, max_new_tokens=max_new_tokens, seed=seed, rule="nsd"
    )
    check_settings(settings)
    pair = load_pair(model, drafter, engine=engine, dtype=dtype, device=device, threads=threads)
    note(f"temperature {temperature:g} for readable text (the paper's setting is 1.0), theta {theta:g}, seed {seed}")
    run_comparison(pair, prompt, settings, 1, True, json_output, pair_facts(pair), watch=True)
