"""From a gap to its repair: what happened when, at which life, for the ranges that were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.rows import AT, STREAM
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLOCK_SEQNOS = 65536
"""Seqnos are compared in blocks of so many, so that a row meets only the gaps near it; no row covers more."""
UNKNOWN_REACH = 65536
"""How far beyond a gap is looked for its first sign where nobody has said how far a window reaches."""


class Gaps(Dataset):
    """A range of a stream that a life asked for, once or more; ranges that overlap are one. They are numbered."""

    name = "gaps"
    columns: ClassVar = {
        "gap": "bigint",
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


class Repairs(Dataset):
    """A gap with the times of what became of it; a time is null where nothing was seen."""

    name = "repairs"
    columns: ClassVar = {
        **Gaps.columns,
        "gap_ns": "bigint",
        "nak_in_ns": "bigint",
        "repair_ns": "bigint",
        "stored_ns": "bigint",
        "delivered_ns": "bigint",
    }


def gaps(rare: DataFrame) -> Gaps:
    """Return what was asked for: ranges of NAK_OUT rows, those that overlap put together."""
    asked = rare.where(is_one_of("NAK_OUT") & (F.col("seqno") > 0))
    order = Window.partitionBy(*AT).orderBy("seqno", "seqno_last", "idx")
    before = F.max("seqno_last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    opens = F.when(before.isNull() | (before < F.col("seqno")), 1).otherwise(0)
    numbered = asked.withColumn("opens", opens).withColumn("number", F.sum("opens").over(order))
    found = numbered.groupBy(*AT, "number").agg(
        F.min("seqno").alias("first"),
        F.max("seqno_last").alias("last"),
        F.min("at_ns").alias("nak_ns"),
        F.count(F.lit(1)).alias("naks"),
    )
    return Gaps(found.withColumn("gap", F.xxhash64(*AT, "first")).drop("number"))


def some(found: DataFrame, most: int) -> DataFrame:
    """Return at most so many gaps: half are those that were asked for most often, half are spread over the run."""
    hardest = F.row_number().over(Window.orderBy(F.desc("naks"), "nak_ns", "gap"))
    total = F.count(F.lit(1)).over(Window.partitionBy())
    in_time = F.row_number().over(Window.orderBy("nak_ns", "gap")) - 1
    spread = F.floor(in_time * (most // 2) / F.col("total")) != F.floor((in_time - 1) * (most // 2) / F.col("total"))
    ranked = found.withColumn("total", total).withColumn("hardest", hardest).withColumn("spread", spread)
    chosen = ranked.where((F.col("total") <= most) | (F.col("hardest") <= most - most // 2) | F.col("spread"))
    return chosen.drop("total", "hardest", "spread").limit(most)


def repairs(rows: DataFrame, rare: DataFrame, found: DataFrame, reach: DataFrame) -> Repairs:
    """Return the gaps with the times of what became of each.

    ``found`` are few, so they go to where the rows are: a row meets those of its own stream, life and block of seqnos.
    """
    wanted = found.join(F.broadcast(reach), ["seed", "member"], "left").fillna(UNKNOWN_REACH, "reach")
    delivered = _delivered(rows, wanted)
    ended = wanted.join(delivered, "gap", "left")
    times = [_asked(rare, wanted), _repaired(rare, wanted), delivered, _stored(rows, ended), _announced(rows, wanted)]
    told = found
    for time in times:
        told = told.join(time, "gap", "left")
    sign = F.least("beyond_ns", "announced_ns")
    return Repairs(told.withColumn("gap_ns", sign).drop("beyond_ns", "announced_ns"))


def _block(column: str | Column) -> Column:
    return F.floor((F.col(column) if isinstance(column, str) else column) / BLOCK_SEQNOS)


def _near(wanted: DataFrame, first: Column, last: Column) -> DataFrame:
    """Return each gap once for each block of seqnos in which a row may begin that covers some of ``first .. last``."""
    return F.broadcast(wanted.withColumn("block", F.explode(F.sequence(_block(first) - 1, _block(last)))))


def _in_blocks(rows: DataFrame) -> DataFrame:
    return rows.select(*AT, "seqno", "seqno_last", "at_ns", _block("seqno").alias("block"))


def _delivered(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return when the last message of each gap was delivered: by then all of it was."""
    ends = _near(wanted, F.col("last"), F.col("last"))
    given = _in_blocks(rows.where(is_one_of("DELIVER") & F.col("reason").isin("", "one")))
    covered = given.join(ends, [*AT, "block"]).where("seqno <= last and seqno_last >= last")
    return covered.groupBy("gap").agg(F.min("at_ns").alias("delivered_ns"))


def _stored(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return when something beyond the first of each gap was stored first, and when the last of the gap was stored.

    Nothing is stored farther beyond a gap than its window reaches.
    """
    near = _near(wanted, F.col("first"), F.col("last") + F.col("reach"))
    stored = _in_blocks(rows.where(is_one_of("STORE"))).join(near, [*AT, "block"]).where("seqno_last >= first")
    inside = F.col("seqno") <= F.col("last")
    in_time = F.col("delivered_ns").isNull() | (F.col("at_ns") <= F.col("delivered_ns"))
    asked = F.col("at_ns") >= F.col("nak_ns")
    return stored.groupBy("gap").agg(
        F.min(F.when(F.col("seqno") > F.col("first"), F.col("at_ns"))).alias("beyond_ns"),
        F.max(F.when(inside & in_time & asked, F.col("at_ns"))).alias("stored_ns"),
    )


def _announced(rows: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return when the first message of each gap was announced first, before it was asked for."""
    tails = rows.where(is_one_of("TAIL_IN")).select(*AT, F.col("high").alias("announced"), "at_ns")
    met = tails.join(F.broadcast(wanted), list(AT)).where("announced >= first and at_ns <= nak_ns")
    return met.groupBy("gap").agg(F.min("at_ns").alias("announced_ns"))


def _asked(rare: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return when a nak for some of each gap came in first, wherever that was."""
    heard = rare.where(is_one_of("NAK_IN")).drop("member").withColumnRenamed("peer", "member")
    return _overlapping(heard, wanted, list(AT), "nak_in_ns")


def _repaired(rare: DataFrame, wanted: DataFrame) -> DataFrame:
    """Return when some of each gap was sent again first: to the life that lacked it, or to all."""
    again = rare.where(is_one_of("REPAIR")).drop("member").withColumnRenamed("peer", "receiver")
    for_it = F.col("receiver").isin(0) | (F.col("receiver") == F.col("member"))
    return _overlapping(again, wanted, list(STREAM), "repair_ns", for_it)


def _overlapping(
    rows: DataFrame, wanted: DataFrame, keys: list[str], column: str, more: Column | None = None
) -> DataFrame:
    met = rows.join(F.broadcast(wanted), keys).where("seqno <= last and seqno_last >= first")
    return (met if more is None else met.where(more)).groupBy("gap").agg(F.min("at_ns").alias(column))
