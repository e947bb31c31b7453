"""Membership over time: incarnations, the views they installed, and the time axis of the run.

All time charts of a run share an axis. The axis begins with the traffic, because processes often
start long before the load; the axis begins earlier only if a member ended before the traffic.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from gapless.report import formatting
from gapless.report.charts import axes
from gapless.report.charts.axes import Axis, AxisEvent
from gapless.report.charts.bars import BarMark, BarRow, BarSegment, bar_chart
from gapless.report.charts.lines import ChartTable, figure, legend_entry, table
from gapless.report.html import Html, join_markup, name_markup, natural_sort_key, shorten, tag

MAX_LANES = 48
"""Maximum number of incarnations in the chart; the table has more."""
MAX_ROWS = 400
"""Maximum number of rows of a table in this section."""
_ENDS = {
    "rest": ("square", 3, "complete to the end of the run"),
    "left": ("diamond", 1, "left the group"),
    "killed": ("cross", 2, "killed: the trace stops without a leave"),
    "expelled": ("triangle", 4, "expelled by the group"),
    "unknown": ("ring", 7, "end not recorded"),
}


_EVENT_WORDS = {"killed": "killed", "expelled": "expelled", "left": "left"}
_View = tuple[float, str]
_PRELUDE_SHARE, _PAUSE_SHARE = 0.01, 0.2


def run_time_axis(figures: dict[str, Any]) -> Axis:
    """Return the time axis of all charts of a run, with its kills, expulsions, leaves and joins."""
    moments = [
        moment
        for incarnation in figures["lives"]
        for moment in (incarnation["began_ns"], incarnation["ended_ns"])
    ]
    moments += [view["t_ns"] for view in figures["views"]]
    moments += [
        point[0]
        for window in figures["windows"]
        for point in (window["points"][:1] + window["points"][-1:])
    ]
    moments += [point["t_ns"] for point in figures["over_time"]["points"]]
    high_ns = int(max(moments, default=0))
    low_ns = _traffic_begin_ns(figures, min(moments, default=0))
    return axes.time_axis(low_ns, high_ns, _axis_events(figures, low_ns))


def _traffic(figures: dict[str, Any]) -> list[tuple[float, float]]:
    """Return start and number of messages of each interval with traffic, in order of time."""
    counted: Counter[float] = Counter()
    for point in figures["over_time"]["points"]:
        counted[point["t_ns"]] += point["sent"] + point["delivered"]
    return sorted((t_ns, number) for t_ns, number in counted.items() if number)


def _traffic_begin_ns(figures: dict[str, Any], first_ns: float) -> int:
    """Return the start of the traffic, or the first end of a member if that is earlier.

    A few messages before a long pause, such as a check that all members are reached, are not the
    start: their share is below ``_PRELUDE_SHARE``, and the pause takes ``_PAUSE_SHARE`` of the run.
    """
    traffic = _traffic(figures)
    if not traffic:
        return int(first_ns)
    total = sum(number for _, number in traffic)
    pause_ns = _PAUSE_SHARE * (traffic[-1][0] - traffic[0][0])
    begin_ns, before = traffic[0][0], 0.0
    for (t_ns, number), (next_ns, _) in pairwise(traffic):
        before += number
        if before > _PRELUDE_SHARE * total:
            break
        if next_ns - t_ns > pause_ns:
            begin_ns = next_ns
    ends = [one["ended_ns"] for one in figures["lives"] if one["end"] in _EVENT_WORDS]
    # Not a float: the nanoseconds of a time of day need all 64 bits.
    return int(max(first_ns, min((begin_ns, *ends))))


def _axis_events(figures: dict[str, Any], low_ns: float) -> list[AxisEvent]:
    """Return the membership changes after ``low_ns``; a leave counts only during the traffic."""
    last_ns = max((t_ns for t_ns, _ in _traffic(figures)), default=0)
    events = [
        AxisEvent(one["ended_ns"], _EVENT_WORDS[one["end"]], one["name"])
        for one in figures["lives"]
        if one["end"] in _EVENT_WORDS and (one["end"] != "left" or one["ended_ns"] <= last_ns)
    ]
    joins: dict[str, float] = {}
    for view in figures["views"]:
        joins[view["member"]] = min(view["t_ns"], joins.get(view["member"], view["t_ns"]))
    events += [AxisEvent(t_ns, "joined", name) for name, t_ns in joins.items() if t_ns > low_ns]
    return sorted(events)


def section(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return the timeline of incarnations and views."""
    incarnations = sorted(
        figures["lives"],
        key=lambda incarnation: (
            natural_sort_key(incarnation["member"]),
            incarnation["began_ns"],
            incarnation["name"],
        ),
    )
    if not incarnations:
        return None
    views: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for view in sorted(figures["views"], key=lambda view: view["t_ns"]):
        views[view["member"]].append(view)
    labels = _labels(figures["views"])
    rows = [
        _lane(incarnation, views[incarnation["name"]], across, labels)
        for incarnation in incarnations[:MAX_LANES]
    ]
    ends = {
        incarnation["end"] if incarnation["end"] in _ENDS else "unknown"
        for incarnation in incarnations
    }
    legend = [
        legend_entry("in a view, labelled with the view number", 1, shape="view-a"),
        legend_entry("joining", 7, shape="hatch"),
        *(
            legend_entry(_ENDS[end][2], _ENDS[end][1], shape=_ENDS[end][0])
            for end in _ENDS
            if end in ends
        ),
    ]
    count = formatting.plural(len(incarnations), "incarnation")
    summary = f"{count}, {formatting.plural(len(labels), 'view')}."
    note = (
        "Each bar is one incarnation; a new number marks the installation of a new view. Times "
        "count from the start of the traffic."
    )
    if len(incarnations) > MAX_LANES:
        note += f" {MAX_LANES} of {formatting.count(len(incarnations))} incarnations are drawn."
    lanes = figure(
        "lives",
        "Incarnations and views",
        bar_chart(rows, across),
        _incarnations_table(incarnations, across),
        note=note,
        summary=summary,
        legend=legend,
        style="flush",
    )
    return join_markup((lanes, _views_table(figures, across)))


def _labels(views: list[dict[str, Any]]) -> dict[_View, tuple[str, str]]:
    """Return the label and the fill of each view; neighbours differ.

    A partitioned group may install two views with the same number; the label then names the
    coordinator.
    """
    known = sorted({(view["number"], view["maker"]) for view in views})
    makers = Counter(number for number, _ in known)
    return {
        (number, maker): (
            f"{number}" if makers[number] == 1 else f"{number} by {shorten(maker, 8)}",
            "view-b" if nth % 2 else "view-a",
        )
        for nth, (number, maker) in enumerate(known)
    }


def _lane(
    incarnation: dict[str, Any],
    views: list[dict[str, Any]],
    across: Axis,
    labels: dict[_View, tuple[str, str]],
) -> BarRow:
    began_ns, ended_ns = (
        incarnation["began_ns"],
        max(incarnation["ended_ns"], incarnation["began_ns"]),
    )
    name = (
        incarnation["name"]
        if incarnation["member"] in {"", incarnation["name"].rstrip("'")}
        else f"{incarnation['name']} ({incarnation['member']})"
    )
    parts = []
    first_ns = views[0]["t_ns"] if views else ended_ns
    if first_ns > began_ns:
        first_view = across.format_value(first_ns)
        say = (
            f"{incarnation['name']} begins at {across.format_value(began_ns)}"
            f" and joins its first view at {first_view}"
        )
        parts.append(BarSegment(began_ns, first_ns, 7, say, "hatch"))
    for nth, view in enumerate(views):
        until_ns = views[nth + 1]["t_ns"] if nth + 1 < len(views) else ended_ns
        members = len(view["members"])
        listed = ", ".join(shorten(member, 24) for member in view["members"][:6]) + (
            " …" if members > 6 else ""
        )
        label, fill = labels[view["number"], view["maker"]]
        say = (
            f"{incarnation['name']} is in view {label} from {across.format_value(view['t_ns'])} to "
            f"{across.format_value(until_ns)}: "
            f"{formatting.plural(members, 'member')}, {listed}"
        )
        parts.append(BarSegment(view["t_ns"], max(until_ns, view["t_ns"]), 1, say, fill, label))
    shape, colour, meaning = _ENDS.get(incarnation["end"], _ENDS["unknown"])
    end = BarMark(
        ended_ns,
        shape,
        colour,
        f"{incarnation['name']} at {across.format_value(ended_ns)}: {meaning}",
    )
    return BarRow(name, parts, [end], value=meaning.partition(":")[0])


def _incarnations_table(incarnations: list[dict[str, Any]], across: Axis) -> ChartTable:
    rows = [
        (
            name_markup(incarnation["name"], 60),
            name_markup(incarnation["member"], 60),
            name_markup(incarnation.get("in_trace", incarnation["name"]), 60),
            across.format_value(incarnation["began_ns"]),
            across.format_value(incarnation["ended_ns"]),
            _ENDS.get(incarnation["end"], _ENDS["unknown"])[2],
            _offset(incarnation),
            formatting.count(incarnation["events"]),
        )
        for incarnation in incarnations[:MAX_ROWS]
    ]
    note = (
        "Clock offsets are estimated from messages in both directions and subtracted where "
        "incarnations are compared."
        if any(incarnation["uncertainty_ns"] for incarnation in incarnations)
        else ""
    )
    columns = (
        "incarnation",
        "member",
        "in the trace",
        "began",
        "ended",
        "end",
        "clock offset",
        "events",
    )
    return ChartTable(columns, rows, note, frozenset({3, 4, 6, 7}))


def _offset(incarnation: dict[str, Any]) -> str:
    if incarnation["offset_ns"] is None:
        return "unknown"
    if not incarnation["offset_ns"] and not incarnation["uncertainty_ns"]:
        return "0"
    offset = formatting.duration(incarnation["offset_ns"])
    return (
        f"{offset} ± {formatting.duration(incarnation['uncertainty_ns'])}"
        if incarnation["uncertainty_ns"] is not None
        else offset
    )


def _views_table(figures: dict[str, Any], across: Axis) -> Html:
    """Return the table of views: members, and the time until all members installed the view."""
    views: dict[tuple[float, str], list[dict[str, Any]]] = defaultdict(list)
    for view in figures["views"]:
        views[view["number"], view["maker"]].append(view)
    if not views:
        return Html("")
    rows = []
    for (number, maker), installed in sorted(
        views.items(), key=lambda item: (item[0][0], item[1][0]["t_ns"])
    )[:MAX_ROWS]:
        first_ns, last_ns = (
            min(one["t_ns"] for one in installed),
            max(one["t_ns"] for one in installed),
        )
        members = installed[0]["members"]
        names: list[object] = []
        for name in members[:24]:
            names += [name_markup(name, 40), " "]
        if len(members) > 24:
            names.append(f"and {len(members) - 24} more")
        rows.append(
            (
                f"{number}",
                name_markup(maker, 40),
                across.format_value(first_ns),
                formatting.duration(last_ns - first_ns),
                f"{len({one['member'] for one in installed})} of {len(members)}",
                join_markup(names),
            )
        )
    columns = (
        "view",
        "coordinator",
        "first installed",
        "installed by all within",
        "installed by",
        "members, oldest first",
    )
    content = ChartTable(columns, rows, numeric=frozenset({2, 3, 4}))
    summary = f"All {formatting.plural(len(views), 'view')}, with their members"
    return tag("details", tag("summary", summary), table(content, summary), class_="behind card")
