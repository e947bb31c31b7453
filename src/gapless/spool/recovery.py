"""What a crash has left behind, put right.

On opening, the last segment is read record by record. What was proven durable is never cut: what
the ``committed`` file tells, and what stands before the group of any good record. Behind that, the
tail ends at the last whole commit; the rest is a torn write that nobody was told to be durable. A
bad record before the proof is damage: it is reported and left to repair, and the spool goes on in a
new segment.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.spool.errors import SpoolError, SpoolVersion, from_os_error, segment_trimmed_error
from gapless.spool.format import (
    COMMIT_END,
    HEADER_BYTES,
    KINDS,
    OPTIONAL_KIND,
    PREAMBLE_BYTES,
    SEGMENT_REPAIRED,
    STATE,
    RecordHeader,
    StateRecord,
    checksum_seed,
    parse_header,
    parse_preamble,
)
from gapless.spool.index import CorruptIndex, SegmentIndex
from gapless.spool.segment_file import (
    SEARCH_BYTES,
    CommittedOffset,
    SegmentFile,
    SpoolInfo,
    index_path,
    list_segments,
    segment_path,
)
from gapless.spool.segment_store import ActiveSegment, SegmentStore

if TYPE_CHECKING:
    from collections.abc import Iterator


class DamagedRange(NamedTuple):
    """Bytes of a segment that are no record. ``header`` is there if only the body is wrong."""

    offset: int
    size_bytes: int
    header: RecordHeader | None = None


class RecoveryResult(NamedTuple):
    """What opening has found: what was cut off a torn tail, and damage that is left to repair."""

    segment: int = 0
    truncated_bytes: int = 0
    damage: tuple[str, ...] = ()


def verify_records(
    file: SegmentFile, start: int, end: int
) -> Iterator[RecordHeader | DamagedRange]:
    """Read every record from ``start`` to ``end`` with its checksums; where none stands, look for the next."""
    at, base, window = start, start, memoryview(b"")
    while at < end:
        header = parse_header(window, at - base, at, file.seed)
        if header is None or at - base + header.size_bytes > len(window):
            need = HEADER_BYTES if header is None else header.size_bytes
            base, window = at, memoryview(file.read(at, min(max(SEARCH_BYTES, need), end - at)))
            header = parse_header(window, 0, at, file.seed)
            if (
                header is not None
                and header.size_bytes > len(window)
                and header.size_bytes <= end - at
            ):
                window = memoryview(file.read(at, header.size_bytes))
        if header is None or header.size_bytes > end - at:
            after = file.find_header(at + 1, end)
            yield DamagedRange(at, after - at, header)
            at = after
            continue
        body = window[at - base + HEADER_BYTES : at - base + header.size_bytes]
        if crc32(body) != header.body_crc:
            yield DamagedRange(at, header.size_bytes, header)
        else:
            yield header
        at += header.size_bytes


class SegmentTail(NamedTuple):
    """How a segment ends: at ``end``, behind which ``cut_bytes`` are torn; ``damage`` is what is bad before that."""

    end: int
    torn_bytes: int
    damage: tuple[DamagedRange, ...]


def find_tail(file: SegmentFile, proven: int = 0) -> SegmentTail:
    """Read a segment that was not sealed, and tell where it ends; what is before ``proven`` is known to be durable."""
    size_bytes = file.size_bytes
    damage: list[DamagedRange] = []
    ends: list[int] = []
    for item in verify_records(file, PREAMBLE_BYTES, size_bytes):
        if isinstance(item, DamagedRange):
            damage.append(item)
            continue
        if item.kind not in KINDS and not item.kind & OPTIONAL_KIND:
            raise SpoolVersion(
                f"{file.path}: a record of the unknown kind {item.kind} at {item.offset}; install a later Gapless",
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


def recover(store: SegmentStore) -> RecoveryResult:
    """Make the store ready to append."""
    root, info = store.root, store.info
    hint = CommittedOffset.read(root)
    numbers = list_segments(root)
    told: list[str] = []
    cut_bytes = segment = 0
    store.next_number = max([hint.segment if hint else 0, *numbers]) + 1
    while numbers and store.active is None:
        number = segment = numbers.pop()
        path = segment_path(root, number)
        proven = hint.offset if hint is not None and hint.segment == number else 0
        with SegmentFile(path, number, info.spool_id) as file:
            preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
            tail = find_tail(file, proven)
            if tail.end <= PREAMBLE_BYTES and not tail.damage:
                # A segment without a whole first commit was never told to anybody.
                cut_bytes += file.size_bytes
                _unlink(path, index_path(root, number))
                continue
            index = build_index_upto(file, tail.end)
        cut_bytes += tail.torn_bytes
        if tail.damage or preamble is None:
            told += [f"{path}: {each.size_bytes} bytes at {each.offset}" for each in tail.damage]
            told += [f"{path}: its first {PREAMBLE_BYTES} bytes"] if preamble is None else []
            store.sealed[number] = index
            store.previous = (number, index.end)
        else:
            store.active = _reopen(store, path, index)
        break
    if hint is not None and hint.segment > segment:
        told.append(
            f"{segment_path(root, hint.segment)}: is not there, though messages were committed to it"
        )
    for number in numbers:
        store.sealed[number] = load_index(root, info, number)
    store.sealed = dict(sorted(store.sealed.items()))
    if store.active is None and store.sealed:
        final = store.sealed[max(store.sealed)]
        store.previous = (final.number, final.end)
    _delete_leftovers(root, {*store.sealed, *([store.active.number] if store.active else [])})
    return RecoveryResult(segment, cut_bytes, tuple(told))


def _reopen(store: SegmentStore, path: Path, index: SegmentIndex) -> ActiveSegment:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        if os.fstat(descriptor).st_size != index.end:
            os.ftruncate(descriptor, index.end)
        # A killed writer may have left a whole commit that was not durable yet; from now on it
        # counts as such.
        if store.sync:
            os.fsync(descriptor)
    except OSError as error:
        raise from_os_error(error, path, "opening it to go on") from error
    _unlink(index_path(store.root, index.number))
    return ActiveSegment(path, descriptor, index, checksum_seed(store.info.spool_id, index.number))


def build_index_upto(file: SegmentFile, end: int) -> SegmentIndex:
    """Return the index of a segment made from its headers up to ``end``, around damage."""
    index = file.new_index()
    while index.end < end:
        file.extend_index(index, end)
        if index.end < end:
            index.end = file.find_header(index.end + 1, end)
    return index


def load_index(root: Path, info: SpoolInfo, number: int) -> SegmentIndex:
    """Return the index of a sealed segment, from its file or made again."""
    try:
        return SegmentIndex.load(
            index_path(root, number), number, partial(rebuild_index, root, info, number)
        )
    except (OSError, CorruptIndex):
        return build_index(root, info, number)


def rebuild_index(root: Path, info: SpoolInfo, number: int) -> SegmentIndex:
    """Make an index again whose file was bad; the segment may be trimmed meanwhile."""
    try:
        return build_index(root, info, number)
    except FileNotFoundError as error:
        raise segment_trimmed_error(segment_path(root, number)) from error


def build_index(root: Path, info: SpoolInfo, number: int) -> SegmentIndex:
    """Make the index of a sealed segment from its headers; it ends where the next segment says."""
    state = next_segment_state(root, info, number)
    with SegmentFile(segment_path(root, number), number, info.spool_id) as file:
        return build_index_upto(file, sealed_end(file, state))


def sealed_end(file: SegmentFile, after: StateRecord | None) -> int:
    """Return where a sealed segment ends: where the STATE of the next segment says, unless it was repaired since.

    A segment that the next one does not know as the one before it was never committed to: nothing
    of it counts.
    """
    preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
    repaired = preamble is not None and preamble.flags & SEGMENT_REPAIRED
    if repaired or after is None or after.previous[0] > file.number:
        return file.size_bytes
    if after.previous[0] < file.number:
        return PREAMBLE_BYTES
    return min(file.size_bytes, after.previous[1])


def next_segment_state(root: Path, info: SpoolInfo, number: int) -> StateRecord | None:
    """Return the first STATE of the segment after ``number``, or None."""
    later = [each for each in list_segments(root) if each > number]
    if not later:
        return None
    try:
        with SegmentFile(segment_path(root, later[0]), later[0], info.spool_id) as file:
            index = SegmentIndex(later[0], PREAMBLE_BYTES)
            for header in file.headers(PREAMBLE_BYTES, file.size_bytes):
                if header.kind == STATE:
                    file.index_control_record(index, header)
                break
            return index.first_state
    except (OSError, SpoolError, ValueError):
        return None


def _delete_leftovers(root: Path, numbers: set[int]) -> None:
    """Delete what crashed attempts have left: temporary files, indexes without a segment."""
    for folder in (root, root / "segments"):
        for path in folder.glob(".*.tmp"):
            _unlink(path)
    for path in (root / "segments").glob("*.idx"):
        if not path.stem.isdigit() or int(path.stem) not in numbers:
            _unlink(path)


def _unlink(*paths: Path) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise from_os_error(error, path, "deleting it") from error
