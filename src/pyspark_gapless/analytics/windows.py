"""Windows over time, thinned for drawing, and the occupancy of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import Window, functions as F  # noqa: N812

from pyspark_gapless.analytics.histogram import bucket
from pyspark_gapless.tables import Dataset
from pyspark_gapless.trace.trace import is_one_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEYS = ("seed", "member", "origin", "to")
"""The columns that identify a window; consecutive epochs share a window."""


class WindowPoints(Dataset):
    """The marks of a window over time: the last marks of each part of the run with a change."""

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
    """How long a window held how many messages, in buckets; ``area``: messages times time."""

    name = "occupancy"
    columns: ClassVar = {
        "seed": "bigint",
        "member": "bigint",
        "origin": "bigint",
        "to": "bigint",
        "bucket": "int",
        "count": "bigint",
        "most": "bigint",
        "area": "double",
    }


def window_points(rows: DataFrame, part: Column, most: int) -> WindowPoints:
    """Return the most active windows, with a point for each part of the run."""
    # One number at a time: with a struct Spark would sort all rows instead of hashing them.
    last = [F.max_by(mark, "idx").alias(mark) for mark in ("at_ns", "low", "delivered", "high")]
    marks = rows.where(is_one_of("STATE")).groupBy(*KEYS, part.alias("part"))
    thinned = marks.agg(*last, F.count(F.lit(1)).alias("moves"))
    points = F.array_sort(F.collect_list(F.struct("at_ns", "low", "delivered", "high")))
    found = thinned.groupBy(*KEYS).agg(F.sum("moves").alias("moves"), points.alias("points"))
    return WindowPoints(found.orderBy(F.desc("moves"), *KEYS).limit(most))


def occupancy(rows: DataFrame) -> Occupancy:
    """Return the occupancy of windows, between the first and the last move of each window.

    Each row counts for the time until the next row. A nanosecond is added, so that a window with a
    single move counts.
    """
    found = rows.where(is_one_of("STATE")).select(*KEYS, "idx", "at_ns", "low", "high")
    following = F.lead("at_ns").over(Window.partitionBy(*KEYS).orderBy("idx"))
    held = found.select(
        *KEYS,
        (F.col("high") - F.col("low")).alias("held"),
        (F.coalesce(following - F.col("at_ns"), F.lit(0)) + 1).alias("lasted_ns"),
    )
    return Occupancy(
        held.groupBy(*KEYS, bucket(F.col("held")).alias("bucket")).agg(
            F.sum("lasted_ns").alias("count"),
            F.max("held").alias("most"),
            F.sum(F.col("held") * F.col("lasted_ns").cast("double")).alias("area"),
        )
    )
