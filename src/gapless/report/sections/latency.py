"""Latency: the time from a send to a delivery, by percentile, over time and by stream."""

from __future__ import annotations

from collections import Counter, defaultdict
from math import log10
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
    table_rows,
)
from gapless.report.html import Html, join_markup, name_markup, natural_sort_key, shorten
from gapless.report.sections.windows import stream_name

MAX_MEMBERS = 24
"""Maximum number of members to choose from."""
MAX_CURVES = 5
"""Maximum number of members with a curve: the slowest."""
MAX_BARS = 16
"""Maximum number of streams in the chart of streams."""
_GRID = 64
_MIN_NS = 1000.0


def section(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return the charts of latency."""
    parts = [
        _curves(figures["latency"]),
        _latency_over_time(figures, across),
        _streams(figures["latency"]),
    ]
    there = [part for part in parts if part is not None]
    return join_markup(there) if there else None


def _curves(latency: list[dict[str, Any]]) -> Html | None:
    """Return the percentile curves of all deliveries and of the slowest members."""
    whole = [one for one in latency if not one["member"] and not one["origin"]]
    single = [one for one in latency if one["member"] or one["origin"]]
    members: dict[str, Counter[float]] = defaultdict(Counter)
    for one in single:
        for upper_ns, count in (pair[:2] for pair in one["histogram"]):
            members[one["member"]][upper_ns] += count
    everything: Counter[float] = Counter()
    for one in whole[:1] or single:
        for upper_ns, count in (pair[:2] for pair in one["histogram"]):
            everything[upper_ns] += count
    total = int(sum(everything.values()))
    if not total:
        return None
    ranked = sorted(members.items(), key=lambda item: -(_at_share(item[1], 0.99) or 0))
    drawn = [("all deliveries", everything)]
    if len(members) > 1:
        drawn += [(f"at {shorten(name, 24)}", histogram) for name, histogram in ranked[:MAX_CURVES]]
    across = axes.nines_axis(total)
    shares = _shares(across)
    values = [[_at_share(histogram, share) for share in shares] for _, histogram in drawn]
    known = [value for row in values for value in row if value]
    up = axes.log_axis(max(min(known, default=1e6), _MIN_NS), max(known, default=1e6))
    lines = [
        Curve(name, row, nth + 1, heavy=not nth)
        for nth, ((name, _), row) in enumerate(zip(drawn, values, strict=True))
    ]
    note = (
        "Read: 99 % of the deliveries took at most the latency above the mark 99 %. Each mark "
        "after 90 % stands for ten times fewer deliveries."
    )
    if len(members) > MAX_CURVES:
        note += f" Curves of the {MAX_CURVES} slowest of {len(members)} members; the table has all."
    median_ns, far_ns = _at_share(everything, 0.5), _at_share(everything, 0.99)
    summary = (
        f"Half of {formatting.plural(total, 'delivery', 'deliveries')} within "
        f"{formatting.duration(median_ns)}, "
        f"99 % within {formatting.duration(far_ns)}."
    )
    behind = _percentiles([("all", everything), *((name, histogram) for name, histogram in ranked)])
    return line_chart(
        "latency-shares",
        "Latency by percentile",
        across,
        shares,
        [ChartPanel("latency", up, lines, height=210)],
        data_table=behind,
        note=note,
        summary=summary,
    )


def _shares(across: Axis) -> list[float]:
    """Return evenly spaced positions along the axis of nines."""
    deep = -log10(1 - across.high)
    return [1 - 10 ** (-deep * nth / _GRID) for nth in range(_GRID + 1)]


def _at_share(histogram: Counter[float], share: float) -> float | None:
    total = sum(histogram.values())
    if not total:
        return None
    reached = 0.0
    for upper_ns in sorted(histogram):
        reached += histogram[upper_ns]
        if reached >= share * total and reached:
            return upper_ns
    return max(histogram)


def _percentiles(rows: list[tuple[str, Counter[float]]]) -> ChartTable:
    wanted = (0.5, 0.9, 0.99, 0.999, 1.0)
    return ChartTable(
        ("member", "deliveries", "50 %", "90 %", "99 %", "99.9 %", "all"),
        [
            (
                name_markup(name, 60),
                formatting.count(sum(histogram.values())),
                *(formatting.duration(_at_share(histogram, share)) for share in wanted),
            )
            for name, histogram in rows[:400]
        ],
        "Values come from a histogram with steps of a few per cent and are rounded up.",
    )


def _latency_over_time(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return median and 99th percentile over time, of the slowest member and of each member."""
    members: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in figures["over_time"]["points"]:
        if point["latency_p50_ns"] is not None:
            members[point["member"]].append(point)
    if not members:
        return None
    worst: dict[float, dict[str, Any]] = {}
    for point in (point for points in members.values() for point in points):
        before = worst.get(point["t_ns"])
        if before is None:
            worst[point["t_ns"]] = dict(point)
            continue
        for part in ("latency_p50_ns", "latency_p99_ns"):
            before[part] = max(before[part] or 0, point[part] or 0)
    ranked = sorted(
        members, key=lambda name: -max(point["latency_p99_ns"] or 0 for point in members[name])
    )
    chosen = (
        [("the slowest member at each time", [worst[t_ns] for t_ns in sorted(worst)])]
        if len(members) > 1
        else []
    )
    chosen += [
        (f"at {name}", members[name]) for name in sorted(ranked[:MAX_MEMBERS], key=natural_sort_key)
    ]
    known = [
        value
        for _, points in chosen
        for point in points
        for value in (point["latency_p50_ns"], point["latency_p99_ns"])
        if value
    ]
    up = axes.log_axis(max(min(known, default=_MIN_NS), _MIN_NS), max(known, default=1e6))
    step_ns = figures["over_time"]["step_ns"]
    rows = table_rows(len(chosen))
    pictures = [
        _member_over_time(nth, name, points, across, up, step_ns, rows)
        for nth, (name, points) in enumerate(chosen)
    ]
    return switcher("latency-of", "Member", [shorten(name, 60) for name, _ in chosen], pictures)


def _member_over_time(
    nth: int,
    name: str,
    points: list[dict[str, Any]],
    across: Axis,
    up: Axis,
    step_ns: float,
    rows: int,
) -> Html:
    points = with_gaps(sorted(points, key=lambda point: point["t_ns"]), step_ns)
    xs = [point["t_ns"] for point in points]
    lines = [
        Curve("99 %", [point["latency_p99_ns"] for point in points], 2),
        Curve("median", [point["latency_p50_ns"] for point in points], 1),
    ]
    there = [point for point in points if point["latency_p50_ns"] is not None]
    shown = downsample(there, rows)
    behind = ChartTable(
        ("from", "median", "99 %"),
        [
            (
                across.format_value(point["t_ns"]),
                formatting.duration(point["latency_p50_ns"]),
                formatting.duration(point["latency_p99_ns"]),
            )
            for point in shown
        ],
        downsample_note(len(shown), len(there), "steps"),
        frozenset(range(3)),
    )
    slowest = max(there, key=lambda point: point["latency_p99_ns"] or 0)
    begin, far = (
        across.format_value(slowest["t_ns"]),
        formatting.duration(slowest["latency_p99_ns"]),
    )
    summary = f"The slowest interval begins at {begin}: 99 % within {far}."
    note = f"Percentiles of each interval of {formatting.duration(step_ns)}." if step_ns else ""
    title = f"Latency over time: {shorten(name, 60)}"
    return line_chart(
        f"latency-time-{nth}",
        title,
        across,
        xs,
        [ChartPanel("latency", up, lines, height=180)],
        data_table=behind,
        note=note,
        summary=summary,
    )


def with_gaps(points: list[dict[str, Any]], step_ns: float) -> list[dict[str, Any]]:
    """Return points with an empty point at missing intervals, so that no line bridges a hole."""
    found: list[dict[str, Any]] = []
    for point in points:
        if found and step_ns and point["t_ns"] - found[-1]["t_ns"] > 1.5 * step_ns:
            hole = {
                legend_entry: None if isinstance(value, (int, float)) else value
                for legend_entry, value in point.items()
            }
            found.append({**hole, "t_ns": found[-1]["t_ns"] + step_ns})
        found.append(point)
    return found


def _streams(latency: list[dict[str, Any]]) -> Html | None:
    """Return the chart of the slowest streams, by receiver and origin."""
    streams = [
        one for one in latency if one["member"] and one["origin"] and one["count"] and one["max_ns"]
    ]
    if not streams:
        return None
    ranked = sorted(streams, key=lambda one: -(one["p99_ns"] or 0))
    shown = ranked[:MAX_BARS]
    low_ns = min(one["p50_ns"] or _MIN_NS for one in shown)
    across = axes.log_axis(max(low_ns / 2, _MIN_NS), max(one["max_ns"] for one in shown))
    rows = []
    for one in shown:
        name = stream_name(one, 20)
        p50, p99 = one["p50_ns"] or 0, one["p99_ns"] or 0
        say = (
            f"{name}: median {formatting.duration(p50)}, 99 % within {formatting.duration(p99)}, "
            f"slowest {formatting.duration(one['max_ns'])}, "
            f"{formatting.plural(one['count'], 'delivery', 'deliveries')}"
        )
        marks = [
            BarMark(p50, "dot", 1, say),
            BarMark(p99, "diamond", 2, say),
            BarMark(one["max_ns"], "triangle", 8, say),
        ]
        value = " · ".join(formatting.duration(each) for each in (p50, p99, one["max_ns"]))
        span = [BarSegment(p50, p99, 1, say, "span")]
        rows.append(BarRow(name, span, marks, value, rail=(p99, one["max_ns"])))
    legend = [
        legend_entry("median", 1, shape="dot"),
        legend_entry("99 %", 2, shape="diamond"),
        legend_entry("slowest", 8, shape="triangle"),
    ]
    behind = ChartTable(
        ("receiver", "origin", "deliveries", "50 %", "90 %", "99 %", "99.9 %", "slowest"),
        [
            (
                name_markup(one["member"], 60),
                name_markup(one["origin"], 60),
                formatting.count(one["count"]),
                *(
                    formatting.duration(one[part])
                    for part in ("p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
                ),
            )
            for one in ranked[:400]
        ],
        numeric=frozenset(range(2, 8)),
    )
    note = "A row for each receiver and origin."
    if len(ranked) > len(shown):
        ranked_count = formatting.count(len(ranked))
        note += f" The slowest {len(shown)} of {ranked_count} streams; the table has more."
    within = formatting.duration(shown[0]["p99_ns"])
    summary = f"The slowest: {stream_name(shown[0])}, 99 % within {within}."
    return figure(
        "latency-streams",
        "Latency by stream",
        bar_chart(rows, across),
        behind,
        note=note,
        summary=summary,
        legend=legend,
        style="flush",
    )
