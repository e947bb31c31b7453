"""Stretches of segments into records, on an executor: files are read in large blocks, and every checksum is checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

from gapless.spool.errors import SpoolCorrupt, SpoolTrimmed, from_os_error
from gapless.spool.format import HEADER, HEADER_BYTES, MAGIC, MESSAGE, RUN
from pyspark_gapless.arrow import Record, clip

BLOCK_BYTES: Final = 8 * 1024 * 1024

Wanted = Mapping[tuple[int, int], tuple[int, int, int]]
"""(node, incarnation) to (place of the stream, above, up to)."""


def scan(path: Path, seed: int, begin: int, end: int, wanted: Wanted) -> Iterator[Record]:
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
        at = begin
        while at < end:
            block = _read(descriptor, path, at, min(BLOCK_BYTES, end - at))
            done = yield from _records(block, path, seed, at, wanted)
            if done == at:
                # The first record is larger than a block: its header says how large.
                size_bytes = _size_at(block, path, seed, at)
                block = _read(descriptor, path, at, size_bytes)
                done = yield from _records(block, path, seed, at, wanted)
                if done == at:
                    raise _corrupt(path, at, "it is longer than the segment")
            at = done
    finally:
        os.close(descriptor)


def _read(descriptor: int, path: Path, at: int, size_bytes: int) -> memoryview:
    try:
        data = os.pread(descriptor, size_bytes, at)
        while 0 < len(data) < size_bytes:
            more = os.pread(descriptor, size_bytes - len(data), at + len(data))
            if not more:
                break
            data += more
    except OSError as error:
        raise from_os_error(error, path, f"reading at {at}") from error
    return memoryview(data)


def _records(block: memoryview, path: Path, seed: int, base: int, wanted: Wanted) -> Iterator[Record]:
    """Yield what is wanted of the whole records of a block; return the offset of the first that is not whole."""
    unpack, crc, get, header_bytes, size_bytes = HEADER.unpack_from, crc32, wanted.get, HEADER_BYTES, len(block)
    at = 0
    while at + header_bytes <= size_bytes:
        (magic, header_crc, body_crc, kind, flags, _, count, table_bytes, payload_bytes, offset, _, node, incarnation,
         first, last, view, sent_ns, collected_ns) = unpack(block, at)  # fmt: skip
        body = at + header_bytes
        if magic != MAGIC or offset != base + at or crc(block[at + 8 : body], seed) != header_crc:
            raise _corrupt(path, base + at, "its header is not what was written")
        payload_at = body + table_bytes
        after = payload_at + payload_bytes
        if after > size_bytes:
            return base + at
        at = after
        want = get((node, incarnation))
        if want is None or kind > MESSAGE:
            continue
        place, above, upto = want
        if last <= above or first > upto:
            continue
        if crc(block[body:after]) != body_crc:
            raise _corrupt(path, offset, "its messages are not what was written")
        if kind == RUN:
            record = Record(
                place, first, count, flags, view, sent_ns, collected_ns, block[body:payload_at], block[payload_at:after]
            )
            if first <= above or last > upto:
                record = clip(record, above, upto)
            yield record
        elif last <= upto:
            # A message in pieces has the number of its last piece: then a digest that reaches it has read it.
            yield Record(place, last, 1, flags, view, sent_ns, collected_ns, b"", block[payload_at:after])
    return base + at


def _size_at(block: memoryview, path: Path, seed: int, at: int) -> int:
    if len(block) < HEADER_BYTES:
        raise _corrupt(path, at, "the segment ends within its header")
    fields = HEADER.unpack_from(block)
    if fields[0] != MAGIC or fields[9] != at or crc32(block[8:HEADER_BYTES], seed) != fields[1]:
        raise _corrupt(path, at, "its header is not what was written")
    return int(HEADER_BYTES + fields[7] + fields[8])


def _corrupt(path: Path, offset: int, what: str) -> SpoolCorrupt:
    spool = path.parent.parent
    return SpoolCorrupt(
        f"{path}: the record at {offset} is damaged: {what}. `gapless spool check {spool}` lists all damage, "
        f"`gapless spool repair {spool}` sets it aside; a replica in the option spool is read in its place",
        path,
        offset,
    )
