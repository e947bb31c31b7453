"""Figures that simulated runs never need: sampled traces, and more gaps than are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gapless.trace.parquet import rows_to_table
from gapless.trace.schema import TraceRow, incarnation_id
from pyspark_gapless.analytics.gaps import gaps, sample_gaps
from pyspark_gapless.analytics.histogram import MAX_RELATIVE_ERROR, Histogram, merge_histograms
from pyspark_gapless.analytics.incarnations import end_reason
from pyspark_gapless.analytics.timed_rows import with_message_count, with_time

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.xdist_group("spark")
def test_sampled_rows_stand_for_what_was_left_out(spark: SparkSession) -> None:
    """40 runs of 10 messages; the sampled incarnation has the runs with a multiple of 32."""
    rows = []
    for member, every in (("a", 1), ("b", 32)):
        for first in range(1, 400, 10):
            if any(seqno % every == 0 for seqno in range(first, first + 10)):
                row = TraceRow(
                    0,
                    member,
                    first,
                    first,
                    first,
                    "DELIVER",
                    origin="c",
                    seqno=first,
                    seqno_last=first + 9,
                )
                rows += [row, row._replace(event="REPAIR")]
    frame = with_message_count(
        spark.createDataFrame(rows_to_table(rows)), {(0, incarnation_id("b")): 32}
    )
    sums = {
        (row.member, row.event): row.total
        for row in frame.groupBy("member", "event")
        .agg({"messages": "sum"})
        .toDF("member", "event", "total")
        .collect()
    }
    assert sums[incarnation_id("a"), 41] == sums[incarnation_id("a"), 8] == 400
    assert sums[incarnation_id("b"), 41] == 384, "12 multiples of 32 up to 400"
    assert sums[incarnation_id("b"), 8] == 120, "repairs are all written: each stands for itself"


@pytest.mark.xdist_group("spark")
def test_of_many_gaps_the_hardest_are_told_and_some_of_every_time(spark: SparkSession) -> None:
    rows = []
    for number in range(1, 101):
        nak = TraceRow(
            0,
            "b",
            number,
            number,
            1_000 * number,
            "NAK_OUT",
            origin="a",
            seqno=10 * number,
            peer="a",
        )
        rows.append(nak._replace(seqno_last=10 * number + 3))
        rows += [
            nak._replace(t_ns=nak.t_ns + more, seqno=10 * number + 2, seqno_last=10 * number + 5)
            for more in range(number % 7)
        ]
    found = gaps(with_time(spark.createDataFrame(rows_to_table(rows)), {})).frame
    told = sample_gaps(found, 20).frame.collect()
    assert found.count() == 100, "what overlaps is one gap"
    assert 15 <= len(told) <= 20
    assert sum(row.naks == 7 for row in told) >= 10
    assert {row.nak_ns // 25_000 for row in told} >= {0, 1, 2, 3}
    assert all(row["last"] - row["first"] == (3 if row.naks == 1 else 5) for row in told)
    assert sample_gaps(found, 1_000).frame.count() == 100


def test_percentiles_of_buckets_are_never_too_low_and_hardly_too_high() -> None:
    import numpy as np

    values = [*range(1, 2_000), 10**6, 10**9, 123_456_789]
    numbers = np.ceil(np.log2(values) * 64 - 1e-9).astype(np.int64)
    bars = Histogram(numbers, np.ones(len(values), dtype=np.int64), max(values))
    ordered = sorted(values)
    for share in (0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = ordered[int(np.ceil(len(ordered) * share)) - 1]
        assert exact <= bars.percentile(share) <= exact * (1 + MAX_RELATIVE_ERROR) + 1
    drawn = bars.coarse_bars(8)
    assert sum(count for _, count in drawn) == len(values)
    for upper, _ in drawn[:-1]:
        below = sum(count for end, count in drawn if end <= upper)
        assert below == sum(value <= upper for value in values)
    assert merge_histograms([]) is None
    both = merge_histograms([bars, bars])
    assert both is not None
    assert (both.count, both.percentile(0.5)) == (2 * len(values), bars.percentile(0.5))


@pytest.mark.parametrize(
    ("events", "forgotten", "end"),
    [
        ({"BEGIN", "REST", "END"}, False, "rest"),
        ({"BEGIN", "REST", "END", "EXPELLED"}, True, "expelled"),
        ({"BEGIN", "LEFT", "END"}, True, "left"),
        ({"BEGIN", "CRASH", "REST"}, False, "killed"),
        ({"BEGIN", "SEND"}, True, "killed"),
        ({"BEGIN", "SEND"}, False, "unknown"),
    ],
)
def test_how_a_life_ended(events: set[str], forgotten: bool, end: str) -> None:
    assert end_reason(events, forgotten=forgotten) == end
