"""Rows of a Spark sink in several replicas: each row is read once.

A sink that is killed within a batch publishes the batch again, from another incarnation. A
collector stores the first copy of each row and records the others as repeated. Replicas may have
had different parts of the batch, so the copy left out by one replica can be the copy kept by
another, and each copy alone looks unread.

The source therefore reads by the name of the row (``query/batch/partition/row`` in the header of
the sink), and not by seqno alone. The offset has the rows read so far of the last batches, so a
restarted query makes the same choice. The law: a new row is never taken for a row read before. A
row whose batch is not recorded any more counts as new. A row of the offset that no replica has any
more is a loss, also where another copy of the row is left: the next batch would leave that out.

A spool without rows of sinks, and a query with a single spool, cost nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from gapless.group.sink_dedup import SinkRowId, row_id_of
from gapless.protocol.stream import ranges
from pyspark_gapless.source import partition_reader
from pyspark_gapless.source.offsets import Digest

if TYPE_CHECKING:
    from gapless.spool.columnar import RecordChunk, SeqnoSets
    from pyspark_gapless.source.replica_set import ReplicaSet

MAX_QUERIES: Final = 64
"""Maximum number of recorded queries; the query idle for the longest time is dropped first."""
MAX_BATCHES: Final = 8
"""Maximum number of recorded batches of a query; the oldest is dropped first."""
MAX_RANGES: Final = 256
"""Maximum number of recorded ranges of rows in one batch; the lowest is dropped first."""


class ReadRows:
    """The rows of sinks that a query has read, by query and batch."""

    def __init__(self, state: Iterable[Any] = ()) -> None:
        self._queries: OrderedDict[str, dict[int, list[tuple[int, int]]]] = OrderedDict(
            (query, {batch: [(first, last) for first, last in rows] for batch, rows in batches})
            for query, batches in state
        )

    def take(self, row: SinkRowId) -> bool:
        """Record a row; return whether the row is new."""
        batches = self._queries.setdefault(row.query, {})
        self._queries.move_to_end(row.query)
        if len(self._queries) > MAX_QUERIES:
            self._queries.popitem(last=False)
        taken = batches.setdefault(row.batch, [])
        fresh = bool(ranges.insert(taken, row.row, row.row))
        if len(taken) > MAX_RANGES:
            del taken[0]
        if len(batches) > MAX_BATCHES:
            del batches[min(batches)]
        return fresh

    def lacks(self, state: Iterable[Any]) -> int:
        """Return how many rows of another record are not in this one.

        Rows that this record may have dropped at a limit do not count.
        """
        missing = 0
        for query, batches in state:
            mine = self._queries.get(query)
            if mine is None and len(self._queries) >= MAX_QUERIES:
                continue
            known = mine or {}
            for batch, rows in batches:
                dropped = len(known) >= MAX_BATCHES and batch < min(known)
                here = known.get(batch, [])
                if not dropped and len(here) < MAX_RANGES:
                    left = ranges.subtract([(first, last) for first, last in rows], here)
                    missing += ranges.count(left)
        return missing

    def state(self) -> list[Any]:
        """Return the record as plain lists, for an offset."""
        return [
            [query, [[batch, [list(part) for part in batches[batch]]] for batch in sorted(batches)]]
            for query, batches in self._queries.items()
        ]


class SinkRowFilter:
    """Finds the copies that a query must not read; remembers streams without rows of sinks."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas
        self._plain: set[str] = set()

    @property
    def is_needed(self) -> bool:
        """Whether several replicas may have kept different copies of a row."""
        return len(self._replicas.paths) > 1 and self._replicas.have_sink_rows

    def find_repeated(
        self,
        start: Digest,
        end: Digest,
        state: Iterable[Any],
        *,
        fail_on_data_loss: bool = True,
    ) -> tuple[SeqnoSets, list[Any]]:
        """Return the seqnos between two digests that repeat rows, and the rows read after."""
        rows = ReadRows(state)
        if not self.is_needed:
            return {}, rows.state()
        wanted = {key: seqno for key, seqno in end.items() if key not in self._plain}
        plan = self._replicas.plan(
            start, wanted, partitions=(1, 1), fail_on_data_loss=fail_on_data_loss
        )
        repeated: SeqnoSets = {}
        seen: dict[str, bool] = {}
        for part in partition_reader.make_partitions(
            self._replicas, plan, fail_on_data_loss=fail_on_data_loss
        ):
            for key, seqno, row in _row_ids(part):
                seen[key] = row is not None or seen.get(key, False)
                if row is not None and not rows.take(row):
                    ranges.insert(repeated.setdefault(key, []), seqno, seqno)
        # A stream belongs to the publisher of a sink, or to a program that is none.
        self._plain |= {key for key, has_rows in seen.items() if not has_rows}
        return repeated, rows.state()


def _row_ids(
    part: partition_reader.GaplessInputPartition,
) -> Iterator[tuple[str, int, SinkRowId | None]]:
    """Return stream, seqno and row of every message of a partition."""
    keys = partition_reader.stream_keys(part)
    for chunk in partition_reader.read_chunks(part):
        yield from _row_ids_of(chunk, keys)


def _row_ids_of(chunk: RecordChunk, keys: list[str]) -> Iterator[tuple[str, int, SinkRowId | None]]:
    lengths: Iterator[int] = iter(chunk.lengths.tolist())
    begin = 0
    for stream, first, count in zip(
        chunk.stream.tolist(), chunk.first.tolist(), chunk.rows.tolist(), strict=True
    ):
        for seqno in range(first, first + count):
            end = begin + next(lengths)
            yield keys[stream], seqno, row_id_of(chunk.payload[begin:end])
            begin = end
