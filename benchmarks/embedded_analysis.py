"""The whole analysis on the embedded model: `python -m benchmarks.embedded_analysis`; writes docs/results/embedded/.

Standard against nucleus speculation for K in {2, 4, 7, 10} by theta in {0.5, 0.8, 0.9, 0.95}, at temperatures 0.7 and
1.0, on toy problems with the drafter shipped for the model; and a traced run at K = 4 for what was rejected and what
the set alone kept. Everything goes through `nsd bench`, so a run that was stopped goes on where it was; about 15
minutes of one thread with the default 16 problems. The text that is written comes from the runs alone.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsd.bench.bundle import MANIFEST, StoredRun, read_run
from nsd.bench.metrics import mean_ES, rejected_in_top_ten, rescued_in_top_five
from nsd.bench.provenance import provenance
from nsd.bench.report import NOT_MONOTONE, report_of, write
from nsd.bench.results import OVERALL, Model, results_of
from nsd.bench.texts import number, points_text, score_text, speed_text

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
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafter", default="auto")
    options = parser.parse_args()
    pair = ["--model", options.model, "--drafter", options.drafter, "--threads", str(options.threads)]
    shared = ["--suite", "toy", "--limit", str(options.limit), *pair, "--runs", str(options.runs)]
    folders = {}
    for temperature in TEMPERATURES:
        grid = ["-k", ",".join(map(str, KS)), "--theta", ",".join(map(str, THETAS)), "--arms", "ar,sd,nsd"]
        traced = ["-k", str(TRACED_K), "--theta", str(TRACED_THETA), "--arms", "sd,nsd", "--trace"]
        for kind, more in (("grid", grid), ("traced", traced)):
            name = f"embedded-{kind}-t{temperature:g}"
            _bench([*shared, *more, "--temperature", str(temperature), "--name", name], options.runs / name)
            folders[kind, temperature] = options.runs / name
    write_folder(options.out, folders)
    print(f"written: {options.out}")


def _bench(arguments: Sequence[str], folder: Path) -> None:
    """One run, unless it is there already."""
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
    lines = [
        f"# Embedded model: {first.title}, the whole grid",
        "",
        f"`python -m benchmarks.embedded_analysis`, {prompts} toy problems, one seed. Brackets are 95% bootstrap "
        "intervals over problems, resampled in pairs. Reports with times, histograms and fidelity of each run, and its "
        "manifest, lie in the folders beside this file.",
        "",
    ]
    for temperature, model in grids.items():
        lines += [f"## Temperature {temperature:g}", "", *_sentences(model), "", *_grid(model), ""]
    lines += ["## Rejected, and kept by the nucleus alone", "", *_plausible(grids, traced), "", NOT_MONOTONE, ""]
    return [*lines, "## How this was run", "", *_provenance(first)]


def _sentences(model: Model) -> list[str]:
    """What the numbers say, in words chosen by the numbers."""
    sd, nsd = ([a for a in model.arms if a.kind == kind] for kind in ("sd", "nsd"))

    def speed(arm: Any) -> float:
        return model.row(arm).counters.stats.tokens_per_second or 0.0

    best_sd, best = max(sd, key=speed), max(nsd, key=speed)
    row, base = model.row(best), model.row(best_sd)
    over = speed_text(row.over["ar"].prefill_in)
    ahead = sum(speed(arm) > max(speed(a) for a in sd if a.k == arm.k) for arm in nsd)
    better = sum(model.row(arm).score.value >= model.row(a).score.value for arm in nsd for a in sd if a.k == arm.k)
    return [
        f"Fastest nucleus setting: {best.title}, {over} over plain decoding, τ {number(row.counters.stats.tau, 2)}, "
        f"mean ES {number(mean_ES(row.counters), 4)}, score {score_text(row.score)}% "
        f"({points_text(row.quality['sd'])} points against SD of the same K).",
        f"Fastest exact setting: {best_sd.title}, {speed_text(base.over['ar'].prefill_in)} over plain decoding, τ "
        f"{number(base.counters.stats.tau, 2)}, score {score_text(base.score)}%.",
        f"Nucleus speculation is faster than SD of its K in {ahead} of {len(nsd)} settings, and its score is not below "
        f"SD's in {better} of {len(nsd)}.",
    ]


def _grid(model: Model) -> list[str]:
    lines = [
        "| K | θ | over AR | over SD of the same K | τ | accepted of tested | mean ES | score | points against SD |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for arm in sorted((a for a in model.arms if a.k), key=lambda a: (a.k, a.theta or 0.0)):
        row = model.row(arm, OVERALL)
        theta = "SD" if arm.theta is None else f"{arm.theta:g}"
        speeds = [speed_text(row.over[kind].prefill_in) if kind in row.over else "–" for kind in ("ar", "sd")]
        stats = row.counters.stats
        share = number(stats.accepted / stats.tested if stats.tested else None, 3)
        cells = [str(arm.k), theta, *speeds, number(stats.tau, 2), share, number(mean_ES(row.counters), 4)]
        lines.append("| " + " | ".join([*cells, score_text(row.score), points_text(row.quality.get("sd"))]) + " |")
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
    wanted = ("engine, dtype, device", "drafting mode, law of q", "settings", "hardware", "versions", "revision")
    told = {row[0]: row[1] for row in table.rows}
    return [f"- {name}: {told[name]}" for name in wanted] + [
        f"- drafter: {json.dumps(model.config['engine']['drafter_hash'])}"
    ]


if __name__ == "__main__":
    main()
