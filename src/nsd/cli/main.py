"""The command table, and what happens when something goes wrong: one line, exit code 2; Ctrl-C exits with 130."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from nsd import __version__
from nsd.cli import bench, compare, demo, doctor, export, generate, listing, sweep, theory, trace, train, vllm
from nsd.cli.config import split_config
from nsd.cli.console import ClosedPipe, talk
from nsd.errors import NSDError

app = typer.Typer(
    name="nsd",
    help="Nucleus speculative decoding: faster generation with a price tag that is known exactly.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate.generate)
app.command()(compare.compare)
app.command()(demo.demo)
app.add_typer(listing.app, name="list", help="What there is: rules, drafters, models.")
app.command()(doctor.doctor)
app.add_typer(theory.theory_app, name="theory", help="Exact figures for a step, a sequence, a speed-up.")
app.command()(train.train)
app.command()(export.export)
app.command()(bench.bench)
app.command()(bench.report)
app.command()(sweep.sweep)
app.command()(trace.audit)
app.command()(trace.view)
app.command()(trace.analyze)
app.command()(trace.convert)
app.add_typer(vllm.vllm_app, name="vllm", help="NSD inside vLLM: start a server, look whether all is in order.")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""
    if debug:
        os.environ["NSD_DEBUG"] = "1"
    if version:
        typer.echo(__version__)
        raise typer.Exit


# typer carries click inside or beside it, by version; its own error classes tell which.
_UsageProblem: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _names(commands: typer.Typer) -> list[str]:
    return [one.name or one.callback.__name__ for one in commands.registered_commands if one.callback]


def main() -> None:
    """Entry point of `nsd` and `python -m nsd`."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1 or bool(os.environ.get("NSD_DEBUG"))
    try:
        groups = {str(g.name): _names(g.typer_instance) for g in app.registered_groups if g.typer_instance}
        rest, defaults = split_config(arguments, _names(app), groups)
        code = app(args=rest, standalone_mode=False, default_map=defaults)
        sys.exit(code if isinstance(code, int) else 0)
    except (NSDError, _UsageProblem) as problem:
        if debug:
            raise
        format_message = getattr(problem, "format_message", problem.__str__)
        message = " ".join(format_message().split())
        talk.print(f"nsd: {message}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except ClosedPipe:
        # A reader such as head has enough; what it read stays valid.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as problem:
        if debug:
            raise
        talk.print(f"nsd: {problem}; check the disk and the paths", style="red", markup=False, soft_wrap=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
