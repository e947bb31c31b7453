"""The batch read: ``spark.read.format("gapless")``, messages between two positions of a spool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from gapless.spool import SpoolMismatch
from pyspark_gapless.source import partition_reader, schema as columns
from pyspark_gapless.source.offsets import Digest, digest_of, with_floor
from pyspark_gapless.source.options import EARLIEST, SourceOptions
from pyspark_gapless.source.replica_set import ReplicaSet
from pyspark_gapless.source.sink_rows import SinkRowFilter
from pyspark_gapless.source.stream_reader import position_digest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class GaplessBatchReader(DataSourceReader):
    """Reads the messages of a spool between two positions."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns.check_schema(schema, options)
        self.options = options
        self.schema = schema
        self.filters: list[Filter] = []

    def partitions(self) -> list[partition_reader.GaplessInputPartition]:
        """Return the partitions of the read."""
        replicas = ReplicaSet(self.options.spools, self.options.spool_keys)
        replicas.refresh()
        if not replicas.group:
            path = self.options.spools[0]
            raise SpoolMismatch(
                f"{path}: there is no spool here yet; a batch read needs the spool of a collector"
            )
        start = position_digest(replicas, self.options.begin)
        if self.options.begin.kind != EARLIEST:
            start = digest_of(start)
        end = position_digest(replicas, self.options.end)
        end = with_floor(
            start,
            {
                key: min(seqno, high)
                for key, high in replicas.high().items()
                if (seqno := end.get(key, 0))
            },
        )
        matches = replicas.origin_filter(self.options.origins)
        end = {key: seqno for key, seqno in end.items() if matches(key)}
        start, end = prune(replicas, self.filters, start, end)
        plan = replicas.plan(
            start,
            end,
            partitions=(self.options.min_partitions, self.options.max_partitions),
            fail_on_data_loss=self.options.fail_on_data_loss,
        )
        repeated, _ = SinkRowFilter(replicas).find_repeated(
            start, end, (), fail_on_data_loss=self.options.fail_on_data_loss
        )
        return partition_reader.make_partitions(
            replicas,
            plan,
            fail_on_data_loss=self.options.fail_on_data_loss,
            repeated=repeated,
        )

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        if not isinstance(partition, partition_reader.GaplessInputPartition):
            # What Spark makes up when there is nothing to read.
            return iter(())
        schema = columns.arrow_schema(self.schema)
        pairs = columns.decoded_pairs(self.options, schema.names)
        return partition_reader.read_partition(
            partition, schema, pairs, self.options.payload_format
        )


class PushdownBatchReader(GaplessBatchReader):
    """A batch reader with filter pushdown; Spark refuses such a reader without enabled pushdown."""

    # The name is Spark's.
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Use the filters for planning and return all filters: planning only skips misses."""
        self.filters = list(filters)
        return filters


def prune(
    replicas: ReplicaSet, filters: Iterable[Filter], start: Digest, end: Digest
) -> tuple[Digest, Digest]:
    """Return the digests without the ranges in which no row can pass the filters."""
    names = replicas.names()
    for each in filters:
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        if column in {"origin", "node", "name", "incarnation"} and isinstance(each, EqualTo | In):
            values = set(each.value) if isinstance(each, In) else {each.value}
            end = {
                key: seqno
                for key, seqno in end.items()
                if _column_value(column, key, names) in values
            }
        elif column == "seqno":
            start, end = _by_seqno(each, start, end)
        elif column == "collected" and isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual):
            start = with_floor(start, replicas.at_time(_nanoseconds(each.value)))
    return start, {
        key: seqno for key, seqno in end.items() if seqno > replicas.first_unread_after(key, start)
    }


def _column_value(column: str, key: str, names: dict[str, str]) -> object:
    node, _, incarnation = key.partition(".")
    return {
        "origin": key,
        "node": node,
        "name": names.get(key, ""),
        "incarnation": int(incarnation, 16),
    }[column]


def _by_seqno(each: Filter, start: Digest, end: Digest) -> tuple[Digest, Digest]:
    low, high = 0, 2**63 - 1
    if isinstance(each, EqualTo):
        low = high = each.value
    elif isinstance(each, In):
        low, high = min(each.value), max(each.value)
    elif isinstance(each, GreaterThan):
        low = each.value + 1
    elif isinstance(each, GreaterThanOrEqual):
        low = each.value
    elif isinstance(each, LessThan):
        high = each.value - 1
    elif isinstance(each, LessThanOrEqual):
        high = each.value
    floor = {key: max(start.get(key, 0), low - 1) for key in end} if low > 1 else {}
    return with_floor(start, floor), {key: min(seqno, high) for key, seqno in end.items()}


def _nanoseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.astimezone()
    return (aware - _EPOCH) // timedelta(microseconds=1) * 1000
