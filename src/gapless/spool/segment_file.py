"""The files of a spool: file names, and the walk through a segment from header to header."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

from gapless.identity import Address
from gapless.output.private_files import open_private
from gapless.spool.encryption import RecordCipher, SpoolKeys, WrongBodyError, missing_key_error
from gapless.spool.errors import (
    SpoolCorrupt,
    SpoolMismatch,
    SpoolVersion,
    damaged_record_error,
    from_os_error,
)
from gapless.spool.format import (
    BLOB,
    ENCRYPTED,
    ENCRYPTED_FORMAT,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    KEY,
    KEY_RECORD_BYTES,
    KINDS,
    LOST,
    MAGIC,
    NAME,
    OPTIONAL_KIND,
    PREAMBLE_BYTES,
    STATE,
    TAG_BYTES,
    KeyTable,
    RecordHeader,
    StateRecord,
    checksum_seed,
    parse_header,
    parse_preamble,
    scan_headers,
)
from gapless.spool.index import SegmentIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

SEGMENT_NAME = re.compile(r"(\d{20})\.run")
"""The pattern of the file name of a segment."""
_COMMITTED = Struct("<8sQQI")
_COMMITTED_MAGIC = b"\xf1GLCMT\x01\n"
_PLACES = Struct("<24xQQ")
"""The offset of a record and of its commit, in a packed header."""
SMALL_RECORD_BYTES = 8 * 1024
"""Records below this size (on average) are read with their bodies when an index is made."""
WINDOW_BYTES = 256 * 1024
"""How many bytes are read at once for the headers of small records."""
PAGE_BYTES = 4096
"""How many bytes are read at once for the header of a large record."""
SEARCH_BYTES = 1024 * 1024
"""How many bytes are read at once to find the next good header."""


def segment_path(root: Path, number: int) -> Path:
    """Return where a segment is."""
    return root / "segments" / f"{number:020d}.run"


def index_path(root: Path, number: int) -> Path:
    """Return where the index of a segment is."""
    return root / "segments" / f"{number:020d}.idx"


def info_path(root: Path) -> Path:
    """Return the path of the description of a spool, a file written once."""
    return root / "spool.json"


def folder_version(root: Path) -> tuple[int, int]:
    """Return a value that changes when a spool is deleted and created again at the same path.

    Raises:
        OSError: There is no spool, or the spool cannot be read.
    """
    status = info_path(root).stat()
    return status.st_ino, status.st_mtime_ns


def foreign_entries(root: Path) -> list[str]:
    """Return the sorted visible names in a folder that cannot belong to a new spool."""
    with os.scandir(root) as entries:
        names = {entry.name for entry in entries} - {"lock", "segments", "readers", "committed"}
    return sorted(name for name in names if not name.startswith("."))


def list_segments(root: Path) -> list[int]:
    """Return the numbers of the existing segments, oldest first."""
    try:
        with os.scandir(root / "segments") as entries:
            return sorted(
                int(match[1]) for entry in entries if (match := SEGMENT_NAME.fullmatch(entry.name))
            )
    except OSError as error:
        raise from_os_error(error, root / "segments", "listing the segments") from error


def fsync_directory(path: Path) -> None:
    """Make the names of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a small file; after a crash the file has the old or the new content, never a mix."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb", opener=open_private) as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        fsync_directory(path.parent)


@dataclass(frozen=True)
class SpoolInfo:
    """The content of ``spool.json``, a file written once."""

    group: str
    spool_id: bytes
    name: str
    node: int
    created_ns: int
    format: int = FORMAT

    def write(self, root: Path) -> None:
        """Write ``spool.json``."""
        content = {
            "format": self.format,
            "group": self.group,
            "id": self.spool_id.hex(),
            "name": self.name,
            "node": f"{self.node:x}",
            "created_ns": self.created_ns,
        }
        write_atomically(info_path(root), json.dumps(content, indent=2).encode() + b"\n")

    @classmethod
    def read(cls, root: Path) -> SpoolInfo:
        """Read the file; None if missing or torn."""
        path = info_path(root)
        try:
            content: dict[str, Any] = json.loads(path.read_bytes())
            version = int(content["format"])
            if version > FORMAT:
                raise SpoolVersion(
                    f"{path}: the spool has format {version}, but this Gapless reads "
                    f"up to {FORMAT}; install a newer Gapless",
                    path,
                )
            return cls(
                content["group"],
                bytes.fromhex(content["id"]),
                content["name"],
                int(content["node"], 16),
                int(content["created_ns"]),
                version,
            )
        except FileNotFoundError:
            raise
        except OSError as error:
            raise from_os_error(error, path, "reading it") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpoolMismatch(
                f"{path}: not the description of a spool ({type(error).__name__}: {error}); "
                f"`gapless spool repair {root}` rebuilds the file from the segments",
                path,
            ) from error


class CommittedOffset(NamedTuple):
    """How far readers may read: up to ``offset`` of segment ``segment``."""

    segment: int
    offset: int

    def pack(self) -> bytes:
        """Return the file."""
        body = (
            _COMMITTED_MAGIC
            + self.segment.to_bytes(8, "little")
            + self.offset.to_bytes(8, "little")
        )
        return _COMMITTED.pack(_COMMITTED_MAGIC, self.segment, self.offset, crc32(body))

    @classmethod
    def read(cls, root: Path) -> CommittedOffset | None:
        """Read the file; None if it is missing or torn."""
        try:
            data = (root / "committed").read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os_error(error, root / "committed", "reading it") from error
        if len(data) != _COMMITTED.size:
            return None
        magic, segment, offset, crc = _COMMITTED.unpack(data)
        if magic != _COMMITTED_MAGIC or crc != crc32(data[: _COMMITTED.size - 4]):
            return None
        return cls(segment, offset)


class SegmentBlock(NamedTuple):
    """Whole records of a segment, as read with their bodies.

    ``data`` begins at offset ``base`` with the first record; ``headers`` are the checked headers
    (``gapless.spool.format.unpack_header``); ``end`` is the offset behind the last record, and
    ``damage_bytes`` is the number of following bytes without a good header.
    """

    base: int
    data: bytes
    headers: list[bytes]
    end: int
    damage_bytes: int


@dataclass
class SegmentFile:
    """A segment, open for reading; ``keys`` decrypt the records of an encrypted commit."""

    path: Path
    number: int
    spool_id: bytes
    keys: SpoolKeys | None = None
    descriptor: int = field(init=False)
    seed: int = field(init=False)
    _commit: tuple[int, RecordCipher] | None = field(init=False, default=None)
    """Offset and cipher of the last encrypted commit: records of a commit follow each other."""

    def __post_init__(self) -> None:
        self.seed = checksum_seed(self.spool_id, self.number)
        self.descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    @property
    def size_bytes(self) -> int:
        """How large the file is now."""
        return os.fstat(self.descriptor).st_size

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Read some bytes; fewer at the end of the file."""
        try:
            data = os.pread(self.descriptor, size_bytes, offset)
            while 0 < len(data) < size_bytes:
                more = os.pread(self.descriptor, size_bytes - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise from_os_error(error, self.path, f"reading at {offset}") from error
        return data

    def read_body(self, header: RecordHeader) -> bytes:
        """Return table and payload of a record; ``table_bytes`` says where the payload begins.

        Raises:
            SpoolCorrupt: The record is damaged.
            SpoolKeyError: The record is encrypted, and the key is missing or wrong.
        """
        body = self.read(header.offset + HEADER_BYTES, header.size_bytes - HEADER_BYTES)
        if crc32(body) != header.body_crc:
            raise damaged_record_error(self.path, header.offset)
        return self.decrypt(HEADER.pack(*header), body) if header.is_encrypted else body

    def decrypt(self, packed: bytes, body: bytes | memoryview) -> bytes:
        """Return table and payload of an encrypted record.

        Args:
            packed: The header, without magic number and checksum.
            body: Table and payload as in the file.

        Raises:
            SpoolCorrupt: The record is damaged.
            SpoolKeyError: The key is missing or wrong.
        """
        offset, start = _PLACES.unpack_from(packed)
        if self._commit is None or self._commit[0] != start:
            self._commit = (start, self._commit_cipher(start, offset))
        try:
            return self._commit[1].decrypt(packed, body)
        except WrongBodyError:
            reason = "the tag does not match: the bytes were changed, or moved from another place"
            raise damaged_record_error(self.path, offset, reason) from None

    def _commit_cipher(self, start: int, offset: int) -> RecordCipher:
        """Return the cipher of the commit at ``start``, for the record at ``offset``."""
        data = self.read(start, KEY_RECORD_BYTES)
        header = parse_header(data, 0, start, self.seed)
        table = data[HEADER_BYTES:]
        if header is None or header.kind != KEY or crc32(table) != header.body_crc:
            reason = f"the KEY record of its commit, at {start}, is damaged"
            raise damaged_record_error(self.path, offset, reason)
        key = KeyTable.unpack(table)
        if self.keys is None:
            raise missing_key_error(self.path, start, key.key_id, None)
        return self.keys.cipher_of(key, self.path, start, self.spool_id, self.number)

    def headers(self, start: int, end: int) -> Iterator[RecordHeader]:
        """Walk from header to header up to ``end``, or to the first bad or incomplete record."""
        return map(RecordHeader._make, self._header_fields(start, end))

    def blocks(self, start: int, end: int, block_bytes: int) -> Iterator[SegmentBlock]:
        """Read the records from ``start`` to ``end``, block by block.

        A block that ends at damage has ``damage_bytes``; the next block begins at the next valid
        header. A caller that must not skip damage raises then.
        """
        at, size_bytes = start, block_bytes
        while at < end:
            data = self.read(at, min(size_bytes, end - at))
            headers, after, need_bytes = scan_headers(data, at, at + len(data), self.seed)
            whole = len(data) == min(size_bytes, end - at)
            damage_bytes = 0
            if after < end and (need_bytes == 0 or after + need_bytes > end or not whole):
                damage_bytes = self.find_header(after + 1, end) - after
            elif after == at:
                # A record that is larger than a block is read at once.
                size_bytes = need_bytes
                continue
            yield SegmentBlock(at, data, headers, after, damage_bytes)
            at, size_bytes = after + damage_bytes, block_bytes

    def _header_fields(self, start: int, end: int) -> Iterator[tuple[Any, ...]]:
        """Walk like ``headers``, but yield plain tuples, which takes half the time."""
        at, size_bytes = start, WINDOW_BYTES
        while at + HEADER_BYTES <= end:
            data = self.read(at, min(size_bytes, end - at))
            headers, after, need_bytes = scan_headers(data, at, end, self.seed)
            yield from map(HEADER.unpack, headers)
            if not headers or need_bytes != HEADER_BYTES:
                return
            # The bodies of large records are skipped: only a page is read for the next header.
            small = after - at < SMALL_RECORD_BYTES * len(headers)
            at, size_bytes = after, WINDOW_BYTES if small else PAGE_BYTES

    def find_header(self, start: int, end: int) -> int:
        """Return the offset of the next valid header at or after ``start``, or ``end``."""
        at = start
        while at < end:
            window = self.read(at, min(SEARCH_BYTES, end - at))
            found = window.find(MAGIC)
            while found >= 0:
                if len(window) - found < HEADER_BYTES:
                    break
                if parse_header(window, found, at + found, self.seed) is not None:
                    return at + found
                found = window.find(MAGIC, found + 1)
            if len(window) < HEADER_BYTES:
                break
            at += found if found > 0 else max(len(window) - len(MAGIC) + 1, 1)
        return end

    def new_index(self) -> SegmentIndex:
        """Return an empty index; a damaged preamble only costs the time of creation."""
        index = SegmentIndex(self.number, PREAMBLE_BYTES)
        preamble = parse_preamble(self.read(0, PREAMBLE_BYTES))
        if preamble is not None:
            index.created_ns = preamble.created_ns
            index.is_encrypted = preamble.format >= ENCRYPTED_FORMAT
            if preamble.format > ENCRYPTED_FORMAT:
                raise SpoolVersion(
                    f"{self.path}: the segment has format {preamble.format}, this Gapless reads "
                    f"up to {ENCRYPTED_FORMAT}; install a newer Gapless",
                    self.path,
                )
        return index

    def extend_index(self, index: SegmentIndex, end: int) -> None:
        """Extend an index from its end up to ``end`` or to the first bad header."""
        keys: dict[tuple[int, int], str] = {}
        for fields in self._header_fields(index.end, end):
            _, kind, _, marks, rows, table_bytes, payload_bytes, offset, _ = fields[:9]
            node, incarnation, first, last, _, _, collected_ns = fields[9:]
            size_bytes = HEADER_BYTES + table_bytes + payload_bytes
            if marks & ENCRYPTED:
                index.is_encrypted = True
                payload_bytes = max(payload_bytes - TAG_BYTES, 0)
                forged = kind == LOST and not self._decrypts(fields)
            else:
                index.has_plain = index.has_plain or 0 < kind < KEY
                forged = index.is_encrypted and 0 < kind < KEY
            if forged:
                # What is not of the collector is no record: its seqnos are missing.
                index.unreadable.append((offset, size_bytes))
                index.end = offset + size_bytes
                continue
            if 0 < kind <= LOST:
                key = keys.get((node, incarnation))
                if key is None:
                    key = keys[node, incarnation] = str(Address(node, incarnation))
                place = (offset, size_bytes, collected_ns)
                index.add_record(kind, key, first, last, rows, payload_bytes, place)
            else:
                self.index_control_record(index, RecordHeader._make(fields))
            index.end = offset + size_bytes

    def _decrypts(self, fields: tuple[Any, ...]) -> bool:
        try:
            self.read_body(RecordHeader._make(fields))
        except SpoolCorrupt:
            return False
        return True

    def index_control_record(self, index: SegmentIndex, header: RecordHeader) -> None:
        """Add a record without messages to an index."""
        if header.kind not in KINDS:
            if header.kind & OPTIONAL_KIND:
                return
            raise SpoolVersion(
                f"{self.path}: a record of the unknown kind {header.kind} at {header.offset}; "
                f"install a newer Gapless",
                self.path,
            )
        try:
            body = self.read_body(header)
            table = body[: header.table_bytes]
            if header.kind == KEY:
                index.add_key(KeyTable.unpack(table).key_id)
        except (SpoolCorrupt, ValueError):
            return
        if header.kind == NAME:
            index.names[str(header.origin)] = table.decode(errors="replace")
        elif header.kind == STATE:
            index.add_state(StateRecord.unpack(table))
        if header.kind in (STATE, BLOB):
            at = header.offset + HEADER_BYTES + header.table_bytes
            index.blob = (at, len(body) - header.table_bytes)
