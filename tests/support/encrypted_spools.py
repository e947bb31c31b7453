"""What somebody can do who writes to the folder of an encrypted spool, without its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from gapless.spool.format import (
    ENCRYPTED,
    HEADER,
    HEADER_BYTES,
    KEY,
    MAGIC,
    PREAMBLE_BYTES,
    KeyTable,
    RecordHeader,
    checksum_seed,
    scan_headers,
    unpack_header,
)
from gapless.spool.segment_file import SpoolInfo, list_segments, segment_path

if TYPE_CHECKING:
    from pathlib import Path


class RawRecord(NamedTuple):
    """A record as it is in the file."""

    header: RecordHeader
    body: bytes

    def packed(self, seed: int) -> bytes:
        """The bytes of the record, with the checksums of a segment: no keys are needed for them."""
        packed = HEADER.pack(*self.header._replace(body_crc=crc32(self.body)))
        return MAGIC + crc32(packed, seed).to_bytes(4, "little") + packed + self.body

    def moved(self, by_bytes: int) -> RawRecord:
        """The record for another place in a segment."""
        header, offset = self.header, self.header.offset + by_bytes
        start = header.commit_offset + by_bytes
        return self._replace(header=header._replace(offset=offset, commit_offset=start))


def seed_of(root: Path, number: int) -> int:
    return checksum_seed(SpoolInfo.read(root).spool_id, number)


def raw_records(root: Path, number: int, data: bytes | None = None) -> list[RawRecord]:
    """Every record of a segment, or of other bytes that it had."""
    if data is None:
        data = segment_path(root, number).read_bytes()
    block = data[PREAMBLE_BYTES:]
    found = scan_headers(block, PREAMBLE_BYTES, len(data), seed_of(root, number))
    records = []
    for header in map(unpack_header, found.headers):
        at = header.offset - PREAMBLE_BYTES
        records.append(RawRecord(header, block[at + HEADER_BYTES : at + header.size_bytes]))
    return records


def raw_commits(root: Path, number: int) -> list[list[RawRecord]]:
    """The records of a segment, commit by commit."""
    found: dict[int, list[RawRecord]] = {}
    for record in raw_records(root, number):
        found.setdefault(record.header.commit_offset, []).append(record)
    return list(found.values())


def put(root: Path, number: int, records: list[RawRecord]) -> None:
    """Write records over what is at their places."""
    path, seed = segment_path(root, number), seed_of(root, number)
    data = bytearray(path.read_bytes())
    for record in records:
        packed = record.packed(seed)
        data[record.header.offset : record.header.offset + len(packed)] = packed
    path.write_bytes(data)


def key_tables(root: Path) -> list[KeyTable]:
    """The key of every commit of a spool, in order."""
    return [
        KeyTable.unpack(record.body)
        for number in list_segments(root)
        for record in raw_records(root, number)
        if record.header.kind == KEY
    ]


def is_encrypted(root: Path, number: int) -> bool:
    """Whether every record of a segment is encrypted, and says so."""
    records = raw_records(root, number)
    return bool(records) and all(
        record.header.kind == KEY or record.header.marks & ENCRYPTED for record in records
    )
