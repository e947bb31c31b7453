"""Scans of a segment: the valid records, the end of the segment, and the index.

All functions only read. The writer opens a spool with them (recovery), readers rebuild a missing
index, and ``gapless spool check`` reads every record.

Bytes proven durable are never cut off: all bytes covered by the ``committed`` file, and all bytes
before the commit of any valid record. Behind the proven bytes, a segment ends with its last
complete commit; the rest is a torn write that was never reported durable. A bad record within the
proven bytes is damage.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.spool.encryption import IndexCipher, SpoolKeys
from gapless.spool.errors import (
    SpoolCorrupt,
    SpoolError,
    SpoolKeyError,
    SpoolVersion,
    segment_trimmed_error,
)
from gapless.spool.format import (
    COMMIT_END,
    ENCRYPTED_FORMAT,
    HEADER_BYTES,
    KEY,
    KINDS,
    OPTIONAL_KIND,
    PREAMBLE_BYTES,
    SEGMENT_REPAIRED,
    STATE,
    RecordHeader,
    StateRecord,
    parse_header,
    parse_preamble,
    unpack_header,
)
from gapless.spool.index import CorruptIndex, SegmentIndex
from gapless.spool.segment_file import (
    SEARCH_BYTES,
    SegmentFile,
    SpoolInfo,
    index_path,
    list_segments,
    segment_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class DamagedRange(NamedTuple):
    """Bytes of a segment that are no record. ``header`` is set if only the body is wrong."""

    offset: int
    size_bytes: int
    header: RecordHeader | None = None


def verify_records(
    file: SegmentFile, start: int, end: int
) -> Iterator[RecordHeader | DamagedRange]:
    """Check every record from ``start`` to ``end``, headers and bodies, and skip over damage.

    In an encrypted segment a record in plain is damage: its streams and seqnos are not believed.
    """
    preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
    encrypted = preamble is not None and preamble.format >= ENCRYPTED_FORMAT
    for block in file.blocks(start, end, SEARCH_BYTES):
        window = memoryview(block.data)
        for packed in block.headers:
            header = unpack_header(packed)
            at = header.offset - block.base
            body = window[at + HEADER_BYTES : at + header.size_bytes]
            encrypted = encrypted or header.is_encrypted or header.kind == KEY
            if encrypted and not header.is_encrypted and 0 < header.kind < KEY:
                yield DamagedRange(header.offset, header.size_bytes)
                continue
            if crc32(body) == header.body_crc and (
                not header.is_encrypted or _decrypts(file, packed, body)
            ):
                yield header
            else:
                yield DamagedRange(header.offset, header.size_bytes, header)
        if block.damage_bytes:
            # A good header here means that the record is cut off: its streams and seqnos are known.
            cut = parse_header(block.data, block.end - block.base, block.end, file.seed)
            yield DamagedRange(block.end, block.damage_bytes, cut)


def _decrypts(file: SegmentFile, packed: bytes, body: memoryview) -> bool:
    try:
        file.decrypt(packed, body)
    except SpoolCorrupt:
        return False
    return True


class SegmentTail(NamedTuple):
    """The end of a segment; ``torn_bytes`` follow the end, ``damage`` precedes the end."""

    end: int
    torn_bytes: int
    damage: tuple[DamagedRange, ...]


def find_tail(file: SegmentFile, proven: int = 0) -> SegmentTail:
    """Return the end of an unsealed segment; bytes before ``proven`` are known to be durable."""
    size_bytes = file.size_bytes
    damage: list[DamagedRange] = []
    ends: list[int] = []
    for item in verify_records(file, PREAMBLE_BYTES, size_bytes):
        if isinstance(item, DamagedRange):
            damage.append(item)
            continue
        if item.kind not in KINDS and not item.kind & OPTIONAL_KIND:
            raise SpoolVersion(
                f"{file.path}: a record of the unknown kind {item.kind} at {item.offset}; install "
                f"a newer Gapless",
                file.path,
            )
        proven = max(proven, item.commit_offset)
        if item.marks & COMMIT_END:
            ends.append(item.offset + item.size_bytes)
    torn = min((each.offset for each in damage if each.offset >= proven), default=size_bytes)
    end = max((each for each in ends if each <= torn), default=min(PREAMBLE_BYTES, size_bytes))
    before = tuple(each for each in damage if each.offset < end or each.offset < proven)
    if proven > end and not any(each.offset < proven for each in damage):
        before = (*before, DamagedRange(end, proven - end))
    return SegmentTail(end, size_bytes - end if not before else 0, before)


def build_index_upto(file: SegmentFile, end: int) -> SegmentIndex:
    """Return the index of a segment made from the headers up to ``end``, around damage."""
    index = file.new_index()
    while index.end < end:
        file.extend_index(index, end)
        if index.end < end:
            found = file.find_header(index.end + 1, end)
            index.unreadable.append((index.end, found - index.end))
            index.end = found
    return index


def load_index(root: Path, info: SpoolInfo, number: int, keys: SpoolKeys | None) -> SegmentIndex:
    """Return the index of a sealed segment, from the index file or rebuilt."""
    path = index_path(root, number)
    try:
        index = SegmentIndex.load(
            path,
            number,
            partial(rebuild_index, root, info, number, keys),
            IndexCipher(keys, path, info.spool_id, number),
        )
    except (OSError, CorruptIndex, SpoolKeyError):
        # The segment has all that is in its index; the error of a missing key then names it.
        return build_index(root, info, number, keys)
    if keys is not None and not index.is_encrypted and _is_encrypted(root, info, number):
        # Only the writer of the segment can make its index; this one is of somebody else.
        return build_index(root, info, number, keys)
    return index


def _is_encrypted(root: Path, info: SpoolInfo, number: int) -> bool:
    with SegmentFile(segment_path(root, number), number, info.spool_id) as file:
        preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
    return preamble is not None and preamble.format >= ENCRYPTED_FORMAT


def rebuild_index(root: Path, info: SpoolInfo, number: int, keys: SpoolKeys | None) -> SegmentIndex:
    """Rebuild an index with a bad file; the segment may be trimmed meanwhile."""
    try:
        return build_index(root, info, number, keys)
    except FileNotFoundError as error:
        raise segment_trimmed_error(segment_path(root, number)) from error


def build_index(root: Path, info: SpoolInfo, number: int, keys: SpoolKeys | None) -> SegmentIndex:
    """Build the index of a sealed segment from the headers; the next segment names the end."""
    state = next_segment_state(root, info, number, keys)
    with SegmentFile(segment_path(root, number), number, info.spool_id, keys) as file:
        return build_index_upto(file, sealed_end(file, state))


def sealed_end(file: SegmentFile, after: StateRecord | None) -> int:
    """Return the end of a sealed segment: as the next segment says, unless repaired since.

    A segment that its successor does not name as the predecessor was never committed: the end is
    the start.
    """
    preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
    repaired = preamble is not None and preamble.flags & SEGMENT_REPAIRED
    if repaired or after is None or after.previous[0] > file.number:
        return file.size_bytes
    if after.previous[0] < file.number:
        return PREAMBLE_BYTES
    return min(file.size_bytes, after.previous[1])


def next_segment_state(
    root: Path, info: SpoolInfo, number: int, keys: SpoolKeys | None
) -> StateRecord | None:
    """Return the first STATE of the segment after ``number``, or None.

    Raises:
        SpoolKeyError: The segment is encrypted, and the key is missing or wrong.
    """
    later = [each for each in list_segments(root) if each > number]
    if not later:
        return None
    try:
        with SegmentFile(segment_path(root, later[0]), later[0], info.spool_id, keys) as file:
            index = SegmentIndex(later[0], PREAMBLE_BYTES)
            for header in file.headers(PREAMBLE_BYTES, file.size_bytes):
                if header.kind == KEY:
                    continue
                if not header.is_encrypted and _is_encrypted(root, info, number):
                    break  # not of the writer of this segment: its end is not what this says
                if header.kind == STATE:
                    file.index_control_record(index, header)
                break
            return index.first_state
    except SpoolKeyError:
        raise
    except (OSError, SpoolError, ValueError):
        return None
