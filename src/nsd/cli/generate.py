"""`nsd generate`: one prompt, streamed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsd.cli import options as o
from nsd.cli.console import emit_json, note, out, talk

if TYPE_CHECKING:
    from nsd.api import Pair, Run
    from nsd.decoding import Request


def generate(
    prompt: o.Prompt = None,
    model: o.Model = "smollm2-135m",
    drafter: o.DrafterName = "auto",
    draft: o.DraftOptions = None,
    rule: o.RuleName = "nsd",
    theta: o.Theta = None,
    ties: o.Ties = None,
    max_deviation: o.MaxDeviation = None,
    agreement: o.Agreement = None,
    policy: o.Policy = "front",
    numbers: o.RuleNumbers = None,
    k: o.K = None,
    block_length: o.BlockLength = None,
    temperature: o.Temperature = None,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    max_new_tokens: o.MaxNewTokens = 128,
    stop: o.Stop = None,
    seed: o.Seed = 0,
    chat: o.Chat = False,
    accounting: o.Accounting = None,
    logprobs: Annotated[str | None, typer.Option("--logprobs", help="processed or raw; in --json.")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Record every decision into this file.")] = None,
    trace_laws: Annotated[
        int, typer.Option("--trace-laws", help="Also record so many of the most probable ids of p and q.")
    ] = 0,
    dtype: o.Dtype = "auto",
    engine: o.Engine = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    json_output: o.Json = False,
) -> None:
    """Continue a prompt (or answer it, with --chat); text on stdout, talk on stderr."""
    from nsd.api import check_settings

    text = o.prompt_text(prompt)
    settings = o.without_none(
        rule=rule,
        theta=theta,
        ties=ties,
        max_deviation=max_deviation,
        agreement=agreement,
        policy=policy,
        rule_numbers=o.rule_numbers(numbers),
        k=k,
        block_length=block_length,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        seed=seed,
        accounting=accounting,
        logprobs=logprobs,
        trace_laws=trace_laws,
    )
    options = o.draft_options(draft)
    check_settings(settings)
    pair = load_pair(model, drafter, options, engine=engine, dtype=dtype, device=device, threads=threads)
    run = pair.run([text], chat=chat, trace=trace is not None, **settings)
    explain(pair, run, theta)
    interrupted = _follow(run, pair, trace, show=not json_output)
    completion = run.completions()[0]
    if json_output:
        emit_json("generate", pair_facts(pair) | completion.as_json())
    else:
        from nsd.cli.render import card

        talk.print(card(completion, None if pair.drafter is None else pair.drafter.law.value))
    if interrupted:
        sys.exit(130)


def load_pair(model: str, drafter: str, draft: dict[str, Any] | None = None, **where: Any) -> Pair:
    """Load target and drafter, saying what was chosen and why; where holds engine, dtype, device and threads."""
    from nsd.api import load

    names = o.folder_or_name(model), o.folder_or_name(drafter)
    pair = load(*names, draft=draft, **where)
    name = "none" if pair.drafter is None else pair.drafter.name
    note(f"{pair.target.name} ({pair.target.dtype_reason}), drafter {name}")
    return pair


def pair_facts(pair: Pair) -> dict[str, Any]:
    """What identifies a pair in JSON."""
    return {
        "model": pair.target.name,
        "drafter": None if pair.drafter is None else pair.drafter.name,
        "draft_law": None if pair.drafter is None else pair.drafter.law.value,
        "dtype": pair.target.dtype_name,
        "dtype_reason": pair.target.dtype_reason,
    }


def explain(pair: Pair, run: Run, theta: float | None) -> None:
    """Say once what these settings mean for the law of the text."""
    request = run.requests[0]
    note(f"seed {request.seed}, temperature {request.sampling.temperature:g}, k {request.k}")
    for line in meaning(pair, request, theta):
        note(line)


def meaning(pair: Pair, request: Request, theta: float | None) -> list[str]:
    """What a rule does to the law of the text under these settings, in one line or two."""
    from nsd.fidelity.budget import Budget
    from nsd.fidelity.guarantee import is_exact

    rule, temperature, lines = request.rule, request.sampling.temperature, []
    if rule.untempered:
        lines.append(f"rule {rule.name} is lossy against greedy decoding: drafts inside the nucleus are kept")
    elif theta is not None and temperature == 0:
        lines.append("theta has no effect at temperature 0: the target's law is a point mass, NSD is greedy decoding")
    elif request.k and not is_exact(rule, temperature):
        lines.append(_lossy(pair, request))
    if request.agreement is not None:
        lines.append(Budget(request.agreement, request.max_new_tokens, request.k, request.policy).notice())
    return lines


def _lossy(pair: Pair, request: Request) -> str:
    assert pair.drafter is not None
    rule = request.rule
    price = "the draft's excess mass inside the nucleus (ES)" if rule.name == "nsd" else "a change of the emitted law"
    if rule.max_deviation is not None:
        price += f", at most {rule.max_deviation:g}"
    if pair.drafter.law.value == "point":
        price += f"; {pair.drafter.name} drafts are point masses, so a kept draft x costs 1 - p(x)"
    elif pair.drafter.law.value == "unknown":
        price += "; the draft's law is unknown, so ES is an upper bound"
    return f"rule {rule.name} is lossy: each tested token may deviate by {price}. --rule sd is exact"


def _follow(run: Run, pair: Pair, trace: Path | None, show: bool) -> bool:
    """Show events as they come and record them if asked -> whether Ctrl-C ended it."""
    from nsd.cli.render import coloured, legend, show_block

    if show and coloured(out):
        talk.print(legend())
    recorder = None
    if trace is not None:
        from nsd.recording import open_recorder

        recorder = open_recorder(trace, pair, run)
    interrupted = False
    try:
        for block in run:
            if recorder is not None:
                recorder.write(block)
            if show:
                show_block(out, block)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        if recorder is not None:
            recorder.close([c.fidelity.as_json() for c in run.completions()])
    if show:
        out.print()
    return interrupted
