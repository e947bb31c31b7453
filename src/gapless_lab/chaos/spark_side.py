"""The Spark side: one cluster and its driver, which serve one seed after the other.

Only a driver that was killed is restarted: a start takes longer than everything else.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gapless_lab.chaos.spark_driver import DriverTask
from gapless_lab.process import (
    LabError,
    LabProcess,
    Message,
    command_line,
    descendants,
    worker_command,
)
from gapless_lab.spark_cluster import SparkCluster

SLOW_WORKER_ERROR = "Python worker failed to connect back"
"""The error of a query whose Python worker takes over ten seconds to start; a retry helps."""
MAX_CONSECUTIVE_FAILURES = 5
"""Maximum number of failures in a row, for other reasons, before the run is given up."""


class DriverProcess(LabProcess):
    """One incarnation of the driver; its figures count from the last ``run``."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.batches = 0
        self.failures: list[str] = []
        self._consecutive_failures = 0
        super().__init__(name, command, folder)

    @property
    def jvm_pid(self) -> int:
        """The process id of its JVM."""
        pid: int = self.latest["ready"]["jvm"]
        return pid

    def on_event(self, name: str, fields: Message) -> None:
        """Count micro-batches and failures."""
        if name == "batch":
            self.batches += 1
            self._consecutive_failures = 0
        elif name == "failed":
            self.failures.append(fields["error"])
            self._consecutive_failures += SLOW_WORKER_ERROR not in fields["error"]

    def check(self) -> None:
        """Raise if the query failed too often in a row."""
        if self._consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            raise LabError(f"the query fails again and again: {self.failures[-1]}")

    def run(self, work: dict[str, Any]) -> None:
        """Start to fill a table."""
        self.batches = 0
        self.failures = []
        self._consecutive_failures = 0
        for event in ("drained", "halted"):
            self.latest.pop(event, None)
        self.notify("run", **work)

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
        """The current driver."""
        if self._driver is None:
            self.start()
        assert self._driver is not None
        return self._driver

    def start(self) -> None:
        """Start a driver; the event ``ready`` follows."""
        self.drivers += 1
        task = DriverTask(self.cluster.url)
        command = worker_command("gapless_lab.chaos.spark_driver", task)
        self._driver = DriverProcess(f"driver{self.drivers}", command, self.folder)

    def stop(self) -> None:
        """Kill the driver."""
        if self._driver is not None:
            self._driver.kill()
            self._driver = None
