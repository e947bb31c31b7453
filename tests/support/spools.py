"""Spools for tests, written by the real writer from runs that tests describe in a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from gapless.identity import Address
from gapless.protocol.ready import Delivery
from gapless.run import Run
from gapless.spool import SpoolLimits, SpoolWriter
from pyspark_gapless.source import schema
from pyspark_gapless.source.batch_reader import GaplessBatchReader, PushdownBatchReader
from pyspark_gapless.source.options import parse
from pyspark_gapless.source.stream_reader import GaplessStreamReader

A = Address(0xA, 1)
B = Address(0xB, 1)
C = Address(0xC, 1)
NAMES = {A: "anna", B: "ben", C: ""}
NOW_NS = 1_700_000_000_000_000_000

_TYPES: dict[str, Any] = {
    "string": StringType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "map<string,binary>": MapType(StringType(), BinaryType()),
}


class Writer:
    """A spool that a test writes to; seqnos continue in each stream."""

    def __init__(
        self,
        path: Path,
        *,
        group: str = "plant",
        limits: SpoolLimits | None = None,
        keys: Path | None = None,
    ) -> None:
        self.path = path
        self.group = group
        self.limits = limits or SpoolLimits()
        self.keys = keys
        self.clock_ns = NOW_NS
        self.spool = self._open()

    def _open(self) -> SpoolWriter:
        return SpoolWriter.open(
            self.path, group=self.group, limits=self.limits, sync=False, keys=self.keys
        )

    def restart(self) -> None:
        """Close the spool and open it again, as a collector that was started anew does."""
        self.spool.close()
        self.spool = self._open()

    def close(self) -> None:
        self.spool.close()

    def run(
        self, origin: Address, payloads: Sequence[bytes], *, flags: int = 0, view: int = 7
    ) -> None:
        first = self.next(origin)
        run = Run.of(origin, first, payloads, flags=flags, view=view, sent_ns=self.clock_ns)
        self._append(Delivery(origin, run.first, run.last, run))

    def runs(self, origin: Address, count: int, size: int = 10) -> None:
        """Write ``count`` messages in runs of ``size``; each holds its origin and its number."""
        first = self.next(origin)
        for at in range(first, first + count, size):
            self.run(
                origin,
                [
                    b"%s-%d" % (str(origin).encode(), n)
                    for n in range(at, min(at + size, first + count))
                ],
            )

    def large(self, origin: Address, payload: bytes, pieces: int, *, flags: int = 0) -> None:
        """Write one message that was sent in fragments."""
        first = self.next(origin)
        last = first + pieces - 1
        self._append(
            Delivery(origin, first, last, payload, flags=flags, view=7, sent_ns=self.clock_ns)
        )

    def lost(self, origin: Address, count: int) -> None:
        first = self.next(origin)
        self.spool.append_lost(origin, first, first + count - 1)

    def next(self, origin: Address) -> int:
        stream = self.spool._streams.get(origin)
        return 1 if stream is None else stream.appended + 1

    def commit(self) -> None:
        self.spool.commit()

    def _append(self, delivery: Delivery) -> None:
        self.spool.append(
            delivery, name=NAMES.get(delivery.origin, ""), collected_ns=self.clock_ns + 5_000
        )
        self.clock_ns += 1_000_000


def schema_of(**options: str) -> StructType:
    """Return the schema that Spark would make of the options; only types that need no JVM."""
    import pyarrow as pa

    parsed = parse(options)
    fields = []
    for name, kind in schema.selected_columns(parsed):
        known = {"long": "bigint", "double": "double", "boolean": "boolean", "date": "date"}.get(
            kind, kind
        )
        arrow = {
            "double": pa.float64(),
            "boolean": pa.bool_(),
            "date": pa.date32(),
            "array<string>": pa.list_(pa.string()),
        }
        if known in _TYPES:
            fields.append(StructField(name, _TYPES[known]))
        else:
            fields += from_arrow_schema(pa.schema([(name, arrow[known])])).fields
    return StructType(fields)


def stream_reader(path: Path | str, **options: str) -> GaplessStreamReader:
    """Return a reader like Spark's, released without an fsync."""
    given = {"spool": str(path), "release": "start"} | options
    return GaplessStreamReader(parse(given, streaming=True), schema_of(**given))


def batch_reader(path: Path | str, **options: str) -> GaplessBatchReader:
    given = {"spool": str(path)} | options
    parsed = parse(given, streaming=False)
    return (PushdownBatchReader if parsed.pushdown else GaplessBatchReader)(
        parsed, schema_of(**given)
    )


def read(
    reader: GaplessStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows between two offsets, as Spark reads them."""
    return [
        row
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def read_batch(reader: GaplessBatchReader) -> list[dict[str, Any]]:
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]


def latest(
    reader: GaplessStreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> dict[str, Any]:
    return reader.latestOffset(start, limit or ReadAllAvailable())


def numbers(rows: Sequence[dict[str, Any]], origin: Address) -> list[int]:
    """Return the seqnos of one stream in the order of the rows."""
    return [row["seqno"] for row in rows if row["origin"] == str(origin)]


def digest(offset: dict[str, Any]) -> dict[str, int]:
    """Return an offset without the name of its reader."""
    return {key: value for key, value in offset.items() if not key.startswith("@")}
