"""Clock offsets between the incarnations of a trace, relative to a reference clock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.analytics.clock_solver import ClockSolution, OffsetBounds, solve
from pyspark_gapless.analytics.incarnation_info import Incarnations
from pyspark_gapless.analytics.timed_rows import small_frame
from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

    from pyspark_gapless.trace import Trace

SLOTS = 48
"""Number of time slots of the longest incarnation, to detect drifting clocks."""
THIRDS = 3
"""Number of parts of the run; the first and the last part are compared."""

Pair = tuple[int, int]
"""The sending and the receiving incarnation."""


class ClockDelays(Dataset):
    """The least apparent delay from an incarnation to another, by slot of the target's time.

    An apparent delay is the time on the target's clock minus the time on the source's clock.
    """

    name = "delays"
    columns: ClassVar = {
        "source": "bigint",
        "target": "bigint",
        "slot": "bigint",
        "least_ns": "bigint",
    }


class ClockOffset(NamedTuple):
    """The clock of an incarnation: the offset from the reference, and the uncertainty or None.

    ``drift_ns`` is the change of the offset between the first and the last third of the run; 0 for
    a change within the uncertainty.
    """

    life: int
    offset_ns: int
    uncertainty_ns: int | None
    drift_ns: int = 0


def clocks(trace: Trace) -> list[dict[str, Any]]:
    """Return a clock for each incarnation with rows: ``life``, ``name``, and the offset.

    In simulated traces all offsets are 0: there is a single clock.
    """
    known = Incarnations(trace)
    return [{**clock._asdict(), "name": known.name(0, clock.life)} for clock in offsets_of(known)]


def offsets_of(known: Incarnations) -> list[ClockOffset]:
    """Return the clocks of the incarnations with rows."""
    if known.simulated:
        return [ClockOffset(life, 0, 0) for life in sorted({row.life for row in known.recorded})]
    return estimate(known.trace.rows, {row.life: row.member for row in known.recorded}, known.spans)


def estimate(
    rows: DataFrame, members: Mapping[int, str], spans: Sequence[Row]
) -> list[ClockOffset]:
    """Return the clocks of the incarnations in ``members``, from the rows of a real run."""
    if not members:
        return []
    slot_ns = max((row.ended_ns - row.began_ns for row in spans), default=0) // SLOTS + 1
    found = [
        row
        for row in delivery_delays(rows, slot_ns).frame.collect()
        if {row.source, row.target} <= members.keys()
    ]
    least_ns: dict[Pair, int] = {}
    for row in found:
        pair = row.source, row.target
        least_ns[pair] = min(row.least_ns, least_ns.get(pair, row.least_ns))
    silent = [(b, a) for a, b in least_ns if (b, a) not in least_ns]
    if silent:
        least_ns |= {
            (row.source, row.target): row.least_ns
            for row in ack_delays(rows, silent).frame.collect()
        }
    whole = _solve(least_ns, members)
    return [
        _with_drift(life, bounds, whole, *parts)
        for life, bounds, *parts in _thirds(found, members, whole, slot_ns)
    ]


def delivery_delays(rows: DataFrame, slot_ns: int) -> ClockDelays:
    """Return the least delay from a send to a delivery, for each pair and slot."""
    delivered = rows.where(
        is_one_of("DELIVER") & (F.col("member") != F.col("origin")) & (F.col("sent_ns") > 0)
    )
    pair = F.col("origin").alias("source"), F.col("member").alias("target")
    slot = F.floor(F.col("t_ns") / slot_ns).alias("slot")
    return ClockDelays(
        delivered.groupBy(*pair, slot).agg(
            F.min(F.col("t_ns") - F.col("sent_ns")).alias("least_ns")
        )
    )


def ack_delays(rows: DataFrame, pairs: Sequence[Pair]) -> ClockDelays:
    """Return the least delay of an ack, for ``pairs`` (receiver, origin): some never send.

    The same ack may be sent again. The first arrival was sent no earlier than the first sending, so
    the difference between both firsts is never less than the true delay of the arrival.
    """
    wanted = small_frame(
        rows.sparkSession,
        {"source": [pair[0] for pair in pairs], "target": [pair[1] for pair in pairs]},
    )
    is_out = is_one_of("ACK_OUT")
    source = F.when(is_out, F.col("member")).otherwise(F.col("peer")).alias("source")
    acks = rows.where(is_one_of("ACK_OUT", "ACK_IN")).select(
        source,
        F.col("origin").alias("target"),
        "epoch",
        "to",
        "seqno_last",
        "t_ns",
        is_out.alias("is_out"),
    )
    each = acks.join(wanted, ["source", "target"], "left_semi").groupBy(
        "source", "target", "epoch", "to", "seqno_last"
    )
    both = each.agg(
        F.min(F.when(F.col("is_out"), F.col("t_ns"))).alias("out_ns"),
        F.min(F.when(~F.col("is_out"), F.col("t_ns"))).alias("in_ns"),
    ).where("in_ns is not null and out_ns is not null")
    found = both.groupBy("source", "target").agg(
        F.min(F.col("in_ns") - F.col("out_ns")).alias("least_ns")
    )
    return ClockDelays(found.withColumn("slot", F.lit(0).cast("bigint")))


def _solve(least_ns: Mapping[Pair, int], members: Mapping[int, str]) -> ClockSolution:
    """Return the offsets; incarnations on the same host share a clock, unless delays contradict."""
    shared = _shared_clocks(members)
    if shared and all(least_ns.get(pair, 0) >= 0 for pair in shared):
        together = solve({**least_ns, **dict.fromkeys(shared, 0)}, members)
        if not together.slack_ns:
            return together
    return solve(least_ns, members)


def _shared_clocks(members: Mapping[int, str]) -> list[Pair]:
    hosts: dict[str, list[int]] = {}
    for life, member in members.items():
        if member:
            match = re.fullmatch(r"(.+):\d+", member)
            hosts.setdefault(match[1] if match else member, []).append(life)
    return [(a, b) for lives in hosts.values() for a in lives for b in lives if a != b]


def _thirds(
    found: Sequence[Row], members: Mapping[int, str], whole: ClockSolution, slot_ns: int
) -> list[tuple[int, OffsetBounds, OffsetBounds, OffsetBounds]]:
    """Return the bounds of each incarnation over the whole run, the first and the last third."""
    moments = [(row.slot * slot_ns - whole.bounds[row.target].offset_ns, row) for row in found]
    begin_ns = min((at_ns for at_ns, _ in moments), default=0)
    length_ns = max((at_ns for at_ns, _ in moments), default=0) + slot_ns - begin_ns
    early: dict[Pair, int] = {}
    late: dict[Pair, int] = {}
    for at_ns, row in moments:
        third = (at_ns - begin_ns) * THIRDS // length_ns
        if third in {0, THIRDS - 1}:
            least_ns, pair = early if third == 0 else late, (row.source, row.target)
            least_ns[pair] = min(row.least_ns, least_ns.get(pair, row.least_ns))
    first, last = (solve(part, members, whole.reference).bounds for part in (early, late))
    return [(life, whole.bounds[life], first[life], last[life]) for life in sorted(members)]


def _with_drift(
    life: int, bounds: OffsetBounds, whole: ClockSolution, early: OffsetBounds, late: OffsetBounds
) -> ClockOffset:
    """Return a clock with its drift, if significant; the drift adds to the uncertainty."""
    steady = ClockOffset(life, bounds.offset_ns, bounds.uncertainty_ns)
    if life == whole.reference or early.uncertainty_ns is None or late.uncertainty_ns is None:
        return steady
    drift_ns = late.offset_ns - early.offset_ns
    if abs(drift_ns) <= early.uncertainty_ns + late.uncertainty_ns:
        return steady
    anywhere = OffsetBounds(min(early.lower_ns, late.lower_ns), max(early.upper_ns, late.upper_ns))
    return ClockOffset(life, anywhere.offset_ns, anywhere.uncertainty_ns, drift_ns)
