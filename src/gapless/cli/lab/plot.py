"""Line plots as SVG, without any library: several panels, both axes logarithmic."""

from __future__ import annotations

from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WIDTH, _HEIGHT = 420, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 112, 40, 40
_COLOURS = ("#1f6fb2", "#c8501e", "#2e8b57", "#7d4fa3", "#8a6d1d")
_MIN_GAP = 13


class PlotLine(NamedTuple):
    """One line: its name, and a value for each x; None where there is none."""

    name: str
    values: Sequence[float | None]


class PlotPanel(NamedTuple):
    """One plot: title, what the x are, and lines."""

    title: str
    x_name: str
    xs: Sequence[float]
    lines: Sequence[PlotLine]


class _Axis(NamedTuple):
    """From a value to a place, logarithmically: ``low`` is at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the place of a value."""
        share = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.start + share * (self.end - self.start)


def svg(panels: Sequence[PlotPanel], columns: int = 2) -> str:
    """Return a picture of all panels, side by side in rows."""
    rows = ceil(len(panels) / columns)
    width, height = columns * _WIDTH, rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        '<g font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        parts.append(f'<g transform="translate({column * _WIDTH} {row * _HEIGHT})">')
        parts += _panel(panel)
        parts.append("</g>")
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _panel(panel: PlotPanel) -> Iterable[str]:
    values = [
        value for line in panel.lines for value in line.values if value is not None and value > 0
    ]
    low = 10.0 ** floor(log10(min(values, default=1.0)))
    high = 10.0 ** ceil(log10(max(values, default=1.0)))
    across = _Axis(min(panel.xs), max(*panel.xs, min(panel.xs) * 1.01), _LEFT, _WIDTH - _RIGHT)
    up = _Axis(low, max(high, 10 * low), _HEIGHT - _BOTTOM, _TOP)
    yield f'<text x="{_LEFT}" y="20" font-size="13" font-weight="bold">{escape(panel.title)}</text>'
    yield from _grid(panel, across, up)
    label_ys: list[float] = []
    for line, colour in sorted(zip(panel.lines, _COLOURS, strict=False), key=_end, reverse=True):
        points = [
            (across.at(x), up.at(value))
            for x, value in zip(panel.xs, line.values, strict=True)
            if value is not None and value > 0
        ]
        if not points:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)
        end_x, end_y = points[-1]
        label_y = max([end_y + 4, *(y + _MIN_GAP for y in label_ys)])
        label_ys.append(label_y)
        yield f'<text x="{end_x + 8:.1f}" y="{label_y:.1f}" fill="{colour}">{escape(line.name)}</text>'


def _end(drawn: tuple[PlotLine, str]) -> float:
    """Return the last value of a line: labels are set from the top down."""
    return next((value for value in reversed(drawn[0].values) if value is not None), 0.0)


def _tick(power: int) -> str:
    """Return a power of ten as it stands at an axis: whole millions as such, so that it fits the margin."""
    return f"{10.0 ** (power - 6):,.0f} M" if power >= 6 else f"{10.0**power:,g}"


def _grid(panel: PlotPanel, across: _Axis, up: _Axis) -> Iterable[str]:
    power = round(log10(up.low))
    while 10.0**power <= up.high * 1.001:
        y = up.at(10.0**power)
        yield f'<line x1="{across.start}" x2="{across.end}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{across.start - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{_tick(power)}</text>'
        power += 1
    for x in panel.xs:
        place = across.at(x)
        yield f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{up.start}" y2="{up.start + 4}" stroke="#888888"/>'
        yield (
            f'<text x="{place:.1f}" y="{up.start + 16}" text-anchor="middle" fill="#555555">{escape(f"{x:g}")}</text>'
        )
    middle, name = (across.start + across.end) / 2, escape(panel.x_name)
    yield f'<text x="{middle:.1f}" y="{up.start + 32}" text-anchor="middle" fill="#555555">{name}</text>'
