"""A Spark program for any cluster: it prints as JSON where its tasks ran and what they read.

Its one argument is JSON: ``settings`` for the session, ``spool`` to read, ``table`` to write with
its ``checkpoint``, and the ``grid`` and the folder of a ``sweep``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "cwd string, gapless string, spark string, rows long"
"""The report of one task."""


def whereabouts(batches: Iterator[Any]) -> Iterator[Any]:
    """Report where a task runs, and from where it imports the package."""
    from pathlib import Path

    import pyarrow as pa

    import gapless
    import gapless.blocking
    import pyspark_gapless

    rows = sum(batch.num_rows for batch in batches)
    found = {
        "cwd": str(Path.cwd()),
        "gapless": gapless.__file__,
        "spark": pyspark_gapless.__file__,
        "rows": rows,
    }
    yield pa.RecordBatch.from_pylist([found])


def read_spool(spark: SparkSession, spool: str, table: str, checkpoint: str) -> dict[str, Any]:
    """Read a spool as a batch, and as a stream into a table."""
    batch = spark.read.format("gapless").option("spool", spool).load()
    stream = spark.readStream.format("gapless").option("spool", spool).load()
    written = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    written.start(table).awaitTermination()
    return {"batch": sums(batch), "stream": sums(spark.read.parquet(table))}


def sums(frame: DataFrame) -> list[dict[str, Any]]:
    """Count rows and seqnos of every stream: ``total`` shows whether each is there once."""
    from pyspark.sql import functions as f

    found = frame.groupBy("origin").agg(
        f.count("*").alias("rows"), f.max("seqno").alias("last"), f.sum("seqno").alias("total")
    )
    return [row.asDict() for row in found.orderBy("origin").collect()]


def sweep_grid(grid: str, folder: str) -> list[tuple[str, int, str]]:
    """Run every cell of a grid with two seeds; return their digests."""
    import threading
    from pathlib import Path

    from pyspark_gapless.sweep.cell import code_digest
    from pyspark_gapless.sweep.grid_file import read_grid
    from pyspark_gapless.sweep.results import RequestedRuns, SweepResults
    from pyspark_gapless.sweep.runner import SweepPlan, run

    cells = read_grid(grid)
    run(SweepPlan(cells, range(2), Path(folder)), lambda _: None, threading.Event())
    batches = SweepResults(Path(folder)).scan(RequestedRuns(cells, range(2), code_digest()))
    return [
        (row["key"], row["seed"], row["digest"]) for batch in batches for row in batch.to_pylist()
    ]


def main() -> None:
    from pyspark_gapless.session import session

    asked = json.loads(sys.argv[1])
    spark = session("program", settings=asked["settings"])
    numbers = spark.range(1000, numPartitions=4)
    tasks = numbers.mapInArrow(whereabouts, SCHEMA).toArrow().to_pylist()
    by_key = (
        numbers.groupBy((numbers.id % 7).alias("key")).count().orderBy("key").toArrow().to_pylist()
    )
    context = getattr(spark, "_sc", None)
    found = {
        "master": "connect" if context is None else context.master,
        "tasks": tasks,
        "counts": [row["count"] for row in by_key],
        "settings": spark.conf.getAll,
    }
    if "spool" in asked:
        found |= read_spool(spark, asked["spool"], asked["table"], asked["checkpoint"])
    if "sweep" in asked:
        found["sweep"] = sweep_grid(asked["grid"], asked["sweep"])
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
