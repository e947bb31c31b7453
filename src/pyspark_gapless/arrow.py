"""Records of a spool into Arrow batches, with no work per message in Python.

A batch is made of many records: their length tables and payloads are joined to two buffers, and numpy makes the
offsets by one cumulative sum, the seqnos by one range, and everything that a record says once by repeating it. So a
batch costs the same whether it comes from ten runs or, nearly, from ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gapless import run as runs
from pyspark_gapless import payloads

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BATCH_ROWS: Final = 16 * 1024
BATCH_BYTES: Final = 4 * 1024 * 1024
HEADERS: Final = getattr(runs, "HEADERS", 0x40)
"""Flag of a run: each message begins with a block of headers."""

ORDERED: Final = "ordered"
ACKNOWLEDGED: Final = "acknowledged"


class Stream(NamedTuple):
    """What is the same for all messages of one stream."""

    key: str
    name: str
    node: str
    incarnation: int


class Record(NamedTuple):
    """One record, cut to what is wanted: consecutive messages of one stream.

    ``stream`` is a place in the list of streams. ``lengths`` is empty if the record is one message of any size, which
    travelled in pieces.
    """

    stream: int
    first: int
    count: int
    flags: int
    view: int
    sent_ns: int
    collected_ns: int
    lengths: bytes | memoryview
    payload: bytes | memoryview


def gathered(
    records: Iterable[Record], rows: int = BATCH_ROWS, size_bytes: int = BATCH_BYTES
) -> Iterator[list[Record]]:
    """Return the records in lists that each make a batch; one that is too large by itself is cut."""
    chunk: list[Record] = []
    count = held_bytes = 0
    for record in records:
        if record[2] >= 2 * rows:
            if chunk:
                yield chunk
            yield from ([part] for part in cut(record, rows))
            chunk, count, held_bytes = [], 0, 0
            continue
        chunk.append(record)
        count += record[2]
        held_bytes += len(record[8])
        if count >= rows or held_bytes >= size_bytes:
            yield chunk
            chunk, count, held_bytes = [], 0, 0
    if chunk:
        yield chunk


def cut(record: Record, rows: int) -> Iterator[Record]:
    """Return the record in parts of at most ``rows`` messages."""
    for above in range(record.first - 1, record.first + record.count - 1, rows):
        yield clip(record, above, above + rows)


def clip(record: Record, above: int, upto: int) -> Record:
    """Return the messages ``above < seqno <= upto`` of a record that has lengths; at least one must be among them."""
    import numpy as np

    head = max(0, above + 1 - record.first)
    tail = min(record.count, upto + 1 - record.first)
    if head == 0 and tail == record.count:
        return record
    lengths = np.frombuffer(record.lengths, "<u2")
    begin = int(lengths[:head].sum(dtype=np.int64))
    end = begin + int(lengths[head:tail].sum(dtype=np.int64))
    return record._replace(
        first=record.first + head,
        count=tail - head,
        lengths=record.lengths[2 * head : 2 * tail],
        payload=record.payload[begin:end],
    )


class Layout(NamedTuple):
    """What a batch looks like: the Arrow schema that Spark expects, and how payloads are decoded, if they are."""

    schema: pa.Schema
    group: str
    decoded: tuple[tuple[str, str], ...] = ()
    form: str = ""


class BatchMaker:
    """Makes record batches of one layout; ``streams`` is the list that the records point into and may grow."""

    def __init__(self, layout: Layout, streams: Sequence[Stream]) -> None:
        self.layout = layout
        self.streams = streams
        self._decode: Callable[[pa.Array], payloads.Decoded] | None = None
        names = dict(layout.decoded)
        wanted = [name for name in layout.schema.names if name in names]
        if wanted or payloads.ERROR in layout.schema.names or payloads.ROW in layout.schema.names:
            import pyarrow as pa

            fields = pa.schema([pa.field(names[name], layout.schema.field(name).type) for name in wanted])
            self._decode = payloads.decoder(layout.form, fields)

    def batch(self, chunk: Sequence[Record]) -> pa.RecordBatch:
        """Return one batch of all messages of ``chunk``."""
        import pyarrow as pa

        rows = _Rows(chunk, self.streams, self.layout)
        schema = self.layout.schema
        if self._decode is None:
            arrays = [_fit(rows.column(field.name), field.type) for field in schema]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)
        decoded = self._decode(rows.column("payload"))
        parents = None if decoded.parents is None else pa.array(decoded.parents, pa.int32())
        sources = dict(self.layout.decoded)
        arrays = []
        for field in schema:
            if field.name in sources:
                array = decoded.values.field(sources[field.name])
                if decoded.values.null_count:
                    array = _masked(array, decoded.values)
            elif field.name == payloads.ERROR:
                array = decoded.errors
            elif field.name == payloads.ROW:
                array = _places(decoded.parents or range(rows.count))
            else:
                array = rows.column(field.name)
                array = array if parents is None else array.take(parents)
            arrays.append(_fit(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fit(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _masked(array: pa.Array, values: pa.StructArray) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(values.is_valid(), array, pa.scalar(None, array.type))


def _places(parents: Sequence[int]) -> pa.Array:
    import pyarrow as pa

    places, last, place = [], -1, 0
    for parent in parents:
        place = place + 1 if parent == last else 0
        places.append(place)
        last = parent
    return pa.array(places, pa.int32())


class _Rows:
    """The messages of many records, column by column and only those that are asked for."""

    def __init__(self, chunk: Sequence[Record], streams: Sequence[Stream], layout: Layout) -> None:
        import numpy as np

        (self._stream, self._first, counts, self._flags, self._view, self._sent, self._collected, tables, parts) = zip(
            *chunk, strict=True
        )
        self.streams = streams
        self.layout = layout
        self._counts = np.array(counts, np.int64)
        self.count = int(self._counts.sum())
        self._tables = tables
        self._parts = parts
        self._payload: pa.Array | None = None
        self._headers: pa.Array | None = None

    def column(self, name: str) -> pa.Array:
        """Return the column of that name."""
        return getattr(self, f"_column_{name}")()

    def _repeat(self, values: Sequence[int], dtype: str = "int64") -> np.ndarray[Any, Any]:
        import numpy as np

        if dtype == "int64":
            # Ids are unsigned on the wire, and Spark has signed numbers only.
            return np.repeat(np.array(values, np.uint64).view(np.int64), self._counts)
        return np.repeat(np.array(values, dtype), self._counts)

    def _words(self, indices: Sequence[int], words: Sequence[str]) -> pa.Array:
        import pyarrow as pa

        table = pa.DictionaryArray.from_arrays(self._repeat(indices, "int32"), pa.array(words, pa.string()))
        return table.dictionary_decode()

    def _of_stream(self, words: Sequence[str]) -> pa.Array:
        import pyarrow as pa

        if len(set(self._stream)) == 1:
            return pa.repeat(pa.scalar(words[self._stream[0]], pa.string()), self.count)
        return self._words(self._stream, words)

    def _column_group(self) -> pa.Array:
        import pyarrow as pa

        return pa.repeat(pa.scalar(self.layout.group, pa.string()), self.count)

    def _column_origin(self) -> pa.Array:
        return self._of_stream([stream.key for stream in self.streams])

    def _column_name(self) -> pa.Array:
        return self._of_stream([stream.name for stream in self.streams])

    def _column_node(self) -> pa.Array:
        return self._of_stream([stream.node for stream in self.streams])

    def _column_incarnation(self) -> pa.Array:
        import pyarrow as pa

        return pa.array(self._repeat([self.streams[at].incarnation for at in self._stream]))

    def _column_seqno(self) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        # What is to be added to the place of a row in the batch is the same for all rows of a record.
        before = np.cumsum(self._counts) - self._counts
        base = np.array(self._first, np.uint64).view(np.int64) - before
        return pa.array(np.repeat(base, self._counts) + np.arange(self.count, dtype=np.int64))

    def _column_mode(self) -> pa.Array:
        return self._words([1 if flags & runs.ACKED else 0 for flags in self._flags], [ORDERED, ACKNOWLEDGED])

    def _column_view(self) -> pa.Array:
        import pyarrow as pa

        return pa.array(self._repeat(self._view))

    def _column_sent(self) -> pa.Array:
        return self._time(self._sent)

    def _column_collected(self) -> pa.Array:
        return self._time(self._collected)

    def _time(self, times_ns: Sequence[int]) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        micros = np.repeat(np.array(times_ns, np.int64) // 1000, self._counts)
        return pa.array(micros).view(pa.timestamp("us", "UTC"))

    def _column_payload(self) -> pa.Array:
        if self._payload is None:
            self._split()
        return self._payload

    def _column_headers(self) -> pa.Array:
        if self._headers is None:
            self._split()
        return self._headers

    def _split(self) -> None:
        import numpy as np
        import pyarrow as pa

        lengths = np.frombuffer(b"".join([table or b"\0\0" for table in self._tables]), "<u2").astype(np.int32)
        alone = [at for at, table in enumerate(self._tables) if not table]
        if alone:
            starts = np.cumsum(self._counts) - self._counts
            for at in alone:
                lengths[starts[at]] = len(self._parts[at])
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        self._payload = pa.Array.from_buffers(pa.binary(), self.count, buffers)
        self._headers = pa.nulls(self.count, pa.map_(pa.string(), pa.binary()))
        if any(flags & HEADERS for flags in self._flags):
            self._take_headers_off(offsets, data)

    def _take_headers_off(self, offsets: np.ndarray[Any, Any], data: bytes | memoryview) -> None:
        import pyarrow as pa
        from gapless.headers import split

        whole = memoryview(data)
        ends = offsets.tolist()
        rests: list[bytes | memoryview] = []
        headers: list[list[tuple[str, bytes]] | None] = []
        at = 0
        for flags, count in zip(self._flags, self._counts.tolist(), strict=True):
            messages = [whole[ends[i] : ends[i + 1]] for i in range(at, at + count)]
            at += count
            if not flags & HEADERS:
                rests += messages
                headers += [None] * count
                continue
            for message in messages:
                found, rest = split(bytes(message))
                rests.append(rest)
                headers.append(list(found.items()))
        self._payload = pa.array(rests, pa.binary())
        self._headers = pa.array(headers, pa.map_(pa.string(), pa.binary()))
