"""Executors of runs: Spark, or a few local processes. Both take chunks and return tables.

Results return through Spark (or the pipe of a process), never through a disk: executors may be
anywhere, and of a retried or repeated task only a single result counts.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gapless.errors import GaplessError
from gapless.sim.worker_pool import worker_pool
from pyspark_gapless.runtime.spark_config import (
    FAST_START_JVM_OPTIONS,
    choose_master,
    external_settings,
)
from pyspark_gapless.runtime.spark_install import find_installation
from pyspark_gapless.sweep.schema import COLUMNS
from pyspark_gapless.sweep.task import SweepRun, make_task, run_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

MAX_CONCURRENT_JOBS: Final = 4
"""Number of jobs that fill all cores of a Spark; another job is queued, so that no core waits."""
NAME: Final = "gapless sweep"
"""The name of the application in Spark."""
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"
"""Where options of the driver's JVM are set."""
_TAG: Final = "gapless-sweep"


class SweepError(GaplessError):
    """The runs cannot continue; finished runs are kept. The message says why."""


class SweepExecutor(ABC):
    """Does chunks of runs: ``slots`` tasks at a time; a chunk is split into ``parts`` tasks."""

    slots: int
    parts = 1

    @property
    def max_in_flight(self) -> int:
        """Number of chunks to submit at once: the number of slots plus 1."""
        return -(-self.slots // self.parts) + 1

    @abstractmethod
    def submit(self, runs: Sequence[SweepRun], code: str) -> Future[pa.Table]:
        """Begin with some runs."""

    @abstractmethod
    def explain_failure(self, error: BaseException) -> SweepError | None:
        """Return in words why a chunk has failed; None for a fault outside of the engine."""


class LocalSweepExecutor(SweepExecutor):
    """The cores of this machine, without Spark."""

    def __init__(self, workers: int, pool: Executor) -> None:
        self.slots = workers
        self._pool = pool

    def submit(self, runs: Sequence[SweepRun], code: str) -> Future[pa.Table]:
        """Begin with some runs."""
        return self._pool.submit(run_table, runs, code)

    def explain_failure(self, error: BaseException) -> SweepError | None:
        """Return in words why a chunk has failed."""
        if isinstance(error, BrokenProcessPool):
            return SweepError(
                "a worker process was killed, perhaps for lack of memory; use fewer --workers"
            )
        return None


class SparkSweepExecutor(SweepExecutor):
    """The cores of a Spark. Each chunk is a job, so that the rows arrive after the chunk."""

    def __init__(self, spark: SparkSession, pool: Executor) -> None:
        self.spark = spark
        self.slots = _slots(spark)
        self.parts = -(-self.slots // MAX_CONCURRENT_JOBS)
        self._pool = pool

    def submit(self, runs: Sequence[SweepRun], code: str) -> Future[pa.Table]:
        """Begin with some runs."""
        return self._pool.submit(self._job, runs, code)

    def _job(self, runs: Sequence[SweepRun], code: str) -> pa.Table:
        self.spark.addTag(_TAG)
        parts = min(self.parts, len(runs))
        schema = ", ".join(f"`{name}` {column.spark_type}" for name, column in COLUMNS.items())
        frame = self.spark.range(0, parts, 1, parts).mapInArrow(
            make_task(runs, parts, code), schema
        )
        return frame.toArrow()

    def explain_failure(self, error: BaseException) -> SweepError | None:
        """Return in words why a chunk has failed."""
        if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
            return SweepError(
                "Spark has died; finished runs are kept: run the same command again to continue"
            )
        if not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
            return None
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return SweepError(f"Spark has given up: {lines[0] if lines else type(error).__name__}")

    def cancel(self) -> None:
        """Cancel the running jobs."""
        self.spark.interruptTag(_TAG)


def _slots(spark: SparkSession) -> int:
    """Return how many tasks run at a time."""
    context = getattr(spark, "_sc", None)
    if context is not None:
        return int(context.defaultParallelism)
    # Spark Connect has no such figure; by default a range is split into that many parts.
    from pyspark.sql.functions import max as most, spark_partition_id

    (row,) = (
        spark.range(1 << 20).select(spark_partition_id().alias("part")).agg(most("part")).collect()
    )
    return int(row[0]) + 1


@contextmanager
def local_executor(workers: int) -> Iterator[SweepExecutor]:
    """Give an engine of ``workers`` processes."""
    with worker_pool(workers) as pool:
        yield LocalSweepExecutor(workers, pool)


def light_settings(master: str | None) -> dict[str, str]:
    """Return options for a JVM that only schedules and must not take cores from the workers."""
    told = external_settings(find_installation().home, os.environ)
    if choose_master(master, told, os.environ).kind != "local" or JVM_OPTIONS in told:
        return {}
    return {JVM_OPTIONS: FAST_START_JVM_OPTIONS}


@contextmanager
def spark_executor(master: str | None, log_path: Path) -> Iterator[SweepExecutor]:
    """Yield an executor on a Spark at ``master``; the log of the JVM goes into a file."""
    from pyspark_gapless.quiet_session import quiet_session

    with (
        quiet_session(master, log_path, NAME, light_settings(master)) as spark,
        ThreadPoolExecutor(MAX_CONCURRENT_JOBS + 1) as pool,
    ):
        engine = SparkSweepExecutor(spark, pool)
        try:
            yield engine
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            # A dead Spark needs no cancelling, and its error is reported elsewhere.
            with suppress(Exception):
                engine.cancel()
