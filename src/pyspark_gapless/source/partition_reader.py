"""What a task does: read the stretches of its partition and make batches of them.

If a replica fails in the middle (a damaged record, a disk that is gone), the rest of the same
seqnos is read from another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from gapless.errors import GaplessError
from gapless.spool import SpoolError, SpoolTrimmed, parse_key
from gapless.spool.columnar import Chunk, scan
from gapless.spool.format import seed_of
from pyspark_gapless.source.arrow_batches import BatchMaker, Layout, Stream
from pyspark_gapless.source.partition_planner import Ranges, Stretch
from pyspark_gapless.source.replica_set import Lost, Replicas, never_of

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("gapless.spark")


@dataclass(frozen=True)
class Part(InputPartition):
    """One partition: everything that an executor needs, so that it looks at nothing but the bytes that it reads."""

    group: str
    spools: tuple[str, ...]
    ids: tuple[bytes, ...]
    stretches: tuple[Stretch, ...]
    names: dict[str, str]
    fail_on_data_loss: bool = True

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        return sum(stretch.rows for stretch in self.stretches)


def parts(
    replicas: Replicas, plan: Sequence[Sequence[Stretch]], *, fail_on_data_loss: bool
) -> list[Part]:
    """Return the partitions of a plan."""
    names = replicas.names()
    ids = tuple(b"" if view is None else view.info.spool_id for view in replicas.views)
    return [
        Part(
            replicas.group,
            tuple(str(path) for path in replicas.paths),
            ids,
            tuple(stretches),
            {key: names[key] for stretch in stretches for key in stretch.ranges if key in names},
            fail_on_data_loss,
        )
        for stretches in plan
    ]


def batches(
    part: Part, schema: pa.Schema, decoded: tuple[tuple[str, str], ...], form: str
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a partition."""
    keys = list(dict.fromkeys(key for stretch in part.stretches for key in stretch.ranges))
    streams = []
    for key in keys:
        origin = parse_key(key)
        streams.append(Stream(key, part.names.get(key, ""), f"{origin.node:x}", origin.incarnation))
    maker = BatchMaker(Layout(schema, part.group, decoded, form), streams)
    for chunk in _Reading(part, keys).chunks():
        yield maker.batch(chunk)


class _Reading:
    """The messages of one partition, from whichever replica gives them."""

    def __init__(self, part: Part, keys: Sequence[str]) -> None:
        self.part = part
        self.places = {key: at for at, key in enumerate(keys)}
        self.done: dict[int, int] = {}

    def chunks(self) -> Iterator[Chunk]:
        for stretch in self.part.stretches:
            try:
                yield from self._stretch(stretch, self.part.ids[stretch.replica])
            except SpoolError as error:
                yield from self._elsewhere(stretch, error)

    def _stretch(self, stretch: Stretch, spool_id: bytes) -> Iterator[Chunk]:
        path = Path(self.part.spools[stretch.replica]) / "segments" / f"{stretch.segment:020d}.run"
        wanted: dict[tuple[int, int], tuple[int, int, int]] = {
            parse_key(key): (self.places[key], above, upto)
            for key, (above, upto) in stretch.ranges.items()
        }
        seed = seed_of(spool_id, stretch.segment)
        for chunk in scan(path, seed, stretch.begin, stretch.end, wanted):
            # Of a stream the last record of a chunk counts, and that is what a dict keeps.
            self.done.update(
                zip(chunk.place.tolist(), (chunk.first + chunk.rows - 1).tolist(), strict=True)
            )
            yield chunk

    def _elsewhere(self, stretch: Stretch, error: SpoolError) -> Iterator[Chunk]:
        """Read what is left of a stretch from the other replicas; if that cannot be, the error stands."""
        left: Ranges = {}
        for key, (above, upto) in stretch.ranges.items():
            after = max(above, self.done.get(self.places[key], 0))
            if after < upto:
                left[key] = (after, upto)
        others = [path for at, path in enumerate(self.part.spools) if at != stretch.replica]
        if others:
            log.warning("reading from another replica: %s", error)
            yield from self._from(others, left, never_of(self.part.spools[stretch.replica]), error)
        elif isinstance(error, SpoolTrimmed) and not self.part.fail_on_data_loss:
            log.warning("going on without it: %s", error)
        else:
            raise error

    def _from(
        self, others: Sequence[str], left: Ranges, never: Lost, error: SpoolError
    ) -> Iterator[Chunk]:
        replicas = Replicas(others)
        try:
            replicas.refresh()
            start = {key: above for key, (above, _) in left.items()}
            end = {key: upto for key, (_, upto) in left.items()}
            # What the replica that has failed did have is not lost because others never got it.
            plan = replicas.plan(start, end, partitions=(1, 1), never=never)
        except GaplessError as failure:
            raise type(error)(f"{error}; and no other replica has it: {failure}") from error
        for piece in parts(replicas, plan, fail_on_data_loss=True):
            again = _Reading(piece, list(self.places))
            again.done = self.done
            yield from again.chunks()
