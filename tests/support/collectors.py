"""Real processes on loopback: ``gapless collect``, and producers that track their acks."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.spool import SpoolReader
from tests.support.processes import CLI, PATIENCE_S, PROGRAMS, ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
"""Settings with which a group forms within a second or two, and retains for the whole test."""


class Collect(ChildProcess):
    """``gapless collect --json``."""

    @property
    def statuses(self) -> list[dict[str, Any]]:
        """Every status that it has printed."""
        return [json.loads(line) for line in list(self.output)]

    def status(
        self, holds: Callable[[dict[str, Any]], Any], what: str, within_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """Return the first status from now on for which ``holds`` is true."""
        begin = len(self.output)

        def found() -> list[dict[str, Any]]:
            return [status for line in self.output[begin:] if holds(status := json.loads(line))]

        result: dict[str, Any] = self.until(found, what, within_s)[0]
        return result


class Producer(ChildProcess):
    """A ``spool_producer.py``."""

    @property
    def address(self) -> str:
        """The key of its stream."""
        return self.wait_for("in ").split()[1]

    def count(self, word: str) -> int:
        """How many messages are ``sent`` or ``acked``, by its last line about it."""
        return next(
            (int(line.split()[1]) for line in reversed(self.output) if line.startswith(word)), 0
        )

    def finish(self, within_s: float = PATIENCE_S) -> None:
        """Wait until it has sent everything, then make it leave."""
        self.wait_for("done", within_s)
        self.write("\n")
        assert self.wait() == 0, self.errors


class MeetingPlace:
    """Where the processes of one group find each other, and the settings that they share."""

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
        """Start a collector, and wait until it is a member."""
        started = self.start_collect(spool, *arguments, **more)
        started.until(
            lambda: any(status["members"] for status in started.statuses),
            "the collector has not joined",
        )
        return started

    def start_collect(self, spool: Path, *arguments: str, **more: Any) -> Collect:
        """Start a collector."""
        started = Collect(
            *("-W", "error", *CLI, "collect", GROUP, "--spool", str(spool), "--json"),
            *("--discover", f"dir://{self.meeting}", "--transport", "mesh"),
            *("--host", "127.0.0.1", "--ports", "0"),
            *("--properties", ";".join(f"{key}={value}" for key, value in self.knobs.items())),
            *arguments,
            **more,
        )
        self._stack.callback(started.close)
        return started

    def produce(self, number: int, count: int, **more: Any) -> Producer:
        """Start a producer, and wait until it is a member."""
        options = {
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
        started = Producer("-W", "error", str(PROGRAMS / "spool_producer.py"), json.dumps(options))
        self._stack.callback(started.close)
        started.wait_for("in ")
        return started


@contextmanager
def meeting_place(folder: Path, **knobs: str) -> Iterator[MeetingPlace]:
    """A group of real processes, none of which outlives the test."""
    with ExitStack() as stack:
        yield MeetingPlace(folder, stack, knobs)


def contents(spool: Path) -> dict[str, list[tuple[int, bytes]]]:
    """Return every message of a spool with its seqno, by stream, after a check for lost ones."""
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
    """Return the indexes of a producer's messages in the order of the spool; seqnos have no gap."""
    first = messages[0][0] if messages else 1
    assert [seqno for seqno, _ in messages] == list(range(first, first + len(messages)))
    found = []
    for _, payload in messages:
        of, index, _ = payload.split(b" ", 2)
        assert int(of) == number
        found.append(int(index))
    return found


def wait_until(holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """Poll until ``holds`` returns something true, and return that."""
    until_s = time.monotonic() + within_s
    pause = threading.Event()
    while not (found := holds()):
        assert time.monotonic() < until_s, what
        pause.wait(0.02)
    return found
