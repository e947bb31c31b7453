"""Reading records: from slices to runs, with every checksum looked at and no seqno left out in silence."""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.run import LENGTH_BYTES
from gapless.spool.errors import SpoolCorrupt
from gapless.spool.format import (
    HEADER,
    HEADER_BYTES,
    LOST,
    MAGIC,
    MESSAGE,
    RUN,
    RecordHeader,
    parse_header,
    parse_stream_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.identity import Address
    from gapless.spool.segment_file import SegmentFile

READ_BYTES = 4 * 1024 * 1024


class Slice(NamedTuple):
    """Messages ``lo + 1 .. hi`` of one stream that stand in one segment; picklable.

    ``offset`` and ``size_bytes`` span the records; records of other streams may stand between them.
    ``rows`` is how many messages that is, ``payload_bytes`` what they take (of a run that is cut,
    in proportion).
    """

    stream: str
    lo: int
    hi: int
    segment: int
    offset: int
    size_bytes: int
    rows: int
    payload_bytes: int
    name: str = ""


class Record(NamedTuple):
    """A run, or one message that travelled in pieces (``kind`` is RUN or MESSAGE).

    ``lengths`` is the run's table of 16-bit little-endian lengths, empty for a message in pieces;
    ``payload`` the messages end to end. Both are views into what was read.
    """

    kind: int
    stream: str
    origin: Address
    name: str
    first: int
    last: int
    rows: int
    flags: int
    view: int
    sent_ns: int
    collected_ns: int
    lengths: memoryview
    payload: memoryview

    def messages(self) -> list[bytes]:
        """Return the messages, in order."""
        if self.kind == MESSAGE:
            return [bytes(self.payload)]
        payload = bytes(self.payload)
        ends = list(accumulate(decode_lengths(self.lengths)))
        return [payload[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def seqnos(self) -> range:
        """Return the number of each message; one that travelled in pieces has its last."""
        return (
            range(self.first, self.last + 1)
            if self.kind == RUN
            else range(self.last, self.last + 1)
        )


def decode_lengths(table: memoryview | bytes) -> array[int]:
    """Return the lengths of a run's messages as numbers."""
    lengths = array("H")
    lengths.frombytes(table)
    if sys.byteorder == "big":
        lengths.byteswap()
    return lengths


class _SliceCursor:
    """One slice while it is read: ``after`` is the seqno up to which the stream has been seen."""

    __slots__ = ("origin", "read_upto", "slice")

    def __init__(self, wanted: Slice) -> None:
        self.origin = parse_stream_key(wanted.stream)
        self.slice = wanted
        self.read_upto = wanted.lo


def read_records(file: SegmentFile, slices: Sequence[Slice]) -> Iterator[Record]:
    """Read slices of one segment in one go; the records of each stream come in order, streams as they were written."""
    wanted: dict[tuple[int, int], list[_SliceCursor]] = {}
    for each in sorted(slices, key=lambda one: one.lo):
        part = _SliceCursor(each)
        wanted.setdefault(part.origin, []).append(part)
    for start, end in _byte_ranges(slices):
        yield from _scan_records(file, start, end, wanted)
    for parts in wanted.values():
        for part in parts:
            if part.read_upto < part.slice.hi:
                raise _missing_error(file, part.slice, part.read_upto + 1, part.slice.hi)


def _byte_ranges(slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """Return the stretches of the file that the slices span, without overlap."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((each.offset, each.offset + each.size_bytes) for each in slices):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _scan_records(
    file: SegmentFile, start: int, end: int, wanted: dict[tuple[int, int], list[_SliceCursor]]
) -> Iterator[Record]:
    at, base, limit, window = start, start, start, memoryview(b"")
    unpack, seed, make = HEADER.unpack_from, file.seed, Record._make
    while at < end:
        here = at - base
        fields = unpack(window, here) if limit - at >= HEADER_BYTES else None
        if fields is None or at + HEADER_BYTES + fields[7] + fields[8] > limit:
            header, window = _load_window(file, at, end)
            base, here, limit = at, 0, at + len(window)
            if header is None:
                # Whose record this was, the seqnos of the next ones tell.
                at = file.find_header(at + 1, end)
                continue
            fields = header
        elif (
            fields[0] != MAGIC
            or fields[9] != at
            or fields[1] != crc32(window[here + 8 : here + HEADER_BYTES], seed)
        ):
            at = file.find_header(at + 1, end)
            continue
        kind, first, last = fields[3], fields[13], fields[14]
        size_bytes = HEADER_BYTES + fields[7] + fields[8]
        parts = wanted.get(fields[11:13])
        if parts is not None and 0 < kind <= LOST:
            body = window[here + HEADER_BYTES : here + size_bytes]
            part = parts[0]
            if (
                kind != LOST
                and len(parts) == 1
                and first == part.read_upto + 1
                and last <= part.slice.hi
            ):
                # The usual case: the next record, as a whole.
                if crc32(body) != fields[2]:
                    raise corrupt_record_error(file, at)
                part.read_upto = last
                told, cut = (fields[6], fields[4], fields[15], fields[16], fields[17]), fields[7]
                who = (kind, part.slice.stream, part.origin, part.slice.name, first, last)
                yield make((*who, *told, body[:cut], body[cut:]))
            else:
                yield from _records_in_slices(file, RecordHeader._make(fields), body, parts)
        at += size_bytes


def _load_window(file: SegmentFile, at: int, end: int) -> tuple[RecordHeader | None, memoryview]:
    """Read on from a record, as a whole and with what follows it; None if no whole record stands there."""
    window = memoryview(file.read(at, min(READ_BYTES, end - at)))
    header = parse_header(window, 0, at, file.seed)
    if header is not None and len(window) < header.size_bytes <= end - at:
        window = memoryview(file.read(at, header.size_bytes))
    return (None if header is None or header.size_bytes > len(window) else header), window


def _records_in_slices(
    file: SegmentFile, header: RecordHeader, body: memoryview, parts: list[_SliceCursor]
) -> Iterator[Record]:
    checked = False
    for part in parts:
        after, hi = part.read_upto, part.slice.hi
        if header.last <= after or header.first > hi:
            continue
        if header.first > after + 1:
            raise _missing_error(file, part.slice, after + 1, header.first - 1)
        if not checked and crc32(body) != header.body_crc:
            raise corrupt_record_error(file, header.offset)
        checked = True
        part.read_upto = min(header.last, hi)
        if header.kind == RUN or (header.kind == MESSAGE and header.last <= hi):
            yield _cut_record(header, body, part.slice, after, part.read_upto)


def _cut_record(
    header: RecordHeader, body: memoryview, wanted: Slice, after: int, upto: int
) -> Record:
    lengths, payload = body[: header.table_bytes], body[header.table_bytes :]
    first, last, rows = header.first, header.last, header.rows
    if header.kind == RUN and (first <= after or last > upto):
        head, tail = max(after + 1 - first, 0), upto - first + 1
        ends = list(accumulate(decode_lengths(lengths), initial=0))
        payload = payload[ends[head] : ends[tail]]
        lengths = lengths[head * LENGTH_BYTES : tail * LENGTH_BYTES]
        first, last, rows = first + head, first + tail - 1, tail - head
    told = (header.flags, header.view, header.sent_ns, header.collected_ns)
    return Record(
        header.kind,
        wanted.stream,
        header.origin,
        wanted.name,
        first,
        last,
        rows,
        *told,
        lengths,
        payload,
    )


def corrupt_record_error(file: SegmentFile, offset: int) -> SpoolCorrupt:
    """Return the error for a record that is not what was written."""
    root = file.path.parent.parent
    return SpoolCorrupt(
        f"{file.path}: the record at {offset} is damaged; see `gapless spool check {root}`; to go on without it, stop "
        f"the collector and run `gapless spool repair {root}`, or read from a replica",
        file.path,
        offset,
    )


def _missing_error(file: SegmentFile, wanted: Slice, first: int, last: int) -> SpoolCorrupt:
    root = file.path.parent.parent
    return SpoolCorrupt(
        f"{file.path}: messages {first}..{last} of {wanted.stream} are not where they should be; see `gapless spool "
        f"check {root}`; to go on without them, stop the collector and run `gapless spool repair {root}`",
        file.path,
        wanted.offset,
    )
