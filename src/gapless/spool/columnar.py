"""Reads byte ranges of segments into columns: many records at a time, for Spark.

The file is read block by block. The scan of headers checks each header; numpy then splits the
joined headers, selects the wanted records and joins lengths and payloads. A record costs a few
microseconds, and a message within the record almost nothing. Every checksum is checked before a
chunk is handed on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from gapless.spool.errors import SpoolTrimmed, damaged_record_error, from_os_error
from gapless.spool.format import (
    ENCRYPTED,
    HEADER,
    HEADER_BYTES,
    MESSAGE,
    RUN,
    TAG_BYTES,
    RecordHeader,
    parse_header,
)
from gapless.spool.segment_file import SegmentBlock, SegmentFile, segment_path

if TYPE_CHECKING:
    import numpy as np

    from gapless.spool.encryption import SpoolKeys

BLOCK_BYTES: Final = 4 * 1024 * 1024
"""How many bytes of a segment are read at once."""
COPY_BELOW_BYTES: Final = 2048
"""Mean size of records below which slices of a block are copied instead of viewed."""
BATCH_ROWS: Final = 16 * 1024
"""Maximum number of messages in a chunk, unless one record has more."""
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Maximum payload of a chunk, unless one record has more."""

StreamRanges = Mapping[tuple[int, int], tuple[int, int, int]]
"""(node, incarnation) to (stream index, above, up to): seqnos above + 1 .. up to are wanted."""

SeqnoSets = dict[str, list[tuple[int, int]]]
"""Some seqnos of each stream, as first and last of each range, in order."""

_NUMPY_CODES = {"I": "<u4", "B": "u1", "x": "u1", "Q": "<u8", "q": "<i8"}


def _header_dtype() -> list[tuple[str, str]]:
    """Return the numpy type of a header, derived from the struct used by the writer."""
    names = iter(RecordHeader._fields)
    codes = HEADER.format.removeprefix("<")
    return [("padding" if code == "x" else next(names), _NUMPY_CODES[code]) for code in codes]


class RecordChunk(NamedTuple):
    """Messages of many records, as columns.

    The first seven columns have an entry per record, ``lengths`` has an entry per message.
    ``stream`` is the index of the stream in ``wanted``; ``payload`` holds all messages end to end.
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
    root: Path,
    spool_id: bytes,
    segment: int,
    begin: int,
    end: int,
    wanted: StreamRanges,
    keys: SpoolKeys | None = None,
    *,
    encrypted: bool = False,
) -> Iterator[RecordChunk]:
    """Read the wanted messages of a byte range of a segment, in the order of the file.

    Args:
        root: The folder of the spool.
        spool_id: The id of the spool, the start value of the checksums.
        segment: The number of the segment.
        begin: The offset of the first record.
        end: The offset behind the last record.
        wanted: The streams and seqnos to return.
        keys: The keys of an encrypted spool.
        encrypted: Whether the segment is encrypted: then a record in plain is damage.

    Raises:
        SpoolKeyError: The segment is encrypted, and the key is missing or wrong.
        SpoolTrimmed: The segment was deleted after the range was planned.
        SpoolCorrupt: A record is damaged. All earlier chunks have been returned.
    """
    path = segment_path(root, segment)
    try:
        file = SegmentFile(path, segment, spool_id, keys)
    except FileNotFoundError:
        raise SpoolTrimmed(
            f"{path}: the segment is missing: it was trimmed after the batch was planned, or "
            "the folder of the spool is not mounted on this machine",
            path,
        ) from None
    except OSError as error:
        raise from_os_error(error, path, "opening it") from error
    with file:
        for block in file.blocks(begin, end, BLOCK_BYTES):
            if block.headers:
                yield from _chunks(block, file, wanted, must_be_encrypted=encrypted)
            if block.damage_bytes:
                header = parse_header(block.data, block.end - block.base, block.end, file.seed)
                reason = "the checksum of the header does not match"
                if header is not None:
                    reason = "the segment ends within the record"
                raise damaged_record_error(path, block.end, reason)


def _chunks(
    block: SegmentBlock, file: SegmentFile, wanted: StreamRanges, *, must_be_encrypted: bool
) -> Iterator[RecordChunk]:
    import numpy as np

    head = np.frombuffer(b"".join(block.headers), _header_dtype())
    starts = head["offset"].astype(np.int64) - block.base
    unwanted = (-1, 0, 0)
    found = [
        wanted.get(key, unwanted)
        for key in zip(head["node"].tolist(), head["incarnation"].tolist(), strict=True)
    ]
    stream, above, upto = np.array(found, np.int64).reshape(-1, 3).T
    first, last = head["first"].astype(np.int64), head["last"].astype(np.int64)
    kind = head["kind"]
    take = (
        (stream >= 0)
        & (kind <= MESSAGE)
        & (last > above)
        & (first <= upto)
        & ((kind == RUN) | (last <= upto))
    )
    picked = np.flatnonzero(take)
    if not len(picked):
        return
    records = len(head)
    head, starts = head[picked], starts[picked]
    ranges = (stream[picked], above[picked], upto[picked])
    rows = np.where(head["kind"] == RUN, head["rows"], 1).astype(np.int64)
    # Copying a few bytes is cheaper than making a view of them.
    small = len(block.data) < COPY_BELOW_BYTES * records
    encrypted = must_be_encrypted or bool((head["marks"] & ENCRYPTED).any())
    content = bytearray(block.data) if encrypted else block.data
    data = content if small else memoryview(content)
    for begin, end in _batch_bounds(rows, head["payload_bytes"].astype(np.int64)):
        part = slice(begin, end)
        if encrypted:
            chosen = head[part], starts[part], picked[part].tolist()
            _decrypt(content, block, file, chosen, must_be_encrypted=must_be_encrypted)
        in_part = (ranges[0][part], ranges[1][part], ranges[2][part])
        yield _chunk(data, file.path, block.base, head[part], in_part, starts[part])


def _decrypt(
    content: bytes | bytearray,
    block: SegmentBlock,
    file: SegmentFile,
    records: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[int]],
    *,
    must_be_encrypted: bool,
) -> None:
    """Replace the encrypted ones of the picked records by plain ones, in the same places.

    The tags stay behind the payloads, and ``head`` counts them no more.
    """
    import numpy as np

    assert isinstance(content, bytearray)
    head, starts, picked = records
    sizes = head["table_bytes"].astype(np.int64) + head["payload_bytes"].astype(np.int64)
    with memoryview(block.data) as data:
        for marks, begin, size_bytes, record in zip(
            head["marks"].tolist(),
            (starts + HEADER_BYTES).tolist(),
            sizes.tolist(),
            picked,
            strict=True,
        ):
            if marks & ENCRYPTED:
                body = file.decrypt(block.headers[record], data[begin : begin + size_bytes])
                content[begin : begin + len(body)] = body
            elif must_be_encrypted:
                reason = "the record is not encrypted, in an encrypted segment"
                raise damaged_record_error(file.path, begin - HEADER_BYTES + block.base, reason)
    head["payload_bytes"] -= np.where(head["marks"] & ENCRYPTED, TAG_BYTES, 0).astype(np.uint64)


def _batch_bounds(
    rows: np.ndarray[Any, Any], size_bytes: np.ndarray[Any, Any]
) -> Iterator[tuple[int, int]]:
    """Return the bounds of chunks: as many records as fit BATCH_ROWS and BATCH_BYTES."""
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
    block: bytes | bytearray | memoryview,
    path: Path,
    base: int,
    head: np.ndarray[Any, Any],
    wanted: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]],
    starts: np.ndarray[Any, Any],
) -> RecordChunk:
    import numpy as np

    stream, above, upto = wanted
    bodies = starts + HEADER_BYTES
    tables = bodies + head["table_bytes"]
    ends = tables + head["payload_bytes"].astype(np.int64)
    crc, unchecked = crc32, (head["marks"] & ENCRYPTED) == 0
    for begin, end, expected in zip(
        bodies[unchecked].tolist(),
        ends[unchecked].tolist(),
        head["body_crc"][unchecked].tolist(),
        strict=True,
    ):
        if crc(block[begin:end]) != expected:
            reason = "the checksum of the messages does not match"
            raise damaged_record_error(path, base + begin - HEADER_BYTES, reason)
    whole = head["kind"] == MESSAGE
    first = np.where(whole, head["last"], head["first"]).astype(np.int64)
    rows = np.where(whole, 1, head["rows"]).astype(np.int64)
    # Cut off what a run holds before and behind the wanted seqnos. A reassembled message has the
    # seqno of its last fragment, so it is never cut.
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
        stream,
        first + skip,
        keep,
        head["flags"],
        head["view"],
        head["sent_ns"],
        head["collected_ns"],
        lengths,
        payload,
    )


def without_seqnos(chunk: RecordChunk, unwanted: SeqnoSets, keys: Sequence[str]) -> RecordChunk:
    """Return a chunk without some seqnos; ``keys`` has the stream of each index in the chunk.

    A record with unwanted messages in between becomes several records.
    """
    import numpy as np

    record = np.repeat(np.arange(len(chunk.rows)), chunk.rows)
    seqno = (
        chunk.first[record] + np.arange(len(record)) - (np.cumsum(chunk.rows) - chunk.rows)[record]
    )
    keep = np.ones(len(record), bool)
    for at in np.unique(chunk.stream).tolist():
        for first, last in unwanted.get(keys[at], ()):
            keep &= (chunk.stream[record] != at) | (seqno < first) | (seqno > last)
    if keep.all():
        return chunk
    kept = np.flatnonzero(keep)
    begins = np.flatnonzero(np.diff(kept, prepend=-2) + np.diff(record[kept], prepend=-1) > 1)
    counts = np.diff(begins, append=len(kept))
    of = record[kept[begins]]
    ends = np.cumsum(chunk.lengths, dtype=np.int64)
    starts = ends - chunk.lengths
    pairs = zip(kept[begins].tolist(), (kept[begins] + counts - 1).tolist(), strict=True)
    return RecordChunk(
        chunk.stream[of],
        seqno[kept[begins]],
        counts,
        chunk.flags[of],
        chunk.view[of],
        chunk.sent_ns[of],
        chunk.collected_ns[of],
        chunk.lengths[keep],
        b"".join([chunk.payload[starts[low] : ends[high]] for low, high in pairs]),
    )


def _lengths(
    block: bytes | bytearray | memoryview,
    tables: np.ndarray[Any, Any],
    rows: np.ndarray[Any, Any],
    whole: np.ndarray[Any, Any],
    sizes: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return the length of each message: from the table of a run, or the size of a record."""
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
