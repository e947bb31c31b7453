"""What every figure begins with: rows with a time that can be compared, and with how many messages each stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pyspark_gapless.figures.clocks import Clock

AT = ("seed", "member", "origin", "epoch", "to")
"""What names a stream at one life."""
STREAM = ("seed", "origin", "epoch", "to")
"""What names a stream."""
LIFE = ("seed", "member")
"""What names a life."""


def span() -> Column:
    """Return how many seqnos a row names."""
    return F.col("seqno_last") - F.col("seqno") + 1


def timed(rows: DataFrame, clocks: Sequence[Clock]) -> DataFrame:
    """Add ``at_ns``, the time of a row on the clock of the reference, and ``ahead_ns``, how much its own is ahead."""
    return _ahead(rows, clocks, "member", "ahead_ns").withColumn("at_ns", F.col("t_ns") - F.col("ahead_ns"))


def sent(rows: DataFrame, clocks: Sequence[Clock]) -> DataFrame:
    """Add ``took_ns``: how long after its sending a message was delivered, both on the clock of the reference."""
    both = _ahead(rows, clocks, "origin", "origin_ahead_ns")
    return both.withColumn("took_ns", F.col("at_ns") - F.col("sent_ns") + F.col("origin_ahead_ns"))


def _ahead(rows: DataFrame, clocks: Sequence[Clock], whose: str, column: str) -> DataFrame:
    offsets = [(clock.life, clock.offset_ns) for clock in clocks if clock.offset_ns]
    if not offsets:
        return rows.withColumn(column, F.lit(0).cast("bigint"))
    table = rows.sparkSession.createDataFrame(offsets, f"{whose} bigint, {column} bigint")
    return rows.join(F.broadcast(table), whose, "left").fillna(0, column)


def weighed(rows: DataFrame, lives: DataFrame) -> DataFrame:
    """Add ``messages``: how many a row stands for.

    It is the number of its seqnos. Of a life that was sampled, of SEND, STORE and DELIVER only rows were written that
    contain a multiple of ``every``; such a row stands for ``every`` messages for each multiple.
    """
    sampled = lives.where("own and mode = 'sampled' and every > 1").select(
        "seed", F.col("life").alias("member"), "every"
    )
    if sampled.isEmpty():
        return rows.withColumn("messages", span())
    every = F.col("every")
    multiples = F.floor(F.col("seqno_last") / every) - F.floor((F.col("seqno") - 1) / every)
    thinned = is_one_of("SEND", "STORE", "DELIVER") & every.isNotNull()
    joined = rows.join(F.broadcast(sampled), ["seed", "member"], "left")
    return joined.withColumn("messages", F.when(thinned, multiples * every).otherwise(span()).cast("bigint")).drop(
        "every"
    )
