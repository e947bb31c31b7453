"""The sink: ``df.writeStream.format("gapless").option("group", …)`` and ``df.write``; docs/spark-sink.md.

On an executor: the rows of a partition are encoded and staged. On the driver's side, in a process
of its own: a batch is settled, published and marked as such (``staging.py``, ``publishing.py``,
``publisher.py``), each step so that it can be done again.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from gapless.errors import ConfigError
from pyspark_gapless.sink import options as sink_options
from pyspark_gapless.sink.options import SinkOptions
from pyspark_gapless.sink.publisher_process import publish_apart
from pyspark_gapless.sink.row_encoder import Encoding, choose, encoder
from pyspark_gapless.sink.staging import Part, SinkError, Staging, begun, default_root

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver's side: of which query the rows are, and where they stand."""

    query: str
    part: Part


def batch_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return what writes a batch, by the options that were given."""
    options = sink_options.parse(given)
    if overwrite:
        raise ConfigError('what was sent to a group cannot be overwritten: use .mode("append")')
    return GaplessWriter(options, choose(schema, options.form))


def stream_writer(given: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """Return what writes a stream, by the options that were given."""
    options = sink_options.parse(given)
    root = default_root(options.checkpoint, options.staging)
    return GaplessStreamWriter(options, choose(schema, options.form), root)


def _stage(
    options: SinkOptions,
    encoding: Encoding,
    staging: Staging,
    batch: int,
    rows: Iterator[pa.RecordBatch],
) -> Staged:
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    convert = encoder(encoding, options.config.max_message_bytes)
    return Staged(staging.query, staging.stage(batch, partition, map(convert, rows)))


def _told(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


class GaplessStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def __init__(self, options: SinkOptions, encoding: Encoding, root: Path) -> None:
        self.options = options
        self.encoding = encoding
        self.root = root

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise SinkError(
                "Spark does not say which query and batch a task is of: use PySpark 4.2 or later"
            )
        return _stage(self.options, self.encoding, Staging(self.root, query), int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a batch, unless that was done before."""
        told = _told(messages)
        # A batch that was begun and is computed again may have no partition now; in its checkpoint
        # a query is alone.
        alone = None if self.options.staging else begun(self.root, batchId)
        query = told[0].query if told else alone
        if query is None:
            return
        staging = Staging(self.root, query)
        parts = [message.part for message in told]
        with staging.locked(self.options.deliver_timeout_ns):
            if batchId <= staging.published():
                staging.discard(batchId, parts)
                return
            publish_apart(staging, staging.settle(batchId, parts), self.options)
            staging.finish(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what was staged; what is settled stays, for the batch will be committed again."""
        for message in _told(messages):
            Staging(self.root, message.query).discard(batchId, [message.part])


class GaplessWriter(DataSourceArrowWriter):
    """Writes a DataFrame, in the order of its partitions."""

    def __init__(self, options: SinkOptions, encoding: Encoding) -> None:
        self.options = options
        self.encoding = encoding
        root = default_root(
            "", options.staging or str(Path(tempfile.gettempdir()) / "gapless-sink")
        )
        self.staging = Staging(root, f"write-{uuid.uuid4()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one partition."""
        return _stage(self.options, self.encoding, self.staging, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows."""
        manifest = self.staging.settle(0, [message.part for message in _told(messages)])
        publish_apart(self.staging, manifest, self.options)
        self.staging.remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete what was staged."""
        self.staging.remove()
