"""Starts the programs of ``group_program.py``."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.companions import ENVIRONMENT

FORK = "ignore:This process:DeprecationWarning"
"""Newer interpreters warn of a fork in a process with threads; here that is what is tested."""
PROGRAM = Path(__file__).resolve().parent / "programs" / "group_program.py"


class Program:
    """One of them, at work."""

    def __init__(self, name: str, ports: list[int], **more: Any) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                "-W",
                FORK,
                str(PROGRAM),
                name,
                json.dumps({"ports": ports, **more}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def hear(self) -> str:
        """Return the next line that it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"{self.name} has ended: {self.process.communicate(timeout=30)[1]}"
        return line

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, within_s: float = 30) -> tuple[int, str]:
        """Wait for its end; return its exit code and what it has complained about."""
        _, complaints = self.process.communicate(timeout=within_s)
        return self.process.returncode, complaints


@contextmanager
def program(name: str, ports: list[int], **more: Any) -> Iterator[Program]:
    """Start a program; it does not outlive the test."""
    started = Program(name, ports, **more)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
        started.process.communicate()
