"""A standalone Spark cluster on loopback: a master and workers, at free ports."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from gapless_lab.process import LabProcess, command_line, descendants
from pyspark_gapless.runtime import class_archive, java
from pyspark_gapless.runtime.spark_config import FAST_START_JVM_OPTIONS
from pyspark_gapless.runtime.spark_install import find_installation

START_TIMEOUT_S = 600.0
"""How long a server may take to start on a busy machine."""

_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""


class SparkServer(LabProcess):
    """A Spark server: a master, a worker, or Spark Connect."""

    def wait_for_output(self, pattern: str) -> re.Match[str]:
        """Wait until a line of output matches ``pattern``."""

        def seen() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        found = self.wait_until(seen, f"no line with {pattern!r}", START_TIMEOUT_S)
        assert found is not None
        return found


class SparkCluster:
    """A master and workers; ``url`` is the master of a session."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.url = ""
        self.workers: list[SparkServer] = []
        self._count = workers
        self._servers = ExitStack()

    def __enter__(self) -> Self:
        environ = server_environ(self.folder)
        with ExitStack() as stack:
            master = self._start(
                stack, "master", "org.apache.spark.deploy.master.Master", environ, []
            )
            self.url = master.wait_for_output(r"Starting Spark master at (spark://\S+)")[1]
            master.wait_for_output("I have been elected leader")
            for number in range(self._count):
                options = [
                    "--cores",
                    "1",
                    "--memory",
                    "1g",
                    "--work-dir",
                    str(self.folder / f"worker{number}"),
                    self.url,
                ]
                kind = "org.apache.spark.deploy.worker.Worker"
                self.workers.append(self._start(stack, f"worker{number}", kind, environ, options))
            for worker in self.workers:
                worker.wait_for_output("Successfully registered with master")
            self._servers = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._servers.close()

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

    def _start(
        self, stack: ExitStack, name: str, kind: str, environ: dict[str, str], options: list[str]
    ) -> SparkServer:
        program = str(find_installation({}).home / "bin" / "spark-class")
        where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        server = SparkServer(
            name, [program, kind, *where, *options], self.folder, environ, merged=True
        )
        stack.callback(server.kill)
        return server


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
