"""The task of a partition: read the stretches and build batches.

Seqnos that repeat rows of a sink (see sink_rows.py) are left out.

If a replica fails in the middle (a damaged record, a lost disk), the reader reads the rest of the
same seqnos from another replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from gapless.errors import GaplessError
from gapless.logger import logger_of
from gapless.spool import SpoolError, SpoolKeys, SpoolTrimmed, parse_stream_key
from gapless.spool.columnar import RecordChunk, SeqnoSets, scan, without_seqnos
from pyspark_gapless.source.arrow_batches import BatchBuilder, BatchLayout, StreamInfo
from pyspark_gapless.source.partition_planner import SegmentRange, SeqnoRanges
from pyspark_gapless.source.replica_set import LostRanges, ReplicaSet, never_collected

if TYPE_CHECKING:
    import pyarrow as pa

log = logger_of("spark")


@dataclass(frozen=True)
class GaplessInputPartition(InputPartition):
    """A self-contained partition, so that an executor opens only the bytes to read.

    ``keys_path`` is the keyring of an encrypted spool: a path that each executor reads and checks,
    because a secret in a partition would travel through Spark's network, logs and files.
    """

    group: str
    spools: tuple[str, ...]
    spool_ids: tuple[bytes, ...]
    segment_ranges: tuple[SegmentRange, ...]
    origin_names: dict[str, str]
    fail_on_data_loss: bool = True
    repeated: SeqnoSets = field(default_factory=dict)
    keys_path: str = ""

    @property
    def rows(self) -> int:
        """Approximate number of rows of the partition."""
        return sum(stretch.rows for stretch in self.segment_ranges)


def make_partitions(
    replicas: ReplicaSet,
    plan: Sequence[Sequence[SegmentRange]],
    *,
    fail_on_data_loss: bool,
    repeated: SeqnoSets | None = None,
) -> list[GaplessInputPartition]:
    """Return the partitions of a plan, without the seqnos ``repeated``."""
    names = replicas.names()
    ids = tuple(b"" if view is None else view.info.spool_id for view in replicas.spool_readers)
    return [
        GaplessInputPartition(
            replicas.group,
            tuple(str(path) for path in replicas.paths),
            ids,
            tuple(stretches),
            {key: names[key] for stretch in stretches for key in stretch.ranges if key in names},
            fail_on_data_loss,
            {
                key: repeated[key]
                for stretch in (stretches if repeated else ())
                for key in stretch.ranges
                if repeated and key in repeated
            },
            replicas.keys_path,
        )
        for stretches in plan
    ]


def stream_keys(part: GaplessInputPartition) -> list[str]:
    """Return the streams of a partition, by their index in chunks."""
    return list(dict.fromkeys(key for stretch in part.segment_ranges for key in stretch.ranges))


def read_chunks(part: GaplessInputPartition) -> Iterator[RecordChunk]:
    """Return the messages of a partition as columns."""
    keys = stream_keys(part)
    for chunk in _PartitionReader(part, keys).chunks():
        found = without_seqnos(chunk, part.repeated, keys) if part.repeated else chunk
        if len(found.rows):
            yield found


def read_partition(
    part: GaplessInputPartition, schema: pa.Schema, decoded: tuple[tuple[str, str], ...], form: str
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition."""
    streams = []
    for key in stream_keys(part):
        origin = parse_stream_key(key)
        streams.append(
            StreamInfo(key, part.origin_names.get(key, ""), f"{origin.node:x}", origin.incarnation)
        )
    maker = BatchBuilder(BatchLayout(schema, part.group, decoded, form), streams)
    for chunk in read_chunks(part):
        yield maker.build(chunk)


class _PartitionReader:
    """The messages of a partition, from any replica with the messages."""

    def __init__(self, part: GaplessInputPartition, keys: Sequence[str]) -> None:
        self.part = part
        self.stream_index = {key: at for at, key in enumerate(keys)}
        self.last_read: dict[int, int] = {}
        self._keys = SpoolKeys(part.keys_path) if part.keys_path else None

    def chunks(self) -> Iterator[RecordChunk]:
        for stretch in self.part.segment_ranges:
            try:
                yield from self._read_range(stretch, self.part.spool_ids[stretch.replica])
            except SpoolError as error:
                yield from self._fail_over(stretch, error)

    def _read_range(self, stretch: SegmentRange, spool_id: bytes) -> Iterator[RecordChunk]:
        root = Path(self.part.spools[stretch.replica])
        wanted: dict[tuple[int, int], tuple[int, int, int]] = {
            parse_stream_key(key): (self.stream_index[key], above, upto)
            for key, (above, upto) in stretch.ranges.items()
        }
        place = (root, spool_id, stretch.segment, stretch.begin, stretch.end)
        for chunk in scan(*place, wanted, self._keys, encrypted=stretch.encrypted):
            # Of a stream the last record of a chunk counts, and that is what a dict keeps.
            self.last_read.update(
                zip(chunk.stream.tolist(), (chunk.first + chunk.rows - 1).tolist(), strict=True)
            )
            yield chunk

    def _fail_over(self, stretch: SegmentRange, error: SpoolError) -> Iterator[RecordChunk]:
        """Read the rest of a range from the other replicas; without others, raise the error."""
        left: SeqnoRanges = {}
        for key, (above, upto) in stretch.ranges.items():
            after = max(above, self.last_read.get(self.stream_index[key], 0))
            if after < upto:
                left[key] = (after, upto)
        others = [path for at, path in enumerate(self.part.spools) if at != stretch.replica]
        if others:
            log.warning("reading from another replica: %s", error)
            never = never_collected(self.part.spools[stretch.replica], self.part.keys_path)
            yield from self._read_from_replicas(others, left, never, error)
        elif isinstance(error, SpoolTrimmed) and not self.part.fail_on_data_loss:
            log.warning("skipping trimmed messages: %s", error)
        else:
            raise error

    def _read_from_replicas(
        self, others: Sequence[str], left: SeqnoRanges, never: LostRanges, error: SpoolError
    ) -> Iterator[RecordChunk]:
        replicas = ReplicaSet(others, self.part.keys_path)
        try:
            replicas.refresh()
            start = {key: above for key, (above, _) in left.items()}
            end = {key: upto for key, (_, upto) in left.items()}
            # What the replica that has failed did have is not lost because others never got it.
            plan = replicas.plan(start, end, partitions=(1, 1), never_collected=never)
        except GaplessError as failure:
            raise type(error)(f"{error}; no other replica has the messages: {failure}") from error
        for piece in make_partitions(replicas, plan, fail_on_data_loss=True):
            again = _PartitionReader(piece, list(self.stream_index))
            again.last_read = self.last_read
            yield from again.chunks()
