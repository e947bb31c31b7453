"""Deduplication of sink rows: a receiver records the rows published by a sink.

A sink sends rows in batches. A sink that does not know whether a batch has arrived sends the batch
again from the first row, so a row can arrive several times, from several incarnations of the sink.
Every copy has the same header ``SINK``: ``query/batch/partition/row``. Rows are numbered from 0
through the whole batch, across partitions in order.

The law: a new row is never taken for a repeated row. A sink starts a batch only when all members
have the whole batch before. So rows of earlier batches of a query are repeated, and the rows of the
present batch are recorded, usually as one range. The record is bounded: the query idle for the
longest time is dropped first, and the lowest of too many ranges.

One search for the name of the header shows that a run contains no rows of a sink.
"""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct, error as StructError  # noqa: N812
from typing import TYPE_CHECKING, NamedTuple

from gapless.errors import GaplessError
from gapless.group.headers import MARK, WITH_HEADERS, WRAP_BYTES, detach_headers
from gapless.protocol.stream.ranges import insert

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gapless.group.headers import Headers
    from gapless.wire.frames import Range

SINK = "gapless-sink"
"""The name of the header that identifies the row of a sink."""
MAX_QUERIES = 256
"""Maximum number of recorded queries."""
MAX_RANGES = 256
"""Maximum number of recorded ranges of rows in one batch."""
MAX_QUERY_BYTES = 255
"""Maximum length of the name of a query."""
MAX_DIGITS = 19
"""Maximum number of digits of a batch, partition or row; more do not fit the record."""

_NAME = SINK.encode()
_HEADED = MARK + bytes((WITH_HEADERS,))
_FIRST = bytes((len(_NAME),)) + _NAME
_AT = WRAP_BYTES
_SIZE = Struct("<I")
_BLOCK = Struct("<Q")
_VERSION = 1
_QUERY = Struct("<BQH")
_RANGE = Struct("<QQ")


class SinkRowId(NamedTuple):
    """The identity of a row: query, batch, partition, and number in the batch."""

    query: str
    batch: int
    partition: int
    row: int

    def encode(self) -> bytes:
        """Return the value of the header."""
        return b"%b/%d/%d/%d" % (self.query.encode(), self.batch, self.partition, self.row)


def parse_row_id(headers: Headers) -> SinkRowId | None:
    """Return the identity of the row with these headers; None for another message."""
    value = headers.get(SINK)
    if value is None:
        return None
    query, *numbers = value.rsplit(b"/", 3)
    if (
        len(numbers) != 3
        or not all(map(_is_number, numbers))
        or not 0 < len(query) <= MAX_QUERY_BYTES
    ):
        return None
    try:
        return SinkRowId(query.decode(), *map(int, numbers))
    except (UnicodeDecodeError, ValueError):
        return None


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= MAX_DIGITS


def _value_in(message: bytes) -> bytes | None:
    """Return the sink header of a message; as the first header it needs no decoding."""
    if message.startswith(_FIRST, _AT) and message.startswith(_HEADED):
        start = _AT + len(_FIRST) + _SIZE.size
        if len(message) >= start:
            end = start + _SIZE.unpack_from(message, start - _SIZE.size)[0]
            if end <= _AT + _BLOCK.unpack_from(message, len(_HEADED))[0] <= len(message):
                return message[start:end]
    return detach_headers(message)[0].get(SINK) if _NAME in message else None


def row_id_of(message: bytes) -> SinkRowId | None:
    """Return the identity of the row in a message as sent; None for another message."""
    value = _value_in(message)
    return None if value is None else parse_row_id({SINK: value})


class _QueryProgress:
    __slots__ = ("batch", "rows")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.rows: list[Range] = []

    def take(self, batch: int, row: int) -> bool:
        """Record a row; return whether the row is new."""
        if batch != self.batch:
            if batch < self.batch:
                return False
            self.batch, self.rows = batch, []
        rows = self.rows
        if rows and rows[-1][1] == row - 1:
            rows[-1] = (rows[-1][0], row)
            return True
        if not insert(rows, row, row):
            return False
        if len(rows) > MAX_RANGES:
            del rows[0]
        return True


class SinkDedup:
    """The record of received rows. ``repeated`` counts repeated rows, ``changes`` new rows."""

    def __init__(self) -> None:
        self.repeated = self.changes = 0
        self._queries: OrderedDict[str, _QueryProgress] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queries)

    def is_new(self, headers: Headers) -> bool:
        """Record a message with these headers; return whether the message is new."""
        row = parse_row_id(headers)
        return row is None or self._take(self._query(row), row.batch, row.row)

    def _query(self, row: SinkRowId) -> _QueryProgress:
        query = self._queries.get(row.query)
        if query is None:
            query = self._queries[row.query] = _QueryProgress(row.batch)
            if len(self._queries) > MAX_QUERIES:
                self._queries.popitem(last=False)
        else:
            self._queries.move_to_end(row.query)
        return query

    def _take(self, query: _QueryProgress, batch: int, row: int) -> bool:
        fresh = query.take(batch, row)
        self.repeated += not fresh
        self.changes += fresh
        return fresh

    def new_ranges(
        self, payload: bytes, messages: Callable[[], Sequence[bytes]]
    ) -> list[Range] | None:
        """Return the ranges of new messages of a run, counted from 0; None if all are new.

        ``payload`` is all messages end to end; messages are split only if the run contains rows of
        a sink.
        """
        if _NAME not in payload:
            return None
        before = self.repeated
        new = list(self._new_indexes(messages()))
        if self.repeated == before:
            return None
        found: list[Range] = []
        for at in new:
            if found and found[-1][1] == at - 1:
                found[-1] = (found[-1][0], at)
            else:
                found.append((at, at))
        return found

    def _new_indexes(self, messages: Sequence[bytes]) -> Iterator[int]:
        """Yield the indexes of new messages; of consecutive rows only the row number is parsed."""
        common, batch, query = b"", 0, _QueryProgress(0)
        for at, message in enumerate(messages):
            value = _value_in(message)
            if value is None:
                yield at
                continue
            front, _, number = value.rpartition(b"/")
            if front == common and _is_number(number):
                if self._take(query, batch, int(number)):
                    yield at
                continue
            found = parse_row_id({SINK: value})
            if found is None:
                yield at
                continue
            common, batch, query = front, found.batch, self._query(found)
            if self._take(query, batch, found.row):
                yield at

    def encode(self) -> bytes:
        """Return the record as bytes, to be stored together with the messages."""
        parts = [bytes((_VERSION,))]
        for name, query in self._queries.items():
            encoded = name.encode()
            parts += [_QUERY.pack(len(encoded), query.batch, len(query.rows)), encoded]
            parts += [_RANGE.pack(*part) for part in query.rows]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> SinkDedup:
        """Return the record in ``data``; no bytes are an empty record."""
        record = cls()
        if not data:
            return record
        if data[0] != _VERSION:
            raise GaplessError(
                f"the record of sink rows has version {data[0]}, expected {_VERSION}; use the"
                " version of Gapless that wrote the record, or a later version"
            )
        at = 1
        try:
            while at < len(data):
                size, batch, count = _QUERY.unpack_from(data, at)
                at += _QUERY.size + size
                query = record._queries[data[at - size : at].decode()] = _QueryProgress(batch)
                end = at + count * _RANGE.size
                query.rows = [
                    _RANGE.unpack_from(data, start) for start in range(at, end, _RANGE.size)
                ]
                at = end
        except (StructError, UnicodeDecodeError) as error:
            raise GaplessError(
                f"the record of sink rows is damaged at byte {at}: {error}"
            ) from error
        return record
