"""A Spark driver, as a process of its own: ``python -m gapless_lab.chaos.spark_driver TASK``.

It starts a session and does what the lines of its standard input say, one JSON object each.
``run``: read a spool into a table of Parquet files, in small micro-batches. ``drain``: take what is
there, to the end of it, and stop. ``halt``: stop. It tells each micro-batch, and an end of the
query that was not asked for; such a query is started again, as an operator would.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SPARK_SETTINGS = {
    "spark.cores.max": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": FAST_START_JVM_OPTIONS,
    "spark.executor.extraJavaOptions": FAST_START_JVM_OPTIONS,
    "spark.task.maxFailures": "8",
    # All is on one machine: plain local files, as the session sets them for a local master.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
POLL_INTERVAL_S = 0.05
"""How often the query is looked at."""


@dataclass(frozen=True)
class TableTask:
    """A table to be made from a spool."""

    spool: str
    table: str
    checkpoint: str
    rows: int | None = None


class ChaosDriver:
    """A session, and the one query that it runs."""

    def __init__(self, spark: SparkSession, lines: queue.Queue[str]) -> None:
        self.spark = spark
        self.lines = lines
        self.work: TableTask | None = None
        self.query: StreamingQuery | None = None
        self._last_batch = -1

    def serve(self) -> None:
        """Do what the lines say, until there are no more."""
        while True:
            try:
                line = self.lines.get(timeout=POLL_INTERVAL_S if self.query is not None else 3600.0)
            except queue.Empty:
                self._check_query()
                continue
            if not line:
                return
            told: dict[str, Any] = json.loads(line)
            getattr(self, f"_{told.pop('do')}")(**told)

    def _run(self, **work: Any) -> None:
        self.work = TableTask(**work)
        self._start()
        report(running=True)

    def _start(self, *, now: bool = False) -> None:
        assert self.work is not None
        work = self.work
        reader = (
            self.spark.readStream.format("gapless")
            .option("spool", work.spool)
            .option("reader", "chaos")
        )
        reader = reader.option("minPartitions", 2)
        if work.rows is not None:
            reader = reader.option("maxRowsPerTrigger", work.rows)
        rows = reader.option("columns", "origin,seqno,payload").load()
        writer = rows.writeStream.format("parquet").option("path", work.table)
        writer = writer.option("checkpointLocation", work.checkpoint)
        writer = (
            writer.trigger(availableNow=True)
            if now
            else writer.trigger(processingTime="100 milliseconds")
        )
        self.query = writer.start()

    def _check_query(self) -> None:
        assert self.query is not None
        self._report_progress()
        if self.query.isActive:
            return
        error = self.query.exception()
        report(failed=str(error)[:2000])
        self._start()

    def _report_progress(self) -> None:
        assert self.query is not None
        for progress in self.query.recentProgress:
            if progress.batchId > self._last_batch and progress.numInputRows:
                self._last_batch = progress.batchId
                report(batch=progress.batchId, rows=progress.numInputRows)

    def _halt(self) -> None:
        self._stop()
        report(halted=True)

    def _stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _drain(self) -> None:
        self._stop()
        self._start(now=True)
        assert self.query is not None
        while self.query.isActive or self.query.exception() is not None:
            if not self.query.isActive:
                report(failed=str(self.query.exception())[:2000])
                self._start(now=True)
            self._report_progress()
            time.sleep(POLL_INTERVAL_S)
        self._report_progress()
        self.query = None
        self._last_batch = -1
        report(drained=True)


def report(**words: Any) -> None:
    """Tell the parent something, in one piece."""
    os.write(1, (json.dumps(words) + "\n").encode())


def main() -> None:
    """Start a session and serve."""
    task = json.loads(sys.argv[1])
    lines: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        lines.put("")

    threading.Thread(target=listen, daemon=True).start()
    began_s = time.monotonic()
    spark = session(
        "gapless chaos",
        master=task["master"],
        settings={**SPARK_SETTINGS, **task.get("settings", {})},
    )
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    report(ready=True, jvm=gateway.proc.pid, seconds=round(time.monotonic() - began_s, 1))
    ChaosDriver(spark, lines).serve()


if __name__ == "__main__":
    main()
