"""`nsd compare`: plain decoding, standard speculation and NSD on the same prompt in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsd.cli import options as o
from nsd.cli.console import emit_json, note, out, talk

if TYPE_CHECKING:
    from nsd.api import Pair
    from nsd.compare import Comparison


def compare(
    prompt: o.Prompt = None,
    model: o.Model = "smollm2-135m",
    drafter: o.DrafterName = "auto",
    draft: o.DraftOptions = None,
    rule: o.RuleName = "nsd",
    theta: o.Theta = None,
    ties: o.Ties = None,
    max_deviation: o.MaxDeviation = None,
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
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of the prompt, each with its own seed.")] = 5,
    dtype: o.Dtype = "auto",
    engine: o.Engine = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    json_output: o.Json = False,
) -> None:
    """Time the three arms interleaved in one run, beside transformers' own generate."""
    from nsd.api import check_settings
    from nsd.cli.generate import load_pair, pair_facts
    from nsd.errors import ConfigError

    text = o.prompt_text(prompt)
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}, wanted an integer >= 1; try --repeats 3")
    settings: dict[str, Any] = o.without_none(
        rule=rule,
        theta=theta,
        ties=ties,
        max_deviation=max_deviation,
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
    )
    options = o.draft_options(draft)
    check_settings(settings)
    pair = load_pair(model, drafter, options, engine=engine, dtype=dtype, device=device, threads=threads)
    note(f"seed {seed}, {repeats} runs of each arm, interleaved, warm-up excluded")
    run_comparison(pair, text, settings, repeats, chat, json_output, pair_facts(pair), watch=False)


def run_comparison(
    pair: Pair,
    text: str,
    settings: dict[str, Any],
    repeats: int,
    chat: bool,
    json_output: bool,
    facts: dict[str, Any],
    watch: bool,
) -> None:
    """Run and print; with watch the text of every arm streams as it comes."""
    from nsd.cli.render import coloured, comparison_table, legend, show_block
    from nsd.compare import compare as run_arms
    from nsd.events import Block

    titles = {"ar": "AR: plain decoding", "sd": "SD: standard speculation, exact", "nsd": "NSD: nucleus speculation"}
    shown = ""

    def show(arm: str, _number: int, block: Block) -> None:
        nonlocal shown
        if shown != arm:
            out.print("\n" if shown else "", f"[bold]{titles[arm]}[/bold]", sep="")
            shown = arm
        show_block(out, block)

    watching = watch and not json_output
    if watching and coloured(out):
        talk.print(legend())
    result = run_arms(pair, [text], repeats=repeats, chat=chat, on_block=show if watching else None, **settings)
    if json_output:
        emit_json("compare", facts | result.as_json())
        return
    if watch:
        out.print("\n")
    out.print(comparison_table(result))
    for line in remarks(result, pair, settings.get("theta")):
        note(line)


def remarks(result: Comparison, pair: Pair, theta: float | None) -> list[str]:
    """What a reader must know to read the table honestly."""
    from nsd.cli.generate import meaning
    from nsd.compare import FEWEST_FOR_INTERVAL

    lines = []
    rate, ours, runs = result.transformers_rate, result.arms["ar"].rate, len(result.arms["ar"].completions)
    if rate is not None:
        which = "the faster, so speed-ups over AR are against it" if result.baseline != "ar" else "the slower"
        lines.append(f"transformers' generate: {rate:.1f} tokens/s, our AR loop: {ours:.1f}; transformers is {which}")
    elif result.transformers_reason:
        lines.append(f"no comparison with transformers' generate: {result.transformers_reason}")
    if runs < FEWEST_FOR_INTERVAL:
        lines.append(f"{runs} runs of each arm: an interval needs {FEWEST_FOR_INTERVAL}; nsd compare --repeats 5")
    request = result.arms["nsd"].completions[0].request
    return [*lines, *meaning(pair, request, theta), "AR and SD have the model's exact law"]
