"""What became of messages: how many were sent and delivered, lost, handed over twice or out of order."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.analytics.timed_rows import AT, span
from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.trace import code, is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, WindowSpec

IN_ORDER = ("", "one")
"""The reasons of deliveries that come in the order of their stream."""
OUT_OF_BAND = "out of band"
"""The reason of deliveries in no order."""


class Fates(Dataset):
    """What a life did with a stream, by event, reason of a delivery, and part: how many messages, from where to where.

    ``counted`` is how many the recorder counted, ``messages`` how many the rows name. ``low_shift``
    and ``high_shift`` are the least and the largest of ``seqno - k``; in order and without a fault
    they are equal.
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


class Faults(Dataset):
    """What is wrong with the deliveries of a stream at one life, counted in messages."""

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


Stream = tuple[int, int, int, int]
"""Seed, origin, epoch and to."""
Life = tuple[int, int]
"""Seed and life."""


class Sum(NamedTuple):
    """What all fates come to; ``odd`` are the streams at lives that need a closer look."""

    sent: int
    delivered: int
    owed: int
    given_up: int
    odd: list[tuple[int, int, int, int, int]]
    out_of_band: bool


def fates(rows: DataFrame) -> Fates:
    """Return what each life did with each stream, in one aggregate over the rows that number or end messages."""
    looked = rows.where(is_one_of("SEND", "SEND_ASIDE", "DELIVER", "START", "LOST"))
    shift = F.col("seqno") - F.col("k")
    reason = F.when(is_one_of("DELIVER"), F.col("reason")).otherwise(F.lit("")).alias("reason")
    return Fates(
        looked.groupBy(*AT, "event", reason, "part").agg(
            F.max(F.col("k") + span()).alias("counted"),
            F.sum(span()).alias("messages"),
            F.min("seqno").alias("first"),
            F.max("seqno_last").alias("last"),
            F.min(shift).alias("low_shift"),
            F.max(shift).alias("high_shift"),
        )
    )


def add_up(found: Iterable[Row], resting: Container[Life]) -> Sum:
    """Return what all fates come to. ``resting`` are the lives that are there at the end.

    What is owed: of each stream whose origin is there at the end, what a life that is there as well
    has neither delivered nor been told not to expect; where epochs follow each other, of the last
    one.
    """
    sent = delivered = given_up = 0
    high: dict[Life, dict[int, dict[int, int]]] = {}
    reached: dict[tuple[Stream, int], int] = {}
    spans: dict[tuple[Stream, int], tuple[int, int, int]] = {}
    odd: set[tuple[Stream, int]] = set()
    out_of_band = False
    for row in found:
        stream, own = (row.seed, row.origin, row.epoch, row.to), row.member == row.origin
        at = stream, row.member
        if row.event == code("SEND"):
            sent += row.counted
            epochs = high.setdefault((row.seed, row.origin), {}).setdefault(row.to, {})
            epochs[row.epoch] = max(row["last"], epochs.get(row.epoch, 0))
        elif row.event == code("SEND_ASIDE"):
            sent += row.messages
        elif row.event == code("LOST"):
            given_up += row.messages
            reached[at] = max(row["last"], reached.get(at, 0))
        elif row.event == code("START"):
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
    return Sum(sent, delivered, owed, given_up, names, out_of_band)


def in_order(rows: DataFrame) -> DataFrame:
    """Return the deliveries of others' messages that come in the order of their stream."""
    return rows.where(
        is_one_of("DELIVER")
        & (F.col("member") != F.col("origin"))
        & F.col("reason").isin(*IN_ORDER)
    )


def faults(rows: DataFrame, streams: DataFrame) -> Faults:
    """Return what is wrong in some ``streams``: their deliveries are sorted, by time and by seqno.

    What lies below the highest seqno so far came late or is there twice; how much of it is there
    twice, the union of all ranges tells. What the union of a part lacks between its ends is
    missing.
    """
    found = in_order(rows).join(streams, list(AT), "left_semi")
    before = Window.unboundedPreceding, -1
    in_time = Window.partitionBy(*AT).orderBy("idx").rowsBetween(*before)
    by_seqno = Window.partitionBy(*AT).orderBy("seqno", "seqno_last", "idx").rowsBetween(*before)
    in_part = (
        Window.partitionBy(*AT, "part").orderBy("seqno", "seqno_last", "idx").rowsBetween(*before)
    )
    highest = F.coalesce(F.max("seqno_last").over(in_time), F.col("seqno") - 1)
    looked = found.select(
        *AT,
        "part",
        "seqno",
        "seqno_last",
        F.greatest(F.lit(0), F.least("seqno_last", highest) - F.col("seqno") + 1).alias("late"),
        _new(by_seqno).alias("new"),
        _new(in_part).alias("new_in_part"),
    )
    parts = looked.groupBy(*AT, "part").agg(
        F.sum(span()).alias("all"),
        F.sum("late").alias("late"),
        F.sum("new").alias("new"),
        (F.max("seqno_last") - F.min("seqno") + 1 - F.sum("new_in_part")).alias("missing"),
    )
    return Faults(
        parts.groupBy(*AT).agg(
            F.sum(F.col("all") - F.col("new")).alias("duplicates"),
            F.sum(F.col("late") - F.col("all") + F.col("new")).alias("out_of_order"),
            F.sum("missing").alias("missing"),
        )
    )


def repeated_aside(rows: DataFrame) -> DataFrame:
    """Return one row: how many out-of-band messages were delivered more than once."""
    found = rows.where(
        is_one_of("DELIVER")
        & (F.col("reason") == OUT_OF_BAND)
        & (F.col("member") != F.col("origin"))
    )
    order = (
        Window.partitionBy(*AT)
        .orderBy("seqno", "seqno_last", "idx")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    counted = found.select(span().alias("all"), _new(order).alias("new"))
    return counted.agg(F.sum(F.col("all") - F.col("new")).alias("duplicates"))


def _new(order: WindowSpec) -> Column:
    """Return how many seqnos of a row lie above all that come before it in the order."""
    reached = F.coalesce(F.max("seqno_last").over(order), F.col("seqno") - 1)
    return F.greatest(F.lit(0), F.col("seqno_last") - F.greatest(reached, F.col("seqno") - 1))
