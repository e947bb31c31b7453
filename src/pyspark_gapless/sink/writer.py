"""The sink: ``df.writeStream.format("gapless").option("group", …)``.

On an executor: the rows of a partition are encoded and staged. On the driver's side, in a separate
process: a batch is settled, published and marked as published (``staging.py``, ``publisher.py``,
``publisher_process.py``); each step can be repeated.
"""

from __future__ import annotations

import os
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
from pyspark_gapless.sink.publisher_process import publish_out_of_process
from pyspark_gapless.sink.row_encoder import RowEncoding, choose_encoding, make_encoder
from pyspark_gapless.sink.staging import (
    SinkError,
    StagedPartition,
    Staging,
    default_root,
    find_unfinished_query,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class StagedCommitMessage(WriterCommitMessage):
    """The report of a task to the driver: the query and the staged files."""

    query: str
    part: StagedPartition


def batch_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer of a batch for the given options."""
    options = sink_options.parse(given)
    if overwrite:
        raise ConfigError('sent messages cannot be overwritten; use .mode("append")')
    return GaplessBatchWriter(options, choose_encoding(schema, options.payload_format))


def stream_writer(given: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    """Return the writer of a stream for the given options."""
    options = sink_options.parse(given)
    root = default_root(options.checkpoint, options.staging)
    return GaplessStreamWriter(options, choose_encoding(schema, options.payload_format), root)


def _stage(
    options: SinkOptions,
    encoding: RowEncoding,
    staging: Staging,
    batch: int,
    rows: Iterator[pa.RecordBatch],
) -> StagedCommitMessage:
    from pyspark import TaskContext

    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    convert = make_encoder(encoding, options.config.max_message_bytes)
    return StagedCommitMessage(staging.query, staging.stage(batch, partition, map(convert, rows)))


def _staged_partitions(messages: Sequence[WriterCommitMessage | None]) -> list[StagedCommitMessage]:
    return [message for message in messages if isinstance(message, StagedCommitMessage)]


class GaplessStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream, each once."""

    def __init__(self, options: SinkOptions, encoding: RowEncoding, root: Path) -> None:
        self.options = options
        self.encoding = encoding
        self.root = root

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a partition."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        batch = None if context is None else context.getLocalProperty(_BATCH)
        if not query or not batch:
            raise SinkError(
                "Spark does not report the query and the batch of a task; use PySpark 4.2 or later"
            )
        return _stage(self.options, self.encoding, Staging(self.root, query), int(batch), iterator)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """Publish a batch, unless already published."""
        staged = _staged_partitions(messages)
        # A batch that was begun and is computed again may have no partition now; in its checkpoint
        # a query is alone.
        alone = None if self.options.staging else find_unfinished_query(self.root, batchId)
        query = staged[0].query if staged else alone
        if query is None:
            return
        staging = Staging(self.root, query)
        parts = [message.part for message in staged]
        with staging.locked(self.options.deliver_timeout_ns):
            if batchId <= staging.last_published_batch():
                staging.discard(batchId, parts)
                return
            publish_out_of_process(staging, staging.commit_manifest(batchId, parts), self.options)
            staging.mark_published(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete staged files, except files in a manifest: the batch will be committed again."""
        for message in _staged_partitions(messages):
            Staging(self.root, message.query).discard(batchId, [message.part])


class GaplessBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame, in the order of its partitions."""

    def __init__(self, options: SinkOptions, encoding: RowEncoding) -> None:
        self.options = options
        self.encoding = encoding
        root = default_root(
            "", options.staging or str(Path(tempfile.gettempdir()) / f"gapless-sink-{os.getuid()}")
        )
        self.staging = Staging(root, f"write-{uuid.uuid4()}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a partition."""
        return _stage(self.options, self.encoding, self.staging, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all rows."""
        manifest = self.staging.commit_manifest(
            0, [message.part for message in _staged_partitions(messages)]
        )
        publish_out_of_process(self.staging, manifest, self.options)
        self.staging.remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Delete the staged rows."""
        self.staging.remove()
