"""`nsd train`: a drafter for a target, trained on text that the target writes itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsd.cli import options as o
from nsd.cli.console import note

if TYPE_CHECKING:
    from nsd.train.trainer import Progress

_TEXT, _RUN = "Text", "Training"


def train(
    out: Annotated[Path, typer.Option("--out", help="Folder of the run; text, checkpoints and results lie there.")],
    model: o.Model = "smollm2-135m",
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="JSONL with a prompt per line.", rich_help_panel=_TEXT)
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            "--exclude", help="Benchmark file that training may not touch; repeatable.", rich_help_panel=_TEXT
        ),
    ] = None,
    text_tokens: Annotated[
        int, typer.Option("--text-tokens", help="Positions to write.", rich_help_panel=_TEXT)
    ] = 500_000,
    temperatures: Annotated[
        str, typer.Option("--temperatures", help="Temperatures of the answers.", rich_help_panel=_TEXT)
    ] = "1.0,0.7",
    max_disk: Annotated[
        float, typer.Option("--max-disk", help="GB that text may take on disk.", rich_help_panel=_TEXT)
    ] = 8.0,
    workers: Annotated[
        int, typer.Option("--workers", help="Processes that write text, one thread each.", rich_help_panel=_TEXT)
    ] = 1,
    budget_minutes: Annotated[
        float | None,
        typer.Option("--budget-minutes", help="Minutes for all; sets text and steps.", rich_help_panel=_RUN),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Training steps.", rich_help_panel=_RUN)] = 2_500,
    draft_vocab: Annotated[int, typer.Option("--draft-vocab", help="Ids it can draft.", rich_help_panel=_RUN)] = 8192,
    seed: o.Seed = 0,
    dtype: Annotated[str, typer.Option("--dtype", help="The target's: bfloat16 or float32.")] = "bfloat16",
    threads: o.Threads = None,
) -> None:
    """Train an EAGLE-3 drafter; a run that was stopped goes on where it was, bit for bit."""
    from nsd.targets.load import load_target
    from nsd.train.run import Options
    from nsd.train.run import train as run

    options = Options(
        model=o.folder_or_name(model),
        out=out,
        prompts=prompts,
        exclude=tuple(exclude or ()),
        seed=seed,
        budget_minutes=budget_minutes,
        text_tokens=text_tokens,
        steps=steps,
        workers=workers,
        max_disk=max_disk,
        temperatures=_numbers(temperatures),
        draft_vocab=draft_vocab,
        dtype=dtype,
        device="cpu",
    )
    _check(options)
    target = load_target(options.model, dtype=dtype, device="cpu", threads=threads, engine="transformers")
    for line in _lines(run(options, target, _printer())):
        note(line)
    note(f"written: {out / 'float32'} and {out / 'int8'}; use either as --drafter")


def _numbers(text: str) -> tuple[float, ...]:
    from nsd.errors import ConfigError

    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) <= 0:
        raise ConfigError(f"--temperatures got '{text}', wanted positive numbers; try --temperatures 1.0,0.7")
    return values


def _check(options: Any) -> None:
    """Refuse numbers that make no run."""
    from nsd.errors import ConfigError

    limits = {"text_tokens": options.text_tokens, "steps": options.steps, "workers": options.workers}
    limits |= {"draft_vocab": options.draft_vocab}
    for name, value in limits.items():
        if value < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {value}, wanted at least 1; leave it out for the default")
    if options.budget_minutes is not None and options.budget_minutes <= 0:
        raise ConfigError(f"--budget-minutes is {options.budget_minutes:g}, wanted more than 0; try 60")


def _lines(figures: list[Any]) -> list[str]:
    """Held-out figures, one line for each temperature."""
    return [
        f"held out, T {f.temperature:g}: 1-TV by depth {' '.join(f'{v:.3f}' for v in f.kept)}; "
        f"tau at K=3 about {f.tau_sd[3]:.2f} (SD), {f.tau_nsd[3]:.2f} (NSD, theta 0.95)"
        for f in figures
    ]


def _printer() -> Any:
    """A watcher that prints a line now and then."""
    from nsd.train.run import Watcher

    class Printer(Watcher):
        last = 0.0

        def note(self, line: str) -> None:
            note(line)

        def text(self, done: int, count: int, seconds_left: float) -> None:
            note(f"text: {done} of {count} shards, {seconds_left / 60:.1f} minutes left")

        def step(self, progress: Progress) -> None:
            if not progress.figures and time.monotonic() - self.last < 10 and progress.step < progress.steps:
                return
            self.last = time.monotonic()
            note(
                f"step {progress.step} of {progress.steps}: loss {progress.loss:.3f}, 1-TV {progress.kept:.3f}, "
                f"{progress.seconds_left / 60:.1f} minutes left"
            )
            for line in _lines(progress.figures):
                note(line)

    return Printer()
