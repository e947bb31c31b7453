"""Real servers of Spark from the pip package, on loopback: a master with workers, and Spark Connect.

Every port is one that the system chose. The servers end with the block that started them, and with this process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pyspark_gapless import archive, java
from pyspark_gapless.installed import look

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that lives for minutes: its start matters more than its speed later."""
START_S = 120.0
"""How long a server may take to say that it is ready, on a machine that is busy."""

_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""
_MORTAL = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""Asks the kernel for SIGKILL when the parent is gone, then becomes the program."""


class Server:
    """One process of Spark, of which the output is read line by line."""

    def __init__(self, command: list[str], folder: Path, environ: Mapping[str, str]) -> None:
        self._lines: deque[str] = deque(maxlen=2000)
        self._news = threading.Condition()
        self._over = False
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MORTAL, *command],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process: the JVM itself, because the scripts of Spark become it."""
        return self.process.pid

    def wait_for(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        """Wait until a line of the output has ``pattern``."""
        found: list[re.Match[str]] = []

        def seen() -> bool:
            found.extend(match for line in self._lines if (match := re.search(pattern, line)))
            return bool(found) or self._over

        with self._news:
            self._news.wait_for(seen, timeout_s)
            if not found:
                why = "it has ended" if self._over else f"not within {timeout_s:.0f} s"
                raise AssertionError(f"no line with {pattern!r}, {why}; the last lines:\n" + self.tail())
        return found[0]

    def tail(self, count: int = 40) -> str:
        """Return the last lines of the output."""
        return "\n".join(list(self._lines)[-count:])

    def kill(self) -> None:
        """End it, and whatever it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()


class Cluster:
    """A master and workers; ``url`` is what a session is told."""

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.folder = folder
        self.cores = cores
        self.memory = memory
        self.url = ""
        self.workers: list[Server] = []
        self._count = workers
        self._environ = server_environ(folder)
        self._servers = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            master = _start(stack, "org.apache.spark.deploy.master.Master", self.folder, self._environ, [])
            self.url = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
            master.wait_for("I have been elected leader")
            self._servers = stack.pop_all()
        try:
            self.workers = [self._worker(number) for number in range(self._count)]
            for worker in self.workers:
                worker.wait_for("Successfully registered with master")
        except BaseException:
            self._servers.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._servers.close()

    def start_worker(self) -> Server:
        """Start one more worker, in the place of one that was killed."""
        worker = self._worker(len(self.workers))
        self.workers.append(worker)
        worker.wait_for("Successfully registered with master")
        return worker

    def executors(self) -> list[int]:
        """Return the pids of the executors that run now."""
        return [pid for worker in self.workers for pid in _children(worker.pid) if "Executor" in _command(pid)]

    def _worker(self, number: int) -> Server:
        home = self.folder / f"worker{number}"
        home.mkdir()
        options = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(home), self.url]
        return _start(self._servers, "org.apache.spark.deploy.worker.Worker", home, self._environ, options)


def server_environ(folder: Path) -> dict[str, str]:
    """Return the environment of a server: nothing of this process's Python paths, Java, loopback, words to read."""
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    runtime = java.find()
    options = f"{QUICK} -Dlog4j2.configurationFile={logging.as_uri()} {archive.options(runtime, look({}).home)}"
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG", "TMPDIR") if key in os.environ}
    return kept | {
        "JAVA_HOME": str(runtime.home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_DAEMON_JAVA_OPTS": options.strip(),
        "PYSPARK_PYTHON": sys.executable,
    }


def _start(stack: ExitStack, name: str, folder: Path, environ: Mapping[str, str], options: list[str]) -> Server:
    program = str(look({}).home / "bin" / "spark-class")
    where = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    server = Server([program, name, *where, *options], folder, environ)
    stack.callback(server.kill)
    return server


@contextmanager
def connect_server(folder: Path, environ: Mapping[str, str], master: str = "local[2]") -> Iterator[str]:
    """Run a server of Spark Connect, with more in its environment; yields its URL."""
    environ = server_environ(folder) | dict(environ)
    settings = {
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": environ["SPARK_DAEMON_JAVA_OPTS"],
    }
    command = [str(look({}).home / "bin" / "spark-submit"), "--master", master]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    server = Server(command, folder, environ)
    try:
        port = server.wait_for(r"Spark Connect server started at: \S+:(\d+)")[1]
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()


def _children(pid: int) -> list[int]:
    def parent(path: Path) -> int:
        try:
            return int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return 0

    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and parent(path) == pid]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
