"""The Spark side of chaos runs: a cluster and a driver, shared by all seeds.

Only a killed driver is restarted: the start of a driver takes longer than the rest of a run.
"""

from __future__ import annotations

from typing import Any

from gapless_lab.chaos.spark_driver import DriverTask
from gapless_lab.process import LabError, LabProcess, Message, descendants, worker_command
from gapless_lab.spark_cluster import SparkCluster

SLOW_WORKER_ERROR = "Python worker failed to connect back"
"""The error of a query whose Python worker takes over ten seconds to start; a retry helps."""
MAX_CONSECUTIVE_FAILURES = 5
"""Maximum number of failures in a row, for other reasons, before the run is given up."""


class DriverProcess(LabProcess):
    """An incarnation of the driver; the figures count from the last ``run``."""

    batches = 0
    failures: tuple[str, ...] = ()
    _consecutive_failures = 0

    @property
    def jvm_pid(self) -> int:
        """The process id of the JVM."""
        return int(self.latest["ready"]["jvm"])

    def on_event(self, name: str, fields: Message) -> None:
        """Count micro-batches and failures."""
        if name == "batch":
            self.batches += 1
            self._consecutive_failures = 0
        elif name == "failed":
            self.failures += (fields["error"],)
            self._consecutive_failures += SLOW_WORKER_ERROR not in fields["error"]

    def check(self) -> None:
        """Raise if the query failed too often in a row."""
        if self._consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            raise LabError(f"the query fails again and again: {self.failures[-1]}")

    def run(self, work: dict[str, Any]) -> None:
        """Start to fill a table."""
        self.batches, self.failures, self._consecutive_failures = 0, (), 0
        for event in ("drained", "halted"):
            self.latest.pop(event, None)
        self.notify("run", **work)

    def source_pids(self) -> list[int]:
        """Return the pid of the Python process beside the JVM, the planner of micro-batches."""
        return descendants(self.jvm_pid, "streaming_source_runner")


class SparkSide(SparkCluster):
    """A cluster and a driver, shared by all seeds."""

    @property
    def driver(self) -> DriverProcess:
        """The current driver."""
        driver = self.processes.get("driver")
        return driver if isinstance(driver, DriverProcess) else self.restart()

    def stop(self) -> None:
        """Kill the driver; the next use starts a new driver."""
        if driver := self.processes.pop("driver", None):
            driver.kill()

    def restart(self) -> DriverProcess:
        """Start the next driver; the event ``ready`` follows."""
        command = worker_command("gapless_lab.chaos.spark_driver", DriverTask(self.url))
        self.start("driver", lambda number: DriverProcess(f"driver{number}", command, self.folder))
        return self.driver
