"""A standalone Spark cluster on loopback: a master and workers, at free ports."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

from gapless_lab.process import LabProcess, Testbed, command_line, descendants
from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.runtime.spark_install import find_installation

START_TIMEOUT_S = 600.0
"""How long a server may take to start on a busy machine."""
STARTED = r"Starting Spark master at (spark://\S+)"
"""The line in which a master names its URL."""

_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""


class SparkCluster(Testbed[LabProcess]):
    """A master and workers; ``url`` is the master of a session."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        super().__init__(folder)
        self.url = ""
        self._count = workers

    def __enter__(self) -> Self:
        try:
            self._start_servers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_servers(self) -> None:
        environ = server_environ(self.folder)
        master = self._start("master", "org.apache.spark.deploy.master.Master", environ)
        self.url = master.wait_for_output(STARTED, START_TIMEOUT_S)[1]
        master.wait_for_output("I have been elected leader", START_TIMEOUT_S)
        kind = "org.apache.spark.deploy.worker.Worker"
        for name in (f"worker{number}" for number in range(self._count)):
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / name)]
            self._start(name, kind, environ, *size, self.url)
        for worker in self.workers:
            worker.wait_for_output("Successfully registered with master", START_TIMEOUT_S)

    @property
    def workers(self) -> list[LabProcess]:
        """The workers."""
        return [server for name, server in self.processes.items() if name.startswith("worker")]

    def executors(self) -> list[int]:
        """Return the pids of the executors that run now."""
        return [
            pid for pid in self._processes() if "CoarseGrainedExecutorBackend" in command_line(pid)
        ]

    def python_workers(self) -> list[int]:
        """Return the pids of the Python processes of the executors."""
        return [
            pid
            for pid in self._processes()
            if "pyspark" in command_line(pid) and "java" not in command_line(pid)
        ]

    def _processes(self) -> list[int]:
        return [pid for worker in self.workers for pid in descendants(worker.pid)]

    def _start(self, name: str, kind: str, environ: dict[str, str], *options: str) -> LabProcess:
        program = str(find_installation({}).home / "bin" / "spark-class")
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [program, kind, *where, *options]
        return self.start(
            name, lambda _: LabProcess(name, command, self.folder, environ, merged=True)
        )


def server_environ(folder: Path) -> dict[str, str]:
    """Return the environment of a server: Java, loopback, readable logs, no Python paths."""
    folder.mkdir(parents=True, exist_ok=True)
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
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
