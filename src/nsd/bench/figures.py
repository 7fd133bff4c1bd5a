"""Figures of a report as inline SVG: colours by CSS class, so that one picture serves light, dark and print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

_WIDTH, _HEIGHT = 640.0, 340.0
_LETTER, _LINE = 9.5, 18.0
"""Room of a label, for the letters of a phone, which are larger in the picture."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 20.0, 44.0, 62.0


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a plot, with a label, and the interval of its x if there is one.

    The label of a strong point is set first; one that finds no room is left to the point's title.
    """

    x: float
    y: float
    label: str = ""
    low: float | None = None
    high: float | None = None
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points under one name; joined by a line or not; of a colour of its own, or the next."""

    name: str
    points: Sequence[Point]
    joined: bool = True
    colour: int | None = None


class _Axes:
    """From values to places in the picture."""

    def __init__(self, series: Sequence[Series], zero: bool) -> None:
        points = [p for s in series for p in s.points]
        xs = [v for p in points for v in (p.x, p.low, p.high) if v is not None]
        ys = [p.y for p in points]
        self._labels: list[tuple[float, float, float]] = []
        self.x = _range(xs, False)
        self.y = _range(ys, zero)

    def at(self, x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + (_WIDTH - _LEFT - _RIGHT) * (x - self.x[0]) / (self.x[1] - self.x[0]),
            _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (y - self.y[0]) / (self.y[1] - self.y[0]),
        )

    def room_for(self, label: str, a: float, b: float) -> tuple[float, float, str] | None:
        """Where a label hides no earlier one: x, y, anchor; near the right edge left of its point; else None."""
        width, right = _LETTER * len(label), a <= 0.75 * _WIDTH
        left = a + 8 if right else a - 8 - width
        above = [b - 7 - _LINE * i for i in range(12)]
        below = [b + 18 + _LINE * i for i in range(12)]
        free = (y for y in (*above, *below) if _TOP - 8 < y < _HEIGHT - _BOTTOM and self._is_free(left, width, y))
        y = next(free, None)
        if y is None:
            return None
        self._labels.append((left, left + width, y))
        return (a + 8, y, "start") if right else (a - 8, y, "end")

    def _is_free(self, left: float, width: float, y: float) -> bool:
        return not any(abs(y - v) < _LINE and left < hi and lo < left + width for lo, hi, v in self._labels)


def _range(values: Sequence[float], zero: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if zero:
        low = min(0.0, low)
    margin = 0.08 * (high - low) or max(abs(high), 1.0) * 0.1
    return (low if zero and low == 0 else low - margin), high + margin


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two ends, about `count` of them."""
    rough = (high - low) / count
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first = floor(low / step)
    return [i * step for i in range(first, first + 4 * count) if low <= i * step <= high]


def plot(series: Sequence[Series], x: str, y: str, zero: bool = True, x_ticks: Sequence[float] = ()) -> str:
    """Lines or points over two axes; a list in words stands in its title for those who cannot see it."""
    series = [s for s in series if s.points]
    if not series:
        return ""
    axes = _Axes(series, zero)
    parts = [_grid(axes, x, y, x_ticks)]
    colours = [n if s.colour is None else s.colour for n, s in enumerate(series)]
    parts += [_series(axes, s, colour) for colour, s in zip(colours, series, strict=True)]
    parts += _labels(axes, list(zip(colours, series, strict=True)))
    words = "; ".join(
        f"{s.name}: " + ", ".join(f"{p.label or f'{p.x:.4g}'} {p.y:.4g}" for p in s.points) for s in series
    )
    key = "".join(f'<span class="k c{n % 6}">{escape(s.name)}</span>' for n, s in zip(colours, series, strict=True))
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{escape(f"{y} against {x}. {words}")}">'
        f'{"".join(parts)}</svg><div class="key">{key}</div>'
    )


def _grid(axes: _Axes, x: str, y: str, x_ticks: Sequence[float]) -> str:
    lines = []
    for value in ticks(*axes.y):
        _, at = axes.at(axes.x[0], value)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in x_ticks or ticks(*axes.x):
        at, _ = axes.at(value, axes.y[0])
        lines.append(f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:.4g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x)}</text>')
    lines.append(f'<text class="axis" x="8" y="20">{escape(y)}</text>')
    return "".join(lines)


def _series(axes: _Axes, series: Series, number: int) -> str:
    places = [axes.at(p.x, p.y) for p in series.points]
    parts = []
    if series.joined and len(places) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline points="{path}"/>')
    for (a, b), p in zip(places, series.points, strict=True):
        if p.low is not None and p.high is not None:
            left, right = axes.at(p.low, p.y)[0], axes.at(p.high, p.y)[0]
            parts.append(f'<line class="span" x1="{left:.1f}" x2="{right:.1f}" y1="{b:.1f}" y2="{b:.1f}"/>')
        said = f"{series.name} {p.label}: {p.x:.4g}, {p.y:.4g}"
        size = 6.5 if p.strong else 4.5
        parts.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{size}"><title>{escape(said)}</title></circle>')
    return f'<g class="c{number % 6}">{"".join(parts)}</g>'


def _labels(axes: _Axes, series: Sequence[tuple[int, Series]]) -> list[str]:
    """Labels over all points, so that no point hides one: of strong points first, and others where there is room."""
    found = []
    points = [(colour, p) for colour, s in series for p in s.points if p.label]
    for colour, p in sorted(points, key=lambda one: not one[1].strong):
        room = axes.room_for(p.label, *axes.at(p.x, p.y))
        if room is not None:
            x, y, anchor = room
            words = f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(p.label)}</text>'
            found.append(f'<g class="c{colour % 6}">{words}</g>')
    return found


def bars(groups: Sequence[tuple[str, Sequence[tuple[str, float]]]], unit: str) -> str:
    """Horizontal bars: for each label its named parts, laid end to end, with their sum beside them.

    Neighbours of one label form a group, which bears it once.
    """
    if not groups:
        return ""
    most = max(sum(value for _, value in parts) for _, parts in groups) or 1.0
    names = list(dict.fromkeys(name for _, parts in groups for name, _ in parts))
    row, gap, left = 26.0, 10.0, 190.0
    body, bottom, before = [], 0.0, None
    for label, parts in groups:
        y, x = bottom + (0 if label == before else gap), left
        if label != before:
            body.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(label)}</text>')
        bottom, before = y + row, label
        for name, value in parts:
            width = (_WIDTH - left - 90) * value / most
            body.append(
                f'<rect class="c{names.index(name) % 6}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" rx="2"/>'
            )
            x += width
        body.append(f'<text x="{x + 6:.1f}" y="{y + 16}">{sum(v for _, v in parts):.3g} {escape(unit)}</text>')
    words = "; ".join(f"{label}: " + ", ".join(f"{n} {v:.4g} {unit}" for n, v in parts) for label, parts in groups)
    key = (
        "".join(f'<span class="k c{n % 6}">{escape(name)}</span>' for n, name in enumerate(names))
        if names != [""]
        else ""
    )
    height = bottom + 8
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(words)}">{"".join(body)}</svg>'
        f'<div class="key">{key}</div>'
    )
