"""Throughput: messages and repairs over time, frames by kind, and blocked sends."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from gapless.report import formatting
from gapless.report.charts import axes
from gapless.report.charts.axes import Axis
from gapless.report.charts.bars import BarRow, BarSegment, bar_chart
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

MAX_MEMBERS = 24
"""Maximum number of members to choose from, and of members with a bar."""
_SUMS = ("sent", "delivered", "bytes", "naks", "repairs", "acks", "duplicates", "blocked_ns")
_KINDS = (
    ("data", "data", 1, "block"),
    ("repair", "repairs", 2, "hatch"),
    ("ack", "acks", 3, "block"),
    ("nak", "naks", 8, "block"),
    ("tail", "tails", 5, "dots"),
    ("other", "other", 7, "block"),
)


def traffic(figures: dict[str, Any], across: Axis) -> Html | None:
    """Return messages and repairs over time, of all members and of each member."""
    step_ns = figures["over_time"]["step_ns"]
    members: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for point in figures["over_time"]["points"]:
        members[point["member"]].append(point)
    if not members or not step_ns:
        return None
    whole: dict[float, dict[str, Any]] = {}
    for point in (point for points in members.values() for point in points):
        cell = whole.setdefault(point["t_ns"], {"t_ns": point["t_ns"], **dict.fromkeys(_SUMS, 0)})
        for part in _SUMS:
            cell[part] += point[part]
    busiest = sorted(
        members,
        key=lambda name: -sum(point["sent"] + point["delivered"] for point in members[name]),
    )
    chosen = (
        [("all members together", [whole[t_ns] for t_ns in sorted(whole)])]
        if len(members) > 1
        else []
    )
    chosen += [
        (f"at {name}", members[name])
        for name in sorted(busiest[:MAX_MEMBERS], key=natural_sort_key)
    ]
    rows = table_rows(len(chosen))
    pictures = [
        _member_traffic(nth, name, points, across, step_ns, rows)
        for nth, (name, points) in enumerate(chosen)
    ]
    return switcher("traffic-of", "Member", [shorten(name, 60) for name, _ in chosen], pictures)


def _member_traffic(
    nth: int, name: str, points: list[dict[str, Any]], across: Axis, step_ns: float, rows: int
) -> Html:
    points = _with_zeros(sorted(points, key=lambda point: point["t_ns"]), step_ns)
    xs = [point["t_ns"] for point in points]
    per_s = 1e9 / step_ns

    def rates(part: str) -> list[float]:
        return [point[part] * per_s for point in points]

    sent, delivered, naks, repairs = map(rates, ("sent", "delivered", "naks", "repairs"))
    most = max((*sent, *delivered), default=0)
    most_fixes = max((*naks, *repairs), default=0)
    panels = [
        ChartPanel(
            "messages per second",
            axes.count_axis(most, kind="rate"),
            [Curve("delivered", delivered, 1), Curve("sent", sent, 3)],
            height=150,
        ),
        ChartPanel(
            "frames per second",
            axes.count_axis(most_fixes, kind="rate"),
            [Curve("naks", naks, 2), Curve("repairs", repairs, 4)],
            height=90,
        ),
    ]
    there = [point for point in points if any(point[part] for part in _SUMS)]
    shown = downsample(there, rows)
    behind = ChartTable(
        ("from", "sent", "delivered", "bytes", "naks", "repairs", "acks", "duplicates", "blocked"),
        [
            (
                across.format_value(point["t_ns"]),
                formatting.count(point["sent"]),
                formatting.count(point["delivered"]),
                formatting.size(point["bytes"]),
                *(
                    formatting.count(point[part])
                    for part in ("naks", "repairs", "acks", "duplicates")
                ),
                formatting.duration(point["blocked_ns"]),
            )
            for point in shown
        ],
        downsample_note(len(shown), len(there), f"intervals of {formatting.duration(step_ns)}"),
        frozenset(range(9)),
    )
    total = sum(point["delivered"] for point in there)
    summary = f"{formatting.count(total)} delivered, at most {formatting.compact(most)} per second."
    return line_chart(
        f"traffic-{nth}",
        f"Messages and repairs over time: {shorten(name, 60)}",
        across,
        xs,
        panels,
        data_table=behind,
        note=f"Counted in intervals of {formatting.duration(step_ns)}.",
        summary=summary,
    )


def _with_zeros(points: list[dict[str, Any]], step_ns: float) -> list[dict[str, Any]]:
    """Return points with an empty point at both ends of each interval without rows."""
    found: list[dict[str, Any]] = []
    for point in points:
        if found and point["t_ns"] - found[-1]["t_ns"] > 1.5 * step_ns:
            ends_ns = dict.fromkeys((found[-1]["t_ns"] + step_ns, point["t_ns"] - step_ns))
            found += [{"t_ns": t_ns, **dict.fromkeys(_SUMS, 0)} for t_ns in ends_ns]
        found.append(point)
    return found


def overhead(figures: dict[str, Any]) -> Html | None:
    """Return the chart of frames by member and kind."""
    members = [one for one in figures["overhead"] if _frames(one)]
    if not members:
        return None
    ranked = sorted(members, key=lambda one: -_frames(one))
    whole: dict[str, Any] = {
        "member": "All members",
        "duplicates": 0,
        "sent_bytes": 0,
        "sent_datagrams": 0,
    }
    for kind, *_ in _KINDS:
        whole[kind] = {
            part: sum(one[kind][part] for one in members)
            for part in ("frames", "messages", "bytes")
        }
    for part in ("duplicates", "sent_bytes", "sent_datagrams"):
        whole[part] = sum(one[part] for one in members)
    across = axes.Axis(0, 1, formatting.percent, "share", ticks=(0, 0.25, 0.5, 0.75, 1))
    rows = [_mix(whole, strong=True)] if len(members) > 1 else []
    rows += [_mix(one) for one in ranked[:MAX_MEMBERS]]
    note = "Frames sent by each member, by kind. Repairs are data sent again."
    if len(ranked) > MAX_MEMBERS:
        note += f" The busiest {MAX_MEMBERS} of {len(ranked)} members; the table has all."
    behind = ChartTable(
        (
            "member",
            "frames",
            *(name for _, name, *_ in _KINDS),
            "messages sent again",
            "duplicates dropped",
            "datagrams",
            "bytes",
        ),
        [
            (
                name_markup(one["member"], 60),
                formatting.count(_frames(one)),
                *(formatting.count(one[kind]["frames"]) for kind, *_ in _KINDS),
                formatting.count(one["repair"]["messages"]),
                formatting.count(one["duplicates"]),
                formatting.count(one["sent_datagrams"]),
                formatting.size(one["sent_bytes"]),
            )
            for one in (whole, *ranked[:400])
        ],
    )
    data, repair = whole["data"]["frames"], whole["repair"]["frames"]
    beside = _frames(whole) - data - repair
    each = f" and {formatting.compact(100 * beside / data)} frames of other kinds" if data else ""
    again = (
        f"For each 100 data frames, members sent {formatting.compact(100 * repair / data)} repairs"
        f"{each}."
        if data
        else ""
    )
    return figure(
        "overhead-bars",
        "Frames by kind",
        bar_chart(rows, across),
        behind,
        note=join_markup((note, " ", again)),
        summary=again or f"{formatting.count(_frames(whole))} frames.",
        legend=[legend_entry(name, colour, shape=fill) for _, name, colour, fill in _KINDS],
        style="flush",
    )


def _frames(one: dict[str, Any]) -> float:
    return float(sum(one[kind]["frames"] for kind, *_ in _KINDS))


def _mix(one: dict[str, Any], *, strong: bool = False) -> BarRow:
    total = _frames(one)
    parts, before = [], 0.0
    for kind, name, colour, fill in _KINDS:
        share = one[kind]["frames"] / total
        if share:
            frames = formatting.count(one[kind]["frames"])
            say = f"{one['member']}: {name}, {frames} frames, {formatting.percent(share)}"
            parts.append(BarSegment(before, before + share, colour, say, fill))
        before += share
    return BarRow(
        one["member"],
        parts,
        value=f"{formatting.count(total)} frames, {formatting.size(one['sent_bytes'])}",
        strong=strong,
    )


def back_pressure(figures: dict[str, Any]) -> Html | None:
    """Return the chart of blocked sends: who waited for room in a window, and for whom."""
    blocked = sorted(
        (one for one in figures["blocked"] if one["blocked_ns"]), key=lambda one: -one["blocked_ns"]
    )
    if not blocked:
        return None
    shown = blocked[:MAX_MEMBERS]
    across = axes.count_axis(shown[0]["blocked_ns"], formatting.duration, "ns", most=5)
    rows = []
    for one in shown:
        causes = sorted(one["caused_by"], key=lambda cause: -cause["blocked_ns"])
        parts, before = [], 0.0
        for nth, cause in enumerate(causes[:6]):
            until = min(one["blocked_ns"], before + cause["blocked_ns"])
            waited = formatting.duration(cause["blocked_ns"])
            say = f"{one['member']} waited {waited} for {_cause(cause)}"
            fill = ("block", "hatch", "dots")[nth % 3]
            parts.append(BarSegment(before, until, 2 + nth % 3, say, fill))
            before = until
        if before < one["blocked_ns"]:
            waited = formatting.duration(one["blocked_ns"] - before)
            say = f"{one['member']} waited {waited} for no particular member"
            parts.append(BarSegment(before, one["blocked_ns"], 7, say))
        held = ", ".join(shorten(_cause(cause), 14) for cause in causes[:2])
        value = formatting.duration(one["blocked_ns"]) + (f", for {held}" if held else "")
        rows.append(BarRow(one["member"], parts, value=value))
    behind = ChartTable(
        ("member", "blocked", "times", "longest", "waiting for"),
        [
            (
                name_markup(one["member"], 60),
                formatting.duration(one["blocked_ns"]),
                formatting.count(one["times"]),
                formatting.duration(one["longest_ns"]),
                _causes(one),
            )
            for one in blocked[:400]
        ],
        numeric=frozenset({1, 2, 3}),
    )
    note = (
        "How long sends waited for room in a full window. A window gets room when the slowest "
        "receiver acknowledges."
    )
    longest, waits = (
        formatting.duration(shown[0]["blocked_ns"]),
        formatting.plural(shown[0]["times"], "wait"),
    )
    summary = f"Longest: {shown[0]['member']}, {longest} in {waits}."
    return figure(
        "waiting-bars",
        "Blocked sends by member and cause",
        bar_chart(rows, across),
        behind,
        note=note,
        summary=summary,
        style="flush",
    )


def _cause(cause: dict[str, Any]) -> str:
    """Return the member that a send waited for, or the reason if no member caused the wait."""
    words = {
        "view": "a view",
        "ack": "an ack",
        "over": "the end of the stream",
        "": "no particular member",
    }
    return str(cause["member"] or words.get(cause["reason"], cause["reason"]))


def _causes(one: dict[str, Any]) -> Html:
    parts: list[object] = []
    for cause in sorted(one["caused_by"], key=lambda cause: -cause["blocked_ns"])[:12]:
        parts += [name_markup(_cause(cause), 40), f" {formatting.duration(cause['blocked_ns'])} "]
    return join_markup(parts) if parts else join_markup((formatting.NO_VALUE,))
