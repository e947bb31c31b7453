"""The session on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def whereabouts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell where a task runs and from where it imports the package."""
    import os

    import pyarrow as pa

    import gapless

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "path": [gapless.__file__], "rows": [rows]})


def test_a_local_session_runs_python(spark: SparkSession) -> None:
    done = spark.range(100, numPartitions=2).mapInArrow(whereabouts, "pid long, path string, rows long").collect()
    assert sum(row.rows for row in done) == 100
