"""The figures that are publicly known of the paper's evaluation, each with its place in it, to stand beside one's own.

Only what the public summary states is here; the full tables were not available.
Source: arXiv 2610.07822, as summarised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsd.bench.arms import DEFAULT_THETA, Arm
from nsd.bench.metrics import Counters, total, verify_ms_per_token
from nsd.bench.results import OVERALL, Model, Results, Row
from nsd.bench.stats import Spread, shifted
from nsd.trace.analyze import PAPER, PAPER_CORE

TASKS = 5
"""Benchmarks behind an overall figure of the paper."""

Own = Spread | float | None
"""One's own figure: with an interval, or a plain number, or none without a run that compares."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the paper: whose it is, what it is, its value and unit, where it stands, one's own of it."""

    model: str
    what: str
    value: float
    unit: str
    digits: int
    source: str
    own: Callable[[Results], Own]


@dataclass(frozen=True, slots=True)
class _Setting:
    """What of the paper a figure belongs to: the checkpoint, the mechanism, its block in its own unit."""

    model: str
    drafter: str
    block: int

    def fits(self, model: Model) -> bool:
        """Whether a run is of this checkpoint and mechanism, at temperature 1 and without truncation."""
        engine, settings = model.config["engine"], model.config["settings"]
        names = [part.lower() for folder in str(engine["target"]).split("/") for part in folder.split("--")]
        usual = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
        return (
            self.model.lower() in names
            and engine["drafter"] == self.drafter
            and all(settings.get(name, value) == value for name, value in usual.items())
        )

    def arm(self, model: Model, kind: str, theta: float, block: int) -> Arm | None:
        """The arm of a kind with this block and, where it has one, this theta; no cap and no budget on it."""

        def alike(arm: Arm) -> bool:
            relaxed = arm.kind == "nsd"
            free = not any(arm.settings.get(name) is not None for name in ("max_deviation", "agreement"))
            return free and (not relaxed or (arm.settings["rule"], arm.theta) == ("nsd", theta))

        return next((a for a in model.arms if a.kind == kind and a.block == block and alike(a)), None)


def _rows(
    results: Results, setting: _Setting, kind: str, task: str, theta: float = DEFAULT_THETA, block: int | None = None
) -> list[Row]:
    """Rows of one's own runs of a setting; overall rows only of runs of as many tasks as the paper has."""
    found = []
    for model in results.models:
        arm = setting.arm(model, kind, theta, block or setting.block) if setting.fits(model) else None
        whole = task != OVERALL or len(model.tasks) == TASKS
        if arm is not None and whole and (arm.name, task) in model.rows:
            found.append(model.row(arm, task))
    return found


def _own(
    setting: _Setting,
    kind: str,
    value: Callable[[Row], Own],
    task: str = OVERALL,
    theta: float = DEFAULT_THETA,
    block: int | None = None,
) -> Callable[[Results], Own]:
    """The same figure from one's own runs of the same model, mechanism, arm and task; None without such a run."""

    def found(results: Results) -> Own:
        rows = _rows(results, setting, kind, task, theta, block)
        return value(rows[0]) if rows else None

    return found


def _tau(row: Row) -> Own:
    return row.tau


def _score(row: Row) -> Own:
    return shifted(row.score, 100, 0)


def _over(kind: str) -> Callable[[Row], Own]:
    def found(row: Row) -> Own:
        return row.over[kind].prefill_in if kind in row.over else None

    return found


def _rate(row: Row) -> float | None:
    return row.counters.stats.tokens_per_second


def _cells(value: Callable[[Results], Own]) -> Callable[[Results], Own]:
    """A figure over all 30 cells of the paper, which only runs of all its models make comparable."""
    return lambda results: value(results) if results.cells.count == 30 else None


def _nemotron(size: str) -> _Setting:
    return _Setting(f"Nemotron-Labs-Diffusion-{size}", "nemotron", 32)


def _qwen(size: str) -> _Setting:
    return _Setting(f"Qwen3-{size}", "dspark", 7)


_MTP = _Setting("Qwen3.5-4B", "mtp", 2)
_NEMOTRON = {"3B": (6.29, 9.54), "8B": (4.98, 11.82), "14B": (4.67, 11.54)}
_QWEN = {"4B": (5.36, 6.60), "8B": (5.41, 6.69), "14B": (5.38, 6.68)}
_TABLE_2 = (
    ("14B", "mbpp", 0.925, 24, 3.81, 9.53, None),
    ("14B", "mbpp", 0.925, 32, 3.59, 8.87, None),
    ("14B", "gsm8k", 0.95, 32, 5.16, None, 92.87),
    ("14B", "gsm8k", 0.85, 32, 4.86, None, 93.86),
    ("14B", "mbpp", 0.95, 32, 3.92, None, 59.92),
    ("14B", "mbpp", 0.85, 32, 3.58, None, 62.26),
    ("8B", "mbpp", 0.95, 32, None, None, 62.26),
    ("8B", "mbpp", 0.90, 32, None, None, 59.92),
)
"""Nemotron: size, task, theta, block length, speed-up over AR, tau, score in percent."""


def figures() -> list[Figure]:
    """All of them, in the order of the paper."""
    return [*_headline(), *_lengths(), *_quality(), *_ablation(), *_mtp(), *_verification(), *_plausibility()]


def _headline() -> list[Figure]:
    where, who = "section 4.2, Table 1", "30 cells"
    mean, largest = "mean throughput improvement over", "largest speed-up over"
    return [
        Figure(
            who,
            f"{mean} AR",
            323.0,
            "%",
            1,
            where,
            _cells(lambda r: r.cells.over_ar),
        ),
        Figure(
            who,
            f"{mean} SD",
            84.98,
            "%",
            2,
            where,
            _cells(lambda r: r.cells.over_sd),
        ),
        Figure(who, f"{largest} AR", 5.16, "x", 2, where, _cells(lambda r: _largest(r.cells.max_over_ar))),
        Figure(who, f"{largest} SD", 3.15, "x", 2, "abstract", _cells(lambda r: _largest(r.cells.max_over_sd))),
        Figure(who, "cells where NSD is fastest", 30, "", 0, where, _cells(lambda r: r.cells.fastest)),
        Figure(who, "score above SD", 15, "cells", 0, where, _cells(lambda r: r.cells.up)),
        Figure(who, "score equal to SD", 1, "cells", 0, where, _cells(lambda r: r.cells.tied)),
        Figure(who, "score below SD", 14, "cells", 0, where, _cells(lambda r: r.cells.down)),
        Figure(
            who,
            "mean score difference to SD",
            0.40,
            "points",
            2,
            where,
            _cells(lambda r: r.cells.points),
        ),
    ]


def _largest(percent: Spread | None) -> Own:
    return None if percent is None else shifted(percent, 0.01, 1)


def _lengths() -> list[Figure]:
    found = []
    for family, setting, sizes in (("Nemotron", _nemotron, _NEMOTRON), ("Qwen3", _qwen, _QWEN)):
        for size, pair in sizes.items():
            for kind, value in zip(("sd", "nsd"), pair, strict=True):
                own = _own(setting(size), kind, _tau)
                found.append(Figure(f"{family}-{size}", f"tau, {kind.upper()}", value, "tokens", 2, "section 4.2", own))
    return found


def _quality() -> list[Figure]:
    name, where, setting = "Qwen3-4B", "section 4.2, overall row", _qwen("4B")
    return [
        Figure(name, "score, SD", 68.65, "%", 2, where, _own(setting, "sd", _score)),
        Figure(name, "score, NSD", 67.66, "%", 2, where, _own(setting, "nsd", _score)),
        Figure(name, "speed-up over AR, SD", 3.13, "x", 2, where, _own(setting, "sd", _over("ar"))),
        Figure(name, "speed-up over AR, NSD", 4.00, "x", 2, where, _own(setting, "nsd", _over("ar"))),
    ]


def _ablation() -> list[Figure]:
    found = []
    for size, task, theta, block, speedup, tau, score in _TABLE_2:
        at = f"{task}, θ={theta:g}, block {block}"
        parts: list[tuple[str, float | None, str, Callable[[Row], Own]]] = [
            ("speed-up over AR", speedup, "x", _over("ar")),
            ("tau", tau, "tokens", _tau),
            ("score", score, "%", _score),
        ]
        for what, value, unit, of in parts:
            if value is not None:
                own = _own(_nemotron(size), "nsd", of, task, theta, block)
                found.append(Figure(f"Nemotron-{size}", f"{what}; {at}", value, unit, 2, "section 4.3, Table 2", own))
    return found


def _mtp() -> list[Figure]:
    name, where = "Qwen3.5-4B", "appendix D.1, Table 6"
    return [
        Figure(name, "tokens/s, SD, MTP K=2", 105.90, "1/s", 2, where, _own(_MTP, "sd", _rate)),
        Figure(name, "tokens/s, NSD, MTP K=2", 179.90, "1/s", 2, where, _own(_MTP, "nsd", _rate)),
        Figure(name, "speed-up over SD, MTP K=2", 1.70, "x", 2, where, _own(_MTP, "nsd", _over("sd"))),
    ]


def _verification() -> list[Figure]:
    """Over the tokens of all Nemotron models together."""
    name, where = "Nemotron", "section 4.4"

    def pooled(kind: str, of: Callable[[Counters], float | None]) -> Callable[[Results], Own]:
        def found(results: Results) -> Own:
            rows = [row for size in _NEMOTRON for row in _rows(results, _nemotron(size), kind, OVERALL)[:1]]
            return of(total(row.counters for row in rows)) if rows else None

        return found

    def calls(counters: Counters) -> float | None:
        return counters.stats.calls_per_token

    return [
        Figure(name, "target calls per token, SD", 0.1600, "", 4, where, pooled("sd", calls)),
        Figure(name, "target calls per token, NSD", 0.0835, "", 4, where, pooled("nsd", calls)),
        Figure(name, "verification per token, SD", 5.26, "ms", 2, where, pooled("sd", verify_ms_per_token)),
        Figure(name, "verification per token, NSD", 2.72, "ms", 2, where, pooled("nsd", verify_ms_per_token)),
    ]


_SHARES = {
    "rejections_in_nucleus": ("rejections inside the nucleus", "%", 1),
    "rejections_in_top_ten": ("rejections in the target's top ten", "%", 1),
    "rescued_in_top_five": ("additional acceptances in the target's top five", "%", 1),
    "draft_entropy": ("entropy of q there", "nats", 3),
    "target_entropy": ("entropy of p there", "nats", 3),
    "higher_target_entropy": ("share with the higher entropy in p", "%", 2),
}


def _plausibility() -> list[Figure]:
    found = []
    for name, (what, unit, digits) in _SHARES.items():
        scale = 100 if unit == "%" else 1
        found.append(Figure("all", what, scale * PAPER[name], unit, digits, "sections 1, 4.4", _analysed(name, scale)))
    core = Figure(
        "all",
        "additional acceptances in the core, which it does not define",
        100 * PAPER_CORE,
        "%",
        2,
        "section 4.4",
        lambda _: None,
    )
    return [*found, core]


def _analysed(name: str, scale: int) -> Callable[[Results], Own]:
    """From the traces of one's own runs, if they were recorded under the paper's settings."""

    def found(results: Results) -> Own:
        one: Any = results.analysis.get("estimates", {}).get(name, {})
        value = one.get("value") if one.get("paper") is not None else None
        return None if value is None else scale * value

    return found
