"""A standalone Spark cluster on loopback: a master and workers, at free ports."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from gapless.output.private_files import make_private_folder
from gapless_lab.process import LabProcess, Testbed, command_line, descendants
from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.runtime.spark_install import find_installation
from pyspark_gapless.session import LOG4J_PROPERTIES

STARTED = r"Starting Spark master at (spark://\S+)"
"""The line in which a master names its URL."""


class SparkCluster(Testbed[LabProcess]):
    """A master and workers; ``url`` is the master of a session."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        super().__init__(folder)
        self.url = ""
        self._count = workers

    def __enter__(self) -> Self:
        with ExitStack() as on_error:
            on_error.callback(self.__exit__)
            environ = server_environ(self.folder)
            master = self._start("master", "org.apache.spark.deploy.master.Master", environ)
            self.url = master.wait_for_output(STARTED)[1]
            master.wait_for_output("I have been elected leader")
            kind = "org.apache.spark.deploy.worker.Worker"
            for name in (f"worker{number}" for number in range(self._count)):
                size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
                self._start(name, kind, environ, *size, self.url)
            for worker in self.workers:
                worker.wait_for_output("Successfully registered with master")
            on_error.pop_all()
        return self

    @property
    def workers(self) -> list[LabProcess]:
        """The workers."""
        return [server for name, server in self.processes.items() if name.startswith("worker")]

    def executors(self) -> list[int]:
        """Return the pids of the running executors."""
        return self._processes("CoarseGrainedExecutorBackend")

    def python_workers(self) -> list[int]:
        """Return the pids of the Python processes of the executors."""
        return [pid for pid in self._processes("pyspark") if "java" not in command_line(pid)]

    def _processes(self, containing: str) -> list[int]:
        return [pid for worker in self.workers for pid in descendants(worker.pid, containing)]

    def _start(self, name: str, kind: str, environ: dict[str, str], *options: str) -> LabProcess:
        program = str(find_installation({}).home / "bin" / "spark-class")
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [program, kind, *where, *options]
        return self.start(
            name, lambda _: LabProcess(name, command, self.folder, environ, merged=True)
        )


def server_environ(folder: Path) -> dict[str, str]:
    """Return the environment of a server: Java, loopback, readable logs, no Python paths."""
    make_private_folder(folder)
    logging = folder / "log4j2.properties"
    logging.write_text(LOG4J_PROPERTIES.format(level="info"))
    log4j = f"-Dlog4j2.configurationFile={logging.as_uri()}"
    inherited = {
        key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ
    }
    found = java.find_java()
    classes = class_archive.jvm_options(found, find_installation({}).home)
    return inherited | {
        "JAVA_HOME": str(found.home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": f"{FAST_START_JVM_OPTIONS} {log4j} {classes}".strip(),
        "PYSPARK_PYTHON": sys.executable,
    }
