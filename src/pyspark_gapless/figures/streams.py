"""What became of messages: how many were sent and delivered, lost, handed over twice or out of order."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.rows import AT, STREAM, span
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

IN_ORDER = ("", "one")
"""The reasons of deliveries that come in the order of their stream."""
_OUT_OF_BAND = "out of band"


class Carried(Dataset):
    """What a life delivered of a stream since one start of it: how many messages, from where to where.

    ``low_shift`` and ``high_shift`` are the least and the largest of ``seqno - k``; without a fault they are equal.
    """

    name = "carried"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "epoch": "bigint",
        "to": "bigint",
        "part": "int",
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


class Owed(Dataset):
    """What a life that is there at the end has not delivered of a stream whose origin is there at the end as well."""

    name = "owed"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "epoch": "bigint",
        "to": "bigint",
        "owed": "bigint",
    }


def in_order(rows: DataFrame) -> DataFrame:
    """Return the deliveries of others' messages that come in the order of their stream."""
    return rows.where(is_one_of("DELIVER") & (F.col("member") != F.col("origin")) & F.col("reason").isin(*IN_ORDER))


def carried(rows: DataFrame) -> Carried:
    """Return what each life delivered of each stream, in one aggregate; the recorder's own count says how many."""
    shift = F.col("seqno") - F.col("k")
    return Carried(
        in_order(rows)
        .groupBy(*AT, "part")
        .agg(
            F.max(F.col("k") + span()).alias("messages"),
            F.min("seqno").alias("first"),
            F.max("seqno_last").alias("last"),
            F.min(shift).alias("low_shift"),
            F.max(shift).alias("high_shift"),
        )
    )


def suspicious(parts: DataFrame) -> DataFrame:
    """Return the streams at lives in which something is out of place; a closer look at these is enough."""
    whole = parts.groupBy(*AT).agg(
        F.max(F.col("low_shift") != F.col("high_shift")).alias("shifted"),
        (F.sum("messages") > F.max("last") - F.min("first") + 1).alias("crowded"),
    )
    return whole.where("shifted or crowded").select(*AT)


def faults(rows: DataFrame, streams: DataFrame) -> Faults:
    """Return what is wrong in some ``streams``: their deliveries are sorted, by time and by seqno.

    What lies below the highest seqno so far came late or is there twice; how much of it is there twice, the union of
    all ranges tells. What the union lacks between its ends is missing.
    """
    found = in_order(rows).join(F.broadcast(streams), list(AT), "left_semi")
    before = Window.unboundedPreceding, -1
    in_time = Window.partitionBy(*AT).orderBy("idx").rowsBetween(*before)
    by_seqno = Window.partitionBy(*AT).orderBy("seqno", "seqno_last", "idx").rowsBetween(*before)
    in_part = Window.partitionBy(*AT, "part").orderBy("seqno", "seqno_last", "idx").rowsBetween(*before)
    under = F.least("seqno_last", F.max("seqno_last").over(in_time)) - F.col("seqno") + 1
    looked = found.select(
        *AT,
        "part",
        "seqno",
        "seqno_last",
        F.greatest(F.lit(0), F.when(F.max("seqno_last").over(in_time).isNotNull(), under)).alias("late"),
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


def _new(order: WindowSpec) -> Column:
    """Return how many seqnos of a row lie above all that come before it in the order."""
    reached = F.coalesce(F.max("seqno_last").over(order), F.col("seqno") - 1)
    return F.greatest(F.lit(0), F.col("seqno_last") - F.greatest(reached, F.col("seqno") - 1))


def aside(rows: DataFrame) -> DataFrame:
    """Return the out-of-band deliveries by life and origin: how many, and how many different ones."""
    found = rows.where(is_one_of("DELIVER") & (F.col("reason") == _OUT_OF_BAND) & (F.col("member") != F.col("origin")))
    order = Window.partitionBy(*AT).orderBy("seqno", "seqno_last", "idx").rowsBetween(Window.unboundedPreceding, -1)
    counted = found.select(*AT, span().alias("all"), _new(order).alias("new"))
    return counted.groupBy(*AT).agg(F.sum("all").alias("messages"), F.sum("new").alias("new"))


def owed(rows: DataFrame, rare: DataFrame, parts: DataFrame) -> Owed:
    """Return what is still owed at the end. Where epochs follow each other, only the last stream of each counts."""
    resting = rare.where(is_one_of("REST")).select("seed", F.col("member").alias("life")).distinct()
    sent = rows.where(is_one_of("SEND")).groupBy(*STREAM).agg(F.max("seqno_last").alias("high"))
    newest = sent.groupBy("seed", "origin", "to").agg(F.max_by(F.struct("epoch", "high"), "epoch").alias("newest"))
    high = newest.select("seed", "origin", "to", "newest.*")
    told = rare.where(is_one_of("START", "LOST") & (F.col("member") != F.col("origin")))
    told = told.select(*AT, F.when(is_one_of("START"), F.col("seqno") - 1).otherwise(F.col("seqno_last")).alias("last"))
    reached = parts.select(*AT, "last").unionByName(told).groupBy(*AT).agg(F.max("last").alias("reached"))
    both = reached.join(high, list(STREAM))
    for whose in ("member", "origin"):
        both = both.join(resting.withColumnRenamed("life", whose), ["seed", whose], "left_semi")
    short = F.greatest(F.lit(0), F.col("high") - F.col("reached"))
    return Owed(both.select(*AT, short.alias("owed")).where("owed > 0"))


def given_up(rare: DataFrame) -> DataFrame:
    """Return one row: how many messages lives were told will never come."""
    return rare.where(is_one_of("LOST")).agg(F.sum(span()).alias("messages"))


def sent(rows: DataFrame) -> DataFrame:
    """Return one row: how many messages got a number."""
    streams = rows.where(is_one_of("SEND")).groupBy(*STREAM).agg(F.max(F.col("k") + span()).alias("messages"))
    beside = rows.where(is_one_of("SEND_ASIDE")).agg(F.sum(span()).alias("messages"))
    return streams.select("messages").unionByName(beside).agg(F.coalesce(F.sum("messages"), F.lit(0)).alias("sent"))
