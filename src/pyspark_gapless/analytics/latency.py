"""Latencies of deliveries: for each incarnation and stream, and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import functions as F  # noqa: N812

from pyspark_gapless.analytics.histogram import bucket
from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SUMS = {
    "bucket": "int",
    "count": "bigint",
    "most": "bigint",
    "bytes": "bigint",
    "first_ns": "bigint",
    "last_ns": "bigint",
}


class Latencies(Dataset):
    """Histogram of the latencies of a stream at a receiver; ``most`` is the longest."""

    name = "latencies"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "to": "bigint",
        **_SUMS,
    }


class LatenciesOverTime(Dataset):
    """Latencies by step of the run, for all streams of an incarnation together."""

    name = "latencies over time"
    columns: ClassVar = {"seed": "bigint", "member": "bigint", "step": "bigint", **_SUMS}


def remote_deliveries(rows: DataFrame, *, simulated: bool) -> DataFrame:
    """Return the deliveries with a latency: of other members, with a send time."""
    found = rows.where(is_one_of("DELIVER") & (F.col("member") != F.col("origin")))
    return found if simulated else found.where("sent_ns > 0")


def latencies(deliveries: DataFrame) -> Latencies:
    """Return the histograms by receiver and stream of the columns ``took_ns`` and ``messages``."""
    return Latencies(_histogram(deliveries, "seed", "member", "origin", "to"))


def latencies_over_time(deliveries: DataFrame, step: Column) -> LatenciesOverTime:
    """Return the histograms by incarnation and step."""
    return LatenciesOverTime(_histogram(deliveries, "seed", "member", step.alias("step")))


def _histogram(deliveries: DataFrame, *keys: str | Column) -> DataFrame:
    return deliveries.groupBy(*keys, bucket(F.col("took_ns")).alias("bucket")).agg(
        F.sum("messages").alias("count"),
        F.max("took_ns").alias("most"),
        F.sum("size_bytes").alias("bytes"),
        F.min("at_ns").alias("first_ns"),
        F.max("at_ns").alias("last_ns"),
    )
