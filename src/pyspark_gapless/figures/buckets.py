"""Histograms with buckets that grow with the value, and percentiles from them.

A bucket reaches from a little above ``2 ** ((n - 1) / 64)`` to ``2 ** (n / 64)``; what is reported is its upper end,
so a percentile is too high by less than 1.1 %, and never too low. Everything up to 0 is one bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window, functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PER_OCTAVE = 64
"""So many buckets between a value and its double."""
ERROR = 2 ** (1 / PER_OCTAVE) - 1
"""By this share a percentile may be too high."""
NOTHING = -1
"""The bucket of what is not above 0."""
_ROUNDING = 1e-9


def bucket(value: Column) -> Column:
    """Return the bucket of a value."""
    number = F.ceil(F.log2(value) * PER_OCTAVE - _ROUNDING).cast("int")
    return F.when(value > 0, number).otherwise(F.lit(NOTHING))


def upper(number: Column, per_octave: int = PER_OCTAVE) -> Column:
    """Return the largest value of a bucket, a whole number."""
    return F.when(number >= 0, F.floor(F.pow(F.lit(2.0), number / per_octave) + _ROUNDING)).otherwise(F.lit(0))


def coarser(number: Column, per_octave: int) -> Column:
    """Return the bucket of the same value where there are fewer: ``per_octave``, a divisor of 64."""
    return F.when(number >= 0, F.ceil(number * per_octave / PER_OCTAVE).cast("int")).otherwise(F.lit(NOTHING))


def percentiles(histogram: DataFrame, keys: Sequence[str], wanted: Mapping[str, float]) -> DataFrame:
    """Return for each of ``keys`` the ``count``, the ``most``, and the ``wanted`` percentiles by their names.

    The histogram has the columns of ``keys``, ``bucket``, ``count`` and ``most``, the largest value in the bucket.
    """
    whole = Window.partitionBy(*keys)
    so_far = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    summed = (
        histogram.groupBy(*keys, "bucket")
        .agg(F.sum("count").alias("count"), F.max("most").alias("most"))
        .withColumn("below", F.sum("count").over(so_far))
        .withColumn("total", F.sum("count").over(whole))
    )
    most = F.max("most")
    ends = [
        F.least(F.min(F.when(F.col("below") >= F.ceil(F.col("total") * share), upper(F.col("bucket")))), most).alias(
            name
        )
        for name, share in wanted.items()
    ]
    return summed.groupBy(*keys).agg(F.sum("count").alias("count"), most.alias("most"), *ends)
