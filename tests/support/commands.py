"""Commands as real processes of one group on loopback, each read with a limit in time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_lab.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60.0


class Command:
    """A ``gapless`` command in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from gapless.cli import main; main()", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"},
        )
        self._lines: dict[str, queue.Queue[bytes]] = {
            "stdout": queue.Queue(),
            "stderr": queue.Queue(),
        }
        self._said: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._lines
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            self._said[name] += line
            self._lines[name].put(line)
        self._lines[name].put(b"")

    def type(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def wait_for(self, words: str, where: str = "stdout") -> str:
        """Return the next line that holds ``words``."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            line = self._lines[where].get(timeout=max(0.0, until_s - time.monotonic()))
            assert line, f"{words!r} never came; {self._said}"
            if words in line.decode(errors="replace"):
                return line.decode(errors="replace")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, bytes, str]:
        """Return its exit code, and everything it has said on standard output and standard error."""
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code, self._said["stdout"], self._said["stderr"].decode()


class Stage:
    """A group on loopback that commands come to."""

    def __init__(self, places: int) -> None:
        ports = free_ports(places)
        self._commands: list[Command] = []
        where = f"{ports[0]}-{ports[-1]}"
        self.options = [
            "--host",
            "127.0.0.1",
            "--ports",
            where,
            "--discover",
            f"seeds://127.0.0.1:{where}",
        ]
        self.options += ["--properties", "found_after=200ms;join_interval=50ms"]

    def start(self, name: str, *arguments: str) -> Command:
        """Start a command of the group."""
        command = Command(name, "talk", *arguments, *self.options)
        self._commands.append(command)
        return command

    def close(self) -> None:
        """End whatever still runs."""
        for command in self._commands:
            command.process.kill()
            command.process.wait(PATIENCE_S)
            for pipe in (command.process.stdin, command.process.stdout, command.process.stderr):
                if pipe is not None:
                    pipe.close()


@contextmanager
def stage(places: int) -> Iterator[Stage]:
    """Return a place for commands, and end them at the end."""
    made = Stage(places)
    try:
        yield made
    finally:
        made.close()
