"""Membership over time: incarnations, and the views that they installed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from gapless.report import formatting
from gapless.report.charts import axes
from gapless.report.charts.axes import Axis
from gapless.report.charts.bars import BarMark, BarRow, BarSegment, bar_chart
from gapless.report.charts.lines import ChartTable, figure, legend_entry, table
from gapless.report.html import Html, join_markup, name_markup, natural_sort_key, shorten, tag

MAX_LANES = 48
"""Maximum number of incarnations in the picture; the table has more."""
MAX_ROWS = 400
"""Rows of a table on this page."""
_ENDS = {
    "rest": ("square", 3, "there at the end"),
    "left": ("diamond", 1, "left in good order"),
    "killed": ("cross", 2, "killed: ended without a word"),
    "expelled": ("triangle", 4, "expelled by the group"),
    "unknown": ("ring", 7, "end not recorded"),
}


_View = tuple[float, str]


def run_time_axis(figures: dict[str, Any]) -> Axis:
    """Return the axis of time that all pictures of a run share."""
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
    low_ns = min(moments, default=0)
    return axes.time_axis(int(low_ns), int(max(moments, default=0)))


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
        legend_entry("in a view, by its number", 1, shape="view-a"),
        legend_entry("joining, not in a view yet", 7, shape="hatch"),
        *(
            legend_entry(_ENDS[end][2], _ENDS[end][1], shape=_ENDS[end][0])
            for end in _ENDS
            if end in ends
        ),
    ]
    count = formatting.plural(len(incarnations), "incarnation")
    summary = f"{count}, {formatting.plural(len(labels), 'view')}."
    note = (
        "Each bar is one incarnation. Where the number of the view changes, that member installed "
        "a new view."
    )
    if len(incarnations) > MAX_LANES:
        note += f" Shown are {MAX_LANES} of {formatting.count(len(incarnations))} incarnations."
    lanes = figure(
        "lives",
        "Lives and views",
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

    A partitioned group creates two views with one number; their creators tell them apart.
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
            f" and is in no view until {first_view}"
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
        "A clock's offset was estimated from messages that went to and fro, and is taken off "
        "where incarnations are compared."
        if any(incarnation["uncertainty_ns"] for incarnation in incarnations)
        else ""
    )
    columns = (
        "life",
        "member",
        "in the trace",
        "began",
        "ended",
        "how it ended",
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
    """Return the members of each view, and the time until all of them installed it."""
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
    columns = ("view", "made by", "first told", "all told within", "told", "members, oldest first")
    content = ChartTable(columns, rows, numeric=frozenset({2, 3, 4}))
    summary = f"All {formatting.plural(len(views), 'view')}, with their members"
    return tag("details", tag("summary", summary), table(content, summary), class_="behind card")
