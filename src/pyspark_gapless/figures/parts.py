"""The parts of the figures of a run: each asks for its tables, which are small, and puts them into plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.figures import blocking, gaps, latency, lives, streams, traffic, windows
from pyspark_gapless.figures.rows import LIFE

if TYPE_CHECKING:
    from pyspark.sql import Row

    from pyspark_gapless.figures.work import Work

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

_NS_PER_S = 1_000_000_000
_TIMES = ("gap_ns", "nak_ns", "nak_in_ns", "repair_ns", "stored_ns", "delivered_ns")


def summary(work: Work) -> dict[str, Any]:
    """Return what a whole run comes to."""
    totals = traffic.totals(work.counts).collect()[0]
    fate = _fate(work)
    everything = latency.latencies(latency.of_all(work.histograms), BARS_PER_OCTAVE).frame.collect()
    took = everything[0] if everything else None
    span_s = (totals.span_ns or 0) / _NS_PER_S
    return {
        "sent": streams.sent(work.rows).collect()[0].sent,
        **fate,
        **{name: totals[name] or 0 for name in ("naks", "repairs", "repaired", "frames_lost")},
        "latency_p50_ns": took and took.p50_ns,
        "latency_p99_ns": took and took.p99_ns,
        "latency_max_ns": took and took.max_ns,
        "messages_per_s": fate["delivered"] / span_s if span_s else 0.0,
        "bytes_per_s": (totals.bytes or 0) / span_s if span_s else 0.0,
    }


def _fate(work: Work) -> dict[str, int]:
    """Return what became of the messages; every one that a life was to get is delivered or lost."""
    beside = streams.aside(work.rows).agg(F.sum("messages").alias("messages"), F.sum("new").alias("new")).collect()[0]
    delivered = (work.carried.agg(F.sum("messages")).collect()[0][0] or 0) + (beside.messages or 0)
    duplicates, out_of_order, missing = (beside.messages or 0) - (beside.new or 0), 0, 0
    odd = streams.suspicious(work.carried)
    if not odd.isEmpty():
        wrong = streams.faults(work.rows, odd).frame.agg(F.sum("duplicates"), F.sum("out_of_order"), F.sum("missing"))
        more, out_of_order, missing = (value or 0 for value in wrong.collect()[0])
        duplicates += more
    owed = streams.owed(work.rows, work.rare, work.carried).frame.agg(F.sum("owed")).collect()[0][0] or 0
    given_up = streams.given_up(work.rare).collect()[0].messages or 0
    lost = (0 if work.mode == "sampled" else missing) + owed + given_up
    return {
        "delivered": delivered,
        "expected": delivered - duplicates + lost,
        "lost": lost,
        "duplicates": duplicates,
        "out_of_order": out_of_order,
    }


def told_lives(work: Work) -> list[dict[str, Any]]:
    """Return the lives, in the order in which they began."""
    ended = {(row.seed, row.member): row.end for row in work.told(work.ends).collect()}
    return [_life(work, row, ended[row.seed, row.member]) for row in work.chosen]


def _life(work: Work, row: Row, end: str) -> dict[str, Any]:
    clock = work.clocks.get(row.member)
    return {
        "name": work.names(row.seed, row.member),
        "member": work.names.member(row.member),
        "began_ns": row.began_ns,
        "ended_ns": row.ended_ns,
        "end": end,
        "offset_ns": clock.offset_ns if clock else 0,
        "uncertainty_ns": clock.uncertainty_ns if clock else None,
        "drift_ns": clock.drift_ns if clock else 0,
        "events": row.events,
    }


def told_views(work: Work) -> list[dict[str, Any]]:
    """Return the views that lives were told, in the order of time."""
    return [
        {
            "t_ns": row.at_ns,
            "member": work.names(row.seed, row.member),
            "number": row.number,
            "maker": work.names(row.seed, row.maker),
            "members": [work.names.prefixed(row.seed, name) for name in row.members],
        }
        for row in lives.views(work.rare).frame.limit(MOST_VIEWS).collect()
    ]


def _stream(work: Work, row: Row) -> dict[str, Any]:
    names = work.names
    return {"member": names(row.seed, row.member), "origin": names(row.seed, row.origin), "to": names(row.seed, row.to)}


def _reaches(work: Work) -> dict[tuple[int, int], int]:
    return {(row.seed, row.member): row.reach for row in work.told(lives.reach(work.rare)).collect()}


def told_windows(work: Work) -> list[dict[str, Any]]:
    """Return the busiest windows over time."""
    found = windows.drawn(work.rows, windows.busiest(work.rows, MOST_WINDOWS), WINDOW_POINTS).frame.collect()
    reaches = _reaches(work)
    found.sort(key=lambda row: (-row.moves, row.seed, row.member, row.origin, row.to))
    return [
        {**_stream(work, row), "reach": reaches.get((row.seed, row.member), 0), "points": [list(p) for p in row.points]}
        for row in found
    ]


def occupancy(work: Work) -> list[dict[str, Any]]:
    """Return how full the same windows were."""
    found = windows.occupancy(work.rows, windows.busiest(work.rows, MOST_WINDOWS)).frame.collect()
    reaches = _reaches(work)
    return [
        {
            **_stream(work, row),
            **{name: row[name] for name in ("mean", "p50", "p99", "max")},
            "reach": reaches.get((row.seed, row.member), 0),
        }
        for row in sorted(found, key=lambda row: (row.seed, row.member, row.origin, row.to))
    ]


def repair_log(work: Work) -> list[dict[str, Any]]:
    """Return what became of gaps, in the order in which they were noticed."""
    some = gaps.some(gaps.gaps(work.rare).frame, MOST_REPAIRS)
    found = gaps.repairs(work.rows, work.rare, some, lives.reach(work.rare)).frame.collect()
    found.sort(key=lambda row: (row.nak_ns if row.gap_ns is None else row.gap_ns, row.gap))
    return [
        {
            **_stream(work, row),
            "seqno": row["first"],
            "seqno_last": row["last"],
            **{name: row[name] for name in _TIMES},
            "naks": row.naks,
        }
        for row in found
    ]


def over_time(work: Work) -> dict[str, Any]:
    """Return what each of the busiest lives did in each step, where it did anything."""
    begin_ns, step_ns, names = work.begin_ns, work.step_ns, work.names
    key = [*LIFE, "step"]
    busiest = work.busiest
    done = work.told(traffic.traffic(work.counts).frame, busiest)
    took = latency.latencies_over_time(work.told(work.deliveries, busiest), work.step).frame
    waited = work.told(blocking.blocked_over_time(work.waits, begin_ns, step_ns), busiest)
    numbers = [name for name in done.columns if name not in key]
    rows = done.join(took, key, "full").join(waited, key, "full").fillna(0, [*numbers, "blocked_ns"]).collect()
    rows.sort(key=lambda row: (row.step, row.seed, row.member))
    told = (*numbers, "blocked_ns", "latency_p50_ns", "latency_p99_ns")
    points = [
        {
            "t_ns": begin_ns + row.step * step_ns,
            "member": names(row.seed, row.member),
            **{name: row[name] for name in told},
        }
        for row in rows
    ]
    return {"step_ns": step_ns, "points": [point for point in points if any(point[name] for name in told)]}


def latencies(work: Work) -> list[dict[str, Any]]:
    """Return how long deliveries took: first all of them, then by stream and life, the busiest first."""
    whole = latency.latencies(latency.of_all(work.histograms), 2 * BARS_PER_OCTAVE).frame
    each = latency.latencies(work.told(work.histograms), BARS_PER_OCTAVE).frame
    each = each.orderBy(F.desc("count"), "seed", "member", "origin", "to").limit(MOST_LATENCIES)
    return [
        {
            **_stream(work, row),
            "count": row["count"],
            **{name: row[name] for name in (*latency.SHARES, "max_ns")},
            "bytes": row.bytes,
            "messages_per_s": _per_second(row["count"], row),
            "bytes_per_s": _per_second(row.bytes, row),
            "histogram": [list(bar) for bar in row.histogram],
        }
        for row in [*whole.collect(), *each.collect()]
    ]


def _per_second(amount: int, row: Row) -> float:
    return amount * _NS_PER_S / (row.last_ns - row.first_ns) if row.last_ns > row.first_ns else 0.0


def overhead(work: Work) -> list[dict[str, Any]]:
    """Return what each life sent, and for what."""
    found = work.told(traffic.overhead(work.counts, work.rare).frame).collect()
    return [
        {
            "member": work.names(row.seed, row.member),
            **{
                kind: {unit: row[f"{kind}_{unit}"] for unit in ("frames", "messages", "bytes")}
                for kind in ("data", "repair")
            },
            **{kind: {"frames": row[f"{kind}_frames"]} for kind in ("ack", "nak", "tail", "other")},
            **{name: row[name] for name in ("duplicates", "sent_datagrams", "sent_bytes")},
        }
        for row in sorted(found, key=lambda row: (row.seed, row.member))
    ]


def blocked(work: Work) -> list[dict[str, Any]]:
    """Return who waited for room, the longest first, and for whom."""
    found = work.told(blocking.blocked(work.waits, work.rare, work.spans).frame).collect()
    return [
        {
            "member": work.names(row.seed, row.member),
            **{name: row[name] for name in ("times", "blocked_ns", "longest_ns")},
            "caused_by": [
                {
                    "member": work.names(row.seed, one.cause),
                    "reason": one.reason,
                    "blocked_ns": one.blocked_ns,
                    "times": one.times,
                }
                for one in row.caused_by
            ],
        }
        for row in sorted(found, key=lambda row: (-row.blocked_ns, row.seed, row.member))
    ]
