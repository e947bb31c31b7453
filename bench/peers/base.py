"""The adapter of a library, and the process of a member: ``python -m bench.peers.base TASK``.

The process prints a line when all other members are reachable, then runs commands, a JSON object a
line, with a line for an answer: ``prepare`` begins a round, ``go`` sends as fast as the library
allows, ``mark`` reports received messages and cost so far, ``stop`` ends the sends, ``check``
verifies that all messages have arrived, ``rtt`` measures round trips. At the end of its standard
input the process exits.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import resource
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bench.peers.tally import GREETING, Tally, greeting, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
"""How long members wait for each other, and for the last message if delivery is guaranteed."""
QUIET_S = 0.7
"""How long a silence ends the wait for messages if delivery is not guaranteed."""
BATCH_BYTES = 240_000
"""Bytes of a batch of messages; a batch has at least 1 and at most MOST_IN_BATCH messages."""
MOST_IN_BATCH = 2400
SAMPLE_S = 0.01
"""Interval at which a receiver samples its progress, on request."""


@dataclass(frozen=True)
class Task:
    """The task of a process of a group."""

    peer: str
    at: int
    hosts: list[str]
    ports: list[int]
    senders: int
    mode: str = "all"
    """``all``: to all others; ``one``: each of two to the other; ``rtt``: messages and echoes."""
    transport: str = ""
    broker: str = ""
    joins_late: bool = False
    members: int = 0
    """Number of members at the start of this member; 0 for all."""
    loss: float = 0.0
    """Share of packets dropped by the library's own fault injection, on a network without loss."""
    begin: tuple[int, int] = (1, 8)
    """Round and size of messages that may arrive before the command."""
    options: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the task as text."""
        return json.dumps(asdict(self))

    @property
    def host(self) -> str:
        """The address of this process."""
        return self.hosts[self.at]

    @property
    def port(self) -> int:
        """The port of this process."""
        return self.ports[self.at]

    @property
    def others(self) -> list[int]:
        """All other members."""
        return [at for at in range(len(self.hosts)) if at != self.at]

    @property
    def is_sender(self) -> bool:
        """Whether this member sends."""
        return self.at < self.senders

    @property
    def sources(self) -> list[int]:
        """The senders of the messages to this member."""
        return [at for at in self.others if at < self.senders]


class Member(ABC):
    """A process of a group; each adapter has a class of this shape, called ``Adapter``."""

    promises = "nothing"
    """The guarantees of the library as configured here; other faults are counted, not judged."""
    keeps_all = False
    """Whether the library guarantees no loss, no repetition and order."""
    greets = True
    """Whether members greet each other to find reachable members: the library cannot say."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.tally = Tally(len(task.hosts), joins_late=task.joins_late)

    @abstractmethod
    def open(self) -> None:
        """Join, and begin to give every delivery to the tally, in a thread if necessary."""

    @abstractmethod
    def send(self, messages: list[bytes]) -> None:
        """Send messages as a user of the library would, and wait for room as required."""

    def ask(self, message: bytes) -> None:
        """Send a message to the second member, and wait for the echo."""
        raise NotImplementedError

    def serve(self) -> None:
        """Begin to echo received messages, in a thread if necessary."""
        raise NotImplementedError

    def extra(self) -> dict[str, float]:
        """Return other counters, such as repairs; a round reports the increase."""
        return {}


class Process:
    """Runs the commands of the supervisor."""

    def __init__(self, member: Member) -> None:
        self.member, self.task = member, member.task
        self.sent = 0
        self._turn = 0
        self._size_bytes = 8
        self._asked: queue.Queue[dict[str, Any]] = queue.Queue()
        self._sending = threading.Event()
        self._samples: list[tuple[int, int]] = []
        self._extra: dict[str, float] | None = None

    def run(self) -> None:
        """Become ready, then run commands."""
        begun_ns = time.monotonic_ns()
        threading.Thread(
            target=self._listen, daemon=True
        ).start()  # first, to notice the end of the supervisor
        self.do_prepare(*self.task.begin)
        self.member.open()
        self._extra = self.member.extra()
        greets = self.member.greets and self.task.mode != "rtt" and not self.task.joins_late
        if greets:
            self._greet()
        if self.task.mode == "rtt" and self.task.at:
            self.member.serve()
        say({"ready": True, "begun_ns": begun_ns, "promises": self.member.promises})
        if greets and self.task.is_sender:
            self._greet_on()
        while True:
            asked = self._asked.get()
            say(getattr(self, f"do_{asked.pop('do')}")(**asked))

    def _greet(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        wanted = set(self.task.sources)
        if self.task.members:
            wanted = {at for at in wanted if at < self.task.members}
        while not self.member.tally.greeted >= wanted:
            if time.monotonic() > until_s:
                missing = sorted(wanted - self.member.tally.greeted)
                sys.exit(f"nothing has come from {missing} within {PATIENCE_S:.0f} s")
            if self.task.is_sender:
                self.member.send([greeting(self.task.at)])
            time.sleep(0.02)

    def _greet_on(self) -> None:
        """Greet until all are ready: a late member has missed the earlier greetings."""
        while self._asked.empty():
            self.member.send([greeting(self.task.at)])
            time.sleep(0.02)

    def _listen(self) -> None:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "mark":
                say(self._mark())
            else:
                if asked["do"] == "stop":
                    self._sending.clear()
                self._asked.put(asked)
        os._exit(0)

    def _mark(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "at_ns": time.monotonic_ns(),
            "count": self.member.tally.count,
            "cpu_s": used.ru_utime + used.ru_stime,
            "memory_bytes": memory_bytes(),
        }

    # Commands

    def do_prepare(self, turn: int, size_bytes: int, slow_per_s: float = 0.0) -> dict[str, Any]:
        """Begin a round, before any send."""
        assert turn != GREETING
        self._turn, self._size_bytes, self.sent = turn, size_bytes, 0
        self.member.tally.begin(turn, size_bytes, slow_per_s)
        self._samples = []
        if self._extra is not None:
            self._extra = self.member.extra()
        return {}

    def do_go(self, samples: bool = False, total: int = 0) -> dict[str, Any]:
        """Send until the command ``stop``, or until so many are sent."""
        self._sending.set()
        if samples:
            threading.Thread(target=self._sample, daemon=True).start()
        if self.task.is_sender:
            self._working = True
            threading.Thread(target=self._send, args=(total,), daemon=True, name="sender").start()
        return {}

    def _send(self, total: int) -> None:
        batch = total or max(1, min(MOST_IN_BATCH, BATCH_BYTES // self._size_bytes))
        batch = self.task.options.get("batch", batch) if not total else batch
        try:
            while total or self._sending.is_set():
                self.member.send(
                    numbered(self.sent, batch, self._size_bytes, self.task.at, self._turn)
                )
                self.sent += batch
                if total:
                    break
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is to know
            print(
                f"sending has failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True
            )
            os._exit(1)
        finally:
            self._working = False

    _working = False

    def _sample(self) -> None:
        while self._sending.is_set():
            self._samples.append((time.monotonic_ns(), self.member.tally.count))
            time.sleep(SAMPLE_S)

    def do_stop(self) -> dict[str, Any]:
        """Return the number of sent messages, after the last message is on its way."""
        self._sending.clear()
        self.member.tally.slow_per_s = 0.0
        until_s = time.monotonic() + PATIENCE_S
        while self._working and time.monotonic() < until_s:
            time.sleep(0.001)
        if self._working:
            sys.exit(f"a send has waited for more than {PATIENCE_S:.0f} s")
        return {"sent": self.sent}

    def do_check(self, sent: list[int]) -> dict[str, Any]:
        """Wait for messages in flight; return the faults found."""
        tally, before = self.member.tally, self._extra or {}
        patience_s = PATIENCE_S if self.member.keeps_all else QUIET_S
        until_s, count = time.monotonic() + patience_s, tally.count
        while tally.lost(sent, self.task.sources) and time.monotonic() < until_s:
            if tally.count != count:
                until_s, count = time.monotonic() + patience_s, tally.count
            time.sleep(0.005)
        return {
            "lost": tally.lost(sent, self.task.sources),
            "duplicated": tally.duplicated,
            "out_of_order": tally.out_of_order,
            "late": tally.late,
            "first_ns": tally.first_ns,
            "samples": self._samples,
            "extra": {
                key: value - before.get(key, 0) for key, value in self.member.extra().items()
            },
        }

    def do_rtt(self, size_bytes: int, seconds: float) -> dict[str, Any]:
        """Measure round trips in sequence; the first tenth of the time warms up."""
        times_ns: list[int] = []
        if self.task.at == 0:
            (message,) = numbered(0, 1, size_bytes, 0, 1)
            begun_ns = time.monotonic_ns()
            warm_ns, until_ns = begun_ns + int(seconds * 1e8), begun_ns + int(seconds * 1.1e9)
            while (start_ns := time.monotonic_ns()) < until_ns:
                self.member.ask(message)
                if start_ns > warm_ns:
                    times_ns.append(time.monotonic_ns() - start_ns)
        return {"times_ns": times_ns}


def memory_bytes() -> int:
    """Return the resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123 - this is on the path that is measured
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def until(reached: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    until_s = time.monotonic() + patience_s
    while not reached():
        if time.monotonic() > until_s:
            sys.exit(f"waited for {patience_s:.0f} s: {what}")
        time.sleep(0.005)


_voice = threading.Lock()


def say(words: dict[str, Any]) -> None:
    """Say a line to the parent."""
    with _voice:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run a process of a group."""
    task = Task(**json.loads(sys.argv[1]))
    adapter = importlib.import_module(f"bench.peers.{task.peer}").Adapter
    try:
        Process(adapter(task)).run()
    except BaseException as error:  # noqa: BLE001 - threads of a library must not keep it alive
        print(
            error if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


if __name__ == "__main__":
    main()
