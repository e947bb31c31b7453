"""A Spark driver, as a process: ``python -m gapless_lab.chaos.spark_driver TASK``.

Commands: ``run`` reads a spool into a table of Parquet files, in small micro-batches; ``drain``
reads to the end of the spool and stops; ``halt`` stops. It sends the events ``ready``, ``batch``
for each micro-batch, and ``failed`` for a query that ended by itself; such a query is started
again, as an operator would.
"""

from __future__ import annotations

import threading
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
        self._draining = False
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve commands and watch the query, until the supervisor ends."""
        commands = threading.Thread(target=serve_commands, args=(self,), daemon=True)
        commands.start()
        while commands.is_alive():
            with self._lock:
                if self.query is not None:
                    self._check_query(self.query)
            commands.join(POLL_INTERVAL_S)

    def run(self, **work: Any) -> None:
        """Start to fill a table."""
        with self._lock:
            self.work = TableTask(**work)
            self._start()

    def halt(self) -> None:
        """Stop the query."""
        with self._lock:
            self._stop()
        emit("halted")

    def drain(self) -> None:
        """Read to the end of the spool; ``drained`` follows."""
        with self._lock:
            self._stop()
            self._draining = True
            self._start()

    def _start(self) -> None:
        work = self.work
        assert work is not None
        reader = self.spark.readStream.format("gapless").options(
            spool=work.spool, reader="chaos", minPartitions=2, columns="origin,seqno,payload"
        )
        if work.rows is not None:
            reader = reader.option("maxRowsPerTrigger", work.rows)
        writer = reader.load().writeStream.format("parquet")
        writer = writer.options(path=work.table, checkpointLocation=work.checkpoint)
        if self._draining:
            self.query = writer.trigger(availableNow=True).start()
        else:
            self.query = writer.trigger(processingTime="100 milliseconds").start()

    def _stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def _check_query(self, query: StreamingQuery) -> None:
        # In this order: the progress of a query that has ended is complete.
        is_active = query.isActive
        for progress in query.recentProgress:
            if progress.batchId > self._last_batch and progress.numInputRows:
                self._last_batch = progress.batchId
                emit("batch", number=progress.batchId, rows=progress.numInputRows)
        if is_active:
            return
        error = query.exception()
        if self._draining and error is None:
            self.query, self._draining, self._last_batch = None, False, -1
            emit("drained")
            return
        emit("failed", error=str(error)[:2000])
        self._start()


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
