"""The processes of the demo: three producers and a collector, one of them killed and back.

On the start: the collector founds the group, the producers come in and send one message each. On
``go`` they send the rest. One producer, drawn from the seed, is killed on its way and started again
a moment later; it goes on where the collector says it was. When everything is acknowledged all are
told so, stay a while in silence, and leave.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gapless.rng import split
from gapless_lab.demo.plan import PRODUCERS, DemoPlan, DemoTask
from gapless_lab.process import LabError, LabProcess, Message, worker_command

START_TIMEOUT_S: Final = 60.0
"""How long a process may take to come in."""
POLL_INTERVAL_S: Final = 0.05
DOWNTIME_S: Final = 1.0
"""How long the one that was killed is gone."""
KILL_AT: Final = 0.4
"""At this share of its messages a producer is killed."""
HOLD_AT: Final = 0.5
"""It sends no more than this share before that."""
QUIET_S: Final = 2.0
"""How long the group is left alone when all is done: nothing but signs of life may be sent then."""
EXIT_TIMEOUT_S: Final = 30.0
STALL_TIMEOUT_S: Final = 300.0
"""If nothing moves for so long, something is wrong."""


class DemoProcess(LabProcess):
    """One of the processes, and what it has said of itself."""

    def __init__(self, task: DemoTask, logs: Path) -> None:
        self.task = task
        self.acknowledged = 0
        """Up to which message everything is acknowledged; of the collector, how many it has."""
        self.sent = 0
        command = worker_command("gapless_lab.demo.worker", task)
        super().__init__(f"{task.member_name}.{task.incarnation}", command, logs)

    @property
    def has_joined(self) -> bool:
        """Whether it has reported for the first time."""
        return "progress" in self.latest

    def on_event(self, name: str, fields: Message) -> None:
        """Keep how far it is."""
        assert name == "progress"
        self.acknowledged = max(self.acknowledged, fields["acknowledged"])
        self.sent = fields["sent"]


class DemoTestbed:
    """All of the processes. ``check`` is called again and again while something is waited for, and may raise."""

    def __init__(self, plan: DemoPlan, check: Callable[[], None] = lambda: None) -> None:
        self.plan = plan
        self.check = check
        self.kills = 0
        self.sent = 0
        """Messages that were sent by lives that are over."""
        self._logs = plan.output / "logs"
        self._logs.mkdir()
        self._victim = 1 + split(plan.seed, "who is killed").randrange(PRODUCERS)
        self.collector: DemoProcess | None = None
        self.producers: dict[int, DemoProcess] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the collector and the producers; kill whatever is left at the end."""
        try:
            self.collector = DemoProcess(DemoTask.for_process(self.plan, 0, 1), self._logs)
            for number in range(1, PRODUCERS + 1):
                self._start(number, 1, self._victim_limit if number == self._victim else None)
            yield
        finally:
            for member in self._members():
                member.kill()

    def _start(self, number: int, life: int, until: int | None = None) -> None:
        self.producers[number] = DemoProcess(
            DemoTask.for_process(self.plan, number, life, until), self._logs
        )

    @property
    def _victim_limit(self) -> int | None:
        """How far the victim comes before it is killed; None if it has too little to send for that."""
        return int(self.plan.messages * HOLD_AT) or None

    @property
    def is_ready(self) -> bool:
        """Whether all are there: each producer has its first message acknowledged."""
        self._check()
        return all(member.acknowledged > 0 for member in self.producers.values())

    def _members(self) -> list[DemoProcess]:
        return [
            member for member in (*self.producers.values(), self.collector) if member is not None
        ]

    @property
    def acknowledged(self) -> int:
        """How many messages are acknowledged."""
        return sum(member.acknowledged for member in self.producers.values())

    def send_all(self) -> None:
        """Let the producers send everything, with the kill in between."""
        for member in self.producers.values():
            member.send("go")
        killed_s = None
        moved_s, before = time.monotonic(), -1
        while self.acknowledged < self.plan.total_messages:
            self._poll()
            victim = self.producers[self._victim]
            if (
                killed_s is None
                and self._victim_limit is not None
                and victim.acknowledged >= max(1, int(KILL_AT * self.plan.messages))
            ):
                killed_s = self._kill(victim)
            elif (
                killed_s is not None
                and victim.has_exited
                and time.monotonic() - killed_s > DOWNTIME_S
            ):
                self._start(self._victim, victim.task.incarnation + 1)
                self.producers[self._victim].acknowledged = victim.acknowledged
                self.producers[self._victim].send("go")
            if self.acknowledged != before:
                moved_s, before = time.monotonic(), self.acknowledged
            elif time.monotonic() - moved_s > STALL_TIMEOUT_S:
                raise self._stuck_error(f"nothing was acknowledged for {STALL_TIMEOUT_S:.0f} s")

    def _kill(self, victim: DemoProcess) -> float:
        victim.kill()
        self.kills += 1
        self.sent += victim.sent
        return time.monotonic()

    def _poll(self) -> None:
        """Tell each producer where the others are, and see that all live."""
        there = {
            number: member
            for number, member in self.producers.items()
            if member.has_joined and not member.has_exited
        }
        for number, member in there.items():
            for other in there.values():
                if other is not member:
                    other.send("at", producer=number, number=member.acknowledged)
        self._check()
        self.check()
        threading.Event().wait(POLL_INTERVAL_S)

    def _check(self) -> None:
        for member in self._members():
            if member.has_exited and not member.killed:
                raise self._stuck_error(f"{member.name} has ended by itself")

    def end_quietly(self) -> None:
        """Tell everybody that all is done, leave them alone for a while, and let them leave."""
        for member in self._members():
            member.ask("rest", START_TIMEOUT_S)
        until_s = time.monotonic() + QUIET_S
        while time.monotonic() < until_s:
            self.check()
            threading.Event().wait(POLL_INTERVAL_S)
        # One after the other: a member that leaves is released by one that stays.
        for member in self._members():
            member.send("end")
            self.sent += member.sent
            if code := member.wait_exit(EXIT_TIMEOUT_S):
                raise self._stuck_error(f"{member.name} has ended with code {code}")

    def _stuck_error(self, what: str) -> LabError:
        words = "; ".join(f"{member.name}: {member.output_tail()}" for member in self._members())
        return LabError(f"{what}. {words}")
