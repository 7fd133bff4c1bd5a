"""`nsd bench` runs an evaluation that survives a kill; `nsd report` shows it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nsd.cli import options as o
from nsd.cli.console import SECONDS_BETWEEN_LINES, emit_json, note, talk, write

if TYPE_CHECKING:
    from nsd.bench.engine import Engine
    from nsd.bench.runner import Plan, Progress
    from nsd.bench.task import Problem, Task

_WHAT, _ARMS, _PLACE = "What is asked", "Arms", "The run on disk"

Engines = Annotated[
    str,
    typer.Option("--engine", help="What runs the target: auto, lean, transformers or vllm.", rich_help_panel="Pair"),
]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds runs.", rich_help_panel=_PLACE)]


def bench(
    tasks: Annotated[
        list[str] | None,
        typer.Option("--task", "--tasks", "--suite", help="Tasks or suites; repeatable.", rich_help_panel=_WHAT),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder with the tasks' JSONL files.", rich_help_panel=_WHAT)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", help="First so many problems of each task.", rich_help_panel=_WHAT)
    ] = None,
    shard: Annotated[str, typer.Option("--shard", help="i/n: every n-th prompt.", rich_help_panel=_WHAT)] = "1/1",
    seeds: Annotated[int, typer.Option("--seeds", help="Answers to each prompt.", rich_help_panel=_WHAT)] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.", rich_help_panel=_WHAT)] = 0,
    model: o.Model = "smollm2-135m",
    drafter: o.DrafterName = "auto",
    draft: o.DraftOptions = None,
    arms: Annotated[
        str | None,
        typer.Option("--arms", help="Of ar, sd, match, nsd; default: all that fit the drafter.", rich_help_panel=_ARMS),
    ] = None,
    rule: Annotated[str, typer.Option("--rule", help="Rule of the NSD arms.", rich_help_panel=_ARMS)] = "nsd",
    theta: Annotated[
        str | None, typer.Option("--theta", help="One or more thresholds, as 0.85,0.95.", rich_help_panel=_ARMS)
    ] = None,
    ties: o.Ties = None,
    max_deviation: o.MaxDeviation = None,
    agreement: o.Agreement = None,
    policy: o.Policy = "front",
    numbers: o.RuleNumbers = None,
    k: Annotated[
        str | None, typer.Option("-k", "--k", help="One or more K (proposals per block).", rich_help_panel=_ARMS)
    ] = None,
    block_length: Annotated[
        str | None,
        typer.Option("--block-length", help="The same in the mechanism's own unit, as 8,16,32.", rich_help_panel=_ARMS),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", help="0 is greedy.")] = 1.0,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Default: 2048, or the toy suite's own.")
    ] = None,
    accounting: o.Accounting = None,
    trace: Annotated[bool, typer.Option("--trace", help="Record every decision, for the analysis.")] = False,
    runs: Runs = Path("runs"),
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; a partial one goes on.", rich_help_panel=_PLACE)
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run, as it was begun.", rich_help_panel=_PLACE)
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged lines aside and decode them again.", rich_help_panel=_PLACE)
    ] = False,
    dtype: o.Dtype = "auto",
    engine: Engines = "auto",
    device: o.Device = "auto",
    threads: o.Threads = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would run: models, prompts, arms, memory, time.")
    ] = False,
    shapes: Annotated[
        Path | None,
        typer.Option("--shapes", help="With --dry-run: config.json of models not at hand, as owner--name.json."),
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option("--bandwidth", help="With --dry-run: GB/s of the memory, for the time.")
    ] = None,
    json_output: o.Json = False,
) -> None:
    """Evaluate AR, SD and NSD on the same prompts, interleaved; a run that was stopped goes on where it was."""
    request: dict[str, Any] = {
        "tasks": tasks or ["default"],
        "data_dir": None if data_dir is None else str(data_dir.expanduser().absolute()),
        "limit": limit,
        "shard": list(_shard(shard)),
        "seeds": seeds,
        "seed": seed,
        "model": o.folder_or_name(model),
        "drafter": o.folder_or_name(drafter),
        "draft": o.draft_options(draft),
        "arms": None if arms is None else [part.strip() for part in arms.split(",")],
        "rule": o.without_none(
            rule=rule,
            ties=ties,
            max_deviation=max_deviation,
            agreement=agreement,
            rule_numbers=o.rule_numbers(numbers) or None,
        )
        | ({"policy": policy} if agreement is not None else {}),
        "theta": o.numbers("--theta", theta, float),
        "k": o.numbers("-k", k, int),
        "block_length": o.numbers("--block-length", block_length, int),
        "settings": o.without_none(
            temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, accounting=accounting or "full"
        ),
        "max_new_tokens": max_new_tokens,
        "trace": trace,
        "where": {"dtype": dtype, "engine": engine, "device": device, "threads": threads},
    }
    if dry_run:
        _check(request)
        _tell(request, shapes, bandwidth, json_output)
        return
    run_request(request, runs, name, resume, repair, json_output)


def _tell(request: dict[str, Any], shapes: Path | None, bandwidth: float | None, json_output: bool) -> None:
    """Say what a request would take."""
    from nsd.bench import dry

    found = dry.dry_run(request, shapes, bandwidth)
    if json_output:
        emit_json("bench", {"dry_run": found.as_json()})
    else:
        write("\n".join(found.lines()) + "\n")
    for problem in dry.checked(request, found.memory, found.copies):
        note(problem)


def run_request(
    request: dict[str, Any], runs: Path, name: str | None, resume: str | None, repair: bool, json_output: bool
) -> None:
    """Run what a command line asks for, or what a partial run was begun with."""
    from nsd.bench.bundle import PARTIAL, BenchError, RunWriter, find_run, read_manifest
    from nsd.bench.engine import OwnEngine
    from nsd.bench.runner import run, session_facts
    from nsd.cli.generate import load_pair

    if resume is not None:
        folder = find_run(runs, resume)
        if not folder.name.endswith(PARTIAL):
            raise BenchError(f"run {folder.name} is complete, wanted a partial one; nsd report {folder.name} shows it")
        runs, name = folder.parent, folder.name.removesuffix(PARTIAL)
        request = read_manifest(folder)["config"]["request"]
    _check(request)
    problems = problems_of(request)
    engine: Engine
    if request["where"]["engine"] == "vllm":
        engine, plan = _on_vllm(request, problems)
    else:
        pair = load_pair(request["model"], request["drafter"], request["draft"], **request["where"])
        source = str(request["draft"].get("source", request["drafter"]))
        engine = OwnEngine(pair, request["model"], source, request["trace"])
        plan = plan_of(request, engine, problems)
    name = name or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{Path(request['model']).name}"
    config = {**plan.config(engine.facts()), "request": request}
    sandboxed = any(task.metric == "pass@1" for task, _ in problems)
    with RunWriter(runs, name, config, session_facts(["nsd", *sys.argv[1:]], sandboxed), repair) as bundle:
        note(f"run {name}: {', '.join(arm.name for arm in plan.arms)}; interleaved in rotating order")
        if bundle.done:
            note(f"{len(bundle.done)} answers are recorded already")
        outcome = run(plan, engine, bundle, _Printer())
        folder = bundle.final if outcome.complete else bundle.folder
    if json_output:
        emit_json("bench", {"run": name, "folder": str(folder), "done": outcome.done, "total": outcome.total})
    if outcome.complete:
        note(f"complete: {folder}; nsd report {name} --runs {runs}")
        return
    note(
        f"interrupted after {outcome.done} of {outcome.total}; {folder} is valid; "
        f"nsd bench --resume {name} --runs {runs}"
    )
    sys.exit(130)


def _on_vllm(request: dict[str, Any], problems: list[tuple[Task, list[Problem]]]) -> tuple[Engine, Plan]:
    """vLLM as the engine, its memory shared among as many as the plan needs."""
    from nsd.bench.vllm_engine import VllmEngine
    from nsd.errors import ConfigError

    if request["trace"]:
        raise ConfigError("got --trace with engine vllm, which records no decisions; drop --trace or --engine vllm")
    engine = VllmEngine(request["model"], request["drafter"], request["draft"], request["where"])
    plan = plan_of(request, engine, problems)
    engine.share = len({arm.k for arm in plan.arms})
    return engine, plan


def problems_of(request: dict[str, Any]) -> list[tuple[Task, list[Problem]]]:
    """Tasks with their problems, read before a model is loaded."""
    from nsd.bench.task import find_tasks

    data = None if request["data_dir"] is None else Path(request["data_dir"])
    tasks = find_tasks(request["tasks"], data)
    for task in tasks:
        task.ready()
    return [(task, task.load(data, request["limit"])) for task in tasks]


def plan_of(request: dict[str, Any], engine: Engine, problems: list[tuple[Task, list[Problem]]]) -> Plan:
    """The plan that a request names, with the arms of its grid."""
    from nsd.bench.arms import DEFAULT_THETA, arms_of
    from nsd.bench.runner import DEFAULT_MAX_NEW_TOKENS, Plan

    data = None if request["data_dir"] is None else Path(request["data_dir"])
    rule = request["rule"]
    thetas = request["theta"] or ([DEFAULT_THETA] if rule["rule"] == "nsd" else [])
    # Under an exact rule there is nothing to relax: arm sd is all there is to run.
    kinds = [kind for kind in request["arms"] or engine.kinds() if rule["rule"] != "sd" or kind != "nsd"]
    arms = arms_of(kinds, engine.proposals, engine.unit, rule, thetas, request["k"], request["block_length"])
    most = request["max_new_tokens"]
    if most is None and any(task.max_new_tokens >= DEFAULT_MAX_NEW_TOKENS for task, _ in problems):
        most = DEFAULT_MAX_NEW_TOKENS
    return Plan(
        problems=problems,
        arms=arms,
        seeds=tuple(range(request["seed"], request["seed"] + request["seeds"])),
        settings=request["settings"],
        max_new_tokens=most,
        shard=(request["shard"][0], request["shard"][1]),
        origins={task.name: task.origin(data) for task, _ in problems},
    )


def report(
    names: Annotated[list[str] | None, typer.Argument(help="Runs, by name or folder; the newest if none.")] = None,
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the report.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's figures beside yours.")] = False,
    json_output: o.Json = False,
) -> None:
    """Report runs: Markdown on stdout; Markdown, one HTML page and JSON in a folder. Shards of one run are pooled."""
    from nsd.bench.bundle import find_run, newest_run, read_run
    from nsd.bench.report import report_of
    from nsd.bench.report import write as write_report

    folders = [find_run(runs, name) for name in names or []] or [newest_run(runs)]
    found = report_of([read_run(folder) for folder in folders], paper)
    where = out or folders[0].parent / "reports" / "+".join(folder.name for folder in folders)
    paths = write_report(found, where)
    if json_output:
        emit_json("report", found.as_json())
    else:
        write(found.markdown())
    note(f"written: {', '.join(map(str, paths))}")


class _Printer:
    """One line of progress: in place on a terminal, now and then elsewhere."""

    def __init__(self) -> None:
        self._last = monotonic()

    def __call__(self, progress: Progress) -> None:
        ended = progress.done == progress.total
        if not ended and monotonic() - self._last < (0.2 if talk.is_terminal else SECONDS_BETWEEN_LINES):
            return
        self._last = monotonic()
        taus = ", ".join(f"{arm} {tau:.2f}" for arm, tau in progress.tau.items() if tau is not None)
        line = f"{progress.done} of {progress.total}, {_duration(progress.seconds_left)} left; tau {taus}"
        if not talk.is_terminal:
            note(line)
            return
        width = max(talk.width - 1, 20)
        talk.file.write("\r" + line[:width].ljust(width) + ("\n" if ended else ""))
        talk.file.flush()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _shard(text: str) -> tuple[int, int]:
    from nsd.errors import ConfigError

    index, found, count = text.partition("/")
    if not (found and index.isdigit() and count.isdigit()):
        raise ConfigError(f"--shard got '{text}', wanted i/n; try --shard 1/4")
    return int(index), int(count)


def _check(request: dict[str, Any]) -> None:
    """Refuse a request before a model is loaded for it."""
    from nsd.api import check_settings
    from nsd.errors import ConfigError

    if request["seeds"] < 1:
        raise ConfigError(f"--seeds is {request['seeds']}, wanted an integer >= 1; try --seeds 5")
    most = {} if request["max_new_tokens"] is None else {"max_new_tokens": request["max_new_tokens"]}
    for theta in request["theta"] or [None]:
        check_settings(
            {**request["settings"], **most, **request["rule"], **({} if theta is None else {"theta": theta})}
        )
