"""Plans: each wanted seqno in exactly one stretch, in order, whatever the cuts.

Work spread evenly.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from gapless.spool import SpoolReader
from pyspark_gapless.source.partition_planner import (
    PARTITION_ROWS,
    SegmentRange,
    pack,
    partition_count,
    segment_ranges,
)
from tests.support.spools import A, B, C, Writer


@pytest.fixture
def view(tmp_path: Path) -> SpoolReader:
    writer = Writer(tmp_path / "spool")
    random = Random(4)
    for _ in range(60):
        writer.runs(
            random.choice([A, A, A, B]), random.randrange(1, 40), size=random.randrange(1, 12)
        )
        if random.random() < 0.2:
            writer.large(B, b"x" * 100, 3)
        if random.random() < 0.1:
            writer.lost(A, 2)
        writer.commit()
    writer.close()
    found = SpoolReader(tmp_path / "spool")
    found.refresh()
    return found


@pytest.mark.parametrize("per_stretch", [1, 7, 100, 10**9])
@pytest.mark.parametrize("part", [(0.0, 1.0), (0.2, 0.7), (0.5, 0.51)])
def test_stretches_cover_each_seqno_once(
    view: SpoolReader, per_stretch: int, part: tuple[float, float]
) -> None:
    high = view.high()
    ranges = {key: (int(seqno * part[0]), int(seqno * part[1])) for key, seqno in high.items()}
    (index,) = view.segments()
    found = segment_ranges(0, index, ranges, per_stretch)
    for key, (above, upto) in ranges.items():
        at = above
        for stretch in found:
            if key in stretch.ranges:
                low, top = stretch.ranges[key]
                assert at == low < top
                at = top
        assert at == upto
    ends = [(stretch.begin, stretch.end) for stretch in found]
    assert ends == sorted(ends)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    if per_stretch == 7 and part == (0.0, 1.0):
        assert len(found) > 20, "cut small if asked"


def test_a_stream_that_is_not_there_gives_no_stretch(view: SpoolReader) -> None:
    (index,) = view.segments()
    assert segment_ranges(0, index, {str(C): (0, 100)}, 10) == []
    assert segment_ranges(0, index, {str(A): (10**6, 10**7)}, 10) == []


def stretch(rows: int) -> SegmentRange:
    return SegmentRange(0, 1, 0, 1, rows, rows * 100, {"a.1": (0, rows)})


def test_few_partitions_unless_there_is_much() -> None:
    assert partition_count(5, 500, 1, 8) == 1
    assert partition_count(0, 0, 1, 8) == 1
    assert partition_count(3 * PARTITION_ROWS, 1000, 1, 8) == 3
    assert partition_count(10, 10**9, 1, 8) == 8, "large messages are work too"
    assert partition_count(5, 500, 4, 8) == 4


def test_packing_keeps_the_order_and_spreads_the_work() -> None:
    random = Random(1)
    found = [stretch(random.randrange(1, 1000)) for _ in range(200)]
    bins = pack(found, 4)
    assert [each for part in bins for each in part] == found
    loads = [sum(each.rows for each in part) for part in bins]
    assert len(bins) == 4
    assert max(loads) < 1.2 * min(loads)
    assert pack([], 4) == []
    assert pack([stretch(5)], 4) == [[stretch(5)]]
