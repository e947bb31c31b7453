"""A program for Spark that does not know where it runs: it prints where its tasks ran, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

SCHEMA = "cwd string, gapless string, spark string, rows long"
"""What a task tells."""


def whereabouts(batches: Iterator[Any]) -> Iterator[Any]:
    """Tell where a task runs and from where it imports the package."""
    from pathlib import Path

    import pyarrow as pa

    import gapless
    import gapless.blocking
    import pyspark_gapless

    rows = sum(batch.num_rows for batch in batches)
    found = {"cwd": str(Path.cwd()), "gapless": gapless.__file__, "spark": pyspark_gapless.__file__, "rows": rows}
    yield pa.RecordBatch.from_pylist([found])


def main() -> None:
    from pyspark_gapless.session import session

    spark = session("program", settings=json.loads(sys.argv[1]) if len(sys.argv) > 1 else {})
    numbers = spark.range(1000, numPartitions=8)
    tasks = numbers.mapInArrow(whereabouts, SCHEMA).toArrow().to_pylist()
    by_key = numbers.groupBy((numbers.id % 7).alias("key")).count().orderBy("key").toArrow().to_pylist()
    context = getattr(spark, "_sc", None)
    master = "connect" if context is None else context.master
    counts = [row["count"] for row in by_key]
    print(json.dumps({"master": master, "tasks": tasks, "counts": counts, "settings": spark.conf.getAll}))
    spark.stop()


if __name__ == "__main__":
    main()
