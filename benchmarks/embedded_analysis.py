"""The whole analysis on the embedded model: `python -m benchmarks.embedded_analysis`; writes docs/results/embedded/.

Standard against nucleus speculation for K in {2, 4, 7, 10} by theta in {0.5, 0.8, 0.9, 0.95}, at temperatures 0.7 and
1.0, on toy problems with the drafter shipped for the model; and a traced run at K = 4 for what was rejected and what
the set alone kept. Tau, acceptance, ES and scores are what it is for, and none of them depends on the machine's load;
speed stands beside them where no other work ran, and is left out of the page where some did.

Everything goes through `nsd bench`: a run that was stopped goes on with the same command, and a run that is there
already is taken only if it is of the same weights. `--nice 19 --threads 1` makes it a guest of a busy machine. 46
answers a problem at about 1.5 seconds of one thread: 20 minutes for 16 problems, 40 for 32, on a core of its own. The
text that is written comes from the runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsd.bench.arms import Arm
from nsd.bench.bundle import MANIFEST, StoredRun, read_manifest, read_run
from nsd.bench.engine import hash_of
from nsd.bench.metrics import acceptance, mean_ES, mean_R, rejected_in_top_ten, rescued_in_top_five
from nsd.bench.provenance import busy, provenance
from nsd.bench.report import NOT_MONOTONE, report_of, write
from nsd.bench.results import OVERALL, Model, estimate, results_of
from nsd.bench.stats import Spread
from nsd.bench.texts import number, points_text, score_text, span, speed_text

TEMPERATURES = (0.7, 1.0)
KS, THETAS = (2, 4, 7, 10), (0.5, 0.8, 0.9, 0.95)
TRACED_K, TRACED_THETA = 4, 0.95
LARGEST_PAGE = 1_000_000
"""Bytes of an HTML page above which it is left out of the folder."""


def main() -> None:
    """Run what has not run yet, then write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=16, help="toy problems")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path("docs/results/embedded"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="19: only what nobody else wants of the machine")
    parser.add_argument("--page-only", action="store_true", help="write the folder anew from the runs that are there")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="auto")
    options = parser.parse_args()
    os.nice(options.nice)
    pair = ["--model", options.model, "--drafter", options.drafter, "--threads", str(options.threads)]
    shared = ["--suite", "toy", "--limit", str(options.limit), *pair, "--runs", str(options.runs)]
    folders = {}
    for temperature in TEMPERATURES:
        grid = ["-k", ",".join(map(str, KS)), "--theta", ",".join(map(str, THETAS)), "--arms", "ar,sd,nsd"]
        traced = ["-k", str(TRACED_K), "--theta", str(TRACED_THETA), "--arms", "sd,nsd", "--trace"]
        for kind, more in (("grid", grid), ("traced", traced)):
            name = f"embedded-{kind}-t{temperature:g}-n{options.limit}"
            folder = options.runs / name
            if not options.page_only:
                _bench([*shared, *more, "--temperature", str(temperature), "--name", name], folder)
            _check(folder, options.model, options.drafter)
            folders[kind, temperature] = folder
    write_folder(options.out, folders)
    print(f"written: {options.out}")


def _check(folder: Path, model: str, drafter: str) -> None:
    """Refuse a run that other weights made: a new drafter is shipped under the same name."""
    engine = read_manifest(folder)["config"]["engine"]
    now = {"target": hash_of(model, None)}
    if drafter in ("auto", engine["drafter"]):
        now["drafter"] = hash_of(engine["drafter"], None)
    for what, found in now.items():
        if "reason" not in found and engine[f"{what}_hash"] != found:
            sys.exit(
                f"{folder} was made with other weights of the {what}, wanted today's; move it away, or --runs FOLDER"
            )


def _bench(arguments: Sequence[str], folder: Path) -> None:
    """One run, unless it is there already; a partial one goes on."""
    if folder.is_dir():
        return
    done = subprocess.run([sys.executable, "-m", "nsd", "bench", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def write_folder(out: Path, folders: dict[tuple[str, float], Path]) -> None:
    """README.md over all runs; for each run its report, numbers and manifest."""
    runs = {key: read_run(folder) for key, folder in folders.items()}
    for (kind, temperature), run in runs.items():
        place = out / f"{kind}-t{temperature:g}"
        write(report_of([run]), place)
        page = place / "report.html"
        if page.stat().st_size > LARGEST_PAGE:
            page.unlink()
        shutil.copyfile(run.folder / MANIFEST, place / MANIFEST)
        (place / MANIFEST).chmod(0o644)
    grids = {t: results_of([run]).models[0] for (kind, t), run in runs.items() if kind == "grid"}
    traced = {t: run for (kind, t), run in runs.items() if kind == "traced"}
    (out / "README.md").write_text("\n".join(_readme(grids, traced)) + "\n", encoding="utf-8")


def _readme(grids: dict[float, Model], traced: dict[float, StoredRun]) -> list[str]:
    first = next(iter(grids.values()))
    prompts = first.row(first.arms[0]).prompts
    timed = not any(busy(model) for model in grids.values())
    if timed:
        speeds = "Nothing else ran, so speed-ups stand in the last columns; they are of this one machine."
    else:
        speeds = "Other work ran on the machine, so speeds are left out here, and those of the reports are noise."
    lines = [
        f"# Embedded model: {first.title}, the whole grid",
        "",
        f"`python -m benchmarks.embedded_analysis --limit {prompts}`, {prompts} toy problems, one seed. This page is "
        "about what the set keeps and what that costs: τ, acceptance, ES, scores. They do not depend on the machine's "
        f"load. {speeds} Speeds measured apart: [local.md](../local.md).",
        "",
        "Brackets are 95% bootstrap intervals over problems, resampled in pairs; scores of so few problems of a small "
        "model tell settings apart only where they differ grossly. Histograms, times and fidelity of each run, and its "
        "manifest, lie in the folders beside this file.",
        "",
    ]
    for temperature, model in grids.items():
        sentences = [*_sentences(model), *(_speeds(model) if timed else [])]
        lines += [f"## Temperature {temperature:g}", "", *sentences, "", *_grid(model, timed), ""]
    lines += ["## Rejected, and kept by the nucleus alone", "", *_plausible(grids, traced), "", NOT_MONOTONE, ""]
    return [*lines, "## How this was run", "", *_provenance(first)]


def _sentences(model: Model) -> list[str]:
    """What the numbers say of lengths, deviation and score, in words chosen by the numbers."""
    sd, nsd = ([a for a in model.arms if a.kind == kind] for kind in ("sd", "nsd"))
    longest, exact = (max(arms, key=lambda a: tau_of(model, a)) for arms in (nsd, sd))
    row, base = model.row(longest), model.row(exact)
    longer = sum(tau_of(model, arm) > tau_of(model, other) for arm, other in _pairs(model))
    better = sum(model.row(arm).score.value >= model.row(other).score.value for arm, other in _pairs(model))
    return [
        f"Longest nucleus setting: {longest.title}, τ {_spread(row.tau)}, mean ES {number(mean_ES(row.counters), 4)}, "
        f"score {score_text(row.score)}% ({points_text(row.quality.get('sd'))} points against SD of the same K).",
        f"Longest exact setting: {exact.title}, τ {_spread(base.tau)}, score {score_text(base.score)}%.",
        f"Nucleus speculation keeps more per pass than SD of its K in {longer} of {len(nsd)} settings, its score is "
        f"not below SD's in {better} of {len(nsd)}.",
    ]


def _speeds(model: Model) -> list[str]:
    """The fastest setting of each kind, over plain decoding."""

    def speed(arm: Arm) -> float:
        return model.row(arm).counters.stats.tokens_per_second or 0.0

    sd, nsd = ([a for a in model.arms if a.kind == kind] for kind in ("sd", "nsd"))
    found = [max(nsd, key=speed), max(sd, key=speed)]
    told = [f"{arm.title} {speed_text(model.row(arm).over['ar'].prefill_in)}" for arm in found]
    ahead = sum(speed(arm) > speed(other) for arm, other in _pairs(model))
    return [
        f"Fastest over plain decoding: {told[0]}; exact: {told[1]}. Faster than SD of its K: {ahead} of {len(nsd)}."
    ]


def tau_of(model: Model, arm: Arm) -> float:
    """An arm's tau over all problems."""
    return model.row(arm).counters.stats.tau or 1.0


def _pairs(model: Model) -> list[tuple[Arm, Arm]]:
    """Every nucleus setting with SD of the same K."""
    sd = {arm.k: arm for arm in model.arms if arm.kind == "sd"}
    return [(arm, sd[arm.k]) for arm in model.arms if arm.kind == "nsd" and arm.k in sd]


def _spread(tau: Spread | None) -> str:
    found = estimate(tau)
    return f"{number(found.value, 2)} {span(found, 2)}"


def _grid(model: Model, timed: bool) -> list[str]:
    head = ["K", "θ", "τ", "accepted of tested", "mean ES", "mean R", "score", "points against SD"]
    head += ["over AR", "over SD of the same K"] if timed else []
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for arm in sorted((a for a in model.arms if a.k), key=lambda a: (a.k, a.theta or 0.0)):
        row = model.row(arm, OVERALL)
        theta = "SD" if arm.theta is None else f"{arm.theta:g}"
        costs = [number(of(row.counters), 4) for of in (mean_ES, mean_R)]
        cells = [str(arm.k), theta, _spread(row.tau), number(acceptance(row.counters), 3), *costs]
        cells += [score_text(row.score), points_text(row.quality.get("sd"))]
        cells += [speed_text(row.over[kind].prefill_in) if kind in row.over else "–" for kind in ("ar", "sd") if timed]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _plausible(grids: dict[float, Model], traced: dict[float, StoredRun]) -> list[str]:
    """Ranks over the whole grid, and what traces say at one setting."""
    lines = [
        "| temperature | SD's rejections in the target's top 10 | rescues in its top 5 | from |",
        "| --- | --- | --- | --- |",
    ]
    for temperature, model in grids.items():
        total = {kind: _sum(model, kind) for kind in ("sd", "nsd")}
        shares = [number(rejected_in_top_ten(total["sd"]), 3), number(rescued_in_top_five(total["nsd"]), 3)]
        counts = f"{total['sd'].rejected_ranks.total()} rejections, {total['nsd'].rescued_ranks.total()} rescues"
        lines.append(f"| {temperature:g} | {' | '.join(shares)} | all settings: {counts} |")
    lines += ["", f"From traces, K = {TRACED_K}, θ = {TRACED_THETA:g}:", ""]
    head = ["| |", "| --- |"]
    names: dict[str, list[str]] = {}
    for temperature, run in traced.items():
        head = [f"{head[0]} temperature {temperature:g} |", f"{head[1]} --- |"]
        for name, one in report_of([run]).as_json()["analysis"]["estimates"].items():
            names.setdefault(name, []).append(f"{number(one['value'], 4)} (n = {one['n']})")
    return [*lines, *head, *(f"| {name.replace('_', ' ')} | {' | '.join(cells)} |" for name, cells in names.items())]


def _sum(model: Model, kind: str) -> Any:
    from nsd.bench.metrics import total

    return total(model.row(arm).counters for arm in model.arms if arm.kind == kind)


def _provenance(model: Model) -> list[str]:
    table = provenance(model)
    wanted = (
        "engine, dtype, device",
        "drafting mode, law of q",
        "settings",
        "hardware",
        "load before",
        "versions",
        "revision",
    )
    told = {row[0]: row[1] for row in table.rows}
    return [f"- {name}: {told[name]}" for name in wanted if name in told] + [
        f"- drafter: {json.dumps(model.config['engine']['drafter_hash'])}"
    ]


if __name__ == "__main__":
    main()
