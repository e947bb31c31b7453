"""The bytes of a segment: a preamble, then consecutive records.

A record is a fixed header, a table (the lengths of a run, in wire format) and a payload. The header
has a checksum of its own, so that an index can be built from headers alone. The header also has the
offset of the record, and the offset of the first record of the same commit:

* ``offset`` and a checksum that starts from the spool's id and the segment's number: a block of
  another file, or from another offset of the same file, is never accepted as a record.
* ``group``: all bytes before this offset were durable before the record was written. A bad record
  before the group of a good record is therefore damage, and a bad record followed only by records
  of the same group is a torn tail.
* ``COMMIT_END``: the last record of a group. A commit exists completely or not at all.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from gapless.identity import U32_MAX, U64_MAX, Address

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1
"""The format version of spools, and of segments without encryption."""
ENCRYPTED_FORMAT = 2
"""The format version of encrypted segments: the newest that is readable."""

RUN = 1
"""A run: the table is its lengths (16 bits each), the payload its messages end to end."""
MESSAGE = 2
"""A message that was sent in fragments; it spans the seqnos ``first .. last``."""
LOST = 3
"""Messages ``first .. last`` will never arrive."""
NAME = 4
"""The durable name of an origin: the table is its text."""
STATE = 5
"""The state of all streams at this offset: the table is JSON. The first record of every segment."""
BLOB = 6
"""Opaque data of the collector: the payload; the last one counts."""
KEY = 7
"""The key of an encrypted commit, its first record: the table is ``KeyTable``."""
KINDS = {
    RUN: "run",
    MESSAGE: "message",
    LOST: "lost",
    NAME: "name",
    STATE: "state",
    BLOB: "blob",
    KEY: "key",
}
"""The kinds of records of this version."""
OPTIONAL_KIND = 0x80
"""Bit of a kind: a reader that does not know the kind may skip the record, else must refuse."""

COMMIT_END = 0x01
"""Mark: the last record of its commit."""
ENCRYPTED = 0x02
"""Mark: table and payload are encrypted, and a tag follows, which counts as payload."""
TAG_BYTES = 16
"""Size of the tag of an encrypted record."""

MAGIC = b"\xf1GLR"
"""The first bytes of every record; the checksum of the header follows them."""
HEADER = Struct("<IBBBxIIQQQQQQQQqq")
"""The fields of a header after the magic number and the checksum: ``RecordHeader``."""
HEADER_START_BYTES = len(MAGIC) + 4
"""Size of the magic number and the checksum."""
HEADER_BYTES = HEADER_START_BYTES + HEADER.size
"""Size of a whole header."""
KEY_TABLE = Struct("<I16s8s")
"""The fields of ``KeyTable``."""
KEY_RECORD_BYTES = HEADER_BYTES + KEY_TABLE.size
"""Size of a KEY record."""
_SCANNED = Struct("<4sI12xIQQ")
"""What a scan needs of a header: magic, checksum, table_bytes, payload_bytes, offset."""
LATEST_NS = 2**63 - 1
"""Maximum time in a record: a sender may send any 64-bit number, and a time here is signed."""

SEGMENT_MAGIC = b"\xf1GLSEG\r\n"
"""The first bytes of a segment."""
_PREAMBLE = Struct("<8sII16sQqI")
PREAMBLE_BYTES = 64
"""Size of the preamble of a segment."""

SEGMENT_REPAIRED = 0x01
"""Flag of a segment: rewritten by repair; it ends where its file ends."""


class RecordHeader(NamedTuple):
    """The header of a record, in the order of the file, without magic number and checksum."""

    body_crc: int
    kind: int
    flags: int
    marks: int
    rows: int
    table_bytes: int
    payload_bytes: int
    offset: int
    commit_offset: int
    node: int
    incarnation: int
    first: int
    last: int
    view: int
    sent_ns: int
    collected_ns: int

    @property
    def size_bytes(self) -> int:
        """What the whole record takes."""
        return HEADER_BYTES + self.table_bytes + self.payload_bytes

    @property
    def origin(self) -> Address:
        """The incarnation that sent the messages of the record."""
        return Address(self.node, self.incarnation)

    @property
    def is_encrypted(self) -> bool:
        """Whether table and payload are encrypted."""
        return bool(self.marks & ENCRYPTED)

    @property
    def is_segment_start(self) -> bool:
        """Whether the record is the first of its segment, a KEY record before it aside."""
        before_bytes = KEY_RECORD_BYTES if self.is_encrypted else 0
        return self.offset == PREAMBLE_BYTES + before_bytes


class KeyTable(NamedTuple):
    """The table of a KEY record: which key encrypts the commit.

    ``salt`` is random for every commit that is attempted. ``check`` is equal for equal secrets and
    salts, so that a reader tells a wrong secret from damage.
    """

    key_id: int
    salt: bytes
    check: bytes

    def pack(self) -> bytes:
        """Return the table of the record."""
        return KEY_TABLE.pack(*self)

    @classmethod
    def unpack(cls, table: bytes) -> KeyTable:
        """Return the fields of a table; ValueError if the bytes are not a key."""
        if len(table) != KEY_TABLE.size:
            raise ValueError("not a key")
        return cls._make(KEY_TABLE.unpack(table))


class RecordDraft(NamedTuple):
    """A record without an offset yet."""

    kind: int
    origin: Address
    first: int
    last: int
    rows: int
    table: bytes = b""
    payload: bytes = b""
    flags: int = 0
    view: int = 0
    sent_ns: int = 0
    collected_ns: int = 0

    @property
    def size_bytes(self) -> int:
        """What the whole record will take."""
        return HEADER_BYTES + len(self.table) + len(self.payload)


def checksum_seed(spool_id: bytes, segment: int) -> int:
    """Return the start value of the header checksums of a segment."""
    return crc32(segment.to_bytes(8, "little"), crc32(spool_id))


class HeaderScan(NamedTuple):
    """The consecutive records at the start of a block.

    ``headers`` are the checked headers, without magic number and checksum; ``end`` is the offset
    behind the last record. ``need_bytes`` is 0 without a valid header at ``end``; otherwise
    ``need_bytes`` is the number of bytes of the next record (or of its header, if incomplete).
    """

    headers: list[bytes]
    end: int
    need_bytes: int


def scan_headers(block: bytes, base: int, limit: int, seed: int) -> HeaderScan:
    """Walk from header to header and check each header. No other code walks headers.

    Args:
        block: Bytes of a segment, beginning with a record.
        base: The offset of the block in its segment.
        limit: The offset by which a record has to end. With a limit behind the end of the block,
            the walk skips bodies outside the block.
        seed: The checksum seed of the segment.

    Returns:
        The headers before the end of the block, a bad header or a record beyond ``limit``.
    """
    unpack, crc, header_bytes, size_bytes = _SCANNED.unpack_from, crc32, HEADER_BYTES, len(block)
    headers: list[bytes] = []
    at = 0
    while at + header_bytes <= size_bytes:
        magic, header_crc, table_bytes, payload_bytes, offset = unpack(block, at)
        body = at + header_bytes
        header = block[at + HEADER_START_BYTES : body]
        if magic != MAGIC or offset != base + at or crc(header, seed) != header_crc:
            return HeaderScan(headers, base + at, 0)
        after = body + table_bytes + payload_bytes
        if base + after > limit:
            return HeaderScan(headers, base + at, after - at)
        headers.append(header)
        at = after
    return HeaderScan(headers, base + at, header_bytes)


def parse_header(buffer: bytes, at: int, offset: int, seed: int) -> RecordHeader | None:
    """Return the header at ``at`` of a buffer, or None if there is no valid header.

    Args:
        buffer: Bytes of a segment.
        at: The index of the expected header in the buffer.
        offset: The offset of the same byte in the segment.
        seed: The checksum seed of the segment.
    """
    headers = scan_headers(buffer[at : at + HEADER_BYTES], offset, U64_MAX, seed).headers
    return unpack_header(headers[0]) if headers else None


def unpack_header(header: bytes) -> RecordHeader:
    """Return the fields of a header already checked by a scan."""
    return RecordHeader._make(HEADER.unpack(header))


def pack_preamble(
    spool_id: bytes, segment: int, created_ns: int, flags: int = 0, version: int = FORMAT
) -> bytes:
    """Return the first bytes of a segment."""
    rest = _PREAMBLE.pack(SEGMENT_MAGIC, version, 0, spool_id, segment, created_ns, flags)
    crc = crc32(rest[16:], version)
    packed = _PREAMBLE.pack(SEGMENT_MAGIC, version, crc, spool_id, segment, created_ns, flags)
    return packed.ljust(PREAMBLE_BYTES, b"\0")


class SegmentPreamble(NamedTuple):
    """The first bytes of a segment."""

    format: int
    spool_id: bytes
    segment: int
    created_ns: int
    flags: int = 0


def parse_preamble(buffer: bytes) -> SegmentPreamble | None:
    """Return the preamble of a segment, or None if the file is not a segment."""
    if len(buffer) < PREAMBLE_BYTES:
        return None
    magic, version, crc, spool_id, segment, created_ns, flags = _PREAMBLE.unpack_from(buffer)
    if magic != SEGMENT_MAGIC or crc != crc32(buffer[16 : _PREAMBLE.size], version):
        return None
    return SegmentPreamble(version, spool_id, segment, created_ns, flags)


class StreamState(NamedTuple):
    """A stream in a STATE record."""

    key: str
    high: int
    dropped: int
    lost: int
    name: str
    seen_ns: int


class StateRecord(NamedTuple):
    """The content of a STATE record.

    ``previous`` is the preceding segment and its end; ``first`` the oldest segment that should
    exist. ``group``, ``name`` and ``node`` repeat ``spool.json``, so that the file can be rebuilt.
    """

    group: str
    streams: tuple[StreamState, ...]
    previous: tuple[int, int] = (0, 0)
    first: int = 0
    name: str = ""
    node: int = 0

    def pack(self) -> bytes:
        """Return the table of the record."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, table: bytes | memoryview) -> StateRecord:
        """Return the state in the table of the record; ValueError if the bytes are not a state."""
        content: dict[str, Any] = json.loads(bytes(table))
        try:
            streams = tuple(StreamState(*entry) for entry in content["streams"])
            number, end = content["previous"]
            place = ((int(number), int(end)), int(content["first"]))
            return cls(content["group"], streams, *place, content["name"], int(content["node"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state: {error}") from error


def parse_stream_key(key: str) -> Address:
    """Return the address of a stream's key."""
    node, _, incarnation = key.partition(".")
    return Address(int(node, 16), int(incarnation, 16))


def is_stream_key(text: object) -> bool:
    """Whether a text is the key of a stream, in the form ``str(address)``."""
    try:
        return isinstance(text, str) and str(parse_stream_key(text)) == text
    except ValueError:
        return False


def make_lost_drafts(origin: Address, first: int, last: int, now_ns: int) -> list[RecordDraft]:
    """Return records for lost messages ``first .. last``, each within the range of a header."""
    return [
        RecordDraft(LOST, origin, start, end, end - start + 1, collected_ns=now_ns)
        for start in range(first, last + 1, U32_MAX)
        for end in (min(start + U32_MAX - 1, last),)
    ]


def encode_records(
    drafts: Sequence[RecordDraft], offset: int, seed: int
) -> tuple[list[bytes], list[int]]:
    """Return the buffers to write for a commit at ``offset``, and the offset of each record."""
    buffers: list[bytes] = []
    offsets: list[int] = []
    group, left, pack = offset, len(drafts), HEADER.pack
    for (
        kind,
        origin,
        first,
        last,
        rows,
        table,
        payload,
        flags,
        view,
        sent_ns,
        collected_ns,
    ) in drafts:
        left -= 1
        table_bytes, payload_bytes = len(table), len(payload)
        rest = pack(
            crc32(payload, crc32(table)),
            kind,
            flags,
            0 if left else COMMIT_END,
            rows,
            table_bytes,
            payload_bytes,
            offset,
            group,
            origin[0],
            origin[1],
            first,
            last,
            view,
            min(sent_ns, LATEST_NS),
            collected_ns,
        )
        buffers += (MAGIC + crc32(rest, seed).to_bytes(4, "little") + rest, table, payload)
        offsets.append(offset)
        offset += HEADER_BYTES + table_bytes + payload_bytes
    return buffers, offsets
