"""Processes that work together: all are heard, all are told to go on, and none outlives the measurement."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import gapless
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

SOURCE_ROOT = Path(gapless.__file__).resolve().parent.parent
"""Where this package is imported from; what is measured is the same."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return neighbouring ports that are free, for UDP and for TCP."""
    while True:
        taken: list[socket.socket] = []
        try:
            first = 0
            for at in range(count):
                for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                    taken.append(socket.socket(socket.AF_INET, kind))
                    taken[-1].bind((host, first + at if first else 0))
                    first = first or taken[-1].getsockname()[1]
        except (OSError, OverflowError):
            continue
        else:
            return list(range(first, first + count))
        finally:
            for one in taken:
                one.close()


class ProcessGroup:
    """Processes that are started together, each with its own command line, and speak in lines."""

    def __init__(
        self, commands: Sequence[Sequence[str]], *, limit_s: float, path: Sequence[Path] = ()
    ) -> None:
        self._limit_s = limit_s
        found = os.pathsep.join(map(str, (SOURCE_ROOT, *path)))
        self._all = [
            subprocess.Popen(  # noqa: S603 - the commands are our own
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": found},
            )
            for command in commands
        ]
        self._timed_out = False
        self._timer = threading.Timer(limit_s, self._kill_all)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for process in self._all:
            process.kill()
            process.communicate()

    def _kill_all(self) -> None:
        self._timed_out = True
        for process in self._all:
            process.kill()

    def read_lines(self) -> list[str]:
        """Return the next line of each."""
        answers = [process.stdout.readline() for process in self._all if process.stdout is not None]
        if not all(answers):
            raise GaplessError(
                self._exit_reason(
                    [one for one, said in zip(self._all, answers, strict=True) if not said]
                )
            )
        return [answer.strip() for answer in answers]

    def send_line(self, words: str = "") -> None:
        """Say a line to all."""
        for process in self._all:
            print(words, file=process.stdin, flush=True)

    def _exit_reason(self, ended: Sequence[subprocess.Popen[str]]) -> str:
        """Return why processes have ended before their time."""
        if self._timed_out:
            return f"the processes were not done within {self._limit_s:.0f} s; is the machine overloaded?"
        said = [
            line for process in ended for line in process.communicate()[1].strip().splitlines()[-1:]
        ]
        return f"a process has ended before its time: {'; '.join(said) or 'it said nothing'}"
