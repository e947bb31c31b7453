"""Processes that are watched and killed: what they say, line by line, and what the system knows of their children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from gapless.errors import GaplessError

T = TypeVar("T")

POLL_INTERVAL_S = 0.02
"""How often something is looked at that tells nobody when it changes."""
MAX_LINES = 5000

_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Asks the kernel for SIGKILL when the parent is gone, then becomes the program."""
_SPAWN_THREAD = ThreadPoolExecutor(1, thread_name_prefix="starts processes")
"""To the kernel the parent is the thread that has started a process, so that is one that stays."""


class LabError(GaplessError):
    """A run could not go on: something has not happened in time, or has ended by itself."""


class LabProcess:
    """A process that speaks in lines; what it complains about goes to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environ: Mapping[str, str],
        *,
        merged: bool = False,
    ) -> None:
        self.name = name
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.lines_read = 0
        self.killed = False
        self.changed = threading.Condition()
        self.stderr_path = folder / f"{name}.err"
        with self.stderr_path.open("ab") as complaints:
            self._process = _SPAWN_THREAD.submit(
                subprocess.Popen[bytes],
                [sys.executable, "-c", _DIE_WITH_PARENT, *command],
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else complaints,
                start_new_session=True,
            ).result()
        self._ended = threading.Event()
        threading.Thread(target=self._read, name=f"reads {name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """How it has ended, if it has."""
        return self._process.poll()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            with self.changed:
                self.lines.append(text)
                self.lines_read += 1
                self.on_line(text)
                self.changed.notify_all()
        self._process.wait()
        self._ended.set()
        with self.changed:
            self.changed.notify_all()

    def on_line(self, line: str) -> None:
        """Take in a line; subclasses know what it means."""

    def send_line(self, line: str) -> None:
        """Say a line to it; if it has just died, nobody hears it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()

    def wait_until(self, holds: Callable[[], T], what: str, within_s: float) -> T:
        """Wait until something holds that its lines tell; an end of the process is an error."""
        with self.changed:
            self.changed.wait_for(lambda: holds() or self._ended.is_set(), within_s)
            if found := holds():
                return found
        why = (
            f"it has ended with code {self.exit_code}"
            if self._ended.is_set()
            else f"not within {within_s:.0f} s"
        )
        raise LabError(f"{self.name}: {what}: {why}; {self.output_tail()}")

    def output_tail(self) -> str:
        """Return what it said last, and what it complained about."""
        said = " | ".join(list(self.lines)[-5:])
        complaints = self.stderr_path.read_text(encoding="utf-8", errors="replace")[-2000:]
        return f"it said: {said or 'nothing'}; complaints: {complaints or 'none'}"

    def wait_exit(self, within_s: float) -> int:
        """Wait for its end and return how it was."""
        if not self._ended.wait(within_s):
            raise LabError(
                f"{self.name} has not ended within {within_s:.0f} s; {self.output_tail()}"
            )
        self._close()
        return self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self, *, children: bool = True) -> None:
        """Kill it, with everything that it has started unless told otherwise, and wait until all of that is gone."""
        self.killed = True
        if not self.has_exited:  # else its number may be another's by now
            tree = [self.pid, *descendants(self.pid)]
            victims = tree if children else [self.pid]
            pause(victims)  # so that none starts another while they die
            kill(victims)
            self._process.wait()
            wait_exited(tree)
        self._ended.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def rss_bytes(self) -> int:
        """Return what it takes of the memory now; 0 if it is gone."""
        return rss_bytes(self.pid)


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def pause(pids: Iterable[int]) -> None:
    """Let processes stand still."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def kill(pids: Iterable[int]) -> None:
    """Kill processes."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_exited(pids: Sequence[int], within_s: float = 600.0) -> None:
    """Wait until none of them runs."""
    wait_until(lambda: not any(map(is_running, pids)), f"processes {pids} do not end", within_s)


def wait_until(holds: Callable[[], T], what: str, within_s: float) -> T:
    """Look again and again until something holds."""
    until_s = time.monotonic() + within_s
    while not (found := holds()):
        if time.monotonic() > until_s:
            raise LabError(f"{what} within {within_s:.0f} s")
        time.sleep(POLL_INTERVAL_S)
    return found


def is_running(pid: int) -> bool:
    """Return whether a process is there, and not only its exit code that nobody has asked for."""
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def _stat(pid: int) -> list[str] | None:
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:
        return None


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found, line = [], [pid]
    while line:
        mine = children.get(line.pop(0), [])
        found += mine
        line += mine
    return found


def command_line(pid: int) -> str:
    """Return the command line of a process; nothing if it is gone."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def make_environ(path: Path, **more: Any) -> dict[str, str]:
    """Return an environment in which Python finds this package, and Spark nothing that it was told elsewhere."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_", "GAPLESS_"))
    }
    return {**kept, "PYTHONPATH": str(path), "PYTHONUNBUFFERED": "1", **more}
