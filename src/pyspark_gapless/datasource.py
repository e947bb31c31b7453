"""The data source ``gapless``: Spark finds the source by name, and passes options and schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from pyspark_gapless.source import options, schema as columns
from pyspark_gapless.source.batch_reader import GaplessBatchReader, PushdownBatchReader
from pyspark_gapless.source.stream_reader import GaplessStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class GaplessDataSource(DataSource):
    """``format("gapless")``: reads spools, and writes rows to a group.

    docs/guides/spark-reading.md and docs/guides/spark-publishing.md list the options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "gapless"

    def schema(self) -> str:
        """Return the schema of a read with the given options, as DDL."""
        return columns.ddl(options.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        parsed = options.parse(self.options, streaming=False)
        return (
            PushdownBatchReader(parsed, schema)
            if parsed.pushdown
            else GaplessBatchReader(parsed, schema)
        )

    # The name is Spark's.
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        return GaplessStreamReader(options.parse(self.options, streaming=True), schema)

    # The sink is a member of a group. Its modules are imported late, because a process that only
    # reads does not need them.

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch query."""
        from pyspark_gapless.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    # The names are Spark's.
    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002
    ) -> DataSourceStreamArrowWriter:
        """Return the writer of a stream.

        In the output mode complete, every batch sends the whole result.
        """
        from pyspark_gapless.sink.writer import stream_writer

        return stream_writer(self.options, schema)


DefaultSource = GaplessDataSource
"""The name under which Spark discovers a source in a package."""


def register(spark: SparkSession) -> Any:
    """Register the source by hand, for a Spark without discovery of data sources.

    Args:
        spark: The session for the registration.

    Returns:
        The session.
    """
    spark.dataSource.register(GaplessDataSource)
    return spark
