"""Chunks of a spool into Arrow batches, with no work per message in Python.

A batch has many records: length tables and payloads of all records are joined to two buffers. numpy
computes the offsets by a cumulative sum and the seqnos by a range, and repeats the fields of a
record for each message of the record. So a batch costs nearly the same, whether made of ten runs or
of ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gapless import run as runs
from gapless.group import headers
from gapless.spool.columnar import RecordChunk
from pyspark_gapless.source import payload_decoder

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

ORDERED: Final = "ordered"
ACKNOWLEDGED: Final = "acknowledged"


class StreamInfo(NamedTuple):
    """The fields shared by all messages of a stream."""

    key: str
    name: str
    node: str
    incarnation: int


class BatchLayout(NamedTuple):
    """Layout of a batch: the Arrow schema that Spark expects, and the decoding of payloads."""

    schema: pa.Schema
    group: str
    decoded: tuple[tuple[str, str], ...] = ()
    payload_format: str = ""


class BatchBuilder:
    """Builds record batches of a layout; records refer to ``streams``, which may grow."""

    def __init__(self, layout: BatchLayout, streams: Sequence[StreamInfo]) -> None:
        self.layout = layout
        self.streams = streams
        self._decode: Callable[[pa.Array], payload_decoder.DecodedPayloads] | None = None
        names = dict(layout.decoded)
        wanted = [name for name in layout.schema.names if name in names]
        if (
            wanted
            or payload_decoder.ERROR_COLUMN in layout.schema.names
            or payload_decoder.ROW_COLUMN in layout.schema.names
        ):
            import pyarrow as pa

            fields = pa.schema(
                [pa.field(names[name], layout.schema.field(name).type) for name in wanted]
            )
            self._decode = payload_decoder.make_decoder(layout.payload_format, fields)

    def build(self, chunk: RecordChunk) -> pa.RecordBatch:
        """Return a batch of all messages of ``chunk``."""
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
            elif field.name == payload_decoder.ERROR_COLUMN:
                array = decoded.errors
            elif field.name == payload_decoder.ROW_COLUMN:
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
    """The messages of many records, column by column; only requested columns are built."""

    def __init__(
        self, chunk: RecordChunk, streams: Sequence[StreamInfo], layout: BatchLayout
    ) -> None:
        self.chunk = chunk
        self.streams = streams
        self.layout = layout
        self.count = len(chunk.lengths)
        self._payload: pa.Array | None = None
        self._headers: pa.Array | None = None

    def column(self, name: str) -> pa.Array:
        """Return the column called ``name``."""
        return getattr(self, f"_column_{name}")()

    def _repeat(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.repeat(values, self.chunk.rows)

    def _dictionary_column(self, indices: np.ndarray[Any, Any], words: Sequence[str]) -> pa.Array:
        """Return a dictionary column; ``indices`` has the entry of each record."""
        import numpy as np
        import pyarrow as pa

        if (indices == indices[0]).all():
            return pa.repeat(pa.scalar(words[int(indices[0])], pa.string()), self.count)
        encoded = [word.encode() for word in words]
        sizes = {len(word) for word in encoded}
        if len(sizes) > 1 or 0 in sizes:
            table = pa.DictionaryArray.from_arrays(
                self._repeat(indices.astype(np.int32)), pa.array(words, pa.string())
            )
            return table.dictionary_decode()
        # Words of one size, as the keys of streams most often are, are copied as numbers would be.
        (size,) = sizes
        data = self._repeat(np.array(encoded, f"V{size}")[indices])
        offsets = np.arange(0, size * (self.count + 1), size, dtype=np.int32)
        return pa.Array.from_buffers(
            pa.string(), self.count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )

    def _of_stream(self, words: Sequence[str]) -> pa.Array:
        return self._dictionary_column(self.chunk.stream, words)

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
        import numpy as np
        import pyarrow as pa

        # Ids are unsigned on the wire, and Spark has signed numbers only.
        numbers = np.array([stream.incarnation for stream in self.streams], np.uint64).view(
            np.int64
        )
        return pa.array(self._repeat(numbers[self.chunk.stream]))

    def _column_seqno(self) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        # What is to be added to the place of a row in the batch is the same for all rows of a
        # record.
        rows = self.chunk.rows
        base = self.chunk.first - (np.cumsum(rows) - rows)
        return pa.array(self._repeat(base) + np.arange(self.count, dtype=np.int64))

    def _column_mode(self) -> pa.Array:
        return self._dictionary_column(
            ((self.chunk.flags & runs.ACKED) != 0).astype(int), [ORDERED, ACKNOWLEDGED]
        )

    def _column_view(self) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        return pa.array(self._repeat(self.chunk.view.astype(np.int64)))

    def _column_sent(self) -> pa.Array:
        return self._time(self.chunk.sent_ns)

    def _column_collected(self) -> pa.Array:
        return self._time(self.chunk.collected_ns)

    def _time(self, times_ns: np.ndarray[Any, Any]) -> pa.Array:
        import pyarrow as pa

        return pa.array(self._repeat(times_ns // 1000)).view(pa.timestamp("us", "UTC"))

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

        lengths, data = self.chunk.lengths, self.chunk.payload
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        self._payload = pa.Array.from_buffers(pa.binary(), self.count, buffers)
        self._headers = pa.nulls(self.count, pa.map_(pa.string(), pa.binary()))
        rows = np.flatnonzero(lengths >= headers.WRAP_BYTES)
        raw = np.frombuffer(data, np.uint8)
        for at, byte in enumerate(headers.MARK):
            rows = rows[raw[offsets[rows] + at] == byte]
        if len(rows):
            self._unwrap(rows, offsets, lengths, data)

    def _unwrap(
        self,
        rows: np.ndarray[Any, Any],
        offsets: np.ndarray[Any, Any],
        lengths: np.ndarray[Any, Any],
        data: bytes,
    ) -> None:
        """Take the wrappers off the messages ``rows``; the others are not touched."""
        import numpy as np
        import pyarrow as pa

        whole = memoryview(data)
        lengths = lengths.copy()
        found: list[list[tuple[str, bytes]] | None] = [None] * self.count
        pieces: list[bytes | memoryview] = []
        done = 0
        for row in rows.tolist():
            begin, end = int(offsets[row]), int(offsets[row + 1])
            told, payload = headers.detach_headers(bytes(whole[begin:end]))
            found[row] = list(told.items()) or None
            pieces += (whole[done:begin], payload)
            lengths[row] = len(payload)
            done = end
        pieces.append(whole[done:])
        shorter = np.zeros(self.count + 1, np.int32)
        np.cumsum(lengths, out=shorter[1:])
        buffers = [None, pa.py_buffer(shorter), pa.py_buffer(b"".join(pieces))]
        self._payload = pa.Array.from_buffers(pa.binary(), self.count, buffers)
        self._headers = pa.array(found, pa.map_(pa.string(), pa.binary()))
