"""The learning curve as an SVG: held-out 1 - TV by depth against steps, drawn with nothing but text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _GAP = 760, 340, 52, 40, 34, 44
_COLOURS = ("#0b5fa5", "#c2571a", "#3a7d34", "#7a4a9e")
_DEPTHS = 3


def draw_curve(log: Path, picture: Path) -> None:
    """Draw what a run's log holds; one panel for each temperature, one line for each of the first depths."""
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    picture.write_text(_svg(entries), encoding="utf-8")


def _svg(entries: Sequence[dict[str, Any]]) -> str:
    panels = len(entries[0]["figures"]) if entries else 0
    width = (_WIDTH - _LEFT - _GAP * max(panels - 1, 0) - 20) / max(panels, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>Held-out 1 - TV by training step</title>'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    ]
    values = [v for e in entries for f in e["figures"] for v in f["kept"][:_DEPTHS]]
    top = max([0.5, *(v + 0.03 for v in values)])
    last = max((e["step"] for e in entries), default=1)
    for panel in range(panels):
        left = _LEFT + panel * (width + _GAP)
        parts.append(_panel(entries, panel, left, width, top, last))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(entries: Sequence[dict[str, Any]], panel: int, left: float, width: float, top: float, last: int) -> str:
    height = _HEIGHT - _TOP - _BOTTOM

    def at(step: float, value: float) -> str:
        return f"{left + width * step / last:.1f},{_TOP + height * (1 - value / top):.1f}"

    temperature = entries[0]["figures"][panel]["temperature"]
    parts = [f'<text x="{left}" y="20" font-weight="bold" fill="#222">held-out 1 - TV, T = {temperature:g}</text>']
    for tick in range(int(top * 10) + 1):
        y = _TOP + height * (1 - tick / 10 / top)
        parts.append(f'<line x1="{left}" x2="{left + width:.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{tick / 10:.1f}</text>')
    for step in (0, last // 2, last):
        x = left + width * step / last
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 20}" text-anchor="middle" fill="#444">{step}</text>')
    parts.append(f'<text x="{left + width / 2:.1f}" y="{_HEIGHT - 4}" text-anchor="middle" fill="#444">step</text>')
    for depth in range(min(_DEPTHS, len(entries[0]["figures"][panel]["kept"]))):
        line = [(e["step"], e["figures"][panel]["kept"][depth]) for e in entries]
        points = " ".join(at(step, value) for step, value in line)
        colour = _COLOURS[depth]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end_x, end_y = at(*line[-1]).split(",")
        label = f"depth {depth + 1}: {line[-1][1]:.3f}"
        parts.append(
            f'<text x="{float(end_x) - 4:.1f}" y="{float(end_y) - 6:.1f}" text-anchor="end" '
            f'fill="{colour}">{label}</text>'
        )
    return "\n".join(parts)
