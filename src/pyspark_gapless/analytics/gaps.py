"""From a gap to its repair: the events of the requested ranges, with time and place."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.schema import STREAM_AT_MEMBER, STREAM_KEY
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK_SEQNOS = 65536
"""Size of the blocks of seqnos for matching rows and gaps; no row covers more seqnos."""
UNKNOWN_REACH = 65536
"""How far beyond a gap to search for the first sign if the reach of windows is unknown."""


class RequestedGaps(Dataset):
    """A range of a stream requested by an incarnation, once or more.

    Overlapping ranges are joined.
    """

    name = "gaps"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "epoch": "bigint",
        "to": "bigint",
        "first": "bigint",
        "last": "bigint",
        "nak_ns": "bigint",
        "naks": "bigint",
    }


class GapRepairs(Dataset):
    """The repair of a numbered gap; a time without a row is null."""

    name = "repairs"
    columns: ClassVar = {
        "gap": "bigint",
        "beyond_ns": "bigint",
        "announced_ns": "bigint",
        "nak_in_ns": "bigint",
        "repair_ns": "bigint",
        "stored_ns": "bigint",
        "delivered_ns": "bigint",
    }


def gaps(rare: DataFrame) -> RequestedGaps:
    """Return the requested ranges of NAK_OUT rows, with overlapping ranges joined."""
    asked = rare.where(is_one_of("NAK_OUT") & (F.col("seqno") > 0))
    order = Window.partitionBy(*STREAM_AT_MEMBER).orderBy("seqno", "seqno_last", "idx")
    before = F.max("seqno_last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    opens = F.when(before.isNull() | (before < F.col("seqno")), 1).otherwise(0)
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    numbered = asked.withColumn("opens", opens).withColumn("number", F.sum("opens").over(so_far))
    found = numbered.groupBy(*STREAM_AT_MEMBER, "number").agg(
        F.min("seqno").alias("first"),
        F.max("seqno_last").alias("last"),
        F.min("at_ns").alias("nak_ns"),
        F.count(F.lit(1)).alias("naks"),
    )
    return RequestedGaps(found.drop("number"))


def sample_gaps(found: DataFrame, most: int) -> RequestedGaps:
    """Return a limited number of gaps: half the most often requested, half spread evenly."""
    key = (*STREAM_AT_MEMBER, "first")
    hardest = F.row_number().over(Window.orderBy(F.desc("naks"), "nak_ns", *key))
    in_time = F.row_number().over(Window.orderBy("nak_ns", *key)) - 1
    share = F.lit(most // 2) / F.count(F.lit(1)).over(Window.partitionBy())
    ranked = (
        found.withColumn("share", share)
        .withColumn("hardest", hardest)
        .withColumn("in_time", in_time)
    )
    spread = F.floor(F.col("in_time") * F.col("share")) != F.floor(
        (F.col("in_time") - 1) * F.col("share")
    )
    return RequestedGaps(
        ranked.where((F.col("hardest") <= most - most // 2) | spread).drop(
            "share", "hardest", "in_time"
        )
    )


def repairs(rows: DataFrame, wanted: DataFrame) -> GapRepairs:
    """Return the repairs of the gaps ``wanted``, in a single pass over all rows.

    Spark broadcasts the few gaps to the rows: a row meets the gaps of the same stream and block of
    seqnos. Besides the columns of ``RequestedGaps`` the gaps have a number, ``gap``, and the
    ``reach`` of the window: members store and announce no message farther beyond a gap.
    """
    looked = rows.where(is_one_of("NAK_IN", "REPAIR", "STORE", "DELIVER", "TAIL_IN"))
    whose = F.when(is_one_of("NAK_IN", "REPAIR"), F.col("peer")).otherwise(F.col("member"))
    known = F.when(is_one_of("TAIL_IN"), F.col("high")).otherwise(F.col("seqno"))
    met = looked.select(
        *STREAM_KEY,
        "event",
        "at_ns",
        whose.alias("whose"),
        known.alias("seqno"),
        F.when(is_one_of("TAIL_IN"), F.col("high"))
        .otherwise(F.col("seqno_last"))
        .alias("seqno_last"),
        F.floor(known / BLOCK_SEQNOS).alias("block"),
    ).join(F.broadcast(_by_block(wanted)), [*STREAM_KEY, "block"])
    for_it = (F.col("whose") == F.col("member")) | (is_one_of("REPAIR") & (F.col("whose") == 0))
    met = met.where(for_it & (F.col("seqno_last") >= F.col("first")))
    some_of_it = F.col("seqno") <= F.col("last")
    asked = F.col("at_ns") >= F.col("nak_ns")
    end_of_it = some_of_it & (F.col("seqno_last") >= F.col("last"))
    return GapRepairs(
        met.groupBy("gap").agg(
            F.min(_when(F.col("seqno") > F.col("first"), "STORE")).alias("beyond_ns"),
            F.min(_when(~asked, "TAIL_IN")).alias("announced_ns"),
            F.min(_when(some_of_it, "NAK_IN")).alias("nak_in_ns"),
            F.min(_when(some_of_it, "REPAIR")).alias("repair_ns"),
            F.max(_when(some_of_it & asked, "STORE")).alias("stored_ns"),
            F.min(_when(end_of_it, "DELIVER")).alias("delivered_ns"),
        )
    )


def _by_block(wanted: DataFrame) -> DataFrame:
    """Return each gap for every block of seqnos with a possible start of a related row."""
    first, last = F.col("first"), F.col("last") + F.col("reach")
    blocks = F.sequence(F.floor(first / BLOCK_SEQNOS) - 1, F.floor(last / BLOCK_SEQNOS))
    return wanted.withColumn("block", F.explode(blocks))


def _when(condition: Column, event: str) -> Column:
    return F.when(is_one_of(event) & condition, F.col("at_ns"))
