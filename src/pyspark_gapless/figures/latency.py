"""How long deliveries took: for each life and stream, over time, and over all."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.buckets import bucket, coarser, percentiles, upper
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SHARES = {"p50_ns": 0.5, "p90_ns": 0.9, "p99_ns": 0.99, "p999_ns": 0.999}
"""The percentiles that are told, by their names."""
_KEYS = ("seed", "member", "origin", "to")


class Latencies(Dataset):
    """How long the deliveries of one stream at one life took; for all of them together the lives are 0."""

    name = "latencies"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "to": "bigint",
        "count": "bigint",
        "p50_ns": "bigint",
        "p90_ns": "bigint",
        "p99_ns": "bigint",
        "p999_ns": "bigint",
        "max_ns": "bigint",
        "bytes": "bigint",
        "first_ns": "bigint",
        "last_ns": "bigint",
        "histogram": "array<struct<upper_ns:bigint,count:bigint>>",
    }


class LatenciesOverTime(Dataset):
    """How long the deliveries at one life took, by part of the run."""

    name = "latencies over time"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "step": "bigint",
        "latency_p50_ns": "bigint",
        "latency_p99_ns": "bigint",
    }


def of_others(rows: DataFrame, *, simulated: bool) -> DataFrame:
    """Return the deliveries that have a latency: of others' messages, which say when they were sent."""
    found = rows.where(is_one_of("DELIVER") & (F.col("member") != F.col("origin")))
    return found if simulated else found.where("sent_ns > 0")


def histogram(deliveries: DataFrame, *keys: str | Column) -> DataFrame:
    """Return how many messages took how long, by ``keys``; ``took_ns`` and ``messages`` are columns of the rows."""
    return deliveries.groupBy(*keys, bucket(F.col("took_ns")).alias("bucket")).agg(
        F.sum("messages").alias("count"),
        F.max("took_ns").alias("most"),
        F.sum("size_bytes").alias("bytes"),
        F.min("at_ns").alias("first_ns"),
        F.max("at_ns").alias("last_ns"),
    )


def latencies(histograms: DataFrame, per_octave: int) -> Latencies:
    """Return the percentiles by life and stream, each with a histogram of ``per_octave`` buckets to draw."""
    told = percentiles(histograms, _KEYS, SHARES).withColumnRenamed("most", "max_ns")
    rough = histograms.groupBy(*_KEYS, coarser(F.col("bucket"), per_octave).alias("rough"))
    bars = rough.agg(F.sum("count").alias("count")).withColumn("upper_ns", upper(F.col("rough"), per_octave))
    drawn = bars.groupBy(*_KEYS).agg(F.array_sort(F.collect_list(F.struct("upper_ns", "count"))).alias("histogram"))
    carried = histograms.groupBy(*_KEYS).agg(
        F.sum("bytes").alias("bytes"), F.min("first_ns").alias("first_ns"), F.max("last_ns").alias("last_ns")
    )
    return Latencies(told.join(drawn, list(_KEYS)).join(carried, list(_KEYS)))


def of_all(histograms: DataFrame) -> DataFrame:
    """Return the same with everything in one: all lives are 0."""
    nobody = {name: F.lit(0).cast("bigint") for name in _KEYS}
    return histograms.withColumns(nobody)


def latencies_over_time(deliveries: DataFrame, step: Column) -> LatenciesOverTime:
    """Return the percentiles by life and part of the run."""
    shares = {"latency_p50_ns": 0.5, "latency_p99_ns": 0.99}
    bars = histogram(deliveries, "seed", "member", step.alias("step"))
    return LatenciesOverTime(percentiles(bars, ("seed", "member", "step"), shares).drop("count", "most"))
