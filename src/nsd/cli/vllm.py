"""`nsd vllm serve` and `nsd vllm check`: vLLM with NSD in it."""

from __future__ import annotations

from typing import Annotated

import typer

from nsd.cli import options as o
from nsd.cli.console import emit_json, note, out
from nsd.errors import ConfigError

vllm_app = typer.Typer(no_args_is_help=True)

_PASSES = {"allow_extra_args": True, "ignore_unknown_options": True}


@vllm_app.command(context_settings=_PASSES)
def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The target: a name or a folder that vLLM knows.")],
    theta: o.Theta = None,
    rule: Annotated[str | None, typer.Option("--rule", help="nsd, or sd for exact unless a request asks.")] = None,
    max_deviation: o.MaxDeviation = None,
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", help="ngram, suffix, mtp, or a drafting model; else --speculative-config."),
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Drafts per step.")] = 4,
    draft_method: Annotated[
        str | None, typer.Option("--draft-method", help="draft_model, eagle, eagle3, dflash, ...")
    ] = None,
    draft_sampling: Annotated[
        str, typer.Option("--draft-sampling", help="probabilistic, or greedy (point masses).")
    ] = "probabilistic",
    accounting: Annotated[
        str | None, typer.Option("--accounting", help="rescues (default: deviation estimated, free) or full (exact).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the vLLM command and stop.")] = False,
) -> None:
    """Start vLLM's OpenAI server with NSD as its default; options not listed here go to vLLM as they are."""
    from nsd.engines.vllm.serving import check_surroundings, launch, run

    what = launch(
        model,
        rule=rule,
        theta=theta,
        max_deviation=max_deviation,
        drafter=None if drafter == "auto" else drafter,  # what a configuration file says where nothing was chosen
        k=k,
        method=draft_method,
        sampling=draft_sampling,
        rest=context.args,
        accounting=accounting,
    )
    if dry_run:
        out.print(what.shown, markup=False)
        return
    problems = check_surroundings()
    if problems:
        raise ConfigError("; ".join(problems))
    note(what.shown)
    run(what)


@vllm_app.command()
def check(json_output: o.Json = False) -> None:
    """Is every hook there, will vLLM load the plugin, what is certain on which branch? Exit code 1 if not in order."""
    from nsd.engines.vllm.branches import BRANCHES
    from nsd.engines.vllm.hooks import probe
    from nsd.engines.vllm.serving import check_surroundings

    problems = check_surroundings()
    # Without a vLLM there is nothing to look into, and the problems say so.
    found = [] if any("not installed" in problem for problem in problems) else probe()
    well = not problems and all(one.ok for one in found if not one.hook.optional)
    if json_output:
        hooks = [
            {"where": one.hook.where, "runner": one.hook.runner, "use": one.hook.use, "ok": one.ok, "seen": one.seen}
            for one in found
        ]
        table = [{"branch": b.branch, "verdict": b.verdict, "why": b.why, "test": b.test} for b in BRANCHES]
        emit_json("vllm check", {"ok": well, "problems": problems, "hooks": hooks, "branches": table})
    else:
        for problem in problems:
            out.print("fix ", style="red", end="")
            out.print(problem, markup=False)
        for one in found:
            out.print("ok  " if one.ok else "fix ", style="green" if one.ok else "red", end="")
            out.print(f"{one.hook.runner:<5} {one.hook.where}: {one.hook.use if one.ok else one.seen}", markup=False)
        for fact in BRANCHES:
            out.print(f"{fact.verdict:<14} {fact.branch}: {fact.why} ({fact.test})", markup=False)
    if not well:
        raise typer.Exit(1)
