"""Pictures of an analysis: acceptance, R and ES by place in the block; ranks; entropies of rescued tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nsd.errors import TraceError
from nsd.trace.analyze import Analysis
from nsd.trace.statistics import Estimate

_COLOURS = ("#2f7d4f", "#8a2bb8", "#0b6a9c", "#a55b00", "#625e54")


def draw_figures(analysis: Analysis, folder: str | Path) -> list[Path]:
    """Write the figures that the analysis has data for, as SVG and PNG -> their paths."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise TraceError(
            "matplotlib is not installed, wanted for figures; pip install 'nucleus-speculative-decoding[trace]'"
        ) from None
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"{folder} cannot be made ({error.strerror}); name another folder for --figures") from None
    written: list[Path] = []
    style = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "svg.fonttype": "none"}
    with mpl.rc_context(style):
        for name, draw, has_data in (
            ("places", _places, bool(analysis.places)),
            ("ranks", _ranks, any(analysis.ranks.values())),
            ("entropies", _entropies, bool(analysis.entropies)),
        ):
            if not has_data:
                continue
            figure = Figure(figsize=(9, 3.4) if name == "places" else (5.5, 4), layout="constrained")
            draw(figure, analysis)
            for suffix in ("svg", "png"):
                written.append(folder / f"{name}.{suffix}")
                figure.savefig(written[-1], dpi=160)
    return written


def _places(figure: Any, analysis: Analysis) -> None:
    rules = sorted({place.rule for place in analysis.places})
    for axes, name in zip(figure.subplots(1, 3), ("acceptance", "R", "ES"), strict=True):
        for colour, rule in zip(_COLOURS, rules, strict=False):
            points = [(p.place, getattr(p, name)) for p in analysis.places if p.rule == rule]
            known = [(place, estimate) for place, estimate in points if estimate.value is not None]
            axes.errorbar(
                [place for place, _ in known],
                [estimate.value for _, estimate in known],
                yerr=[[_below(e) for _, e in known], [_over(e) for _, e in known]],
                color=colour,
                label=rule,
                marker="o",
                markersize=4,
                capsize=2,
                linewidth=1.2,
            )
        axes.set(title=name, xlabel="place in the block", ylim=(0, None))
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)


def _below(estimate: Estimate) -> float:
    return 0.0 if estimate.low is None or estimate.value is None else estimate.value - estimate.low


def _over(estimate: Estimate) -> float:
    return 0.0 if estimate.high is None or estimate.value is None else estimate.high - estimate.value


def _ranks(figure: Any, analysis: Analysis) -> None:
    axes = figure.subplots()
    for colour, (name, ranks) in zip(_COLOURS, analysis.ranks.items(), strict=False):
        if ranks:
            ordered = sorted(ranks)
            heights = [(i + 1) / len(ordered) for i in range(len(ordered))]
            axes.step(ordered, heights, where="post", color=colour, label=f"{name} ({len(ranks)})")
    axes.set(xscale="log", xlabel="rank by p", ylabel="share at or below", ylim=(0, 1.02))
    axes.legend(frameon=False, loc="lower right")


def _entropies(figure: Any, analysis: Analysis) -> None:
    axes = figure.subplots()
    most = max(max(pair) for pair in analysis.entropies) * 1.05 + 1e-9
    axes.plot([0, most], [0, most], color=_COLOURS[4], linewidth=0.8, linestyle="--")
    axes.scatter(*zip(*analysis.entropies, strict=True), s=10, color=_COLOURS[1], alpha=0.6)
    axes.set(xlabel="entropy of q, nats", ylabel="entropy of p, nats", title="tokens kept only by the nucleus")
