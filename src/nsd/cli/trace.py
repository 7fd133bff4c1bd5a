"""`nsd audit`, `nsd view`, `nsd analyze`, `nsd convert`: what can be done with a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsd.cli.console import emit_json, note, out
from nsd.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from nsd.trace import Audit, Trace
    from nsd.trace.analyze import Analysis
    from nsd.trace.statistics import Estimate

TracePath = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace: JSON lines or .parquet.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Where to write.")]

_SHOWN = 20


def audit(
    trace: TracePath,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Allow a trace whose recording was interrupted; audit what is there.")
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Take every recorded decision again: exit code 0 clean, 1 violated, 2 unreadable."""
    from nsd.trace import audit as run_audit
    from nsd.trace import read_trace

    result = run_audit(read_trace(trace), unfinished)
    if json_output:
        emit_json("audit", {"trace": str(trace), **result.as_json()})
    else:
        _print_audit(result)
    raise typer.Exit(result.exit_code)


def _print_audit(result: Audit) -> None:
    from nsd.trace.audit import SCOPE

    counts = result.counts
    out.print("clean" if result.clean else "violated", style="bold green" if result.clean else "bold red")
    out.print(
        f"{counts['blocks']} blocks, {counts['tested']} tested proposals, "
        f"{counts['redecided']} decided again, {counts['draws']} draws checked, "
        f"{counts['guards']} guards, {counts['invalid']} rows of q not finite"
    )
    for finding in result.findings[:_SHOWN]:
        line = f"  {finding.place}: {finding.field} is {finding.got}, wanted {finding.wanted}"
        out.print(line, style="red", markup=False)
    if len(result.findings) > _SHOWN:
        out.print(f"  and {len(result.findings) - _SHOWN} more (--json has all)", style="red")
    for line in result.notes:
        out.print(f"note: {line}", markup=False)
    for line in SCOPE:
        out.print(f"scope: {line}", style="dim", markup=False)


def view(trace: TracePath, output: Output = None, json_output: AsJson = False) -> None:
    """Write one self-contained page that shows the text, every token's state and the numbers that decided it."""
    from nsd.trace import read_trace
    from nsd.trace.view import page

    read = _readable(read_trace(trace), trace)
    target = trace.with_suffix(".html") if output is None else output
    _write(target, page(read))
    if json_output:
        tokens = sum(len(block.committed) for block in read.blocks)
        emit_json("view", {"trace": str(trace), "page": str(target), "blocks": len(read.blocks), "tokens": tokens})
    else:
        out.print(str(target), markup=False)


def convert(trace: TracePath, output: Output = None, json_output: AsJson = False) -> None:
    """A finished trace as Parquet (one row per token), or Parquet back into JSON lines, by the name of the output."""
    from nsd.trace import read_trace
    from nsd.trace.convert import to_jsonl, to_parquet

    other = ".jsonl" if trace.suffix == ".parquet" else ".parquet"
    target = trace.with_suffix(other) if output is None else output
    read = read_trace(trace)
    if target.suffix == ".parquet":
        to_parquet(read, target)
    elif target.suffix in (".jsonl", ".json"):
        to_jsonl(read, target)
    else:
        raise ConfigError(f"output is {target}, wanted a name that ends in .parquet or .jsonl; try -o {target}.parquet")
    if json_output:
        emit_json("convert", {"trace": str(trace), "output": str(target), "blocks": len(read.blocks)})
    else:
        out.print(str(target), markup=False)


def analyze(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Traces, analyzed together.")],
    core: Annotated[float, typer.Option("--core", help="Nucleus threshold that counts as the core.")] = 0.5,
    figures: Annotated[Path | None, typer.Option("--figures", help="Folder to draw figures into.")] = None,
    json_output: AsJson = False,
) -> None:
    """Rejections, rescues, acceptance by place and time spent, beside the paper's figures where comparable."""
    from nsd.trace import read_trace
    from nsd.trace.analyze import analyze as run_analysis

    if not 0 < core <= 1:
        raise ConfigError(f"core is {core}, wanted a number in (0, 1]; try --core 0.5")
    result = run_analysis([_readable(read_trace(path), path) for path in traces], core)
    drawn: list[Path] = []
    if figures is not None:
        from nsd.trace.figures import draw_figures

        drawn = draw_figures(result, figures)
        note(f"{len(drawn)} figures in {figures}")
    if json_output:
        names = {"traces": [str(path) for path in traces], "figures": [str(path) for path in drawn]}
        emit_json("analyze", {**names, **result.as_json()})
    else:
        _print_analysis(result)


def _print_analysis(result: Analysis) -> None:
    from rich.table import Table

    from nsd.trace.analyze import PAPER_CORE

    shares = Table("figure", "here", "95% interval", "n", "paper", box=None, header_style="bold")
    for name, estimate in result.estimates.items():
        beside = estimate.not_compared or ("" if estimate.paper is None else f"{estimate.paper:g}")
        shares.add_row(name.replace("_", " "), *_cells(estimate), beside)
    for level, estimate in result.cores.items():
        beside = f"{PAPER_CORE:g} in a core it does not define" if level == f"{result.core:g}" else ""
        shares.add_row(f"rescued in the nucleus at {level}", *_cells(estimate), beside)
    out.print(shares)
    places = Table("rule", "place", "tested", "acceptance", "R", "ES", box=None, header_style="bold")
    for place in result.places:
        columns = [_with_interval(estimate) for estimate in (place.acceptance, place.R, place.ES)]
        places.add_row(place.rule, str(place.place), str(place.acceptance.n), *columns)
    out.print(places)
    speeds = Table(
        "rule", "target calls per token", "tau", "share of time verifying", "paper", box=None, header_style="bold"
    )
    for speed in result.speeds:
        paper = "" if speed.paper_verifying is None else "{:g} to {:g}".format(*speed.paper_verifying)
        values = (speed.calls_per_token, speed.tau, speed.verifying)
        speeds.add_row(speed.rule, *("none" if v is None else f"{v:.4g}" for v in values), paper)
    out.print(speeds)


def _cells(estimate: Estimate) -> tuple[str, str, str]:
    if estimate.value is None:
        return "none", estimate.reason or "", "0"
    return f"{estimate.value:.4g}", _interval(estimate), str(estimate.n)


def _interval(estimate: Estimate) -> str:
    return "" if estimate.low is None or estimate.high is None else f"{estimate.low:.4g} to {estimate.high:.4g}"


def _with_interval(estimate: Estimate) -> str:
    if estimate.value is None:
        return "none"
    interval = _interval(estimate)
    return f"{estimate.value:.3f} ({interval})" if interval else f"{estimate.value:.3f}"


def _readable(trace: Trace, path: Path) -> Trace:
    """The trace, with a word on stderr if it is not whole."""
    if trace.broken_lines or trace.torn or trace.footer is None:
        note(f"{path} is not a whole, undamaged trace; nsd audit says what is wrong with it")
    return trace


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".part")
    options: dict[str, Any] = {"encoding": "utf-8", "newline": "\n"}
    try:
        temporary.write_text(text, **options)
        temporary.replace(path)
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror}); name a file in a folder that exists") from None
