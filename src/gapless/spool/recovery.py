"""Opening a spool after a crash: cut off a torn write and continue behind the last whole commit.

The last segment is read record by record (``gapless.spool.segment_scan``). A torn tail is
truncated. Damage before the last proven commit is reported and left to ``gapless spool repair``;
the spool then continues in a new segment.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from gapless.spool.errors import from_os_error
from gapless.spool.format import PREAMBLE_BYTES, checksum_seed, parse_preamble
from gapless.spool.index import SegmentIndex
from gapless.spool.segment_file import (
    CommittedOffset,
    SegmentFile,
    index_path,
    list_segments,
    segment_path,
)
from gapless.spool.segment_scan import build_index_upto, find_tail, load_index
from gapless.spool.segment_store import ActiveSegment, SegmentStore


class RecoveryResult(NamedTuple):
    """The findings of opening a spool: bytes cut off a torn tail, and damage left to repair."""

    segment: int = 0
    truncated_bytes: int = 0
    damage: tuple[str, ...] = ()


def recover(store: SegmentStore) -> RecoveryResult:
    """Make the store ready to append."""
    root, info, keys = store.root, store.info, store.keys
    hint = CommittedOffset.read(root)
    numbers = list_segments(root)
    findings: list[str] = []
    cut_bytes = segment = 0
    store.next_number = max([hint.segment if hint else 0, *numbers]) + 1
    while numbers and store.active is None:
        number = segment = numbers.pop()
        path = segment_path(root, number)
        proven = hint.offset if hint is not None and hint.segment == number else 0
        with SegmentFile(path, number, info.spool_id, keys) as file:
            preamble = parse_preamble(file.read(0, PREAMBLE_BYTES))
            tail = find_tail(file, proven)
            if tail.end <= PREAMBLE_BYTES and not tail.damage:
                # A segment without a complete first commit was never reported as durable.
                cut_bytes += file.size_bytes
                _unlink(path, index_path(root, number))
                continue
            index = build_index_upto(file, tail.end)
        cut_bytes += tail.torn_bytes
        if tail.damage or preamble is None:
            findings += [
                f"{path}: {each.size_bytes} bytes at {each.offset} are damaged"
                for each in tail.damage
            ]
            findings += (
                [f"{path}: the first {PREAMBLE_BYTES} bytes are damaged"]
                if preamble is None
                else []
            )
            store.sealed[number] = index
            store.previous = (number, index.end)
        else:
            store.active = _reopen(store, path, index)
        break
    if hint is not None and hint.segment > segment:
        findings.append(
            f"{segment_path(root, hint.segment)}: the segment is missing, although it has "
            f"committed messages"
        )
    for number in numbers:
        store.sealed[number] = load_index(root, info, number, keys)
    store.sealed = dict(sorted(store.sealed.items()))
    if store.active is None and store.sealed:
        final = store.sealed[max(store.sealed)]
        store.previous = (final.number, final.end)
    _delete_leftovers(root, {*store.sealed, *([store.active.number] if store.active else [])})
    return RecoveryResult(segment, cut_bytes, tuple(findings))


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


def _delete_leftovers(root: Path, numbers: set[int]) -> None:
    """Delete the remains of crashed attempts: temporary files, indexes without a segment."""
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
