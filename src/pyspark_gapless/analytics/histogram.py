"""Histograms with buckets that grow with the value, and percentiles from the buckets.

A bucket reaches from a little above ``2 ** ((n - 1) / 64)`` to ``2 ** (n / 64)``. A percentile is
the upper end of a bucket, so a percentile is too high by less than 1.1 %, and never too low. All
values up to 0 share a bucket.

Spark counts; the result is a table of a few buckets for each key. This module computes the ends of
the buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame

BUCKETS_PER_OCTAVE = 64
"""Number of buckets between a value and its double."""
MAX_RELATIVE_ERROR = 2 ** (1 / BUCKETS_PER_OCTAVE) - 1
"""Maximum relative error of a percentile; a percentile is never too low."""
ZERO_BUCKET = -1
"""The bucket of values up to 0."""
_ROUNDING = 1e-9


def bucket(value: Column) -> Column:
    """Return the bucket of a value."""
    number = F.ceil(F.log2(value) * BUCKETS_PER_OCTAVE - _ROUNDING).cast("int")
    return F.when(value > 0, number).otherwise(F.lit(ZERO_BUCKET))


class Histogram:
    """The histogram of a key: buckets in order, the count of each, and the largest value."""

    def __init__(self, numbers: NDArray[np.int64], counts: NDArray[np.int64], most: int) -> None:
        order = np.argsort(numbers, kind="stable")
        self.numbers, self.counts, self.most = numbers[order], counts[order], most

    @property
    def count(self) -> int:
        """How much there is in all buckets."""
        return int(self.counts.sum())

    def percentile(self, share: float) -> int:
        """Return a value not exceeded by the share: a bucket's upper end, or the maximum."""
        below = np.cumsum(self.counts)
        found = int(np.searchsorted(below, np.ceil(below[-1] * share)))
        return min(_upper_bound(int(self.numbers[found]), BUCKETS_PER_OCTAVE), self.most)

    def coarse_bars(self, per_octave: int) -> list[list[int]]:
        """Return upper end and count of each bar of a coarser histogram; a divisor of 64."""
        rough = np.where(
            self.numbers < 0, ZERO_BUCKET, -(-self.numbers * per_octave // BUCKETS_PER_OCTAVE)
        )
        found, where = np.unique(rough, return_inverse=True)
        sums = np.zeros(len(found), dtype=np.int64)
        np.add.at(sums, where, self.counts)
        return [
            [_upper_bound(int(number), per_octave), int(total)]
            for number, total in zip(found, sums, strict=True)
        ]


def _upper_bound(number: int, per_octave: int) -> int:
    """Return the largest whole number of a bucket."""
    return int(2.0 ** (number / per_octave) + _ROUNDING) if number >= 0 else 0


def histograms(
    frame: DataFrame, keys: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], Histogram]]:
    """Collect a histogram: each key with its other columns (sums; ``first_*`` and ``last_*``).

    The columns are ``keys``, ``bucket``, ``count``, ``most`` and any others.
    """
    found = frame.toArrow().to_pydict()
    if not found["bucket"]:
        return
    others = [name for name in found if name not in {*keys, "bucket", "count", "most"}]
    rows: dict[tuple[Any, ...], list[int]] = {}
    for number, key in enumerate(zip(*(found[name] for name in keys), strict=True)):
        rows.setdefault(key, []).append(number)
    numbers, counts = (
        np.array(found["bucket"], dtype=np.int64),
        np.array(found["count"], dtype=np.int64),
    )
    for key, at in rows.items():
        said = {name: _joined(name, [found[name][number] for number in at]) for name in others}
        yield (
            key,
            said,
            Histogram(numbers[at], counts[at], max(found["most"][number] for number in at)),
        )


def _joined(name: str, values: list[Any]) -> Any:
    return (
        min(values)
        if name.startswith("first_")
        else max(values)
        if name.startswith("last_")
        else sum(values)
    )


def merge_histograms(bars: Sequence[Histogram]) -> Histogram | None:
    """Return the sum of several histograms; None without any histogram."""
    if not bars:
        return None
    numbers = np.concatenate([one.numbers for one in bars])
    return Histogram(
        numbers, np.concatenate([one.counts for one in bars]), max(one.most for one in bars)
    )
