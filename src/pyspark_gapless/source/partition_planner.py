"""Plans: from ranges of seqnos to stretches of segments, and from stretches to partitions.

A stretch is a part of a segment, read in a single pass, and names the wanted seqnos of each stream.
Many streams share a stretch, so a partition costs a few reads, even with many senders. Cuts are
always between records, found in the index without reading records one by one. The same digests give
the same rows in every plan; the cuts depend on the options and on the segments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from gapless.spool.index import FIRST, LAST, OFFSET, PAYLOAD, ROWS, SIZE, SegmentIndex, StreamIndex

SeqnoRanges = dict[str, tuple[int, int]]
"""Of each stream the seqnos above the first number, up to the second."""

PARTITION_ROWS: Final = 100_000
PARTITION_BYTES: Final = 64 * 1024 * 1024


class SegmentRange(NamedTuple):
    """The bytes ``begin .. end`` of a segment of a replica, and the wanted seqnos in the bytes.

    With ``encrypted`` a record in plain is damage.
    """

    replica: int
    segment: int
    begin: int
    end: int
    rows: int
    payload_bytes: int
    ranges: SeqnoRanges
    encrypted: bool = False


class _StreamSlice(NamedTuple):
    """The records ``head .. tail`` (without ``tail``) of a stream in a segment."""

    key: str
    head: int
    tail: int
    stream: StreamIndex

    def total(self, column: int) -> int:
        totals = self.stream.column(column)
        return totals[self.tail - 1] - (totals[self.head - 1] if self.head else 0)


def segment_ranges(
    replica: int, index: SegmentIndex, ranges: SeqnoRanges, per_stretch: int
) -> list[SegmentRange]:
    """Return the stretches of a segment with ``ranges``, each of about ``per_stretch`` rows."""
    parts = [
        part
        for key, (above, upto) in ranges.items()
        if (part := _stream_slice(index, key, above, upto)) is not None
    ]
    if not parts:
        return []
    begin = min(part.stream.column(OFFSET)[part.head] for part in parts)
    end = max(
        part.stream.column(OFFSET)[part.tail - 1] + part.stream.column(SIZE)[part.tail - 1]
        for part in parts
    )
    cuts = [begin, *_cut_points(parts, begin, end, per_stretch), end]
    found = [
        _range_between(replica, index, parts, ranges, low, high) for low, high in pairwise(cuts)
    ]
    return [stretch for stretch in found if stretch.ranges]


def _stream_slice(index: SegmentIndex, key: str, above: int, upto: int) -> _StreamSlice | None:
    stream = index.streams.get(key)
    if stream is None or not stream.records or stream.last <= above or stream.first > upto:
        return None
    head = stream.find_record(above + 1)
    tail = min(stream.find_record(upto) + 1, bisect_right(stream.column(FIRST), upto))
    return _StreamSlice(key, head, tail, stream) if tail > head else None


def _cut_points(parts: Sequence[_StreamSlice], begin: int, end: int, per_stretch: int) -> list[int]:
    rows = sum(part.total(ROWS) for part in parts)
    count = -(-rows // max(1, per_stretch))
    if count < 2:
        return []
    # Cuts follow the records of the busiest stream; records of others between two of them go
    # along.
    guide = max(parts, key=lambda part: part.total(ROWS))
    totals, offsets = guide.stream.column(ROWS), guide.stream.column(OFFSET)
    before = totals[guide.head - 1] if guide.head else 0
    amount = guide.total(ROWS)
    places = {
        offsets[
            min(
                bisect_left(totals, before + amount * step // count, guide.head, guide.tail) + 1,
                guide.tail - 1,
            )
        ]
        for step in range(1, count)
    }
    return sorted(place for place in places if begin < place < end)


def _range_between(
    replica: int,
    index: SegmentIndex,
    parts: Sequence[_StreamSlice],
    ranges: SeqnoRanges,
    begin: int,
    end: int,
) -> SegmentRange:
    inside: SeqnoRanges = {}
    rows = payload_bytes = 0
    for part in parts:
        offsets = part.stream.column(OFFSET)
        head = bisect_left(offsets, begin, part.head, part.tail)
        tail = bisect_left(offsets, end, part.head, part.tail)
        if head == tail:
            continue
        above, upto = ranges[part.key]
        inside[part.key] = (
            max(above, part.stream.column(FIRST)[head] - 1),
            min(upto, part.stream.column(LAST)[tail - 1]),
        )
        cut = part._replace(head=head, tail=tail)
        rows += cut.total(ROWS)
        payload_bytes += cut.total(PAYLOAD)
    place = (replica, index.number, begin, end)
    return SegmentRange(*place, rows, payload_bytes, inside, index.is_encrypted)


def partition_count(rows: int, payload_bytes: int, least: int, most: int) -> int:
    """Return how many partitions a batch is worth: a Python task costs 16 to 30 ms."""
    wanted = max(-(-rows // PARTITION_ROWS), -(-payload_bytes // PARTITION_BYTES))
    return max(least, min(most, max(1, wanted)))


def pack(found: Iterable[SegmentRange], count: int) -> list[list[SegmentRange]]:
    """Pack ranges into at most ``count`` partitions of about the same work, keeping the order.

    So within a partition a stream goes up, and a partition reads few segments.
    """
    stretch_list = list(found)
    total = sum(_weight(stretch) for stretch in stretch_list)
    bins: list[list[SegmentRange]] = [[] for _ in range(max(1, count))]
    before = 0
    for stretch in stretch_list:
        middle = before + _weight(stretch) // 2
        bins[min(len(bins) - 1, middle * len(bins) // max(1, total))].append(stretch)
        before += _weight(stretch)
    return [each for each in bins if each]


def _weight(stretch: SegmentRange) -> int:
    return stretch.rows * 100 + stretch.payload_bytes + 1


def seqnos_between(totals: Mapping[str, int], start: Mapping[str, int]) -> int:
    """Return how many seqnos lie between two digests: the number of rows, or a little more."""
    return sum(max(0, seqno - start.get(key, 0)) for key, seqno in totals.items())
