"""Windows: the marks of each stream over time, and the number of messages in each window."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gapless.report import formatting
from gapless.report.charts import axes
from gapless.report.charts.axes import Axis
from gapless.report.charts.bars import BarMark, BarRow, BarSegment, bar_chart
from gapless.report.charts.lines import (
    ChartPanel,
    ChartTable,
    Curve,
    downsample,
    downsample_note,
    figure,
    legend_entry,
    line_chart,
    switcher,
)
from gapless.report.html import Html, join_markup, name_markup, shorten

MAX_STREAMS = 64
"""Maximum number of streams to choose from."""
MAX_POINTS = 12_800
"""Maximum number of points of all streams together."""
MAX_BARS = 16
"""Maximum number of streams in the occupancy chart."""
_MIN_POINTS = 120


def stream_name(one: dict[str, Any], most: int = 40) -> str:
    """Return the label of a stream at a member: ``b from a``."""
    if one["origin"] == one["member"]:
        return f"{shorten(one['member'], most)}, own stream"
    return f"{shorten(one['member'], most)} from {shorten(one['origin'], most)}"


def section(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return the marks of each stream, and the occupancy of the windows."""
    windows = [window for window in figures["windows"] if window["points"]][:MAX_STREAMS]
    parts: list[Html] = []
    if windows:
        names = [_title(window) for window in windows]
        most = max(_MIN_POINTS, MAX_POINTS // len(windows))
        pictures = [_window(nth, window, across, most) for nth, window in enumerate(windows)]
        parts.append(switcher("windows-of", "Stream", names, pictures))
    occupancy = _occupancy(figures["occupancy"])
    if occupancy is not None:
        parts.append(occupancy)
    return join_markup(parts) if parts else None


def _title(window: dict[str, Any]) -> str:
    to = f", to {shorten(window['to'], 30)}" if window["to"] else ""
    return stream_name(window) + to


def _fullest(points: list[tuple[float, ...]], most: int) -> list[tuple[float, ...]]:
    """Return at most ``most`` points: the first, the last, and the fullest of each interval."""
    if len(points) <= most:
        return points
    inner, stretches = points[1:-1], most - 2
    edges = [at * len(inner) // stretches for at in range(stretches + 1)]
    chosen = [
        max(inner[low:high], key=lambda point: point[3] - point[1]) for low, high in pairwise(edges)
    ]
    return [points[0], *chosen, points[-1]]


def _window(nth: int, window: dict[str, Any], across: Axis, most_points: int) -> Html:
    everything = [(*point, 0, 0, 0)[:4] for point in window["points"]]
    points = _fullest(everything, most_points)
    xs = [point[0] for point in points]
    low, delivered, high = ([point[at] for point in points] for at in (1, 2, 3))
    held = [max(0, top - bottom) for top, bottom in zip(high, low, strict=True)]
    ahead = [max(0, top - done) for top, done in zip(high, delivered, strict=True)]
    most, reach = max(held), window["reach"] or 0
    near = 0 < reach <= 4 * max(most, 1)
    # From a common floor, so that the marks of a stream that begins late are not squeezed to a
    # line.
    floor = min(low)
    marks = _marks_axis(floor, max(high))
    panels = [
        ChartPanel(
            "seqno",
            marks,
            [
                Curve("high", high, 2, step=True),
                Curve("delivered", delivered, 1, step=True),
                Curve("low", low, 3, step=True),
            ],
            bands=[(2, 0)],
            height=170,
        ),
        ChartPanel(
            "messages"
            + (
                ""
                if near or not reach
                else f" (the capacity, {formatting.count(reach)}, is off the chart)"
            ),
            axes.count_axis(max(most, reach if near else 0)),
            [
                Curve("held: high \N{MINUS SIGN} low", held, 4, step=True, dash=1, minus=(0, 2)),
                Curve(
                    "not delivered yet: high \N{MINUS SIGN} delivered",
                    ahead,
                    8,
                    step=True,
                    dash=3,
                    minus=(0, 1),
                ),
            ],
            height=110,
            levels=[(reach, f"capacity {formatting.count(reach)}")] if near else (),
        ),
    ]
    behind = _marks_table(points, across)
    summary = (
        f"From {formatting.count(floor)} to {formatting.count(max(high))}, at most "
        f"{formatting.count(most)} held" + (f" of {formatting.count(reach)}." if reach else ".")
    )
    note = (
        "The band is the content of the window: from low (older messages are purged) to high, the "
        "newest message known."
    )
    if len(points) < len(everything):
        drawn = f"{len(points)} of {len(everything)} points"
        note += f" {drawn} are drawn: the fullest of each interval."
    title = f"Window: {_title(window)}"
    return line_chart(
        f"window-{nth}", title, across, xs, panels, data_table=behind, note=note, summary=summary
    )


def _marks_table(points: list[Any], across: Axis) -> ChartTable:
    shown = downsample(points)
    return ChartTable(
        ("time", "low", "delivered", "high", "held"),
        [
            (
                across.format_value(t),
                *map(formatting.count, (lo, done, hi)),
                formatting.count(hi - lo),
            )
            for t, lo, done, hi in shown
        ],
        downsample_note(len(shown), len(points)),
        frozenset(range(5)),
    )


def _marks_axis(low: float, high: float) -> Axis:
    axis = axes.count_axis(max(high - low, 1))
    return (
        Axis(
            low,
            low + axis.high,
            formatting.compact,
            "count",
            ticks=[low + tick for tick in axis.ticks],
        )
        if low > high / 2 and low > 0
        else axes.count_axis(high)
    )


def _occupancy(streams: list[dict[str, Any]]) -> Html | None:
    streams = [one for one in streams if one["max"] is not None]
    if not streams:
        return None
    ranked = sorted(streams, key=lambda one: -(one["p99"] or 0))
    shown = [one for one in ranked if one["max"]][:MAX_BARS] or ranked[:1]
    reach = max((one["reach"] or 0 for one in shown), default=0)
    most = max(one["max"] for one in shown)
    near = 0 < reach <= 4 * max(most, 1)
    across = axes.count_axis(max(most, reach if near else 0), most=5)
    rows = []
    for one in shown:
        name = stream_name(one, 20)
        say = (
            f"{name}: at most {formatting.count(one['p50'])} held for half the time, "
            f"99 % of the time at most {formatting.count(one['p99'])}, never more than "
            f"{formatting.count(one['max'])}"
            + (f", of {formatting.count(one['reach'])}" if one["reach"] else "")
        )
        marks = [BarMark(one["max"], "triangle", 2, say)]
        if near and one["reach"]:
            marks.append(
                BarMark(
                    one["reach"],
                    "plus",
                    7,
                    f"{name}: the capacity is {formatting.count(one['reach'])}",
                )
            )
        half, most_of_it = one["p50"] or 0, one["p99"] or 0
        parts = [BarSegment(0, half, 1, say)] if half else []
        parts += [BarSegment(half, most_of_it, 1, say, "hatch")] if most_of_it > half else []
        value = " · ".join(formatting.count(one[share]) for share in ("p50", "p99", "max"))
        rows.append(BarRow(name, parts, marks, value, rail=(one["p99"] or 0, one["max"])))
    legend = [
        legend_entry("held half the time", 1, shape="block"),
        legend_entry("held 99 % of the time", 1, shape="hatch"),
        legend_entry("maximum", 2, shape="triangle"),
    ]
    if near:
        legend.append(legend_entry("capacity", 7, shape="plus"))
    behind = ChartTable(
        ("receiver", "origin", "mean", "half the time", "99 %", "maximum", "capacity"),
        [
            (
                name_markup(one["member"], 60),
                name_markup(one["origin"], 60),
                formatting.compact(one["mean"]),
                *(formatting.count(one[part]) for part in ("p50", "p99", "max")),
                formatting.count(one["reach"]) if one["reach"] else formatting.NO_VALUE,
            )
            for one in ranked[:400]
        ],
        numeric=frozenset(range(2, 7)),
    )
    note = "Messages of a stream held by a member. A full window makes the sender wait."
    if len(ranked) > len(shown):
        note += f" The fullest {len(shown)} of {formatting.count(len(ranked))} streams are drawn."
    most = formatting.count(shown[0]["p99"])
    summary = f"The fullest: {stream_name(shown[0])}, 99 % of the time at most {most}."
    return figure(
        "occupancy",
        "Window occupancy",
        bar_chart(rows, across),
        behind,
        note=note,
        summary=summary,
        legend=legend,
        style="flush",
    )
