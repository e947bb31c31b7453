"""Traffic: the overhead of each incarnation, and counts over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DATA_EVENTS = ("SEND", "SEND_ASIDE")
"""Events of messages sent for the first time."""
REPAIR_EVENTS = ("REPAIR", "REPAIR_ASIDE")
"""Events of messages sent again."""
OTHER_EVENTS = ("GONE_OUT", "VOTE_OUT", "STABLE_OUT")
"""The events of other frames."""
REPEATED_REASONS = ("duplicate", "old")
"""The reasons for dropping a message that was there already."""


class EventCounts(Dataset):
    """Rows, messages and bytes of an event of an incarnation in a part of the run."""

    name = "counts"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "event": "tinyint",
        "own": "boolean",
        "step": "bigint",
        "rows": "bigint",
        "messages": "bigint",
        "bytes": "bigint",
        "datagrams": "bigint",
        "duplicates": "bigint",
        "first_ns": "bigint",
        "last_ns": "bigint",
    }


class EventTotals(Dataset):
    """The counts of a whole run, by incarnation and event."""

    name = "events"
    columns: ClassVar = {name: kind for name, kind in EventCounts.columns.items() if name != "step"}


class NakFrames(Dataset):
    """Number of nak frames of each incarnation."""

    name = "nak frames"
    columns: ClassVar = {"seed": "bigint", "member": "bigint", "frames": "bigint"}


class Traffic(Dataset):
    """The traffic of each incarnation in each part of the run."""

    name = "traffic"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "step": "bigint",
        "sent": "bigint",
        "delivered": "bigint",
        "bytes": "bigint",
        "naks": "bigint",
        "repairs": "bigint",
        "acks": "bigint",
        "duplicates": "bigint",
    }


def counts(rows: DataFrame, step: Column, *, simulated: bool) -> EventCounts:
    """Return the counts of every event: a single pass over all rows for all figures here.

    Messages in several rows are counted in each row; of a dropped run only ``k`` messages count.
    """
    repeated = is_one_of("DROPPED") & F.col("reason").isin(*REPEATED_REASONS)
    dropped = F.when(F.col("k") > 0, F.col("k")).otherwise(F.col("messages"))
    # A TX row of a real process counts the datagrams of a turn; a simulated one is one datagram on
    # one link.
    datagrams = F.lit(1) if simulated else F.col("seqno_last")
    grouped = rows.groupBy(
        "seed",
        "member",
        "event",
        (F.col("member") == F.col("origin")).alias("own"),
        step.alias("step"),
    )
    return EventCounts(
        grouped.agg(
            F.count(F.lit(1)).alias("rows"),
            F.sum("messages").alias("messages"),
            F.sum("size_bytes").alias("bytes"),
            F.sum(datagrams).alias("datagrams"),
            F.sum(F.when(repeated, dropped).otherwise(F.lit(0))).alias("duplicates"),
            F.min("at_ns").alias("first_ns"),
            F.max("at_ns").alias("last_ns"),
        )
    )


def _total(column: str, *events: str) -> Column:
    return F.sum(F.when(is_one_of(*events), F.col(column)).otherwise(F.lit(0)))


def events(counted: DataFrame) -> EventTotals:
    """Return the counts without steps."""
    sums = [
        F.sum(name).alias(name) for name in ("rows", "messages", "bytes", "datagrams", "duplicates")
    ]
    times = F.min("first_ns").alias("first_ns"), F.max("last_ns").alias("last_ns")
    return EventTotals(counted.groupBy("seed", "member", "event", "own").agg(*sums, *times))


def nak_frames(rare: DataFrame) -> NakFrames:
    """Return the number of nak frames: ranges of the same step to the same target share a frame."""
    naks = rare.where(is_one_of("NAK_OUT"))
    frames = naks.select("seed", "member", "step", "origin", "epoch", "to", "peer").distinct()
    return NakFrames(frames.groupBy("seed", "member").agg(F.count(F.lit(1)).alias("frames")))


def traffic(counted: DataFrame) -> Traffic:
    """Return the traffic of each incarnation in each part of the run, without own deliveries."""
    others = counted.withColumn(
        "bytes", F.when(F.col("own"), 0).otherwise(F.col("bytes"))
    ).withColumn("received", F.when(F.col("own"), 0).otherwise(F.col("messages")))
    return Traffic(
        others.groupBy("seed", "member", "step").agg(
            _total("messages", *DATA_EVENTS).alias("sent"),
            _total("received", "DELIVER").alias("delivered"),
            _total("bytes", "DELIVER").alias("bytes"),
            _total("rows", "NAK_OUT").alias("naks"),
            _total("rows", *REPAIR_EVENTS).alias("repairs"),
            _total("rows", "ACK_OUT").alias("acks"),
            F.sum("duplicates").alias("duplicates"),
        )
    )
