"""The parts of the figures of a run: each asks for its tables, which are small, and puts them into plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from gapless.trace.schema import CODES
from pyspark_gapless.analytics import (
    blocked_sends,
    gaps,
    incarnations,
    latency,
    message_fates,
    traffic,
    windows,
)
from pyspark_gapless.analytics.histogram import Bars, histograms, together
from pyspark_gapless.analytics.shared_frames import MOST_IN_TIME, MOST_LIVES, Span, Work
from pyspark_gapless.analytics.timed_rows import AT, LIFE, small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row

MOST_VIEWS = 1000
"""So many views, the first ones."""
MOST_WINDOWS = 64
"""So many windows, those that moved most often."""
WINDOW_POINTS = 400
"""So many points of each of them."""
MOST_LATENCIES = 256
"""So many streams at lives with their latencies, those with the most messages."""
MOST_REPAIRS = 500
"""So many gaps."""
BARS_PER_OCTAVE = 8
"""So many bars of a drawn histogram between a latency and its double; for all deliveries together twice as many."""
SHARES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
"""The percentiles that are told, by their names."""

_NS_PER_S = 1_000_000_000


def told_lives(work: Work) -> list[dict[str, Any]]:
    """Return the lives, in the order in which they began."""
    undecided = any(
        incarnations.ended(events, forgotten=False) == "unknown"
        for events in work.happened.values()
    )
    forgotten: set[tuple[int, str]] = set()
    if undecided and work.has("MEMBERS"):
        views = incarnations.named(incarnations.views(work.rare).frame).frame.where(
            "last_with < last_view"
        )
        forgotten = {(row.seed, row["name"]) for row in views.collect()}
    names = {(row.seed, row.life): row["name"] for row in work.known.rows}
    return [
        _life(work, life, (life.seed, names.get(life[:2], "")) in forgotten) for life in work.chosen
    ]


def _life(work: Work, life: Span, forgotten: bool) -> dict[str, Any]:
    clock = work.clocks.get(life.member)
    return {
        "name": work.known.name(life.seed, life.member),
        "member": work.known.member(life.member),
        "began_ns": life.began_ns,
        "ended_ns": life.ended_ns,
        "end": incarnations.ended(work.happened[life.seed, life.member], forgotten=forgotten),
        "offset_ns": clock.offset_ns if clock else 0,
        "uncertainty_ns": clock.uncertainty_ns if clock else None,
        "drift_ns": clock.drift_ns if clock else 0,
        "events": life.events,
    }


def told_views(work: Work) -> list[dict[str, Any]]:
    """Return the views that lives were told, in the order of time."""
    if not work.has("MEMBERS"):
        return []
    name = work.known.name
    first = (
        incarnations.views(work.rare)
        .frame.orderBy("at_ns", "seed", "number", "member")
        .limit(MOST_VIEWS)
    )
    return [
        {
            "t_ns": row.at_ns,
            "member": name(row.seed, row.member),
            "number": row.number,
            "maker": name(row.seed, row.maker),
            "members": [work.known.prefixed(row.seed, member) for member in row.members],
        }
        for row in first.collect()
    ]


def overhead(work: Work) -> list[dict[str, Any]]:
    """Return what each life sent, and for what."""
    naks: dict[tuple[int, int], int] = {}
    if work.has("NAK_OUT"):
        naks = {
            (row.seed, row.member): row.frames
            for row in traffic.nak_frames(work.rare).frame.collect()
        }
    by_life: dict[tuple[int, int], list[Row]] = {}
    for row in work.events:
        by_life.setdefault((row.seed, row.member), []).append(row)
    return [
        {
            "member": work.known.name(life.seed, life.member),
            "data": _sent(by_life[life[:2]], *traffic.DATA),
            "repair": _sent(by_life[life[:2]], *traffic.REPAIRS),
            "ack": {"frames": _total(by_life[life[:2]], "rows", "ACK_OUT")},
            "nak": {"frames": naks.get(life[:2], 0)},
            "tail": {"frames": _total(by_life[life[:2]], "rows", "TAIL_OUT")},
            "other": {"frames": _total(by_life[life[:2]], "rows", *traffic.OTHERS)},
            "duplicates": sum(row.duplicates for row in by_life[life[:2]]),
            "sent_datagrams": _total(by_life[life[:2]], "datagrams", "TX"),
            "sent_bytes": _total(by_life[life[:2]], "bytes", "TX"),
        }
        for life in work.chosen
    ]


def _sent(rows: Sequence[Row], *events: str) -> dict[str, int]:
    columns = {"frames": "rows", "messages": "messages", "bytes": "bytes"}
    return {unit: _total(rows, column, *events) for unit, column in columns.items()}


def _total(rows: Sequence[Row], column: str, *events: str) -> int:
    codes = {CODES[event] for event in events}
    return sum(row[column] for row in rows if row.event in codes)


def summary(work: Work) -> dict[str, Any]:
    """Return what a whole run comes to."""
    fate = _fate(work)
    took = together([bars for _, _, bars in work.latencies])
    span_s = _span_ns(work.events) / _NS_PER_S
    received = [row for row in work.events if row.event == CODES["DELIVER"] and not row.own]
    return {
        **fate,
        "naks": _total(work.events, "rows", "NAK_OUT"),
        "repairs": _total(work.events, "rows", *traffic.REPAIRS),
        "repaired": _total(work.events, "messages", *traffic.REPAIRS),
        "frames_lost": _total(work.events, "rows", "NET_DROP"),
        "latency_p50_ns": took and took.percentile(0.5),
        "latency_p99_ns": took and took.percentile(0.99),
        "latency_max_ns": took and took.most,
        "messages_per_s": fate["delivered"] / span_s if span_s else 0.0,
        "bytes_per_s": sum(row.bytes for row in received) / span_s if span_s else 0.0,
    }


def _span_ns(events: Sequence[Row]) -> int:
    """Return how long it took from the first send to the last delivery; of several seeds the sum."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    data = {CODES[event] for event in traffic.DATA}
    for row in events:
        if row.event in data:
            first[row.seed] = min(row.first_ns, first.get(row.seed, row.first_ns))
        elif row.event == CODES["DELIVER"] and not row.own:
            last[row.seed] = max(row.last_ns, last.get(row.seed, row.last_ns))
    return sum(max(0, last[seed] - first_ns) for seed, first_ns in first.items() if seed in last)


def _fate(work: Work) -> dict[str, int]:
    """Return what became of the messages; every one that a life was to get is delivered or lost."""
    resting = {life for life, events in work.happened.items() if "REST" in events}
    total = message_fates.add_up(message_fates.fates(work.rows).frame.collect(), resting)
    duplicates = out_of_order = missing = 0
    if total.odd:
        columns = dict(zip(AT, map(list, zip(*total.odd, strict=True)), strict=True))
        wrong = message_fates.faults(work.rows, small(work.rows.sparkSession, columns)).frame
        sums = wrong.agg(F.sum("duplicates"), F.sum("out_of_order"), F.sum("missing")).collect()[0]
        duplicates, out_of_order, missing = (value or 0 for value in sums)
    if total.out_of_band:
        duplicates += message_fates.repeated_aside(work.rows).collect()[0].duplicates
    lost = (missing if work.known.mode == "full" else 0) + total.owed + total.given_up
    return {
        "sent": total.sent,
        "delivered": total.delivered,
        "expected": total.delivered - duplicates + lost,
        "lost": lost,
        "duplicates": duplicates,
        "out_of_order": out_of_order,
    }


def _stream(work: Work, seed: int, member: int, origin: int, to: int) -> dict[str, Any]:
    name = work.known.name
    return {"member": name(seed, member), "origin": name(seed, origin), "to": name(seed, to)}


def latencies(work: Work) -> list[dict[str, Any]]:
    """Return how long deliveries took: first all of them, then by stream and life, the busiest first."""
    whole = together([bars for _, _, bars in work.latencies])
    if whole is None:
        return []
    said = {
        "bytes": sum(one["bytes"] for _, one, _ in work.latencies),
        "first_ns": min(one["first_ns"] for _, one, _ in work.latencies),
        "last_ns": max(one["last_ns"] for _, one, _ in work.latencies),
    }
    each = sorted(work.latencies, key=lambda found: (-found[2].count, found[0]))[:MOST_LATENCIES]
    found = [({"member": "", "origin": "", "to": ""}, said, whole, 2 * BARS_PER_OCTAVE)]
    found += [(_stream(work, *key), one, bars, BARS_PER_OCTAVE) for key, one, bars in each]
    return [
        {**stream, **_latency(one, bars, per_octave)} for stream, one, bars, per_octave in found
    ]


def _latency(said: dict[str, Any], bars: Bars, per_octave: int) -> dict[str, Any]:
    lasted_s = (said["last_ns"] - said["first_ns"]) / _NS_PER_S
    return {
        "count": bars.count,
        **{name: bars.percentile(share) for name, share in SHARES.items()},
        "max_ns": bars.most,
        "bytes": said["bytes"],
        "messages_per_s": bars.count / lasted_s if lasted_s else 0.0,
        "bytes_per_s": said["bytes"] / lasted_s if lasted_s else 0.0,
        "histogram": bars.drawn(per_octave),
    }


def blocked(work: Work) -> list[dict[str, Any]]:
    """Return who waited for room, the longest first, and for whom."""
    if not work.has("BLOCK"):
        return []
    longest = {
        (row.seed, row.member): row.longest_ns
        for row in blocked_sends.longest(work.rare, work.ends).frame.collect()
    }
    causes: dict[tuple[int, int], list[Row]] = {}
    for row in blocked_sends.blocked(work.waits).frame.collect():
        causes.setdefault((row.seed, row.member), []).append(row)
    times = {(row.seed, row.member): row.rows for row in work.events if row.event == CODES["BLOCK"]}
    told = [
        {
            "member": work.known.name(*life),
            "times": times[life],
            "blocked_ns": sum(row.blocked_ns for row in causes.get(life, [])),
            "longest_ns": longest[life],
            "caused_by": [
                {
                    "member": work.known.name(row.seed, row.cause),
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
    return sorted(told, key=lambda one: -one["blocked_ns"])[:MOST_LIVES]


def over_time(work: Work) -> dict[str, Any]:
    """Return what each of the busiest lives did in each step, where it did anything."""
    points: dict[tuple[int, int, int], dict[str, Any]] = {}
    for row in work.told(traffic.traffic(work.counts).frame, MOST_IN_TIME).collect():
        points[row.step, row.seed, row.member] = {name: row[name] for name in _TRAFFIC}
    took = latency.latencies_over_time(work.told(work.deliveries, MOST_IN_TIME), work.step()).frame
    for key, _, bars in histograms(took, ("step", *LIFE)):
        ends = {"latency_p50_ns": bars.percentile(0.5), "latency_p99_ns": bars.percentile(0.99)}
        points[key].update(ends)
    if work.has("BLOCK"):
        waited = blocked_sends.blocked_over_time(work.waits, work.begin_ns, work.step_ns)
        for row in work.told(waited, MOST_IN_TIME).collect():
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
                "member": work.known.name(seed, life),
                **nothing,
                **point,
            }
            for (step, seed, life), point in sorted(points.items())
            if any(point.values())
        ],
    }


_TRAFFIC = [name for name in traffic.Traffic.columns if name not in {*LIFE, "step"}]


def told_windows(work: Work) -> list[dict[str, Any]]:
    """Return the busiest windows over time."""
    if not work.has("STATE"):
        return []
    part = work.step(-(-work.span_ns // WINDOW_POINTS))
    return [
        {
            **_stream(work, row.seed, row.member, row.origin, row.to),
            "reach": work.reaches.get((row.seed, row.member), 0),
            "points": [list(point) for point in row.points],
        }
        for row in windows.drawn(work.rows, part, MOST_WINDOWS).frame.collect()
    ]


def occupancy(work: Work) -> list[dict[str, Any]]:
    """Return how full windows were; of many, those that moved for the longest time."""
    if not work.has("STATE"):
        return []
    found = list(
        histograms(windows.occupancy(work.told(work.rows, MOST_IN_TIME)).frame, windows.KEYS)
    )
    longest = sorted(found, key=lambda one: (-one[2].count, one[0]))[:MOST_LATENCIES]
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


def repair_log(work: Work) -> list[dict[str, Any]]:
    """Return what became of gaps, in the order in which they were noticed."""
    if not work.has("NAK_OUT"):
        return []
    asked = gaps.some(gaps.gaps(work.rare).frame, MOST_REPAIRS).frame.collect()
    columns = {name: [row[name] for row in asked] for name in gaps.Gaps.columns}
    reach = [work.reaches.get((row.seed, row.member), 0) or gaps.UNKNOWN_REACH for row in asked]
    wanted = small(work.rows.sparkSession, {**columns, "gap": range(len(asked)), "reach": reach})
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


def _repair(work: Work, asked: Row, became: Row | None) -> dict[str, Any]:
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
