"""A report of runs: one content, three forms - Markdown, one self-contained HTML page, JSON.

The content is a list of blocks (headings, paragraphs, tables, figures); Markdown and the page are renderings of it. A
speed-up never stands without its interval and the number of prompts behind it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsd.bench import pictures
from nsd.bench.arms import baseline
from nsd.bench.bundle import BenchError, Key, StoredRun
from nsd.bench.document import Card, Picture, Report, Section, Table
from nsd.bench.metrics import METRICS, histogram
from nsd.bench.paper import figures as paper_figures
from nsd.bench.provenance import provenance, warnings
from nsd.bench.results import OVERALL, Model, Results, Row, Speedup, estimate, results_of
from nsd.bench.runner import trace_name
from nsd.bench.stats import Spread
from nsd.bench.texts import NONE, number, own_text, points_text, score_text, span, speed_text, tau_text

NOT_MONOTONE = (
    "Effects of θ and K need not be monotone: a larger set or a longer block keeps more at one position, but the "
    "texts then part, and speed and score of a whole answer may go either way."
)


def report_of(runs: Sequence[StoredRun], with_paper: bool = False) -> Report:
    """The report of some runs."""
    results = results_of(runs)
    analysis = _analysis(runs, results.models)
    if analysis is not None:
        results = Results(results.models, results.cells, analysis.as_json())
    models = results.models
    sections = [Section("Speed and score", [*_table_1(models), *_over_all(results), _HOW_MEASURED])]
    sections += [Section("Figures", _pictures(models))]
    if grid := _grid(models):
        sections += [Section("Ablation over θ and K", [*grid, NOT_MONOTONE])]
    sections += [Section("Throughput and time", [table for m in models for table in _throughput(m)])]
    sections += [Section("Fidelity", [part for m in models for part in _fidelity(m)])]
    if analysis is not None:
        sections += [Section("Rejections and rescues", [_analysis_table(results.analysis)])]
    if with_paper:
        sections += [Section("Beside the paper", [_beside_paper(results), _PAPER_NOTE])]
    sections += [Section("How this was run", [*(provenance(m) for m in models), *warnings(models)])]
    names = ", ".join(run.name for run in runs)
    title, lead = f"Benchmark: {_titles(models)}", f"Runs: {names}. {_headline(results)}"
    cards = {m.title: _cards(m) for m in models if m.nsd is not None}
    return Report(title, lead, sections, results, with_paper, cards)


def write(report: Report, folder: Path) -> list[Path]:
    """Write report.md, report.html and report.json into a folder -> their paths."""
    from nsd.bench.page import page

    contents = {
        "report.md": report.markdown(),
        "report.html": page(report),
        "report.json": json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise BenchError(
            f"{folder} cannot be written ({error.strerror}), wanted a folder for the report; try --out FOLDER"
        ) from None
    return [folder / name for name in contents]


def _titles(models: Sequence[Model]) -> str:
    return ", ".join(dict.fromkeys(m.title for m in models))


def _headline(results: Results) -> str:
    """One sentence for who reads no further."""
    found = []
    for m in results.models:
        if m.nsd is None:
            continue
        row = m.row(m.nsd)
        parts = [
            f"{speed_text(row.over[kind].prefill_in)} over {kind.upper()}" for kind in ("ar", "sd") if kind in row.over
        ]
        score = f"score {score_text(row.score)}%"
        if "sd" in row.quality:
            score += f" ({points_text(row.quality['sd'])}; points against SD)"
        found.append(f"{m.title}, {m.nsd.title}: {', '.join([*parts, score])}.")
    return " ".join(found)


def _cards(m: Model) -> list[Card]:
    """The headline arm in numbers, each with what it must not stand without."""
    assert m.nsd is not None
    row, sd = m.row(m.nsd), baseline(m.nsd, m.arms, "sd")
    found = []
    for kind in ("ar", "sd"):
        if (over := _over(row, kind)) is not None:
            value, _, interval = speed_text(over).partition(" ")
            found.append(Card(f"speed-up over {kind.upper()}", value, interval))
    exact = None if sd is None else m.row(sd)
    beside = [m.nsd.title] if exact is None else [f"SD {tau_text(exact)}", m.nsd.title]
    found.append(Card("tokens per target pass, τ", tau_text(row), ", ".join(beside)))
    points = points_text(row.quality.get("sd"))
    beside = [] if exact is None else [f"SD {score_text(exact.score)}%: {points}; points"]
    found.append(Card("score", f"{score_text(row.score)}%", ", ".join([*beside, f"{row.answers} answers"])))
    if (es := METRICS["mean_ES"].of(row.counters)) is not None:
        largest = METRICS["max_ES"].of(row.counters)
        beside = [f"largest {number(largest, 3)}"] if largest is not None else ["estimated by the rescue rate"]
        found.append(Card("deviation of a step, mean ES", number(es, 4), ", ".join(beside)))
    return found


def _over(row: Row, kind: str) -> Spread | None:
    speedup: Speedup | None = row.over.get(kind)
    return None if speedup is None else speedup.prefill_in


def _table_1(models: Sequence[Model]) -> list[Table]:
    """Per model and task: score, speed-up over AR, tau of each method; an overall row per model."""
    return [_main_table(m) for m in models]


def _main_table(m: Model) -> Table:
    head, rows = ["task"], []
    against = {kind for arm in m.main for kind in m.row(arm).over}
    over_ar = ["speed-up over AR"] if "ar" in against else []
    for arm in m.main:
        head += [f"{arm.title}: score"]
        head += [] if arm.kind == "ar" else [*over_ar, "τ"]
    nsd = m.nsd if "sd" in against else None
    if nsd is not None:
        head += ["NSD over SD", "NSD score − SD, points"]
    for task in (*m.tasks, OVERALL) if len(m.tasks) > 1 else m.tasks:
        cells = [task]
        for arm in m.main:
            row = m.row(arm, task)
            cells += [score_text(row.score)]
            speed = [speed_text(_over(row, "ar"))] if over_ar else []
            cells += [] if arm.kind == "ar" else [*speed, tau_text(row)]
        if nsd is not None:
            row = m.row(nsd, task)
            cells += [speed_text(_over(row, "sd")), points_text(row.quality.get("sd"))]
        rows.append(cells)
    return Table(f"{m.title}", head, rows)


def _over_all(results: Results) -> list[str]:
    c = results.cells
    if c.count == 0:
        return ["No cell has AR, SD and NSD, so there is nothing to say over all cells."]
    if c.count == 1:
        return []  # the table says it already
    lines = []
    for name, mean, most in (("AR", c.over_ar, c.max_over_ar), ("SD", c.over_sd, c.max_over_sd)):
        found = estimate(mean)
        best = estimate(most)
        whole = f"{number(found.value, 1)}% {span(found, 1)} over {name}"
        lines.append(f"{whole}, in the best cell {number(best.value, 1)}% {span(best, 1)}")
    points = estimate(c.points)
    score = f"up in {c.up}, tied in {c.tied}, down in {c.down}; mean difference {number(points.value, 2)} points"
    return [
        f"Over all {c.count} cell{'s' * (c.count > 1)} (model × task), mean improvement in tokens/s: "
        f"{'; '.join(lines)}. NSD is fastest in {c.fastest} of {c.count}. Score against SD: {score} {span(points, 2)}."
    ]


_HOW_MEASURED = (
    "AR is plain decoding, one token per pass of the target. SD is standard speculation: drafts are checked so that "
    "the law of the text does not change. NSD keeps a draft also where it lies in the target's nucleus θ: faster, at "
    "a price in the law that is measured below. Scores are percent of answers that are right (mean over seeds: "
    "pass@1). A speed-up is a ratio of totals: tokens per second over all prompts of a task, prefill in, against the "
    "same prompts and seeds. Brackets are 95% bootstrap intervals over n prompts, resampled in pairs; p is McNemar's, "
    "exact. τ is block-weighted, with the bonus or the replacement, without the token of the prefill. Overall rows "
    "are unweighted means over tasks."
)
_PAPER_NOTE = (
    "Own cells are filled where a run is of the paper's checkpoint, mechanism, block, θ and temperature, overall ones "
    "where it has five tasks; they are empty elsewhere. Hardware differs, so absolute times do not compare; ratios and "
    "lengths do."
)


def _grid(models: Sequence[Model]) -> list[Table | str]:
    """Every NSD arm on every task, of models that have several: score, speed-up, tau."""
    found: list[Table | str] = []
    for m in models:
        relaxed = [arm for arm in m.arms if arm.kind == "nsd"]
        rows = []
        for arm in relaxed:
            for task in (*m.tasks, OVERALL) if len(m.tasks) > 1 else m.tasks:
                row = m.row(arm, task)
                theta = NONE if arm.theta is None else f"{arm.theta:g}"
                speeds = [speed_text(_over(row, "ar")), speed_text(_over(row, "sd"))]
                rows.append([task, str(arm.block), str(arm.k), theta, score_text(row.score), *speeds, tau_text(row)])
        if len(relaxed) > 1:
            unit = m.config["engine"].get("k_unit", "proposals")
            head = ["task", "block", "K", "θ", "score", "speed-up over AR", "over SD of the same K", "τ"]
            found.append(Table(f"{m.title}; block counts {unit}", head, rows))
    return found


def _throughput(m: Model) -> list[Table | str]:
    """All times of the headline arms over all tasks, and speed-ups in their three forms."""
    names = [
        "tokens_per_second", "decode_tokens_per_second", "tau", "tau_per_request", "acceptance", "calls_per_token",
        "verify_ms_per_token", "target_ms_per_call", "verify_share", "verify_share_of_wall", "draft_ms_per_token",
        "draft_ms_per_block", "ttft_ms", "inter_token_p50_ms", "inter_token_p95_ms", "gap_p50_ms", "gap_p95_ms",
    ]  # fmt: skip
    times = _metric_table(m, f"{m.title}, all prompts together", names)
    forms = {"prefill_in": "prefill in", "decode_only": "decode only", "per_prompt": "mean over prompts, prefill in"}
    rows = []
    for arm in m.main:
        for kind, speedup in m.row(arm).over.items():
            cells = [speed_text(getattr(speedup, form)) for form in forms]
            rows.append([f"{arm.title} over {kind.upper()}", *cells])
    tables = [*times, Table(f"{m.title}, speed-ups, overall", ["", *forms.values()], rows)] if rows else times
    sizes = sorted({size for arm in m.main for size in histogram(m.row(arm).counters)})
    blocks = [[arm.title, *(str(histogram(m.row(arm).counters).get(s, 0)) for s in sizes)] for arm in m.main if arm.k]
    return (
        [*tables, Table(f"{m.title}, blocks by tokens committed", ["", *map(str, sizes)], blocks)] if blocks else tables
    )


def _metric_table(m: Model, caption: str, names: Sequence[str]) -> list[Table | str]:
    """Metrics of the headline arms; those that no arm has a value for are named under the table."""
    head, rows, unknown = ["", *(arm.title for arm in m.main)], [], []
    counters = [m.row(arm).counters for arm in m.main]
    for name in names:
        metric = METRICS[name]
        found = [metric.of(c) for c in counters]
        if all(value is None for value in found):
            unknown.append(metric.title)
            continue
        kinds = {c.stats.ES_is for c in counters if c.stats.ES_is not in (None, "exact")} if "_ES" in name else set()
        unit = f", {metric.unit}" if metric.unit else ""
        rows.append(
            [", ".join([f"{metric.title}{unit}", *sorted(map(str, kinds))]), *(number(v, metric.digits) for v in found)]
        )
    table: list[Table | str] = [Table(caption, head, rows)]
    return [*table, f"Not known of this run: {'; '.join(unknown)}."] if unknown else table


def _fidelity(m: Model) -> list[Table | str]:
    names = [
        "rescue_rate",
        "rejected_in_top_ten",
        "rescued_in_top_five",
        "mean_R",
        "mean_ES",
        "max_ES",
        "mean_eps",
        "mean_spent",
        "mean_Q",
        "mean_weight",
        "guarantee",
    ]
    return _metric_table(m, f"{m.title}: what the speed cost in distribution", names)


def _pictures(models: Sequence[Model]) -> list[Picture | str]:
    found: list[Picture | str] = []
    for m in models:
        whose = f"{m.title}. " if len(models) > 1 else ""
        found += [Picture(f"{whose}{caption}", svg) for caption, svg in pictures.of_model(m) if svg]
    return found


def _analysis(runs: Sequence[StoredRun], models: Sequence[Model]) -> Any:
    """The analysis of rejections and rescues from the traces of the headline arms, None if none were recorded."""
    shown = {arm.name for m in models for arm in m.main}
    keys = [(run, Key.of(record)) for run in runs for record in run.records]
    paths = [run.folder / trace_name(key) for run, key in keys if key.arm in shown]
    paths = [path for path in paths if path.exists()]
    if not paths:
        return None
    from nsd.trace import read_trace
    from nsd.trace.analyze import analyze

    return analyze([read_trace(path) for path in paths])


def _analysis_table(analysis: Any) -> Table:
    rows = []
    for name, one in analysis["estimates"].items():
        span = NONE if one["low"] is None else f"[{one['low']:.4f}, {one['high']:.4f}]"
        paper = one["not_compared"] or number(one["paper"], 4)
        rows.append(
            [
                name.replace("_", " "),
                number(one["value"], 4) if one["value"] is not None else one["reason"] or NONE,
                span,
                str(one["n"]),
                paper,
            ]
        )
    return Table(
        "From the traces; tokens of one text are not independent", ["", "value", "95%", "n tokens", "paper"], rows
    )


def _beside_paper(results: Results) -> Table:
    rows = []
    for f in paper_figures():
        unit = f" {f.unit}" if f.unit and f.unit != "x" else f.unit
        own = own_text(f.own(results), f.digits, unit)
        rows.append([f.model, f.what, f"{f.value:.{f.digits}f}{unit}", own, f.source])
    head = ["model", "figure", "paper", "own", "where"]
    return Table("The paper's figures that are publicly known, and one's own", head, rows)
