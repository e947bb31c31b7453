"""A Spark driver, as a process: ``python -m gapless_lab.chaos.spark_driver TASK``.

Commands: ``run`` reads a spool into a table of Parquet files, in small micro-batches; ``drain``
reads to the end of the spool and stops; ``halt`` stops. It sends the events ``ready``, ``batch``
for each micro-batch, and ``failed`` for a query that ended by itself; such a query is started
again, as an operator would.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless_lab.process import emit, read_task, serve_commands
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
"""How long between two looks at the query."""


@dataclass(frozen=True)
class DriverTask:
    """The task of a driver: the master of its session."""

    master: str


@dataclass(frozen=True)
class TableTask:
    """A table to fill from a spool."""

    spool: str
    table: str
    checkpoint: str
    rows: int | None = None


class ChaosDriver:
    """A session and its one query."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.work: TableTask | None = None
        self.query: StreamingQuery | None = None
        self._last_batch = -1
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve commands and watch the query, until the supervisor ends."""
        commands = threading.Thread(target=serve_commands, args=(self,), daemon=True)
        commands.start()
        while commands.is_alive():
            with self._lock:
                if self.query is not None:
                    self._check_query()
            commands.join(POLL_INTERVAL_S)

    def run(self, **work: Any) -> None:
        """Start to fill a table."""
        with self._lock:
            self.work = TableTask(**work)
            self._start()

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
        emit("failed", error=str(error)[:2000])
        self._start()

    def _report_progress(self) -> None:
        assert self.query is not None
        for progress in self.query.recentProgress:
            if progress.batchId > self._last_batch and progress.numInputRows:
                self._last_batch = progress.batchId
                emit("batch", number=progress.batchId, rows=progress.numInputRows)

    def halt(self) -> None:
        """Stop the query."""
        with self._lock:
            self._stop()
        emit("halted")

    def _stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def drain(self) -> None:
        """Read to the end of the spool, and stop; a query that fails is started again."""
        with self._lock:
            self._stop()
            self._start(now=True)
            assert self.query is not None
            while self.query.isActive or self.query.exception() is not None:
                if not self.query.isActive:
                    emit("failed", error=str(self.query.exception())[:2000])
                    self._start(now=True)
                self._report_progress()
                time.sleep(POLL_INTERVAL_S)
            self._report_progress()
            self.query = None
            self._last_batch = -1
        emit("drained")


def main() -> None:
    """Start a session and serve."""
    task = read_task(DriverTask)
    spark = session("gapless chaos", master=task.master, settings=SPARK_SETTINGS)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    emit("ready", jvm=gateway.proc.pid)
    ChaosDriver(spark).serve()


if __name__ == "__main__":
    main()
