"""Stretches of segments into chunks, on an executor.

A file is read block by block. One short loop walks from header to header and checks each; the
headers are then joined, and numpy takes them apart, picks what is wanted and joins lengths and
payloads. So a record costs a few microseconds, and a message in it next to nothing. Every checksum
is checked before anything is handed on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from gapless.spool.errors import SpoolCorrupt, SpoolError, SpoolTrimmed, from_os_error
from gapless.spool.format import HEADER, HEADER_BYTES, MAGIC, MESSAGE, RUN

if TYPE_CHECKING:
    import numpy as np

BLOCK_BYTES: Final = 4 * 1024 * 1024
COPY_BELOW_BYTES: Final = 2048
BATCH_ROWS: Final = 16 * 1024
BATCH_BYTES: Final = 4 * 1024 * 1024

StreamRanges = Mapping[tuple[int, int], tuple[int, int, int]]
"""(node, incarnation) to (place of the stream, above, up to)."""

_START = Struct("<4sI12xIQ")
_REST: Final = (
    ("body_crc", "<u4"), ("kind", "u1"), ("flags", "u1"), ("marks", "u1"), ("pad", "u1"), ("count", "<u4"),
    ("table", "<u4"), ("payload", "<u8"), ("offset", "<u8"), ("group", "<u8"), ("node", "<u8"), ("incarnation", "<u8"),
    ("first", "<u8"), ("last", "<u8"), ("view", "<u8"), ("sent_ns", "<i8"), ("collected_ns", "<i8"),
)  # fmt: skip
assert HEADER.format == "<4sIIBBBxIIQQQQQQQQqq", (
    "the header of a record has changed: change this with it"
)


class RecordChunk(NamedTuple):
    """Messages of many records: one entry of each of the first seven for a record, of ``lengths`` for a message.

    ``place`` is that of the stream in the list of streams; ``payload`` is all messages end to end.
    """

    stream: np.ndarray[Any, Any]
    first: np.ndarray[Any, Any]
    rows: np.ndarray[Any, Any]
    flags: np.ndarray[Any, Any]
    view: np.ndarray[Any, Any]
    sent_ns: np.ndarray[Any, Any]
    collected_ns: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    payload: bytes


def scan(
    path: Path, seed: int, begin: int, end: int, wanted: StreamRanges
) -> Iterator[RecordChunk]:
    """Return the wanted messages of the records in ``begin .. end`` of a segment, in the order of the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SpoolTrimmed(
            f"{path}: the segment is not there (any more); it was let go after the batch was planned, or this machine "
            "does not see the folder of the spool",
            path,
        ) from None
    except OSError as error:
        raise from_os_error(error, path, "opening it") from error
    try:
        at, size_bytes = begin, BLOCK_BYTES
        while at < end:
            block = _read(descriptor, path, at, min(size_bytes, end - at))
            walked = _scan_headers(block, path, seed, at)
            if walked.next_offset == at and walked.error is None:
                if len(block) < min(size_bytes, end - at) or walked.need_bytes <= len(block):
                    raise _corrupt_error(path, at, "the segment ends within it")
                # A record that is larger than a block.
                size_bytes = walked.need_bytes
                continue
            yield from _chunks(block, path, walked, at, wanted)
            if walked.error is not None:
                raise walked.error
            at = walked.next_offset
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path, at: int, size_bytes: int) -> bytes:
    try:
        data = os.pread(descriptor, size_bytes, at)
        while 0 < len(data) < size_bytes and (
            more := os.pread(descriptor, size_bytes - len(data), at + len(data))
        ):
            data += more
    except OSError as error:
        raise from_os_error(error, path, f"reading at {at}") from error
    return data


class _HeaderScan(NamedTuple):
    """The headers of the whole records of a block, each behind its first eight bytes."""

    headers: list[bytes]
    next_offset: int
    need_bytes: int
    error: SpoolError | None


def _scan_headers(block: bytes, path: Path, seed: int, base: int) -> _HeaderScan:
    unpack, crc, header_bytes, size_bytes = _START.unpack_from, crc32, HEADER_BYTES, len(block)
    heads: list[bytes] = []
    at = 0
    need_bytes = header_bytes
    while at + header_bytes <= size_bytes:
        magic, header_crc, table_bytes, payload_bytes = unpack(block, at)
        body = at + header_bytes
        head = block[at + 8 : body]
        if magic != MAGIC or crc(head, seed) != header_crc:
            return _HeaderScan(
                heads,
                base + at,
                0,
                _corrupt_error(path, base + at, "its header is not what was written"),
            )
        after = body + table_bytes + payload_bytes
        if after > size_bytes:
            need_bytes = after - at
            break
        heads.append(head)
        at = after
    return _HeaderScan(heads, base + at, need_bytes, None)


def _chunks(
    block: bytes, path: Path, walked: _HeaderScan, base: int, wanted: StreamRanges
) -> Iterator[RecordChunk]:
    import numpy as np

    head = np.frombuffer(b"".join(walked.headers), list(_REST))
    sizes = HEADER_BYTES + head["table"].astype(np.int64) + head["payload"].astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    elsewhere = np.flatnonzero(head["offset"].astype(np.int64) != starts + base)
    if len(elsewhere):
        raise _corrupt_error(
            path, int(starts[elsewhere[0]]) + base, "it was written for another place"
        )
    get = wanted.get
    nobody = (-1, 0, 0)
    found = [
        get(key, nobody)
        for key in zip(head["node"].tolist(), head["incarnation"].tolist(), strict=True)
    ]
    place, above, upto = np.array(found, np.int64).reshape(-1, 3).T
    first, last = head["first"].astype(np.int64), head["last"].astype(np.int64)
    kind = head["kind"]
    take = (
        (place >= 0)
        & (kind <= MESSAGE)
        & (last > above)
        & (first <= upto)
        & ((kind == RUN) | (last <= upto))
    )
    picked = np.flatnonzero(take)
    if not len(picked):
        return
    head, place, above, upto, starts = (
        head[picked],
        place[picked],
        above[picked],
        upto[picked],
        starts[picked],
    )
    rows = np.where(head["kind"] == RUN, head["count"], 1).astype(np.int64)
    # A copy of a few bytes is cheaper than a view of them.
    source = block if len(block) < COPY_BELOW_BYTES * len(sizes) else memoryview(block)
    for begin, end in _batch_bounds(rows, head["payload"].astype(np.int64)):
        part = slice(begin, end)
        yield _chunk(
            source, path, base, head[part], (place[part], above[part], upto[part]), starts[part]
        )


def _batch_bounds(
    rows: np.ndarray[Any, Any], size_bytes: np.ndarray[Any, Any]
) -> Iterator[tuple[int, int]]:
    """Return where to cut records into batches."""
    import numpy as np

    row_sums, byte_sums = np.cumsum(rows), np.cumsum(size_bytes)
    begin = row_base = byte_base = 0
    while begin < len(rows):
        by_rows = int(np.searchsorted(row_sums, row_base + BATCH_ROWS, "right"))
        by_bytes = int(np.searchsorted(byte_sums, byte_base + BATCH_BYTES, "right"))
        end = max(begin + 1, min(by_rows, by_bytes))
        yield begin, end
        begin, row_base, byte_base = end, int(row_sums[end - 1]), int(byte_sums[end - 1])


def _chunk(
    block: bytes | memoryview,
    path: Path,
    base: int,
    head: np.ndarray[Any, Any],
    wanted: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]],
    starts: np.ndarray[Any, Any],
) -> RecordChunk:
    import numpy as np

    place, above, upto = wanted
    bodies = starts + HEADER_BYTES
    tables = bodies + head["table"]
    ends = tables + head["payload"].astype(np.int64)
    crc = crc32
    for begin, end, expected in zip(
        bodies.tolist(), ends.tolist(), head["body_crc"].tolist(), strict=True
    ):
        if crc(block[begin:end]) != expected:
            raise _corrupt_error(
                path, base + begin - HEADER_BYTES, "its messages are not what was written"
            )
    whole = head["kind"] == MESSAGE
    first = np.where(whole, head["last"], head["first"]).astype(np.int64)
    rows = np.where(whole, 1, head["count"]).astype(np.int64)
    # What is before and behind the wanted seqnos of a run; a message in pieces has the number of
    # its last.
    skip = np.maximum(above + 1 - first, 0)
    keep = np.minimum(rows, upto + 1 - first) - skip
    for at in np.flatnonzero((skip > 0) | (keep < rows)).tolist():
        lengths = np.frombuffer(block[bodies[at] : tables[at]], "<u2").astype(np.int64)
        head_rows, kept = int(skip[at]), int(keep[at])
        tables_at = int(tables[at]) + int(lengths[:head_rows].sum())
        ends[at] = tables_at + int(lengths[head_rows : head_rows + kept].sum())
        bodies[at] += 2 * head_rows
        tables[at] = tables_at
    payload = b"".join(
        [block[begin:end] for begin, end in zip(tables.tolist(), ends.tolist(), strict=True)]
    )
    lengths = _lengths(block, bodies, keep, whole, ends - tables)
    return RecordChunk(
        place,
        first + skip,
        keep,
        head["flags"],
        head["view"],
        head["sent_ns"],
        head["collected_ns"],
        lengths,
        payload,
    )


def _lengths(
    block: bytes | memoryview,
    tables: np.ndarray[Any, Any],
    rows: np.ndarray[Any, Any],
    whole: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return the length of each message: from the tables of runs, and the size of those that came in pieces."""
    import numpy as np

    runs = ~whole
    begins, counts = tables[runs], rows[runs]
    if len(begins) * 16 < int(counts.sum()):
        pairs = zip(begins.tolist(), (begins + 2 * counts).tolist(), strict=True)
        raw = np.frombuffer(b"".join([block[begin:end] for begin, end in pairs]), "<u2")
    else:
        before = np.cumsum(counts) - counts
        at = np.repeat(begins - 2 * before, counts) + 2 * np.arange(int(counts.sum()))
        octets = np.frombuffer(block, np.uint8)
        raw = octets[at].astype(np.int32) | (octets[at + 1].astype(np.int32) << 8)
    if not whole.any():
        return raw.astype(np.int32)
    lengths = np.empty(int(rows.sum()), np.int32)
    of_runs = np.repeat(runs, rows)
    lengths[of_runs] = raw
    lengths[~of_runs] = sizes[whole]
    return lengths


def _corrupt_error(path: Path, offset: int, what: str) -> SpoolCorrupt:
    spool = path.parent.parent
    return SpoolCorrupt(
        f"{path}: the record at {offset} is damaged: {what}. `gapless spool check {spool}` lists all damage, "
        f"`gapless spool repair {spool}` sets it aside; a replica in the option spool is read in its place",
        path,
        offset,
    )
