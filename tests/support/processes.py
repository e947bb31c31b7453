"""Processes of their own for tests: the one helper that starts, reads and ends them.

:class:`ChildProcess` reads standard output and standard error in threads, so that a child never
blocks on a full pipe and a test never waits without a limit. :func:`run_program` runs a program of
``tests/support/programs`` to its end; :func:`in_namespace` does so in a network of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from signal import Signals
from typing import IO, TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    "PYTHONUNBUFFERED": "1",
}
PATIENCE_S = 60.0
"""How long a test waits for a child."""
CLI = ("-c", "from gapless.cli import main; main()")
"""Arguments of Python that run the ``gapless`` command."""


class ChildProcess:
    """A Python process; ``output`` and ``errors`` are its lines so far."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] = ENVIRONMENT,
        preexec_fn: Callable[[], None] | None = None,
    ) -> None:
        self.output: list[str] = []
        self.errors: list[str] = []
        self.output_bytes = b""
        self._news = threading.Condition()
        self._next_line = 0
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            preexec_fn=preexec_fn,  # noqa: PLW1509 - the child is made before the threads below
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stdin = self.process.stdin
        pipes = ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        self._readers = [
            threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, pipe: IO[bytes], lines: list[str]) -> None:
        for line in pipe:
            with self._news:
                if lines is self.output:
                    self.output_bytes += line
                lines.append(line.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    # Output

    def until(self, holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Wait until its output makes ``holds`` true; return that value, or fail with ``what``."""
        with self._news:
            # The last lines of a process that has ended are still read by the threads.
            self._news.wait_for(lambda: holds() or not self._is_being_read(), within_s)
        found = holds()
        assert found, f"{what}: {self.output[-3:]} {self.errors} exit code {self.process.poll()}"
        return found

    def _is_being_read(self) -> bool:
        return any(reader.is_alive() for reader in self._readers)

    def wait_for(self, words: str, within_s: float = PATIENCE_S, *, after: int = 0) -> str:
        """Return the first line with ``words``, of output (after ``after`` lines) or errors."""

        def lines() -> list[str]:
            return [line for line in (*self.output[after:], *self.errors) if words in line]

        return str(self.until(lines, f"no line with {words!r}", within_s)[0])

    def read_line(self, within_s: float = PATIENCE_S) -> str:
        """Return the next line of output."""
        at = self._next_line
        self.until(lambda: len(self.output) > at, "no line", within_s)
        self._next_line += 1
        return self.output[at]

    def read_json(self, within_s: float = PATIENCE_S) -> dict[str, Any]:
        """Return the next line of output as JSON."""
        answer: dict[str, Any] = json.loads(self.read_line(within_s))
        return answer

    # Input

    def write(self, text: str) -> None:
        """Write to its standard input."""
        self._stdin.write(text.encode())
        self._stdin.flush()

    def request(self, do: str, **options: Any) -> None:
        """Write a request as a line of JSON."""
        self.write(json.dumps({"what": do, **options}) + "\n")

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        """Write a request, and return its answer."""
        self.request(do, **options)
        return self.read_json()

    def close_input(self) -> None:
        """Close its standard input."""
        with suppress(BrokenPipeError):
            self._stdin.close()

    # The end

    def signal(self, number: Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait for its end; return its exit code."""
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join(within_s)
        return code

    def stop(self, number: Signals, within_s: float = PATIENCE_S) -> int:
        """Send it a signal and wait for its end; return its exit code."""
        self.signal(number)
        return self.wait(within_s)

    def close(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        if not self.is_over:
            self.process.kill()
        self.wait()
        self.close_input()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def rss_bytes(self) -> int:
        """Return how much memory it occupies."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def run_program(name: str) -> dict[str, Any]:
    """Run a program of ``tests/support/programs``; return the JSON that it prints."""
    return _finish([sys.executable, str(PROGRAMS / name)])


def in_namespace(setup: str, name: str, *arguments: str) -> dict[str, Any]:
    """Run a program as root of a network and a file system of its own; return its JSON.

    ``setup`` are shell commands that run before it. The test is skipped if the system does not
    allow namespaces, or if ``setup`` fails.
    """
    for tool in ("unshare", "ip", "mount", *(["tc"] if "tc " in setup else [])):
        if shutil.which(tool) is None:
            pytest.skip(f"a namespace of its own needs the command {tool}")
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    command = f"set -e; ip link set lo up; {setup}"
    probe = subprocess.run(
        [*unshare, "sh", "-c", command], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"this system allows no such namespace: {probe.stderr.strip()}")
    shell = [*unshare, "sh", "-c", f'{command}; exec "$0" "$@"']
    return _finish([*shell, sys.executable, str(PROGRAMS / name), *arguments])


def _finish(command: list[str]) -> dict[str, Any]:
    finished = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT, timeout=180, check=False
    )
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer
