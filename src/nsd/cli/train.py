"""`nsd train`: a drafter for a target, trained on text that the target writes itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
    kind: Annotated[
        str, typer.Option("--kind", help="eagle3, dspark, dflash, mtp, nemotron or draft-model.")
    ] = "eagle3",
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help="JSONL with a prompt per line, and a response if given.", rich_help_panel=_TEXT),
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
    rows: Annotated[int, typer.Option("--rows", help="Chats side by side in a shard.", rich_help_panel=_TEXT)] = 128,
    positions: Annotated[int, typer.Option("--positions", help="Tokens of a chat.", rich_help_panel=_TEXT)] = 288,
    one_turn: Annotated[
        bool, typer.Option("--one-turn", help="A chat ends with its first answer.", rich_help_panel=_TEXT)
    ] = False,
    text: Annotated[
        Path | None, typer.Option("--text", help="Run whose text to train on; none is written.", rich_help_panel=_TEXT)
    ] = None,
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
    layers: Annotated[
        int | None,
        typer.Option("--layers", help="Layers of the drafter (1; blocks and models 2).", rich_help_panel=_RUN),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option("--block", help="Proposals of a block (7; Nemotron's its own).", rich_help_panel=_RUN),
    ] = None,
    anchors: Annotated[int, typer.Option("--anchors", help="Blocks of a text in a step.", rich_help_panel=_RUN)] = 64,
    rank: Annotated[
        int,
        typer.Option("--rank", help="Rank of DSpark's Markov head, of Nemotron's addition.", rich_help_panel=_RUN),
    ] = 64,
    width: Annotated[
        int | None, typer.Option("--width", help="Width of a draft model (half the target's).", rich_help_panel=_RUN)
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option("--init", help="Run or exported folder to take first weights from.", rich_help_panel=_RUN),
    ] = None,
    depth_shares: Annotated[
        str, typer.Option("--depth-shares", help="Time for depths 1, 2, ...", rich_help_panel=_RUN)
    ] = "0.3,0.2,0.5",
    warm_up_share: Annotated[
        float, typer.Option("--warm-up-share", help="Time with cross-entropy alone.", rich_help_panel=_RUN)
    ] = 0.35,
    labels: Annotated[
        str,
        typer.Option("--labels", help="target (its law) or text (the text's own next token).", rich_help_panel=_RUN),
    ] = "target",
    peak: Annotated[float, typer.Option("--peak", help="Highest learning rate.", rich_help_panel=_RUN)] = 1.5e-3,
    batch: Annotated[int, typer.Option("--batch", help="Chats per step.", rich_help_panel=_RUN)] = 8,
    seed: o.Seed = 0,
    dtype: Annotated[str, typer.Option("--dtype", help="The target's: bfloat16 or float32.")] = "bfloat16",
    threads: o.Threads = None,
) -> None:
    """Train a drafter; a run that was stopped goes on where it was, bit for bit."""
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
        temperatures=_positive(temperatures),
        draft_vocab=draft_vocab,
        kind=kind,
        rows=rows,
        positions=positions,
        one_turn=one_turn,
        text=text,
        layers=0 if layers is None else layers,
        block=block or 0,
        anchors=anchors,
        rank=rank,
        width=width or 0,
        init=init,
        depth_shares=_numbers(depth_shares, "--depth-shares", "0,0.2,0.8"),
        warm_up_share=warm_up_share,
        labels=labels,
        peak=peak,
        batch=batch,
        dtype=dtype,
        device="cpu",
    )
    _check(options, {"layers": layers, "width": width, "block": block})
    target = load_target(options.model, dtype=dtype, device="cpu", threads=threads, engine="transformers")
    for line in _lines(run(options, target, _printer())):
        note(line)


def _numbers(text: str, flag: str, example: str) -> tuple[float, ...]:
    from nsd.errors import ConfigError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{flag} got '{text}', wanted numbers with commas; try {flag} {example}") from None


def _positive(text: str) -> tuple[float, ...]:
    from nsd.errors import ConfigError

    try:
        values = _numbers(text, "--temperatures", "1.0,0.7")
    except ConfigError:
        values = ()
    if not values or min(values) <= 0:
        raise ConfigError(f"--temperatures got '{text}', wanted positive numbers; try --temperatures 1.0,0.7")
    return values


def _check(options: Any, given: Mapping[str, int | None]) -> None:
    """Refuse numbers that make no run; given are those that may be left out."""
    from nsd.errors import ConfigError
    from nsd.train.schedule import depth_shares

    names = ("text_tokens", "steps", "workers", "draft_vocab", "batch", "rows", "positions", "anchors", "rank")
    limits = {name: getattr(options, name) for name in names}
    limits |= {name: value for name, value in given.items() if value is not None}
    for name, value in limits.items():
        if value < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} is {value}, wanted at least 1; leave it out for the default")
    if not 0 <= options.warm_up_share <= 1:
        raise ConfigError(f"--warm-up-share is {options.warm_up_share:g}, wanted a number in [0, 1]; try 0.35")
    if not 0 < options.peak < 1:
        raise ConfigError(f"--peak is {options.peak:g}, wanted a learning rate in (0, 1); try 0.0015")
    depth_shares(options.depth_shares)
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
