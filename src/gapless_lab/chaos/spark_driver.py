"""A Spark driver, as a process: ``python -m gapless_lab.chaos.spark_driver TASK``.

Commands: ``run`` reads a spool into a table of Parquet files, in small micro-batches; ``drain``
reads to the end of the spool and stops; ``halt`` stops. Events: ``ready``, ``batch`` for each
micro-batch, and ``failed`` for a failed query. The driver restarts a failed query, as an operator
would.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gapless_lab.process import emit, read_task, serve_in_background
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS, LOCAL_DISK_SETTINGS
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
    **LOCAL_DISK_SETTINGS,  # the whole cluster is on this machine
}
POLL_INTERVAL_S = 0.05
"""How long between two looks at the query."""


@dataclass(frozen=True)
class DriverTask:
    """The task of a driver: the master to connect to."""

    master: str


class ChaosDriver:
    """A session with a single query."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.query: StreamingQuery | None = None
        self._source: dict[str, str] = {}
        self._sink: dict[str, str] = {}
        self._last_batch = -1
        self._draining = False
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Serve commands and watch the query, until the supervisor ends."""
        ended = threading.Event()
        serve_in_background(self, ended)
        while not ended.wait(POLL_INTERVAL_S):
            with self._lock:
                if self.query is not None:
                    self._check_query(self.query)

    def run(self, spool: str, table: str, checkpoint: str, rows: int | None) -> None:
        """Start to fill a table from a spool, up to ``rows`` rows in a micro-batch."""
        with self._lock:
            self._source = {"spool": spool, "reader": "chaos", "columns": "origin,seqno,payload"}
            self._source |= {} if rows is None else {"maxRowsPerTrigger": str(rows)}
            self._sink = {"path": table, "checkpointLocation": checkpoint}
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
        reader = self.spark.readStream.format("gapless").option("minPartitions", 2)
        rows = reader.options(**self._source).load()
        writer = rows.writeStream.format("parquet").options(**self._sink)
        pace = {"availableNow": True} if self._draining else {"processingTime": "100 milliseconds"}
        self.query = writer.trigger(**pace).start()

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
