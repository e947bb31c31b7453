"""Reading records: every checksum is checked, and no seqno is skipped silently."""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.run import LENGTH_BYTES
from gapless.spool.errors import SpoolCorrupt, damaged_record_error
from gapless.spool.format import (
    ENCRYPTED,
    HEADER,
    HEADER_BYTES,
    LOST,
    MESSAGE,
    RUN,
    RecordHeader,
    parse_stream_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gapless.identity import Address
    from gapless.spool.segment_file import SegmentFile

READ_BYTES = 4 * 1024 * 1024
"""Number of bytes per read of a segment."""


class Slice(NamedTuple):
    """Messages ``lo + 1 .. hi`` of a stream in a segment; picklable.

    ``offset`` and ``size_bytes`` span the records, with records of other streams between them.
    ``rows`` is the number of messages, ``payload_bytes`` the size of the messages (in proportion
    for a cut run). With ``encrypted`` a record in plain is damage.
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
    encrypted: bool = False


class Record(NamedTuple):
    """A run, or a reassembled fragmented message (``kind`` is RUN or MESSAGE).

    ``lengths`` is the run's table of 16-bit little-endian lengths, empty for a fragmented message;
    ``payload`` holds the messages end to end. Both are views into the bytes of the file.
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
        """Return the seqno of each message; a fragmented message has its last seqno."""
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
    """A slice during reading: ``after`` is the last seqno seen of the stream."""

    __slots__ = ("origin", "read_upto", "slice")

    def __init__(self, wanted: Slice) -> None:
        self.origin = parse_stream_key(wanted.stream)
        self.slice = wanted
        self.read_upto = wanted.lo


def read_records(file: SegmentFile, slices: Sequence[Slice]) -> Iterator[Record]:
    """Read slices of a segment in a single pass.

    The records of a stream come in order, streams in the order of writing.
    """
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
    """Return the byte ranges of the slices, without overlap."""
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
    """Yield the wanted records between two offsets.

    Damage is skipped here: the seqnos of the next record of a stream reveal missing messages.
    """
    unpack, make = HEADER.unpack, Record._make
    for block in file.blocks(start, end, READ_BYTES):
        window, base = memoryview(block.data), block.base
        for header in block.headers:
            fields = unpack(header)
            body_crc, kind, flags, marks, rows, table_bytes, payload_bytes, at, _ = fields[:9]
            node, incarnation, first, last, view, sent_ns, collected_ns = fields[9:]
            parts = wanted.get((node, incarnation))
            if parts is None or not 0 < kind <= LOST:
                continue
            here = at - base + HEADER_BYTES
            body = window[here : here + table_bytes + payload_bytes]
            part = parts[0]
            if (
                kind != LOST
                and len(parts) == 1
                and first == part.read_upto + 1
                and last <= part.slice.hi
            ):
                # The usual case: the whole next record of a stream that is read once.
                if marks & ENCRYPTED:
                    body = memoryview(file.decrypt(header, body))
                elif part.slice.encrypted or crc32(body) != body_crc:
                    raise damaged_record_error(file.path, at)
                part.read_upto = last
                source = (kind, part.slice.stream, part.origin, part.slice.name, first, last)
                numbers = (rows, flags, view, sent_ns, collected_ns)
                yield make((*source, *numbers, body[:table_bytes], body[table_bytes:]))
            else:
                yield from _records_in_slices(file, RecordHeader._make(fields), body, parts)


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
        if not checked and header.is_encrypted:
            body = memoryview(file.decrypt(HEADER.pack(*header), body))
        elif not checked and (part.slice.encrypted or crc32(body) != header.body_crc):
            raise damaged_record_error(file.path, header.offset)
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


def _missing_error(file: SegmentFile, wanted: Slice, first: int, last: int) -> SpoolCorrupt:
    root = file.path.parent.parent
    return SpoolCorrupt(
        f"{file.path}: messages {first}..{last} of {wanted.stream} are missing; "
        f"`gapless spool check {root}` lists all damage; to continue without these messages, stop "
        f"the collector and run `gapless spool repair {root}`",
        file.path,
        wanted.offset,
    )
