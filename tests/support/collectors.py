"""Real processes on loopback: ``gapless collect``, and producers that know what was acknowledged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.spool import SpoolReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
PATIENCE_S = 60.0
GROUP = "orders"
KNOBS = {
    "found_after": "500ms",
    "join_interval": "50ms",
    "heartbeat_interval": "300ms",
    "suspect_after": "6s",
    "verify_timeout": "500ms",
    "merge_interval": "500ms",
    "leave_timeout": "3s",
    "retention_timeout": "10min",
}
"""Knobs with which a group settles within a second or two, and keeps places for as long as any test takes."""


class Process:
    """A process that speaks in lines; ``said`` are those of its standard output so far."""

    def __init__(self, *command: str, **more: Any) -> None:
        self.said: list[str] = []
        self.complaints: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            **more,
        )
        pipes = ((self.process.stdout, self.said), (self.process.stderr, self.complaints))
        self._readers = [
            threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Any, lines: list[str]) -> None:
        for line in pipe:
            with self._news:
                lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    def until(self, holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
        """Wait until something holds that its lines tell."""
        with self._news:
            found = self._news.wait_for(lambda: holds() or self.is_over, within_s)
        found = holds()
        assert found, f"{what}: {self.said[-3:]} {self.complaints} exit code {self.process.poll()}"
        return found

    def wait_for(self, words: str, within_s: float = PATIENCE_S, *, after: int = 0) -> str:
        """Return the first line, after so many, that holds these words, on standard output or error."""
        lines = lambda: [line for line in (*self.said[after:], *self.complaints) if words in line]  # noqa: E731
        return str(self.until(lines, f"no line with {words!r}", within_s)[0])

    def tell(self) -> None:
        """Let it go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals | None = None, within_s: float = PATIENCE_S) -> int:
        """Wait for its end, after a signal; return its exit code."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(within_s)
        for reader in self._readers:
            reader.join(within_s)
        return code

    def close(self) -> None:
        """End it, whatever it does."""
        if not self.is_over:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def rss_bytes(self) -> int:
        """What it takes of the memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Collect(Process):
    """``gapless collect --json``."""

    @property
    def statuses(self) -> list[dict[str, Any]]:
        """Every status that it has told."""
        return [json.loads(line) for line in list(self.said)]

    def status(
        self, holds: Callable[[dict[str, Any]], Any], what: str, within_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Wait for a status, from now on, with which something holds."""
        begin = len(self.said)

        def found() -> list[dict[str, Any]]:
            return [status for line in self.said[begin:] if holds(status := json.loads(line))]

        result: dict[str, Any] = self.until(found, what, within_s)[0]
        return result


class Producer(Process):
    """A ``spool_producer.py``."""

    @property
    def address(self) -> str:
        """The key of its stream."""
        return self.wait_for("in ").split()[1]

    def count(self, word: str) -> int:
        """How many messages are ``sent`` or ``acked`` by what it has said."""
        return next(
            (int(line.split()[1]) for line in reversed(self.said) if line.startswith(word)), 0
        )

    def finish(self, within_s: float = PATIENCE_S) -> None:
        """Wait until it has sent everything, and let it leave."""
        self.wait_for("done", within_s)
        self.tell()
        assert self.end() == 0, self.complaints


class Place:
    """Where processes of one group meet, and what they have in common."""

    def __init__(self, folder: Path, stack: ExitStack, knobs: dict[str, str]) -> None:
        self.folder = folder
        self.meeting = folder / "meeting"
        self.meeting.mkdir()
        self.knobs = {**KNOBS, **knobs}
        self._stack = stack

    @property
    def join(self) -> dict[str, Any]:
        """Options of ``join``."""
        return {
            "discover": f"dir://{self.meeting}",
            "transport": "mesh",
            "host": "127.0.0.1",
            "ports": 0,
            "config": self.knobs,
            "timeout": PATIENCE_S,
        }

    def collect(self, spool: Path, *arguments: str, **more: Any) -> Collect:
        """Start a collector, and wait until it is in."""
        started = self.start_collect(spool, *arguments, **more)
        started.until(
            lambda: any(status["members"] for status in started.statuses), "it has not come in"
        )
        return started

    def start_collect(self, spool: Path, *arguments: str, **more: Any) -> Collect:
        """Start a collector."""
        started = Collect(
            *(
                "-c",
                "from gapless.cli import main; main()",
                "collect",
                GROUP,
                "--spool",
                str(spool),
                "--json",
            ),
            *(
                "--discover",
                f"dir://{self.meeting}",
                "--transport",
                "mesh",
                "--host",
                "127.0.0.1",
                "--ports",
                "0",
            ),
            *("--properties", ";".join(f"{key}={value}" for key, value in self.knobs.items())),
            *arguments,
            **more,
        )
        self._stack.callback(started.close)
        return started

    def produce(self, number: int, count: int, **more: Any) -> Producer:
        """Start a producer, and wait until it is in."""
        told = {
            "group": GROUP,
            "join": self.join,
            "number": number,
            "count": count,
            "collectors": ["collector"],
            "batch": 20,
            "padding": 50,
            "mode": "acknowledged",
            **more,
        }
        started = Producer(str(PROGRAMS / "spool_producer.py"), json.dumps(told))
        self._stack.callback(started.close)
        started.wait_for("in ")
        return started


@contextmanager
def meeting_place(folder: Path, **knobs: str) -> Iterator[Place]:
    """A group of real processes, none of which outlives the test."""
    with ExitStack() as stack:
        yield Place(folder, stack, knobs)


def contents(spool: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return every message of a spool with its number, by stream; there are no holes in it."""
    view = SpoolReader(spool)
    view.refresh()
    assert view.lost() == []
    found: dict[str, list[tuple[int, bytes]]] = {}
    for part in view.slices({}, view.high()):
        for record in view.records(part):
            found.setdefault(part.stream, []).extend(
                zip(record.seqnos(), record.messages(), strict=True)
            )
    return found


def indexes(messages: list[tuple[int, bytes]], number: int) -> list[int]:
    """Return the indexes of a producer's messages in the order of the spool, whose numbers have no gap."""
    first = messages[0][0] if messages else 1
    assert [seqno for seqno, _ in messages] == list(range(first, first + len(messages)))
    found = []
    for _, payload in messages:
        of, index, _ = payload.split(b" ", 2)
        assert int(of) == number
        found.append(int(index))
    return found


def wait_until(holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Look again and again until something holds that no process tells."""
    until_s = time.monotonic() + within_s
    pause = threading.Event()
    while not (found := holds()):
        assert time.monotonic() < until_s, what
        pause.wait(0.02)
    return found
