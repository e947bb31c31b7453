"""Bar charts: a row for each member, stream or repair, with the name above the bar.

The ``data-say`` attribute of a bar or a mark holds the sentence for the readout at the cursor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless.report.charts.lines import event_head, percent_position, svg_canvas, x_axis
from gapless.report.html import Html, shorten, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gapless.report.charts.axes import Axis

_ROW, _BAR, _NAME = 36, 14, 13
_FOOT = 22
_MAX_NAME, _MAX_NAME_ON_PHONE, _MIN_NAME = 60, 48, 12


@dataclass(slots=True)
class BarSegment:
    """A segment of a bar, from ``low`` to ``high``; fills are ``block``, ``hatch`` and ``dots``."""

    low: float
    high: float
    colour: int
    tooltip: str
    fill: str = "block"
    label: str = ""


@dataclass(slots=True)
class BarMark:
    """A mark on a row."""

    at: float
    shape: str
    colour: int
    tooltip: str


@dataclass(slots=True)
class BarRow:
    """A row of a bar chart: the name above the bar on the left, a short text on the right."""

    name: str
    segments: Sequence[BarSegment] = ()
    marks: Sequence[BarMark] = ()
    value: str = ""
    strong: bool = False
    rail: tuple[float, float] | None = field(default=None)


def bar_chart(rows: Sequence[BarRow], across: Axis) -> Html:
    """Return the chart of all rows."""
    parts: list[Html] = []
    head = event_head(across)
    foot = head + len(rows) * _ROW + 6
    parts += x_axis(across, foot, head)
    for nth, row in enumerate(rows):
        parts += _row(head + nth * _ROW, row, across)
    return svg_canvas(parts, foot + _FOOT)


def _row(top: int, row: BarRow, across: Axis) -> list[Html]:
    style = "row-name strong" if row.strong else "row-name"
    parts = _names(row, style, top + _NAME)
    if row.value:
        parts.append(tag("text", row.value, class_="row-value", x="100%", y=top + _NAME))
    y = top + _NAME + 6
    if row.rail is not None:
        left, right = across.position(row.rail[0]), across.position(row.rail[1])
        middle = y + _BAR / 2
        parts.append(
            tag(
                "line",
                class_="rail",
                x1=percent_position(left),
                x2=percent_position(right),
                y1=middle,
                y2=middle,
            )
        )
    for part in row.segments:
        left, right = across.position(part.low), across.position(part.high)
        if part.high <= across.low < across.high and part.low < across.low:
            continue  # the segment ends before the axis begins
        width = max(right - left, 0.0015)
        style = f"bar {part.fill} c{part.colour}"
        parts.append(
            tag(
                "rect",
                class_=style,
                x=percent_position(left),
                y=y,
                width=percent_position(width),
                height=_BAR,
                data_say=part.tooltip,
            )
        )
        if part.label and width > 0.02 + 0.012 * len(part.label):
            parts.append(
                tag(
                    "text",
                    part.label,
                    class_="on-bar",
                    x=percent_position(left + width / 2),
                    y=y + _BAR - 3,
                )
            )
    for mark in row.marks:
        where = percent_position(across.position(mark.at))
        parts.append(
            tag(
                "use",
                class_=f"mark c{mark.colour}",
                href=f"#m-{mark.shape}",
                x=where,
                y=y + _BAR / 2,
                data_say=mark.tooltip,
            )
        )
    return parts


def _names(row: BarRow, style: str, y: int) -> list[Html]:
    """Return the name of a row; a long name in two lengths, and the style shows the fitting one."""
    room = max(_MIN_NAME, _MAX_NAME_ON_PHONE - len(row.value))
    wide, narrow = shorten(row.name, _MAX_NAME), shorten(row.name, room)
    if wide == narrow:
        return [tag("text", wide, class_=style, x=0, y=y)]
    return [
        tag("text", wide, class_=f"{style} wide-only", x=0, y=y),
        tag("text", narrow, class_=f"{style} narrow-only", x=0, y=y),
    ]
