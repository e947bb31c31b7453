"""The Spark side: one cluster and its driver, which serve one seed after the other.

Only a driver that was killed is restarted: a start takes longer than everything else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        self._reset()
        super().__init__(name, command, folder)

    def _reset(self) -> None:
        self.batches = 0
        self.failures: list[str] = []
        self._consecutive_failures = 0

    @property
    def jvm_pid(self) -> int:
        """The process id of its JVM."""
        return int(self.latest["ready"]["jvm"])

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
        self._reset()
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


class SparkSide(SparkCluster):
    """A cluster and its one driver, which serve one seed after the other."""

    @property
    def driver(self) -> DriverProcess:
        """The current driver."""
        driver = self.processes.get("driver")
        return driver if isinstance(driver, DriverProcess) else self.restart()

    def stop(self) -> None:
        """Kill the driver; the next use starts another one."""
        if driver := self.processes.pop("driver", None):
            driver.kill()

    def restart(self) -> DriverProcess:
        """Start the next driver; the event ``ready`` follows."""
        command = worker_command("gapless_lab.chaos.spark_driver", DriverTask(self.url))
        self.start("driver", lambda number: DriverProcess(f"driver{number}", command, self.folder))
        return self.driver
