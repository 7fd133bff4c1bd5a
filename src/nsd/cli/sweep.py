"""`nsd sweep` searches settings for the fastest one within a limit."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from nsd.cli import options as o
from nsd.cli.console import SECONDS_BETWEEN_LINES, emit_json, note, write


def sweep(
    tasks: Annotated[list[str] | None, typer.Option("--task", "--suite", help="Task or suite to try on.")] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="Folder with the tasks' JSONL files.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Prompts of each task at most.")] = 28,
    model: o.Model = "smollm2-135m",
    drafter: o.DrafterName = "auto",
    draft: o.DraftOptions = None,
    k: Annotated[str, typer.Option("-k", "--k", help="K to try.")] = "2,4,7",
    theta: Annotated[str, typer.Option("--theta", help="Thresholds to try.")] = "0.5,0.8,0.9,0.95",
    cap: Annotated[str | None, typer.Option("--cap", help="Caps on the deviation of a step to try.")] = None,
    modes: Annotated[str, typer.Option("--modes", help="Of default, sampled, greedy drafting.")] = "default",
    max_deviation: Annotated[
        float | None, typer.Option("--max-deviation", help="Limit: deviation of a step, held by a cap.")
    ] = None,
    max_mean_es: Annotated[float | None, typer.Option("--max-mean-es", help="Limit: mean deviation.")] = None,
    max_score_drop: Annotated[
        float | None, typer.Option("--max-score-drop", help="Limit: points of score below SD.")
    ] = None,
    min_agreement: Annotated[
        float | None, typer.Option("--min-agreement", help="Limit: whole sequences; practically SD.")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature")] = 1.0,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", help="Default: each task's own.")] = None,
    seed: o.Seed = 0,
    out: Annotated[Path, typer.Option("--out", help="The configuration it writes, for --config.")] = Path("nsd.toml"),
    dtype: o.Dtype = "auto",
    engine: o.Engine = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    json_output: o.Json = False,
) -> None:
    """Search K x theta (and cap, and drafting mode) for the fastest setting within a limit; write it as TOML."""
    from nsd.bench.engine import OwnEngine
    from nsd.bench.runner import Plan
    from nsd.bench.sweep import Limits, as_toml, candidates_of
    from nsd.bench.sweep import sweep as search
    from nsd.bench.task import find_tasks
    from nsd.cli.generate import load_pair
    from nsd.errors import ConfigError

    limits = Limits(max_deviation, max_mean_es, max_score_drop, min_agreement)
    ks, thetas, caps = o.numbers("-k", k, int), o.numbers("--theta", theta, float), o.numbers("--cap", cap, float)
    kinds = [part.strip() for part in modes.split(",")]
    if wrong := [kind for kind in kinds if kind not in ("default", "sampled", "greedy")]:
        raise ConfigError(f"--modes got '{wrong[0]}', wanted default, sampled or greedy; try --modes sampled,greedy")
    if min_agreement is not None:
        note("an agreement over whole sequences is practically SD: next to nothing may be spent at each token")
    problems = []
    for task in find_tasks(tasks or ["toy"], data_dir):
        task.ready()
        problems.append((task, task.load(data_dir, limit)))
    names = o.folder_or_name(model), o.folder_or_name(drafter)
    options = o.draft_options(draft)
    where: dict[str, Any] = {"dtype": dtype, "engine": engine, "device": device, "threads": threads}
    engines = {}
    for kind in kinds:
        own = options if kind == "default" else {**options, "greedy": kind == "greedy"}
        engines[kind] = OwnEngine(load_pair(*names, own, **where), *names)
        ks = [engines[kind].proposals(value) for value in ks]
    plan = Plan(
        problems=problems,
        arms=tuple(c.arm for c in candidates_of(ks[:1], thetas[:1], caps[:1], kinds[:1], limits)),
        seeds=(seed,),
        settings={"temperature": temperature},
        max_new_tokens=max_new_tokens,
    )
    printer = _Lines()
    found = search(engines, plan, candidates_of(ks, thetas, caps, kinds, limits), limits, printer)
    pair = {"model": names[0], "drafter": names[1], "temperature": temperature, "draft": draft or []}
    try:
        out.write_text(as_toml(found, pair), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror}), wanted a file; try --out FILE") from None
    if json_output:
        emit_json("sweep", {**found.as_json(), "config": str(out)})
    else:
        write(found.why + "\n")
    note(f"written: {out}; use it with any command, such as nsd generate --config {out}")


class _Lines:
    """A line now and then: prompts so far and candidates left."""

    def __init__(self) -> None:
        self._last = monotonic()

    def __call__(self, prompts: int, total: int, left: int) -> None:
        if monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = monotonic()
            note(f"prompt {prompts} of {total} at most; {left} settings left")
