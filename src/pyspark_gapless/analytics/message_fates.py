"""The fate of messages: sent, delivered, lost, delivered twice or out of order."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.analytics.timed_rows import seqno_count
from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.schema import STREAM_AT_MEMBER
from pyspark_gapless.trace.trace import event_code, is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, WindowSpec

IN_ORDER = ("", "one")
"""The reasons of deliveries in the order of their stream."""
OUT_OF_BAND = "out of band"
"""The reason of deliveries in no order."""


class MessageFates(Dataset):
    """Counts of a stream at an incarnation, by event, reason and part, with first and last.

    ``counted`` is the recorder's count, ``messages`` the number of messages in the rows.
    ``low_shift`` and ``high_shift`` are the least and the largest of ``seqno - k``; in order and
    without a fault both are equal.
    """

    name = "fates"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "epoch": "bigint",
        "to": "bigint",
        "event": "tinyint",
        "reason": "string",
        "part": "int",
        "counted": "bigint",
        "messages": "bigint",
        "first": "bigint",
        "last": "bigint",
        "low_shift": "bigint",
        "high_shift": "bigint",
    }


class DeliveryFaults(Dataset):
    """Faults in the deliveries of a stream at an incarnation, counted in messages."""

    name = "faults"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "epoch": "bigint",
        "to": "bigint",
        "duplicates": "bigint",
        "out_of_order": "bigint",
        "missing": "bigint",
    }


StreamKey = tuple[int, int, int, int]
"""Seed, origin, epoch and to."""
IncarnationKey = tuple[int, int]
"""Seed and incarnation."""


class FateTotals(NamedTuple):
    """The totals of all fates; ``odd`` are the streams at incarnations that need a closer look."""

    sent: int
    delivered: int
    expected: int
    given_up: int
    suspect_streams: list[tuple[int, int, int, int, int]]
    out_of_band: bool


def fates(rows: DataFrame) -> MessageFates:
    """Return the counts of each stream at each incarnation, in a single aggregate."""
    looked = rows.where(is_one_of("SEND", "SEND_ASIDE", "DELIVER", "START", "LOST"))
    shift = F.col("seqno") - F.col("k")
    reason = F.when(is_one_of("DELIVER"), F.col("reason")).otherwise(F.lit("")).alias("reason")
    return MessageFates(
        looked.groupBy(*STREAM_AT_MEMBER, "event", reason, "part").agg(
            F.max(F.col("k") + seqno_count()).alias("counted"),
            F.sum(seqno_count()).alias("messages"),
            F.min("seqno").alias("first"),
            F.max("seqno_last").alias("last"),
            F.min(shift).alias("low_shift"),
            F.max(shift).alias("high_shift"),
        )
    )


def total_fates(found: Iterable[Row], resting: Container[IncarnationKey]) -> FateTotals:
    """Return the totals of all fates. ``resting`` are the incarnations present at the end.

    Owed messages belong to a stream with a present origin, and a present incarnation has neither
    delivered the message nor skipped it for a known reason; where epochs follow each other, only
    the last epoch counts.
    """
    sent = delivered = given_up = 0
    high: dict[IncarnationKey, dict[int, dict[int, int]]] = {}
    reached: dict[tuple[StreamKey, int], int] = {}
    spans: dict[tuple[StreamKey, int], tuple[int, int, int]] = {}
    odd: set[tuple[StreamKey, int]] = set()
    out_of_band = False
    for row in found:
        stream, own = (row.seed, row.origin, row.epoch, row.to), row.member == row.origin
        at = stream, row.member
        if row.event == event_code("SEND"):
            sent += row.counted
            epochs = high.setdefault((row.seed, row.origin), {}).setdefault(row.to, {})
            epochs[row.epoch] = max(row["last"], epochs.get(row.epoch, 0))
        elif row.event == event_code("SEND_ASIDE"):
            sent += row.messages
        elif row.event == event_code("LOST"):
            given_up += row.messages
            reached[at] = max(row["last"], reached.get(at, 0))
        elif row.event == event_code("START"):
            reached[at] = max(row["last"] - 1, row["first"] - 1, reached.get(at, 0))
        elif not own and row.reason not in IN_ORDER:
            delivered += row.messages
            out_of_band |= row.reason == OUT_OF_BAND
        elif not own:
            delivered += row.counted
            reached[at] = max(row["last"], reached.get(at, 0))
            first, last, count = spans.get(at, (row["first"], row["last"], 0))
            spans[at] = min(first, row["first"]), max(last, row["last"]), count + row.counted
            if row.low_shift != row.high_shift:
                odd.add(at)
    odd |= {at for at, (first, last, count) in spans.items() if count > last - first + 1}
    owed = 0
    for ((seed, origin, epoch, to), member), last in reached.items():
        epochs = high.get((seed, origin), {}).get(to, {})
        if (
            origin != member
            and (seed, member) in resting
            and (seed, origin) in resting
            and epoch == max(epochs, default=-1)
        ):
            owed += max(0, epochs[epoch] - last)
    names = [(seed, member, origin, epoch, to) for (seed, origin, epoch, to), member in sorted(odd)]
    return FateTotals(sent, delivered, owed, given_up, names, out_of_band)


def in_order(rows: DataFrame) -> DataFrame:
    """Return the deliveries of others' messages in the order of their stream."""
    return rows.where(
        is_one_of("DELIVER")
        & (F.col("member") != F.col("origin"))
        & F.col("reason").isin(*IN_ORDER)
    )


def faults(rows: DataFrame, streams: DataFrame) -> DeliveryFaults:
    """Return the faults in ``streams``, with deliveries sorted by time and by seqno.

    Seqnos below the highest so far are late or duplicate; the union of all ranges gives the number
    of duplicates. Seqnos missing from the union of a part, between its ends, are missing messages.
    """
    found = in_order(rows).join(streams, list(STREAM_AT_MEMBER), "left_semi")
    before = Window.unboundedPreceding, -1
    in_time = Window.partitionBy(*STREAM_AT_MEMBER).orderBy("idx").rowsBetween(*before)
    by_seqno = (
        Window.partitionBy(*STREAM_AT_MEMBER)
        .orderBy("seqno", "seqno_last", "idx")
        .rowsBetween(*before)
    )
    in_part = (
        Window.partitionBy(*STREAM_AT_MEMBER, "part")
        .orderBy("seqno", "seqno_last", "idx")
        .rowsBetween(*before)
    )
    highest = F.coalesce(F.max("seqno_last").over(in_time), F.col("seqno") - 1)
    looked = found.select(
        *STREAM_AT_MEMBER,
        "part",
        "seqno",
        "seqno_last",
        F.greatest(F.lit(0), F.least("seqno_last", highest) - F.col("seqno") + 1).alias("late"),
        _new_seqnos(by_seqno).alias("new"),
        _new_seqnos(in_part).alias("new_in_part"),
    )
    parts = looked.groupBy(*STREAM_AT_MEMBER, "part").agg(
        F.sum(seqno_count()).alias("all"),
        F.sum("late").alias("late"),
        F.sum("new").alias("new"),
        (F.max("seqno_last") - F.min("seqno") + 1 - F.sum("new_in_part")).alias("missing"),
    )
    return DeliveryFaults(
        parts.groupBy(*STREAM_AT_MEMBER).agg(
            F.sum(F.col("all") - F.col("new")).alias("duplicates"),
            F.sum(F.col("late") - F.col("all") + F.col("new")).alias("out_of_order"),
            F.sum("missing").alias("missing"),
        )
    )


def repeated_out_of_band(rows: DataFrame) -> DataFrame:
    """Return a single row: the number of out-of-band messages delivered more than once."""
    found = rows.where(
        is_one_of("DELIVER")
        & (F.col("reason") == OUT_OF_BAND)
        & (F.col("member") != F.col("origin"))
    )
    order = (
        Window.partitionBy(*STREAM_AT_MEMBER)
        .orderBy("seqno", "seqno_last", "idx")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    counted = found.select(seqno_count().alias("all"), _new_seqnos(order).alias("new"))
    return counted.agg(F.sum(F.col("all") - F.col("new")).alias("duplicates"))


def _new_seqnos(order: WindowSpec) -> Column:
    """Return the number of seqnos of a row above all earlier seqnos in the order."""
    reached = F.coalesce(F.max("seqno_last").over(order), F.col("seqno") - 1)
    return F.greatest(F.lit(0), F.col("seqno_last") - F.greatest(reached, F.col("seqno") - 1))
