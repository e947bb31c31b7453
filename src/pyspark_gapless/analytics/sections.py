"""The parts of the figures of a run: each part collects small tables into plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from gapless.trace.schema import EVENT_CODES
from pyspark_gapless.analytics import (
    blocked_sends,
    gaps,
    incarnations,
    latency,
    message_fates,
    traffic,
    windows,
)
from pyspark_gapless.analytics.histogram import Histogram, histograms, merge_histograms
from pyspark_gapless.analytics.shared_frames import (
    MAX_INCARNATIONS,
    MAX_INCARNATIONS_OVER_TIME,
    IncarnationSpan,
    SharedFrames,
)
from pyspark_gapless.analytics.timed_rows import small_frame
from pyspark_gapless.trace.schema import INCARNATION_KEY, STREAM_AT_MEMBER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row

MAX_VIEWS = 1000
"""Maximum number of views: the first views."""
MAX_WINDOWS = 64
"""Maximum number of windows: the windows that moved most often."""
WINDOW_POINTS = 400
"""Maximum number of points of each window."""
MAX_LATENCIES = 256
"""Maximum number of streams at incarnations: the streams with the most messages."""
MAX_REPAIRS = 500
"""Maximum number of gaps."""
BARS_PER_OCTAVE = 8
"""Bars of a histogram between a latency and its double; for all deliveries twice as many."""
PERCENTILES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
"""The reported percentiles, by name."""

_NS_PER_S = 1_000_000_000


def incarnation_list(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the incarnations, in the order of their start."""
    undecided = any(
        incarnations.end_reason(events, forgotten=False) == "unknown"
        for events in work.events_by_incarnation.values()
    )
    forgotten: set[tuple[int, str]] = set()
    if undecided and work.has_event("MEMBERS"):
        views = incarnations.last_named(incarnations.views(work.rare_rows).frame).frame.where(
            "last_with < last_view"
        )
        forgotten = {(row.seed, row["name"]) for row in views.collect()}
    names = {(row.seed, row.life): row["name"] for row in work.incarnations.rows}
    return [
        _incarnation_entry(work, life, (life.seed, names.get(life[:2], "")) in forgotten)
        for life in work.listed
    ]


def _incarnation_entry(
    work: SharedFrames, life: IncarnationSpan, forgotten: bool
) -> dict[str, Any]:
    clock = work.clocks.get(life.member)
    return {
        "name": work.incarnations.name(life.seed, life.member),
        "member": work.incarnations.member_name(life.member),
        "began_ns": life.began_ns,
        "ended_ns": life.ended_ns,
        "end": incarnations.end_reason(
            work.events_by_incarnation[life.seed, life.member], forgotten=forgotten
        ),
        "offset_ns": clock.offset_ns if clock else 0,
        "uncertainty_ns": clock.uncertainty_ns if clock else None,
        "drift_ns": clock.drift_ns if clock else 0,
        "events": life.events,
    }


def view_list(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the installed views, in the order of time."""
    if not work.has_event("MEMBERS"):
        return []
    name = work.incarnations.name
    first = (
        incarnations.views(work.rare_rows)
        .frame.orderBy("at_ns", "seed", "number", "member")
        .limit(MAX_VIEWS)
    )
    return [
        {
            "t_ns": row.at_ns,
            "member": name(row.seed, row.member),
            "number": row.number,
            "maker": name(row.seed, row.maker),
            "members": [work.incarnations.with_seed(row.seed, member) for member in row.members],
        }
        for row in first.collect()
    ]


def overhead(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the frames sent by each incarnation, by purpose."""
    naks: dict[tuple[int, int], int] = {}
    if work.has_event("NAK_OUT"):
        naks = {
            (row.seed, row.member): row.frames
            for row in traffic.nak_frames(work.rare_rows).frame.collect()
        }
    by_life: dict[tuple[int, int], list[Row]] = {}
    for row in work.events:
        by_life.setdefault((row.seed, row.member), []).append(row)
    return [
        {
            "member": work.incarnations.name(life.seed, life.member),
            "data": _sent(by_life[life[:2]], *traffic.DATA_EVENTS),
            "repair": _sent(by_life[life[:2]], *traffic.REPAIR_EVENTS),
            "ack": {"frames": _total(by_life[life[:2]], "rows", "ACK_OUT")},
            "nak": {"frames": naks.get(life[:2], 0)},
            "tail": {"frames": _total(by_life[life[:2]], "rows", "TAIL_OUT")},
            "other": {"frames": _total(by_life[life[:2]], "rows", *traffic.OTHER_EVENTS)},
            "duplicates": sum(row.duplicates for row in by_life[life[:2]]),
            "sent_datagrams": _total(by_life[life[:2]], "datagrams", "TX"),
            "sent_bytes": _total(by_life[life[:2]], "bytes", "TX"),
        }
        for life in work.listed
    ]


def _sent(rows: Sequence[Row], *events: str) -> dict[str, int]:
    columns = {"frames": "rows", "messages": "messages", "bytes": "bytes"}
    return {unit: _total(rows, column, *events) for unit, column in columns.items()}


def _total(rows: Sequence[Row], column: str, *events: str) -> int:
    codes = {EVENT_CODES[event] for event in events}
    return sum(row[column] for row in rows if row.event in codes)


def summary(work: SharedFrames) -> dict[str, Any]:
    """Return the totals of a run."""
    fate = _fate(work)
    took = merge_histograms([bars for _, _, bars in work.latencies])
    span_s = _span_ns(work.events) / _NS_PER_S
    received = [row for row in work.events if row.event == EVENT_CODES["DELIVER"] and not row.own]
    return {
        **fate,
        "naks": _total(work.events, "rows", "NAK_OUT"),
        "repairs": _total(work.events, "rows", *traffic.REPAIR_EVENTS),
        "repaired": _total(work.events, "messages", *traffic.REPAIR_EVENTS),
        "frames_lost": _total(work.events, "rows", "NET_DROP"),
        "latency_p50_ns": took and took.percentile(0.5),
        "latency_p99_ns": took and took.percentile(0.99),
        "latency_max_ns": took and took.most,
        "messages_per_s": fate["delivered"] / span_s if span_s else 0.0,
        "bytes_per_s": sum(row.bytes for row in received) / span_s if span_s else 0.0,
    }


def _span_ns(events: Sequence[Row]) -> int:
    """Return the time from the first send to the last delivery, summed over seeds."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    data = {EVENT_CODES[event] for event in traffic.DATA_EVENTS}
    for row in events:
        if row.event in data:
            first[row.seed] = min(row.first_ns, first.get(row.seed, row.first_ns))
        elif row.event == EVENT_CODES["DELIVER"] and not row.own:
            last[row.seed] = max(row.last_ns, last.get(row.seed, row.last_ns))
    return sum(max(0, last[seed] - first_ns) for seed, first_ns in first.items() if seed in last)


def _fate(work: SharedFrames) -> dict[str, int]:
    """Return the fates of the messages: each expected message is delivered or lost."""
    resting = {life for life, events in work.events_by_incarnation.items() if "REST" in events}
    total = message_fates.total_fates(message_fates.fates(work.rows).frame.collect(), resting)
    duplicates = out_of_order = missing = 0
    if total.suspect_streams:
        columns = dict(
            zip(STREAM_AT_MEMBER, map(list, zip(*total.suspect_streams, strict=True)), strict=True)
        )
        wrong = message_fates.faults(work.rows, small_frame(work.rows.sparkSession, columns)).frame
        sums = wrong.agg(F.sum("duplicates"), F.sum("out_of_order"), F.sum("missing")).collect()[0]
        duplicates, out_of_order, missing = (value or 0 for value in sums)
    if total.out_of_band:
        duplicates += message_fates.repeated_out_of_band(work.rows).collect()[0].duplicates
    lost = (missing if work.incarnations.mode == "full" else 0) + total.expected + total.given_up
    return {
        "sent": total.sent,
        "delivered": total.delivered,
        "expected": total.delivered - duplicates + lost,
        "lost": lost,
        "duplicates": duplicates,
        "out_of_order": out_of_order,
    }


def _stream(work: SharedFrames, seed: int, member: int, origin: int, to: int) -> dict[str, Any]:
    name = work.incarnations.name
    return {"member": name(seed, member), "origin": name(seed, origin), "to": name(seed, to)}


def latencies(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the latencies: first of all deliveries, then by stream and receiver, busiest first."""
    whole = merge_histograms([bars for _, _, bars in work.latencies])
    if whole is None:
        return []
    said = {
        "bytes": sum(one["bytes"] for _, one, _ in work.latencies),
        "first_ns": min(one["first_ns"] for _, one, _ in work.latencies),
        "last_ns": max(one["last_ns"] for _, one, _ in work.latencies),
    }
    each = sorted(work.latencies, key=lambda found: (-found[2].count, found[0]))[:MAX_LATENCIES]
    found = [({"member": "", "origin": "", "to": ""}, said, whole, 2 * BARS_PER_OCTAVE)]
    found += [(_stream(work, *key), one, bars, BARS_PER_OCTAVE) for key, one, bars in each]
    return [
        {**stream, **_latency(one, bars, per_octave)} for stream, one, bars, per_octave in found
    ]


def _latency(said: dict[str, Any], bars: Histogram, per_octave: int) -> dict[str, Any]:
    lasted_s = (said["last_ns"] - said["first_ns"]) / _NS_PER_S
    return {
        "count": bars.count,
        **{name: bars.percentile(share) for name, share in PERCENTILES.items()},
        "max_ns": bars.most,
        "bytes": said["bytes"],
        "messages_per_s": bars.count / lasted_s if lasted_s else 0.0,
        "bytes_per_s": said["bytes"] / lasted_s if lasted_s else 0.0,
        "histogram": bars.coarse_bars(per_octave),
    }


def blocked(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the waits for room, the longest first, with their causes."""
    if not work.has_event("BLOCK"):
        return []
    longest = {
        (row.seed, row.member): row.longest_ns
        for row in blocked_sends.longest(work.rare_rows, work.ends).frame.collect()
    }
    causes: dict[tuple[int, int], list[Row]] = {}
    for row in blocked_sends.blocked(work.waits).frame.collect():
        causes.setdefault((row.seed, row.member), []).append(row)
    times = {
        (row.seed, row.member): row.rows for row in work.events if row.event == EVENT_CODES["BLOCK"]
    }
    told = [
        {
            "member": work.incarnations.name(*life),
            "times": times[life],
            "blocked_ns": sum(row.blocked_ns for row in causes.get(life, [])),
            "longest_ns": longest[life],
            "caused_by": [
                {
                    "member": work.incarnations.name(row.seed, row.cause),
                    "reason": row.reason,
                    "blocked_ns": row.blocked_ns,
                    "times": row.times,
                }
                for row in sorted(
                    causes.get(life, []), key=lambda row: (-row.blocked_ns, row.cause, row.reason)
                )
            ],
        }
        for life in sorted(times)
    ]
    return sorted(told, key=lambda one: -one["blocked_ns"])[:MAX_INCARNATIONS]


def over_time(work: SharedFrames) -> dict[str, Any]:
    """Return the events of the busiest incarnations in each step."""
    points: dict[tuple[int, int, int], dict[str, Any]] = {}
    for row in work.busiest_only(
        traffic.traffic(work.counts).frame, MAX_INCARNATIONS_OVER_TIME
    ).collect():
        points[row.step, row.seed, row.member] = {name: row[name] for name in _TRAFFIC}
    took = latency.latencies_over_time(
        work.busiest_only(work.deliveries, MAX_INCARNATIONS_OVER_TIME), work.step()
    ).frame
    for key, _, bars in histograms(took, ("step", *INCARNATION_KEY)):
        ends = {"latency_p50_ns": bars.percentile(0.5), "latency_p99_ns": bars.percentile(0.99)}
        points[key].update(ends)
    if work.has_event("BLOCK"):
        waited = blocked_sends.blocked_over_time(work.waits, work.begin_ns, work.step_ns)
        for row in work.busiest_only(waited, MAX_INCARNATIONS_OVER_TIME).collect():
            points.setdefault((row.step, row.seed, row.member), {})["blocked_ns"] = row.blocked_ns
    nothing = dict.fromkeys(_TRAFFIC, 0) | {
        "blocked_ns": 0,
        "latency_p50_ns": None,
        "latency_p99_ns": None,
    }
    return {
        "step_ns": work.step_ns,
        "points": [
            {
                "t_ns": work.begin_ns + step * work.step_ns,
                "member": work.incarnations.name(seed, life),
                **nothing,
                **point,
            }
            for (step, seed, life), point in sorted(points.items())
            if any(point.values())
        ],
    }


_TRAFFIC = [name for name in traffic.Traffic.columns if name not in {*INCARNATION_KEY, "step"}]


def busiest_windows(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the busiest windows over time."""
    if not work.has_event("STATE"):
        return []
    part = work.step(-(-work.span_ns // WINDOW_POINTS))
    return [
        {
            **_stream(work, row.seed, row.member, row.origin, row.to),
            "reach": work.reaches.get((row.seed, row.member), 0),
            "points": [list(point) for point in row.points],
        }
        for row in windows.window_points(work.rows, part, MAX_WINDOWS).frame.collect()
    ]


def occupancy(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the occupancy of windows; of many windows, the longest moving."""
    if not work.has_event("STATE"):
        return []
    found = list(
        histograms(
            windows.occupancy(work.busiest_only(work.rows, MAX_INCARNATIONS_OVER_TIME)).frame,
            windows.KEYS,
        )
    )
    longest = sorted(found, key=lambda one: (-one[2].count, one[0]))[:MAX_LATENCIES]
    return [
        {
            **_stream(work, *key),
            "mean": said["area"] / bars.count,
            "p50": bars.percentile(0.5),
            "p99": bars.percentile(0.99),
            "max": bars.most,
            "reach": work.reaches.get(key[:2], 0),
        }
        for key, said, bars in sorted(longest, key=lambda one: one[0])
    ]


def repair_log(work: SharedFrames) -> list[dict[str, Any]]:
    """Return the repairs of gaps, in the order of the notice of the gaps."""
    if not work.has_event("NAK_OUT"):
        return []
    asked = gaps.sample_gaps(gaps.gaps(work.rare_rows).frame, MAX_REPAIRS).frame.collect()
    columns = {name: [row[name] for row in asked] for name in gaps.RequestedGaps.columns}
    reach = [work.reaches.get((row.seed, row.member), 0) or gaps.UNKNOWN_REACH for row in asked]
    wanted = small_frame(
        work.rows.sparkSession, {**columns, "gap": range(len(asked)), "reach": reach}
    )
    became = {row.gap: row for row in gaps.repairs(work.rows, wanted).frame.collect()}
    told = [_repair(work, row, became.get(number)) for number, row in enumerate(asked)]
    return sorted(
        told,
        key=lambda one: (
            one["gap_ns"] or one["nak_ns"],
            one["member"],
            one["origin"],
            one["seqno"],
        ),
    )


def _repair(work: SharedFrames, asked: Row, became: Row | None) -> dict[str, Any]:
    said = became.asDict() if became is not None else {}
    signs = [time for name in ("beyond_ns", "announced_ns") if (time := said.get(name)) is not None]
    stored, delivered = said.get("stored_ns"), said.get("delivered_ns")
    return {
        **_stream(work, asked.seed, asked.member, asked.origin, asked.to),
        "seqno": asked["first"],
        "seqno_last": asked["last"],
        "gap_ns": min(signs, default=None),
        "nak_ns": asked.nak_ns,
        "nak_in_ns": said.get("nak_in_ns"),
        "repair_ns": said.get("repair_ns"),
        # A run that holds the end of the gap and more may be stored again, later, for what is
        # behind it.
        "stored_ns": stored if stored is None or delivered is None else min(stored, delivered),
        "delivered_ns": delivered,
        "naks": asked.naks,
    }
