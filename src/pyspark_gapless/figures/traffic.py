"""What was sent, for what, and when: overhead of each life, and counts over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DATA = ("SEND", "SEND_ASIDE")
"""What is sent for the first time."""
REPAIRS = ("REPAIR", "REPAIR_ASIDE")
"""What is sent again."""
OTHERS = ("GONE_OUT", "VOTE_OUT", "STABLE_OUT")
"""The other frames that rows tell of."""
REPEATED = ("duplicate", "old")
"""Why a message that was there already is dropped."""


class Counts(Dataset):
    """How many rows of an event a life has in a part of the run, and how many messages and bytes they stand for."""

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


class Overhead(Dataset):
    """What each life sent, by what it was for."""

    name = "overhead"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "data_frames": "bigint",
        "data_messages": "bigint",
        "data_bytes": "bigint",
        "repair_frames": "bigint",
        "repair_messages": "bigint",
        "repair_bytes": "bigint",
        "ack_frames": "bigint",
        "nak_frames": "bigint",
        "tail_frames": "bigint",
        "other_frames": "bigint",
        "duplicates": "bigint",
        "sent_datagrams": "bigint",
        "sent_bytes": "bigint",
    }


class Traffic(Dataset):
    """What each life did in each part of the run."""

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


def counts(rows: DataFrame, step: Column) -> Counts:
    """Return the counts of every event: the one look at all rows that the other figures here are made from.

    Messages that several rows stand for are counted as the rows say; of a dropped run ``k`` of its messages were there.
    """
    repeated = is_one_of("DROPPED") & F.col("reason").isin(*REPEATED)
    dropped = F.when(F.col("k") > 0, F.col("k")).otherwise(F.col("messages"))
    # A row of a real process is about a whole answer, with the number of its datagrams; a simulated one about a frame.
    datagrams = F.when(is_one_of("TX") & (F.col("frame_id") == ""), F.col("seqno_last")).otherwise(F.lit(1))
    grouped = rows.groupBy(
        "seed", "member", "event", (F.col("member") == F.col("origin")).alias("own"), step.alias("step")
    )
    return Counts(
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


def overhead(counted: DataFrame, naks: DataFrame) -> Overhead:
    """Return what each life sent. Rows of NAK_OUT are ranges: those of one step to one life went in one frame."""
    frames = (
        naks.where(is_one_of("NAK_OUT")).select("seed", "member", "step", "origin", "epoch", "to", "peer").distinct()
    )
    asked = frames.groupBy("seed", "member").agg(F.count(F.lit(1)).alias("nak_frames"))
    sent = counted.groupBy("seed", "member").agg(
        _total("rows", *DATA).alias("data_frames"),
        _total("messages", *DATA).alias("data_messages"),
        _total("bytes", *DATA).alias("data_bytes"),
        _total("rows", *REPAIRS).alias("repair_frames"),
        _total("messages", *REPAIRS).alias("repair_messages"),
        _total("bytes", *REPAIRS).alias("repair_bytes"),
        _total("rows", "ACK_OUT").alias("ack_frames"),
        _total("rows", "TAIL_OUT").alias("tail_frames"),
        _total("rows", *OTHERS).alias("other_frames"),
        F.sum("duplicates").alias("duplicates"),
        _total("datagrams", "TX").alias("sent_datagrams"),
        _total("bytes", "TX").alias("sent_bytes"),
    )
    return Overhead(sent.join(asked, ["seed", "member"], "left").fillna(0, "nak_frames"))


def traffic(counted: DataFrame) -> Traffic:
    """Return what each life did in each part of the run. Deliveries are those of others' messages."""
    others = counted.withColumn("bytes", F.when(F.col("own"), 0).otherwise(F.col("bytes"))).withColumn(
        "received", F.when(F.col("own"), 0).otherwise(F.col("messages"))
    )
    return Traffic(
        others.groupBy("seed", "member", "step").agg(
            _total("messages", *DATA).alias("sent"),
            _total("received", "DELIVER").alias("delivered"),
            _total("bytes", "DELIVER").alias("bytes"),
            _total("rows", "NAK_OUT").alias("naks"),
            _total("rows", *REPAIRS).alias("repairs"),
            _total("rows", "ACK_OUT").alias("acks"),
            F.sum("duplicates").alias("duplicates"),
        )
    )


def totals(counted: DataFrame) -> DataFrame:
    """Return one row: what the summary counts, and the time from the first send to the last delivery of each seed."""
    delivered = is_one_of("DELIVER") & ~F.col("own")
    seeds = counted.groupBy("seed").agg(
        _total("rows", "NAK_OUT").alias("naks"),
        _total("rows", *REPAIRS).alias("repairs"),
        _total("messages", *REPAIRS).alias("repaired"),
        _total("rows", "NET_DROP").alias("frames_lost"),
        F.sum(F.when(delivered, F.col("bytes")).otherwise(F.lit(0))).alias("bytes"),
        F.min(F.when(is_one_of(*DATA), F.col("first_ns"))).alias("first_send_ns"),
        F.max(F.when(delivered, F.col("last_ns"))).alias("last_delivery_ns"),
    )
    span = F.col("last_delivery_ns") - F.col("first_send_ns")
    sums = [F.sum(name).alias(name) for name in ("naks", "repairs", "repaired", "frames_lost", "bytes")]
    return seeds.agg(*sums, F.sum(span).alias("span_ns"))
