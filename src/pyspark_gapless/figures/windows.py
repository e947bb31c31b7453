"""Windows over time, thinned to what can be drawn, and how full they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.datasets import Dataset
from pyspark_gapless.figures.buckets import bucket, percentiles
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYS = ("seed", "member", "origin", "to")


class Drawn(Dataset):
    """The marks of one window over time: the last of each of so many equal parts of the time in which it moved."""

    name = "windows"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "to": "bigint",
        "moves": "bigint",
        "points": "array<struct<at_ns:bigint,low:bigint,delivered:bigint,high:bigint>>",
    }


class Occupancy(Dataset):
    """How many messages a window held, weighted by time: half of the time not more than ``p50``."""

    name = "occupancy"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "to": "bigint",
        "mean": "double",
        "p50": "bigint",
        "p99": "bigint",
        "max": "bigint",
    }


def marks(rows: DataFrame) -> DataFrame:
    """Return the rows that tell the marks of windows."""
    return rows.where(is_one_of("STATE"))


def busiest(rows: DataFrame, most: int) -> DataFrame:
    """Return the windows that moved most often, with the time in which they did."""
    moved = (
        marks(rows)
        .groupBy(*_KEYS)
        .agg(F.count(F.lit(1)).alias("moves"), F.min("at_ns").alias("first_ns"), F.max("at_ns").alias("last_ns"))
    )
    return moved.orderBy(F.desc("moves"), *_KEYS).limit(most)


def drawn(rows: DataFrame, chosen: DataFrame, points: int) -> Drawn:
    """Return the chosen windows with at most so many points each."""
    found = (
        marks(rows).select(*_KEYS, "idx", "at_ns", "low", "delivered", "high").join(F.broadcast(chosen), list(_KEYS))
    )
    part = F.floor((F.col("at_ns") - F.col("first_ns")) * points / (F.col("last_ns") - F.col("first_ns") + 1))
    last = F.max_by(F.struct("at_ns", "low", "delivered", "high"), "idx")
    thinned = found.groupBy(*_KEYS, "moves", part.alias("part")).agg(last.alias("point"))
    return Drawn(thinned.groupBy(*_KEYS, "moves").agg(F.array_sort(F.collect_list("point")).alias("points")))


def occupancy(rows: DataFrame, chosen: DataFrame) -> Occupancy:
    """Return how full the chosen windows were, between the first and the last time that they moved.

    Each row counts for as long as it held; the nanosecond that is added lets a window count that moved only once.
    """
    wanted = F.broadcast(chosen.select(*_KEYS))
    found = marks(rows).select(*_KEYS, "epoch", "idx", "at_ns", "low", "high").join(wanted, list(_KEYS), "left_semi")
    following = F.lead("at_ns").over(Window.partitionBy(*_KEYS).orderBy("idx"))
    held = found.select(
        *_KEYS,
        (F.col("high") - F.col("low")).alias("held"),
        (F.coalesce(following - F.col("at_ns"), F.lit(0)) + 1).alias("lasted_ns"),
    )
    bars = held.groupBy(*_KEYS, bucket(F.col("held")).alias("bucket")).agg(
        F.sum("lasted_ns").alias("count"),
        F.max("held").alias("most"),
        F.sum(F.col("held") * F.col("lasted_ns").cast("double")).alias("area"),
    )
    mean = bars.groupBy(*_KEYS).agg((F.sum("area") / F.sum("count")).alias("mean"))
    told = percentiles(bars, _KEYS, {"p50": 0.5, "p99": 0.99}).withColumnRenamed("most", "max").drop("count")
    return Occupancy(told.join(mean, list(_KEYS)))
