"""Members in processes of their own, for tests: each is a ``companion.py``."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
QUICK = {
    "found_after": "200ms",
    "join_interval": "20ms",
    "heartbeat_interval": "50ms",
    "suspect_after": "400ms",
    "verify_timeout": "200ms",
    "merge_interval": "200ms",
    "leave_timeout": "3s",
}
"""Knobs with which a group settles, notices and mends within a second or two."""


class Process:
    """One companion."""

    def __init__(self, name: str, node: int, **options: Any) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(PROGRAMS / "companion.py"),
                name,
                json.dumps({"node": node, **options}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )

    def tell(self, do: str, **options: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"what": do, **options}), file=self.process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.name} has ended: {self.process.wait(10)}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **options: Any) -> dict[str, Any]:
        self.tell(do, **options)
        return self.hear()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()


def ask_all(processes: list[Process], do: str, **options: Any) -> list[dict[str, Any]]:
    """Tell all of them first, so that they work at the same time."""
    for process in processes:
        process.tell(do, **options)
    return [process.hear() for process in processes]


@contextmanager
def companions(count: int, seeds: str, **options: Any) -> Iterator[list[Process]]:
    """Start members a, b, … at once, and wait until all are in one view."""
    options.setdefault("knobs", QUICK)
    with ExitStack() as stack:
        started = []
        for node in range(1, count + 1):
            process = Process(chr(ord("a") + node - 1), node, seeds=seeds, **options)
            stack.callback(process.end)
            started.append(process)
        for process in started:
            process.hear()
        for answer in ask_all(started, "members", nodes=list(range(1, count + 1))):
            assert answer["met"], answer
        yield started


def run_script(script: str) -> dict[str, Any]:
    """Run a script of this folder; return the JSON that it prints."""
    finished = subprocess.run(
        [sys.executable, str(PROGRAMS / script)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer
