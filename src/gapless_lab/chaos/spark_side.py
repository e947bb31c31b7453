"""The side of Spark: one cluster and its driver, which serve one seed after the other.

Only a driver that was killed is started again, for that takes longer than everything else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gapless_lab.chaos.processes import (
    LabError,
    LabProcess,
    command_line,
    descendants,
    make_environ,
)
from gapless_lab.spark_cluster import SparkCluster
from pyspark_gapless.runtime.package_zip import package_root

SLOW_WORKER_ERROR = "Python worker failed to connect back"
"""What a query fails with when a process of Python takes longer than ten seconds to start; the next try goes on."""
MAX_CONSECUTIVE_FAILURES = 5
"""After so many failures in a row, for other reasons, a query will not go on."""


class DriverProcess(LabProcess):
    """One life of the driver; figures since the last ``run``."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.jvm_pid = 0
        self.batches = self.rows = 0
        self.failures: list[str] = []
        self._consecutive_failures = 0
        self.ready = self.drained = self.halted = False
        super().__init__(*args, **more)

    def on_line(self, line: str) -> None:
        """Take in what it tells."""
        try:
            told = json.loads(line)
        except ValueError:
            return
        self.ready |= "ready" in told
        self.jvm_pid = told.get("jvm", self.jvm_pid)
        self.drained |= "drained" in told
        self.halted |= "halted" in told
        if "batch" in told:
            self.batches += 1
            self.rows += told["rows"]
            self._consecutive_failures = 0
        if "failed" in told:
            self.failures.append(told["failed"])
            self._consecutive_failures += SLOW_WORKER_ERROR not in told["failed"]

    def check(self) -> None:
        """Raise if the query fails again and again."""
        if self._consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            raise LabError(f"the query fails again and again: {self.failures[-1]}")

    def run(self, work: dict[str, Any]) -> None:
        """Let it make a table."""
        self.batches = self.rows = 0
        self.failures = []
        self._consecutive_failures = 0
        self.drained = self.halted = False
        self.send_line(json.dumps({"do": "run", **work}))

    def source_pids(self) -> list[int]:
        """Return the Python process beside the JVM that plans micro-batches."""
        return [
            pid
            for pid in descendants(self.jvm_pid)
            if "streaming_source_runner" in command_line(pid)
        ]


class SparkSide:
    """A cluster and its one driver, which serve one seed after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = SparkCluster(folder / "cluster")
        self.drivers = 0
        self._driver: DriverProcess | None = None

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        try:
            self.start()
        except BaseException:
            self.cluster.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.cluster.__exit__(kind, error, trace)

    @property
    def driver(self) -> DriverProcess:
        """The driver of now."""
        if self._driver is None:
            self.start()
        assert self._driver is not None
        return self._driver

    def start(self) -> None:
        """Start a driver; it takes its time to get ready."""
        self.drivers += 1
        task = json.dumps({"master": self.cluster.url})
        command = [sys.executable, "-m", "gapless_lab.chaos.spark_driver", task]
        self._driver = DriverProcess(
            f"driver{self.drivers}", command, self.folder, make_environ(package_root())
        )

    def stop(self) -> None:
        """Be rid of the driver."""
        if self._driver is not None:
            self._driver.kill()
            self._driver = None
