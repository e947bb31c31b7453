"""Rows with a comparable time, and with the number of represented messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.trace.schema import INCARNATION_KEY
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def small_frame(spark: SparkSession, columns: Mapping[str, Sequence[Any]]) -> DataFrame:
    """Return a small broadcast table of integers, without need of a Python worker."""
    import pyarrow as pa

    table = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    return F.broadcast(spark.createDataFrame(table))


def seqno_count() -> Column:
    """Return how many seqnos a row names."""
    return F.col("seqno_last") - F.col("seqno") + 1


def with_time(rows: DataFrame, offsets_ns: Mapping[int, int]) -> DataFrame:
    """Add ``at_ns``: the time of a row on the clock of the reference."""
    ahead = _ahead(rows, offsets_ns, "member", "ahead_ns")
    return ahead.withColumn("at_ns", F.col("t_ns") - F.col("ahead_ns")).drop("ahead_ns")


def with_latency(deliveries: DataFrame, offsets_ns: Mapping[int, int]) -> DataFrame:
    """Add ``took_ns``: from the send of a message to the delivery, on the reference clock."""
    ahead = _ahead(deliveries, offsets_ns, "origin", "ahead_ns")
    return ahead.withColumn("took_ns", F.col("at_ns") - F.col("sent_ns") + F.col("ahead_ns")).drop(
        "ahead_ns"
    )


def _ahead(rows: DataFrame, offsets_ns: Mapping[int, int], whose: str, column: str) -> DataFrame:
    ahead = {life: offset_ns for life, offset_ns in offsets_ns.items() if offset_ns}
    if not ahead:
        return rows.withColumn(column, F.lit(0).cast("bigint"))
    table = small_frame(rows.sparkSession, {whose: list(ahead), column: list(ahead.values())})
    return rows.join(table, whose, "left").fillna(0, column)


def with_message_count(rows: DataFrame, every: Mapping[tuple[int, int], int]) -> DataFrame:
    """Add ``messages``: the number of messages represented by a row.

    A row represents its seqnos. A sampled incarnation (in ``every``) wrote only the SEND, STORE and
    DELIVER rows with a multiple of its interval; such a row represents an interval of messages for
    each multiple.
    """
    if not every:
        return rows.withColumn("messages", seqno_count())
    lives = {
        "seed": [seed for seed, _ in every],
        "member": [life for _, life in every],
        "every": list(every.values()),
    }
    number = F.col("every")
    multiples = F.floor(F.col("seqno_last") / number) - F.floor((F.col("seqno") - 1) / number)
    thinned = is_one_of("SEND", "STORE", "DELIVER") & number.isNotNull()
    joined = rows.join(small_frame(rows.sparkSession, lives), list(INCARNATION_KEY), "left")
    return joined.withColumn(
        "messages", F.when(thinned, multiples * number).otherwise(seqno_count())
    ).drop("every")
