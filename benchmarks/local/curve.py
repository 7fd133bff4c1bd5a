"""Speed against cost as a picture: what sharper drafts, greedy drafts and the cap buy, and what they spend."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.local.cells import GREEDY, SAME, Cell
from benchmarks.local.rows import Row

FEWEST = 4
"""Arms of one format at one temperature below which there is no curve."""


def draw(rows: Sequence[Row], path: Path) -> Path | None:
    """Draw every format and temperature with enough arms side by side; None where there is none, or no matplotlib."""
    panels = panels_of(rows)
    if not panels:
        return None
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    # Without these two, the same figures give another file each time.
    matplotlib.rcParams["svg.hashsalt"] = "nsd"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.4 * len(panels), 4), layout="constrained", squeeze=False)
    for place, ((dtype, k, t), arms) in zip(axes[0], panels.items(), strict=True):
        _panel(place, arms)
        place.set_title(f"smollm2-135m {dtype}, K={k}, T={t:g}", fontsize=10)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def panels_of(rows: Sequence[Row]) -> dict[tuple[str, int, float], list[Row]]:
    """NSD's arms, with the SD on the same drafts, by (format, K, T), where there are enough."""
    found: dict[tuple[str, int, float], list[Row]] = {}
    for row in rows:
        if not row.cell.plain:
            found.setdefault((row.cell.dtype, row.cell.k, row.cell.temperature), []).append(row)
    return {key: arms for key, arms in found.items() if sum(r.cell.rule == "nsd" for r in arms) >= FEWEST}


def label(cell: Cell) -> str:
    """What stands beside a point."""
    if cell.cap is not None:
        return f"cap {cell.cap:g}"
    drafting = {SAME: "", GREEDY: ", greedy"}.get(cell.draft, f", draft T x{cell.draft}")
    return f"{cell.rule.upper()}{drafting}"


def _panel(place: Any, arms: Sequence[Row]) -> None:
    capped = [r for r in arms if r.cell.cap is not None or (r.cell.headline)]
    line = sorted(((_x(r), _y(r)) for r in capped), key=lambda point: point[0])
    place.plot([x for x, _ in line], [y for _, y in line], color="#8839ef", lw=1, alpha=0.6, zorder=1)
    right = 1.4 * max(_x(row) for row in arms) + 0.02
    place.set_xlim(-0.02, right)
    heights = [_y(row) for row in arms]
    apart = 0.045 * max(max(heights) - min(heights), 0.01 * max(heights))
    taken = list[tuple[float, float]]()
    for row in sorted(arms, key=_y):
        colour = "#1e66f5" if row.cell.rule == "sd" else "#8839ef" if row.cell.headline or row.cell.cap else "#df8e1d"
        low, high = row.rate.low or _y(row), row.rate.high or _y(row)
        place.errorbar(_x(row), _y(row), [[_y(row) - low], [high - _y(row)]], fmt="o", ms=4, color=colour, lw=1)
        text = f"{label(row.cell)} ({row.tau.value:.2f})"
        height = free(_y(row), [y for x, y in taken if abs(_x(row) - x) < 0.35 * right], apart)
        taken.append((_x(row), height))
        place.annotate(text, (_x(row) + 0.012 * right, height), va="center", fontsize=7)
    place.set_xlabel("mean deviation spent at a tested position (mean ES)")
    place.set_ylabel("tokens/s (in brackets: tau)")
    place.grid(alpha=0.3)


def free(height: float, taken: Sequence[float], apart: float) -> float:
    """The lowest height from this one upwards that is so far apart from those taken."""
    for other in sorted(taken):
        if abs(height - other) < apart:
            height = other + apart
    return height


def _x(row: Row) -> float:
    return row.spent or 0.0


def _y(row: Row) -> float:
    assert row.rate.value is not None
    return row.rate.value
