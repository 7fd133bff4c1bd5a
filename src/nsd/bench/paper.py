"""The figures that are publicly known of the paper's evaluation, each with its place in it, to stand beside one's own.

Only what the public summary states is here; the full tables were not available.
Source: arXiv 2610.07822, as summarised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsd.bench.arms import Arm
from nsd.bench.metrics import verify_ms_per_token
from nsd.bench.results import OVERALL, Model, Results, Row
from nsd.bench.stats import Spread, shifted
from nsd.trace.analyze import PAPER, PAPER_CORE

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


def _model_of(results: Results, name: str) -> Model | None:
    """A model of one's own runs that is the paper's: its name ends a checkpoint's."""
    return next((m for m in results.models if name.lower() in m.config["engine"]["target"].lower()), None)


def _arm(model: Model, kind: str, theta: float | None, k: int | None) -> Arm | None:
    if theta is None and k is None:
        return next((a for a in model.main if a.kind == kind), None)
    fits = [
        a for a in model.arms if a.kind == kind and (theta is None or a.theta == theta) and (k is None or a.block == k)
    ]
    return fits[-1] if fits else None


def _own(
    name: str,
    kind: str,
    value: Callable[[Row], Own],
    task: str = OVERALL,
    theta: float | None = None,
    k: int | None = None,
) -> Callable[[Results], Own]:
    """The same figure from one's own runs of the same model, arm and task; None without such a run."""

    def found(results: Results) -> Own:
        model = _model_of(results, name)
        arm = None if model is None else _arm(model, kind, theta, k)
        return (
            None if model is None or arm is None or (arm.name, task) not in model.rows else value(model.row(arm, task))
        )

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
    for family, name, sizes in (("Nemotron", "Nemotron-Labs-Diffusion", _NEMOTRON), ("Qwen3", "Qwen3", _QWEN)):
        for size, pair in sizes.items():
            for kind, value in zip(("sd", "nsd"), pair, strict=True):
                own = _own(f"{name}-{size}", kind, _tau)
                found.append(Figure(f"{family}-{size}", f"tau, {kind.upper()}", value, "tokens", 2, "section 4.2", own))
    return found


def _quality() -> list[Figure]:
    name, where = "Qwen3-4B", "section 4.2, overall row"
    return [
        Figure(name, "score, SD", 68.65, "%", 2, where, _own(name, "sd", _score)),
        Figure(name, "score, NSD", 67.66, "%", 2, where, _own(name, "nsd", _score)),
        Figure(name, "speed-up over AR, SD", 3.13, "x", 2, where, _own(name, "sd", _over("ar"))),
        Figure(name, "speed-up over AR, NSD", 4.00, "x", 2, where, _own(name, "nsd", _over("ar"))),
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
                own = _own(f"Nemotron-Labs-Diffusion-{size}", "nsd", of, task, theta, block)
                found.append(Figure(f"Nemotron-{size}", f"{what}; {at}", value, unit, 2, "section 4.3, Table 2", own))
    return found


def _mtp() -> list[Figure]:
    name, where = "Qwen3.5-4B", "appendix D.1, Table 6"
    return [
        Figure(name, "tokens/s, SD, MTP K=2", 105.90, "1/s", 2, where, _own(name, "sd", _rate, k=2)),
        Figure(name, "tokens/s, NSD, MTP K=2", 179.90, "1/s", 2, where, _own(name, "nsd", _rate, k=2)),
        Figure(name, "speed-up over SD, MTP K=2", 1.70, "x", 2, where, _own(name, "nsd", _over("sd"), k=2)),
    ]


def _verification() -> list[Figure]:
    name, where = "Nemotron", "section 4.4"
    own = "Nemotron-Labs-Diffusion"

    def calls(row: Row) -> float | None:
        return row.counters.stats.calls_per_token

    def verify(row: Row) -> float | None:
        return verify_ms_per_token(row.counters)

    return [
        Figure(name, "target calls per token, SD", 0.1600, "", 4, where, _own(own, "sd", calls)),
        Figure(name, "target calls per token, NSD", 0.0835, "", 4, where, _own(own, "nsd", calls)),
        Figure(name, "verification per token, SD", 5.26, "ms", 2, where, _own(own, "sd", verify)),
        Figure(name, "verification per token, NSD", 2.72, "ms", 2, where, _own(own, "nsd", verify)),
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
