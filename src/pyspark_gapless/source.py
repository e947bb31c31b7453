"""The data source ``gapless``: what Spark finds under that name, and hands options and schemas to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from pyspark_gapless import columns, options
from pyspark_gapless.batch import GaplessReader, PushdownReader
from pyspark_gapless.sink import Writes
from pyspark_gapless.stream import GaplessStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class GaplessSource(Writes, DataSource):
    """``format("gapless")``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "gapless"

    def schema(self) -> str:
        """Return the columns that a read has by its options."""
        return columns.ddl(options.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        parsed = options.parse(self.options, streaming=False)
        return PushdownReader(parsed, schema) if parsed.pushdown else GaplessReader(parsed, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        """Return what reads a stream."""
        return GaplessStreamReader(options.parse(self.options, streaming=True), schema)


DefaultSource = GaplessSource
"""The name under which Spark looks for a source in a package by itself."""


def register(spark: SparkSession) -> Any:
    """Register the source by hand, for a Spark that does not find it by itself; returns the session."""
    spark.dataSource.register(GaplessSource)
    return spark
