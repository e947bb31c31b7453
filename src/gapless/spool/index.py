"""The index of a segment: the offset and the seqnos of every record, by stream.

A sealed segment has an index file, so that finding a record does not need the segment. The index
file is a cache: if the file is missing, torn or does not fit the segment, the index is rebuilt from
the segment's headers.

The entries of a stream are an array of 64-bit numbers, ``ENTRY_WIDTH`` per record. The array is
read without conversion, and a column is a slice of the array; no code runs for each record.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from bisect import bisect_left
from functools import partial
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from gapless.spool.format import LOST, RUN, StateRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.spool.encryption import IndexCipher

FIRST, LAST, OFFSET, SIZE, ROWS, PAYLOAD, COLLECTED, KIND = range(8)
ENTRY_WIDTH = 8
"""Entry of a record: first and last seqno, offset, size, messages and payload bytes of the stream
in this segment up to
and with this record, collected_ns, kind."""

_HEAD = Struct("<8sII")
_MAGIC = b"\xf1GLIDX\x01\n"
_ENCRYPTED_MAGIC = b"\xf1GLIDX\x02\n"


class StreamIndex:
    """The records of a stream in a segment, in order."""

    __slots__ = (
        "_columns",
        "_data",
        "_source",
        "collected_ns",
        "first",
        "last",
        "payload_bytes",
        "records",
        "rows",
    )

    def __init__(self) -> None:
        self._data = array("Q")
        self._columns: dict[int, array[int]] = {}
        self._source: tuple[Path, int, int, Callable[[], StreamIndex]] | None = None
        self.first = self.last = self.rows = self.payload_bytes = self.records = (
            self.collected_ns
        ) = 0

    def add_record(
        self,
        kind: int,
        first: int,
        last: int,
        rows: int,
        payload_bytes: int,
        place: tuple[int, int, int],
    ) -> None:
        """Add the next record; ``place`` is the offset, the size and the collection time."""
        if not self.records:
            self.first = first
        self.last = last
        self.records += 1
        if kind != LOST:
            self.rows += rows
            self.payload_bytes += payload_bytes
        self.collected_ns = place[2]
        self._data.extend(
            (first, last, place[0], place[1], self.rows, self.payload_bytes, place[2], kind)
        )
        if self._columns:
            self._columns = {}

    def column(self, which: int) -> array[int]:
        """Return a column: the same number of every record."""
        found = self._columns.get(which)
        if found is None:
            if self._source is not None:
                self._load()
            found = self._columns[which] = self._data[which::ENTRY_WIDTH]
        return found

    def find_record(self, seqno: int) -> int:
        """Return the position of the first record that ends at or after ``seqno``."""
        return bisect_left(self.column(LAST), seqno)

    def rows_upto(self, seqno: int) -> int:
        """Return how many messages of this segment are at or below ``seqno``."""
        if seqno >= self.last:
            return self.rows
        if seqno < self.first:
            return 0
        at = self.find_record(seqno)
        rows = self.column(ROWS)
        before = rows[at - 1] if at else 0
        first, last, kind = (self.column(which)[at] for which in (FIRST, LAST, KIND))
        if kind == RUN:
            return before + max(0, seqno - first + 1)
        return rows[at] if seqno >= last else before

    def payload_upto(self, seqno: int) -> int:
        """Return the payload at or below ``seqno``; a cut run counts in proportion."""
        if seqno >= self.last:
            return self.payload_bytes
        if seqno < self.first:
            return 0
        at = self.find_record(seqno)
        payload = self.column(PAYLOAD)
        before = payload[at - 1] if at else 0
        first, last, kind = (self.column(which)[at] for which in (FIRST, LAST, KIND))
        if seqno >= last:
            return payload[at]
        if kind != RUN or seqno < first:
            return before
        return before + (payload[at] - before) * (seqno - first + 1) // (last - first + 1)

    def seqno_at_row(self, row: int) -> int:
        """Return the seqno of message number ``row`` of this segment, counted from 1."""
        rows = self.column(ROWS)
        at = bisect_left(rows, row)
        before = rows[at - 1] if at else 0
        return (
            self.column(FIRST)[at] + row - before - 1
            if self.column(KIND)[at] == RUN
            else self.column(LAST)[at]
        )

    def unload(self) -> None:
        """Drop the entries, which can be read again from the file."""
        if self._source is not None:
            self._data, self._columns = array("Q"), {}

    def packed_entries(self) -> bytes:
        """Return the entries as the bytes of the file."""
        if self._source is not None:
            self._load()
        return _little_endian(self._data).tobytes()

    def summary(self) -> list[int]:
        """Return the figures known without the entries."""
        return [
            self.first,
            self.last,
            self.rows,
            self.payload_bytes,
            self.records,
            self.collected_ns,
        ]

    @classmethod
    def lazy(
        cls, path: Path, at: int, crc: int, summary: list[int], again: Callable[[], StreamIndex]
    ) -> StreamIndex:
        """Return an index with entries read on demand, or rebuilt by ``again`` if bad."""
        index = cls()
        index._source = (path, at, crc, again)
        (
            index.first,
            index.last,
            index.rows,
            index.payload_bytes,
            index.records,
            index.collected_ns,
        ) = summary
        return index

    def _load(self) -> None:
        assert self._source is not None
        if self._data:
            return
        path, at, crc, again = self._source
        try:
            with path.open("rb") as file:
                data = os.pread(file.fileno(), self.records * ENTRY_WIDTH * 8, at)
        except OSError:
            data = b""
        if crc32(data) != crc or len(data) != self.records * ENTRY_WIDTH * 8:
            self._data = again()._data
            return
        self._data.frombytes(data)
        self._data = _little_endian(self._data)


class CorruptIndex(ValueError):  # noqa: N818 - never seen outside: the index is made again
    """The bytes of an index file differ from the written bytes."""


def _little_endian(data: array[int]) -> array[int]:
    if sys.byteorder == "big":
        data = array("Q", data)
        data.byteswap()
    return data


HOLE_LOST = "lost"
"""Reason of a gap: the messages are recorded as lost; offsets skip them."""
HOLE_REPEATED = "repeated"
"""Reason of a hole: recorded as stored already, from another incarnation of the sink."""
HOLE_MISSING = "missing"
"""Reason of a gap: the messages were here; damage, until repair records them as lost."""


class Hole(NamedTuple):
    """Seqnos ``first .. last`` of a stream that cannot be read.

    ``reason`` is ``lost`` or ``repeated`` (both recorded), or ``missing``.
    """

    stream: str
    first: int
    last: int
    reason: str = HOLE_LOST


class SegmentIndex:
    """The index of a segment, up to ``end``."""

    def __init__(self, number: int, end: int = 0) -> None:
        self.number = number
        self.end = end
        self.created_ns = 0
        self.streams: dict[str, StreamIndex] = {}
        self.names: dict[str, str] = {}
        self.holes: list[Hole] = []
        self.unreadable: list[tuple[int, int]] = []
        """Offset and size of bytes that are no record; found only when the index is built."""
        self.first_state: StateRecord | None = None
        self.latest_state: StateRecord | None = None
        self.blob: tuple[int, int] | None = None
        self.key_ids: list[int] = []
        """The keys of the encrypted commits."""
        self.is_encrypted = False
        """Whether every record is encrypted, as the preamble or the first record says."""
        self.has_plain = False
        """Whether there are records without encryption, which count in a plain segment only."""

    def add_record(
        self,
        kind: int,
        key: str,
        first: int,
        last: int,
        count: int,
        payload_bytes: int,
        place: tuple[int, int, int],
    ) -> None:
        """Add the next record with messages or a loss."""
        if kind == LOST:
            self.holes.append(Hole(key, first, last, HOLE_LOST if count else HOLE_REPEATED))
        stream = self.streams.get(key)
        if stream is None:
            stream = self.streams[key] = StreamIndex()
        elif first > stream.last + 1:
            self.holes.append(Hole(key, stream.last + 1, first - 1, HOLE_MISSING))
        stream.add_record(kind, first, last, count, payload_bytes, place)

    def add_state(self, state: StateRecord) -> None:
        """Add a STATE record; the first STATE record has the marks at the start of the segment."""
        if self.first_state is None:
            self.first_state = state
        self.latest_state = state

    def add_key(self, key_id: int) -> None:
        """Add the key of an encrypted commit."""
        self.is_encrypted = True
        if key_id not in self.key_ids:
            self.key_ids.append(key_id)

    @property
    def collected_ns(self) -> int:
        """When the newest message of the segment was collected; 0 without messages."""
        return max((stream.collected_ns for stream in self.streams.values()), default=0)

    def pack(self, cipher: IndexCipher | None = None) -> bytes:
        """Return the content of the index file; with ``cipher`` the head is encrypted."""
        entries = [
            (key, stream.packed_entries(), stream.summary()) for key, stream in self.streams.items()
        ]
        at = 0
        listed = []
        for key, data, summary in entries:
            listed.append([key, at, crc32(data), summary])
            at += len(data)
        content: dict[str, Any] = {
            "segment": self.number,
            "end": self.end,
            "created_ns": self.created_ns,
            "names": self.names,
            "holes": self.holes,
            "blob": self.blob,
            "state": None if self.first_state is None else self.first_state._asdict(),
            "latest": None
            if self.latest_state is self.first_state or self.latest_state is None
            else self.latest_state._asdict(),
            "streams": listed,
        }
        if self.is_encrypted:
            content["keys"] = self.key_ids
        head = json.dumps(content, separators=(",", ":")).encode()
        magic = _MAGIC
        if cipher is not None:
            magic, head = _ENCRYPTED_MAGIC, cipher.encrypt(head)
        return b"".join(
            (_HEAD.pack(magic, crc32(head), len(head)), head, *(data for _, data, _ in entries))
        )

    @classmethod
    def load(
        cls, path: Path, number: int, again: Callable[[], SegmentIndex], cipher: IndexCipher
    ) -> SegmentIndex:
        """Read an index file.

        The entries of streams are read on demand; ``again`` rebuilds the index from the segment if
        the entries are bad. ``cipher`` decrypts the head of an encrypted segment.

        Raises:
            CorruptIndex: The file is bad.
            SpoolKeyError: The head is encrypted, and the key is missing or wrong.
            OSError: The file is missing.
        """
        with path.open("rb") as file:
            start = file.read(64 * 1024)
            if len(start) < _HEAD.size:
                raise CorruptIndex(f"{path}: torn")
            magic, crc, size = _HEAD.unpack_from(start)
            if magic not in {_MAGIC, _ENCRYPTED_MAGIC}:
                raise CorruptIndex(f"{path}: not an index of this version")
            head = start[_HEAD.size : _HEAD.size + size]
            if len(head) < size:
                head += file.read(size - len(head))
        if len(head) != size or crc32(head) != crc:
            raise CorruptIndex(f"{path}: torn")
        if magic == _ENCRYPTED_MAGIC:
            try:
                head = cipher.decrypt(head)
            except ValueError as error:
                raise CorruptIndex(f"{path}: {error}") from None
        return cls._from_json(json.loads(head), path, _HEAD.size + size, number, again)

    @classmethod
    def _from_json(
        cls,
        content: dict[str, Any],
        path: Path,
        base: int,
        number: int,
        again: Callable[[], SegmentIndex],
    ) -> SegmentIndex:
        if content["segment"] != number:
            raise CorruptIndex(f"{path}: the index of segment {content['segment']}")
        index = cls(number, content["end"])
        index.created_ns = content["created_ns"]
        index.names = content["names"]
        index.holes = [Hole(*hole) for hole in content["holes"]]
        index.blob = None if content["blob"] is None else (content["blob"][0], content["blob"][1])
        for state in (content["state"], content["latest"]):
            if state is not None:
                index.add_state(StateRecord.unpack(json.dumps(state).encode()))
        index.key_ids = content.get("keys", [])
        index.is_encrypted = "keys" in content
        index.has_plain = not index.is_encrypted and index.first_state is not None
        for key, at, crc, summary in content["streams"]:
            index.streams[key] = StreamIndex.lazy(
                path, base + at, crc, summary, partial(_rebuild_stream, again, key)
            )
        return index


def plain_content(data: bytes, cipher: IndexCipher) -> bytes:
    """Return the content of an index file with its head in plain; ValueError if it is damaged."""
    magic, _, size = _HEAD.unpack_from(data)
    if magic != _ENCRYPTED_MAGIC:
        return data
    head = cipher.decrypt(data[_HEAD.size : _HEAD.size + size])
    return _HEAD.pack(_MAGIC, crc32(head), len(head)) + head + data[_HEAD.size + size :]


def _rebuild_stream(again: Callable[[], SegmentIndex], key: str) -> StreamIndex:
    return again().streams[key]
