"""Repairs: the time from the detection of a gap to the delivery of the missing messages."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import Any

from gapless.report import formatting
from gapless.report.charts import axes
from gapless.report.charts.axes import Axis
from gapless.report.charts.bars import BarRow, BarSegment, bar_chart
from gapless.report.charts.lines import (
    ChartTable,
    event_head,
    figure,
    legend_entry,
    percent_position,
    svg_canvas,
    x_axis,
)
from gapless.report.html import Html, join_markup, name_markup, shorten, tag
from gapless.report.sections.verdict import tile

MAX_WATERFALLS = 14
"""Maximum number of repairs drawn phase by phase: the slowest."""
MAX_ROWS = 200
"""Maximum number of rows in the table of repairs."""
_MOMENTS = ("gap_ns", "nak_ns", "nak_in_ns", "repair_ns", "stored_ns", "delivered_ns")
_PHASES = (
    ("nak_ns", "grace: the message may only be late", 7, "dots"),
    ("nak_in_ns", "nak in transit", 2, "block"),
    ("repair_ns", "waiting for the repair", 5, "hatch"),
    ("stored_ns", "repair in transit", 1, "block"),
    ("delivered_ns", "waiting for earlier messages", 4, "hatch"),
)
_NEVER_HEIGHT, _HEIGHT = 26, 190


def section(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return the charts of repairs: when, how long, and in which phases."""
    log = [one for one in figures["repair_log"] if _start(one) is not None]
    if not log:
        return None
    ended = [one for one in log if _duration_ns(one) is not None]
    took = sorted(filter(None, map(_duration_ns, ended)))
    again = sum(one["naks"] > 1 for one in log)
    tiles = [
        tile("Gaps shown", formatting.count(len(log)), detail=_shown_of_all(figures, len(log))),
        tile(
            "Repair time, median",
            formatting.duration(median(took)) if took else formatting.NO_VALUE,
            detail="gap to delivery",
        ),
        tile(
            "Repair time, slowest", formatting.duration(took[-1]) if took else formatting.NO_VALUE
        ),
        tile("Requested again", formatting.count(again), detail="gaps with more than one nak"),
        tile(
            "Never repaired",
            formatting.count(len(log) - len(ended)),
            detail="within the trace",
        ),
    ]
    parts = [tag("dl", *tiles, class_="tiles small"), _scatter(log, took, across)]
    if ended:
        parts.append(_waterfall(ended))
    return join_markup(parts)


def _shown_of_all(figures: dict[str, Any], shown: int) -> str:
    naks = figures["summary"]["naks"]
    return f"{formatting.count(naks)} naks in all" if naks and naks > shown else ""


def _start(one: dict[str, Any]) -> float | None:
    return next((one[moment] for moment in _MOMENTS if one[moment] is not None), None)


def _end(one: dict[str, Any]) -> float | None:
    end: float | None = one["delivered_ns"] if one["delivered_ns"] is not None else one["stored_ns"]
    return end


def _duration_ns(one: dict[str, Any]) -> float | None:
    start, end = _start(one), _end(one)
    return None if start is None or end is None else max(0, end - start)


def _name(one: dict[str, Any], most: int = 18) -> str:
    range_ = formatting.seqnos(one["seqno"], one["seqno_last"])
    return f"{shorten(one['member'], most)} misses {range_} of {shorten(one['origin'], most)}"


def _scatter(log: list[dict[str, Any]], took: list[float], across: Axis) -> Html:
    """Return the chart of gaps: a mark for each, by detection time and duration."""
    up = axes.log_axis(max(1000, took[0] if took else 1e6), took[-1] if took else 1e8)
    never = any(_duration_ns(one) is None for one in log)
    head = event_head(across)
    top = head + (_NEVER_HEIGHT if never else 6)
    foot = top + _HEIGHT
    parts = []
    for tick in up.ticks:
        y = round(top + _HEIGHT * (1 - up.position(tick)), 1)
        parts.append(tag("line", class_="grid", x1=0, x2="100%", y1=y, y2=y))
        parts.append(tag("text", up.format_value(tick), class_="tick y", x=-8, y=y + 4))
    parts += x_axis(across, foot, top)
    if never:
        parts.append(tag("text", "never", class_="tick y", x=-8, y=head + 12))
    for one in sorted(log, key=lambda one: _start(one) or 0):
        span_ns = _duration_ns(one)
        y = head + 8.0 if span_ns is None else round(top + _HEIGHT * (1 - up.position(span_ns)), 1)
        parts.append(_mark(one, across, y))
    legend = [
        legend_entry("repaired after one nak", 1, shape="dot"),
        legend_entry("after several", 2, shape="triangle"),
    ]
    if never:
        legend.append(legend_entry("never", 8, shape="cross"))
    shown = log[:MAX_ROWS]
    behind = ChartTable(
        ("noticed", "receiver", "missing", "origin", "naks", "nak after", "delivered after"),
        [
            (
                across.format_value(_start(one) or 0),
                name_markup(one["member"], 40),
                formatting.seqnos(one["seqno"], one["seqno_last"]),
                name_markup(one["origin"], 40),
                formatting.count(one["naks"]),
                _between(one, "gap_ns", "nak_ns"),
                formatting.duration(_duration_ns(one))
                if _duration_ns(one) is not None
                else "never",
            )
            for one in shown
        ],
        ""
        if len(shown) == len(log)
        else f"The first {len(shown)} of {formatting.count(len(log))}.",
        frozenset({0, 4, 5, 6}),
    )
    summary = f"{formatting.plural(len(log), 'gap')}" + (
        f", median {formatting.duration(median(took))}." if took else "."
    )
    note = (
        "Each mark is a gap. Horizontal: when the receiver noticed the gap; vertical: the time "
        "until the missing messages were delivered."
    )
    return figure(
        "gaps",
        "Gaps by repair time",
        svg_canvas(parts, foot + 22),
        behind,
        note=note,
        summary=summary,
        legend=legend,
    )


def _mark(one: dict[str, Any], across: Axis, y: float) -> Html:
    """Return the mark of a gap, with a tooltip."""
    start, span_ns = _start(one) or 0, _duration_ns(one)
    shape, colour = "dot", 1
    how = "never repaired" if span_ns is None else f"delivered after {formatting.duration(span_ns)}"
    if span_ns is None:
        shape, colour = "cross", 8
    elif one["naks"] > 1:
        shape, colour = "triangle", 2
    naks = formatting.plural(int(one["naks"]), "nak")
    say = f"{across.format_value(start)}: {_name(one, 40)}, {how}, {naks}"
    return tag(
        "use",
        class_=f"mark c{colour} open",
        href=f"#m-{shape}",
        x=percent_position(across.position(start)),
        y=y,
        data_say=say,
    )


def _between(one: dict[str, Any], first: str, second: str) -> str:
    if one[first] is None or one[second] is None:
        return formatting.NO_VALUE
    return formatting.duration(max(0, one[second] - one[first]))


def _phases(one: dict[str, Any]) -> list[tuple[str, int, str, float, float]]:
    """Return label, colour, fill, start and end of each phase with a known start and end."""
    start = _start(one)
    assert start is not None
    found, before, waiting = [], start, []
    for moment, what, colour, fill in _PHASES:
        waiting.append(what)
        at = one[moment]
        if at is None:
            continue
        at = max(at, before)
        found.append((" and ".join(waiting), colour, fill, before - start, at - start))
        before, waiting = at, []
    return found


def _waterfall(ended: list[dict[str, Any]]) -> Html:
    """Return the slowest repairs and the typical repair, phase by phase."""
    ranked = sorted(ended, key=lambda one: -(_duration_ns(one) or 0))
    shown = ranked[:MAX_WATERFALLS]
    across = _since_gap(_duration_ns(shown[0]) or 1)
    typical = _typical(ended)
    rows = [typical] if typical is not None else []
    for one in shown:
        again = f", {one['naks']} naks" if one["naks"] > 1 else ""
        parts = [
            BarSegment(
                low, high, colour, f"{_name(one)}: {what}, {formatting.duration(high - low)}", fill
            )
            for what, colour, fill, low, high in _phases(one)
            if high > low
        ]
        rows.append(
            BarRow(_name(one), parts, value=f"{formatting.duration(_duration_ns(one))}{again}")
        )
    columns = (
        "gap",
        "naks",
        "grace",
        "nak in transit",
        "waiting for the repair",
        "repair in transit",
        "waiting for earlier",
        "total",
    )
    pairs = tuple(pairwise(_MOMENTS))
    behind = ChartTable(
        columns,
        [
            (
                _name(one, 40),
                formatting.count(one["naks"]),
                *(_between(one, *pair) for pair in pairs),
                formatting.duration(_duration_ns(one)),
            )
            for one in shown
        ],
    )
    legend = [legend_entry(what, colour, shape=fill) for _, what, colour, fill in _PHASES]
    repairs = f"{len(shown)} of {formatting.count(len(ended))} repairs"
    note = f"The slowest {repairs}, measured from the detection of the gap."
    summary = f"The slowest took {formatting.duration(_duration_ns(shown[0]))}: {_name(shown[0])}."
    return figure(
        "phases",
        "Repair time by phase",
        bar_chart(rows, across),
        behind,
        note=note,
        summary=summary,
        legend=legend,
        style="flush",
    )


def _since_gap(high_ns: float) -> Axis:
    return axes.count_axis(high_ns, formatting.duration, "ns", most=5)


def _typical(ended: list[dict[str, Any]]) -> BarRow | None:
    """Return a row with the median of each phase, over all repairs with every phase."""
    whole = [one for one in ended if all(one[moment] is not None for moment in _MOMENTS)]
    if len(whole) < 3:
        return None
    parts, before = [], 0.0
    for (first, second), (_, what, colour, fill) in zip(pairwise(_MOMENTS), _PHASES, strict=True):
        span_ns = median(max(0, one[second] - one[first]) for one in whole)
        if span_ns:
            parts.append(
                BarSegment(
                    before,
                    before + span_ns,
                    colour,
                    f"median of {len(whole)}: {what}, {formatting.duration(span_ns)}",
                    fill,
                )
            )
        before += span_ns
    return BarRow(
        f"Typical: median of each phase over {formatting.count(len(whole))} repairs",
        parts,
        value=formatting.duration(before),
        strong=True,
    )
