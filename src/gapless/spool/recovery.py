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

from gapless.spool.errors import SpoolError, SpoolVersion, from_os_error, trimmed
from gapless.spool.format import (
    END,
    HEADER_BYTES,
    KINDS,
    OPTIONAL,
    PREAMBLE_BYTES,
    REPAIRED,
    STATE,
    Header,
    State,
    header_at,
    read_preamble,
    seed_of,
)
from gapless.spool.index import BadIndex, SegmentIndex
from gapless.spool.segment_file import (
    SEARCH_BYTES,
    Hint,
    SegmentFile,
    SpoolInfo,
    index_path,
    list_segments,
    segment_path,
)
from gapless.spool.segment_store import Active, Store

if TYPE_CHECKING:
    from collections.abc import Iterator


class Damage(NamedTuple):
    """Bytes of a segment that are no record. ``header`` is there if only the body is wrong."""

    offset: int
    size_bytes: int
    header: Header | None = None


class Recovered(NamedTuple):
    """What opening has found: what was cut off a torn tail, and damage that is left to repair."""

    segment: int = 0
    cut_bytes: int = 0
    damage: tuple[str, ...] = ()


def verify(file: SegmentFile, start: int, end: int) -> Iterator[Header | Damage]:
    """Read every record from ``start`` to ``end`` with its checksums; where none stands, look for the next."""
    at, base, window = start, start, memoryview(b"")
    while at < end:
        header = header_at(window, at - base, at, file.seed)
        if header is None or at - base + header.size_bytes > len(window):
            need = HEADER_BYTES if header is None else header.size_bytes
            base, window = at, memoryview(file.read(at, min(max(SEARCH_BYTES, need), end - at)))
            header = header_at(window, 0, at, file.seed)
            if (
                header is not None
                and header.size_bytes > len(window)
                and header.size_bytes <= end - at
            ):
                window = memoryview(file.read(at, header.size_bytes))
        if header is None or header.size_bytes > end - at:
            after = file.find_header(at + 1, end)
            yield Damage(at, after - at, header)
            at = after
            continue
        body = window[at - base + HEADER_BYTES : at - base + header.size_bytes]
        if crc32(body) != header.body_crc:
            yield Damage(at, header.size_bytes, header)
        else:
            yield header
        at += header.size_bytes


class Tail(NamedTuple):
    """How a segment ends: at ``end``, behind which ``cut_bytes`` are torn; ``damage`` is what is bad before that."""

    end: int
    cut_bytes: int
    damage: tuple[Damage, ...]


def find_tail(file: SegmentFile, proven: int = 0) -> Tail:
    """Read a segment that was not sealed, and tell where it ends; what is before ``proven`` is known to be durable."""
    size_bytes = file.size_bytes
    damage: list[Damage] = []
    ends: list[int] = []
    for item in verify(file, PREAMBLE_BYTES, size_bytes):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        if item.kind not in KINDS and not item.kind & OPTIONAL:
            raise SpoolVersion(
                f"{file.path}: a record of the unknown kind {item.kind} at {item.offset}; install a later Gapless",
                file.path,
            )
        proven = max(proven, item.group)
        if item.marks & END:
            ends.append(item.offset + item.size_bytes)
    torn = min((each.offset for each in damage if each.offset >= proven), default=size_bytes)
    end = max((each for each in ends if each <= torn), default=min(PREAMBLE_BYTES, size_bytes))
    before = tuple(each for each in damage if each.offset < end or each.offset < proven)
    if proven > end and not any(each.offset < proven for each in damage):
        before = (*before, Damage(end, proven - end))
    return Tail(end, size_bytes - end if not before else 0, before)


def recover(store: Store) -> Recovered:
    """Make the store ready to append."""
    root, info = store.root, store.info
    hint = Hint.read(root)
    numbers = list_segments(root)
    told: list[str] = []
    cut_bytes = segment = 0
    store.next_number = max([hint.segment if hint else 0, *numbers]) + 1
    while numbers and store.active is None:
        number = segment = numbers.pop()
        path = segment_path(root, number)
        proven = hint.offset if hint is not None and hint.segment == number else 0
        with SegmentFile(path, number, info.spool_id) as file:
            preamble = read_preamble(file.read(0, PREAMBLE_BYTES))
            tail = find_tail(file, proven)
            if tail.end <= PREAMBLE_BYTES and not tail.damage:
                # A segment without a whole first commit was never told to anybody.
                cut_bytes += file.size_bytes
                _unlink(path, index_path(root, number))
                continue
            index = index_of(file, tail.end)
        cut_bytes += tail.cut_bytes
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
    _sweep(root, {*store.sealed, *([store.active.number] if store.active else [])})
    return Recovered(segment, cut_bytes, tuple(told))


def _reopen(store: Store, path: Path, index: SegmentIndex) -> Active:
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
    return Active(path, descriptor, index, seed_of(store.info.spool_id, index.number))


def index_of(file: SegmentFile, end: int) -> SegmentIndex:
    """Return the index of a segment made from its headers up to ``end``, around damage."""
    index = file.begin_index()
    while index.end < end:
        file.index_into(index, end)
        if index.end < end:
            index.end = file.find_header(index.end + 1, end)
    return index


def load_index(root: Path, info: SpoolInfo, number: int) -> SegmentIndex:
    """Return the index of a sealed segment, from its file or made again."""
    try:
        return SegmentIndex.load(
            index_path(root, number), number, partial(remade, root, info, number)
        )
    except (OSError, BadIndex):
        return build_index(root, info, number)


def remade(root: Path, info: SpoolInfo, number: int) -> SegmentIndex:
    """Make an index again whose file was bad; the segment may be trimmed meanwhile."""
    try:
        return build_index(root, info, number)
    except FileNotFoundError as error:
        raise trimmed(segment_path(root, number)) from error


def build_index(root: Path, info: SpoolInfo, number: int) -> SegmentIndex:
    """Make the index of a sealed segment from its headers; it ends where the next segment says."""
    state = state_after(root, info, number)
    with SegmentFile(segment_path(root, number), number, info.spool_id) as file:
        return index_of(file, sealed_end(file, state))


def sealed_end(file: SegmentFile, after: State | None) -> int:
    """Return where a sealed segment ends: where the STATE of the next segment says, unless it was repaired since.

    A segment that the next one does not know as the one before it was never committed to: nothing
    of it counts.
    """
    preamble = read_preamble(file.read(0, PREAMBLE_BYTES))
    repaired = preamble is not None and preamble.flags & REPAIRED
    if repaired or after is None or after.previous[0] > file.number:
        return file.size_bytes
    if after.previous[0] < file.number:
        return PREAMBLE_BYTES
    return min(file.size_bytes, after.previous[1])


def state_after(root: Path, info: SpoolInfo, number: int) -> State | None:
    """Return the first STATE of the segment after ``number``, or None."""
    later = [each for each in list_segments(root) if each > number]
    if not later:
        return None
    try:
        with SegmentFile(segment_path(root, later[0]), later[0], info.spool_id) as file:
            index = SegmentIndex(later[0], PREAMBLE_BYTES)
            for header in file.headers(PREAMBLE_BYTES, file.size_bytes):
                if header.kind == STATE:
                    file.take_rare(index, header)
                break
            return index.state
    except (OSError, SpoolError, ValueError):
        return None


def _sweep(root: Path, numbers: set[int]) -> None:
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
