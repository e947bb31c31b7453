"""What a sink has published, remembered by those that receive it, so that nobody sees a row twice.

A sink sends rows in batches, and begins a batch again, from its first row, when it does not know
whether the batch has arrived. So a row can come several times, in the streams of several lives of
the sink. Each carries the header :data:`SINK`, which is the same every time:
``query/batch/partition/row``. Rows are numbered from 0 on through the whole batch, over its
partitions in their order.

The law: a row that was not seen is never taken for one that was. A sink begins a batch when
everybody has the whole of the one before; so what is older than the batch that a query is at was
seen, and of that batch the rows are remembered, which most often is one range. What is remembered
is bounded: the query that was quiet for the longest is forgotten first, and of too many ranges the
lowest.

To learn that a run holds no rows of a sink costs one search for its name, whatever the number of
its messages.
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
"""The name of the header that says which row of which sink a message is."""
MAX_QUERIES = 256
"""So many queries are remembered."""
MAX_RANGES = 256
"""So many ranges of rows are remembered of one batch."""
MAX_QUERY_BYTES = 255
"""The longest name of a query."""
MAX_DIGITS = 19
"""The longest number of a batch, a partition or a row: more would not fit where it is remembered."""

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
    """Which row a message is: of which query and batch, from which partition, and its number in the batch."""

    query: str
    batch: int
    partition: int
    row: int

    def encode(self) -> bytes:
        """Return the value of the header."""
        return b"%b/%d/%d/%d" % (self.query.encode(), self.batch, self.partition, self.row)


def parse_row_id(headers: Headers) -> SinkRowId | None:
    """Return which row a message with these headers is; None if no sink has sent it."""
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
    """Return the header of a sink in a message; where it is the first one, as sinks send it, by a look."""
    if message.startswith(_FIRST, _AT) and message.startswith(_HEADED):
        start = _AT + len(_FIRST) + _SIZE.size
        if len(message) >= start:
            end = start + _SIZE.unpack_from(message, start - _SIZE.size)[0]
            if end <= _AT + _BLOCK.unpack_from(message, len(_HEADED))[0] <= len(message):
                return message[start:end]
    return detach_headers(message)[0].get(SINK) if _NAME in message else None


class _QueryProgress:
    __slots__ = ("batch", "rows")

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.rows: list[Range] = []

    def take(self, batch: int, row: int) -> bool:
        """Take note of a row; return whether it was not seen before."""
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
    """The rows of sinks that were seen here. ``repeated`` counts those that came again, ``changes`` the others."""

    def __init__(self) -> None:
        self.repeated = self.changes = 0
        self._queries: OrderedDict[str, _QueryProgress] = OrderedDict()

    def __len__(self) -> int:
        return len(self._queries)

    def is_new(self, headers: Headers) -> bool:
        """Return whether a message with these headers is to be handed on, and remember that it was."""
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
        """Return which of a run's messages are to be handed on, by their places; None if that is all of them.

        ``payload`` is all of them end to end; they are taken apart only if a sink has sent one.
        """
        if _NAME not in payload:
            return None
        before = self.repeated
        kept = list(self._new_indexes(messages()))
        if self.repeated == before:
            return None
        found: list[Range] = []
        for at in kept:
            if found and found[-1][1] == at - 1:
                found[-1] = (found[-1][0], at)
            else:
                found.append((at, at))
        return found

    def _new_indexes(self, messages: Sequence[bytes]) -> Iterator[int]:
        """Return the places of those that are to be handed on; of rows in a row, only the number is looked at."""
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
        """Return everything that is remembered as bytes, to be kept where the messages are."""
        parts = [bytes((_VERSION,))]
        for name, query in self._queries.items():
            encoded = name.encode()
            parts += [_QUERY.pack(len(encoded), query.batch, len(query.rows)), encoded]
            parts += [_RANGE.pack(*part) for part in query.rows]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> SinkDedup:
        """Return what was remembered; nothing is an empty memory."""
        memory = cls()
        if not data:
            return memory
        if data[0] != _VERSION:
            raise GaplessError(
                f"what is remembered of sinks is of version {data[0]}, and this code knows {_VERSION}: use the version"
                " of Gapless that has written it, or a later one"
            )
        at = 1
        try:
            while at < len(data):
                size, batch, count = _QUERY.unpack_from(data, at)
                at += _QUERY.size + size
                query = memory._queries[data[at - size : at].decode()] = _QueryProgress(batch)
                end = at + count * _RANGE.size
                query.rows = [
                    _RANGE.unpack_from(data, start) for start in range(at, end, _RANGE.size)
                ]
                at = end
        except (StructError, UnicodeDecodeError) as error:
            raise GaplessError(
                f"what is remembered of sinks is damaged at byte {at}: {error}"
            ) from error
        return memory
