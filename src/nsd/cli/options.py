"""Options that several commands share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nsd.errors import ConfigError, PromptError

_PAIR, _RULE, _LAW, _RUN = "Pair", "Rule", "Sampling", "Run"

Prompt = Annotated[str | None, typer.Argument(help="The prompt; without one it is read from standard input.")]
Model = Annotated[str, typer.Option("--model", help="Built-in name, hub name or local folder.", rich_help_panel=_PAIR)]
DrafterName = Annotated[
    str,
    typer.Option(
        "--drafter", help="auto, ngram, layer-skip, none, or a model's name or folder.", rich_help_panel=_PAIR
    ),
]
Dtype = Annotated[
    str, typer.Option("--dtype", help="auto, float32, bfloat16, float16, int8, int4 or w8a8.", rich_help_panel=_PAIR)
]
Engine = Annotated[
    str, typer.Option("--engine", help="What runs the target: auto, lean or transformers.", rich_help_panel=_PAIR)
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:0.", rich_help_panel=_PAIR)]
Threads = Annotated[int | None, typer.Option("--threads", help="CPU threads.", rich_help_panel=_PAIR)]
RuleName = Annotated[str, typer.Option("--rule", help="Verification rule (nsd list rules).", rich_help_panel=_RULE)]
Theta = Annotated[
    float | None, typer.Option("--theta", help="Nucleus threshold in [0, 1]; 0 is exact.", rich_help_panel=_RULE)
]
Ties = Annotated[
    str | None, typer.Option("--ties", help="Nucleus with all ties, or the smallest prefix.", rich_help_panel=_RULE)
]
MaxDeviation = Annotated[
    float | None,
    typer.Option("--max-deviation", help="Cap on the one-step deviation; 0 is exact.", rich_help_panel=_RULE),
]
Agreement = Annotated[
    float | None,
    typer.Option("--agreement", help="Whole-sequence agreement to keep, e.g. 0.95.", rich_help_panel=_RULE),
]
Policy = Annotated[
    str, typer.Option("--policy", help="How --agreement is spent: even, greedy or front.", rich_help_panel=_RULE)
]
RuleNumbers = Annotated[
    list[str] | None,
    typer.Option("--set", help="Another number of the rule, as name=value; repeatable.", rich_help_panel=_RULE),
]
K = Annotated[int | None, typer.Option("-k", "--k", help="Proposals per block.", rich_help_panel=_PAIR)]
DraftOptions = Annotated[
    list[str] | None,
    typer.Option("--draft", help="An option of the drafter, as name=value; repeatable.", rich_help_panel=_PAIR),
]
BlockLength = Annotated[
    int | None, typer.Option("--block-length", help="The same in the mechanism's own unit.", rich_help_panel=_PAIR)
]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", help="0 is greedy; default: the model's own, else 1.", rich_help_panel=_LAW),
]
TopP = Annotated[float, typer.Option("--top-p", rich_help_panel=_LAW)]
TopK = Annotated[int, typer.Option("--top-k", help="0 = off.", rich_help_panel=_LAW)]
MinP = Annotated[float, typer.Option("--min-p", rich_help_panel=_LAW)]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", rich_help_panel=_RUN)]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="End before this text; repeatable.", rich_help_panel=_RUN)
]
Seed = Annotated[int, typer.Option("--seed", rich_help_panel=_RUN)]
Chat = Annotated[bool, typer.Option("--chat", help="Use the model's chat template.", rich_help_panel=_RUN)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=_RUN)]
Accounting = Annotated[
    str | None,
    typer.Option(
        "--accounting", help="Deviation: off, rescues (estimated, free) or full (exact).", rich_help_panel=_RUN
    ),
]


def prompt_text(prompt: str | None) -> str:
    """The prompt, or standard input decoded strictly as UTF-8."""
    if prompt is None:
        if sys.stdin.isatty():
            raise PromptError("no prompt was given, wanted one; try nsd generate 'Once upon a time'")
        raw = sys.stdin.buffer.read()
        try:
            prompt = raw.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise PromptError(
                f"standard input is not UTF-8 (byte {raw[problem.start]:#04x} at offset {problem.start}), wanted UTF-8 "
                "text; try iconv -t utf-8 file | nsd generate"
            ) from None
    if not prompt.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise PromptError("the prompt is not UTF-8, wanted UTF-8 text; check the terminal's encoding")
    if not prompt.strip():
        raise PromptError("the prompt is empty, wanted some text; try nsd generate 'Once upon a time'")
    return prompt


def rule_numbers(given: list[str] | None) -> dict[str, float]:
    """name=value pairs of --set."""
    numbers = {}
    for pair in given or []:
        name, found, value = pair.partition("=")
        try:
            numbers[name] = float(value)
        except ValueError:
            found = ""
        if not found:
            raise ConfigError(f"--set got '{pair}', wanted name=value with a number; try --set l=0.5")
    return numbers


def draft_options(given: list[str] | None) -> dict[str, Any]:
    """name=value pairs of --draft; values are true, false, a number, or text."""
    options: dict[str, Any] = {}
    for pair in given or []:
        name, found, value = pair.partition("=")
        if not (name and found):
            raise ConfigError(f"--draft got '{pair}', wanted name=value; try --draft greedy=true")
        options[name] = _value(value)
    return options


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def without_none(**settings: Any) -> dict[str, Any]:
    """The settings that were given."""
    return {name: value for name, value in settings.items() if value is not None}


def folder_or_name(text: str) -> str:
    """A model argument with ~ expanded."""
    return str(Path(text).expanduser()) if text.startswith("~") else text


def numbers(flag: str, text: str | None, kind: type[int] | type[float]) -> list[Any]:
    """Numbers with commas between, as an option takes them. Raises ConfigError."""
    try:
        return [] if text is None else [kind(part) for part in text.split(",")]
    except ValueError:
        example = "8,16" if kind is int else "0.85,0.95"
        raise ConfigError(f"{flag} got '{text}', wanted numbers with commas between; try {flag} {example}") from None
