"""The processes of the demo: three producers and a collector, one of them killed and back.

On the start the collector founds the group, and the producers join and send one message each. On
``go`` they send the rest. One producer, drawn from the seed, is killed and restarted a moment
later; it resumes after what the spool has. When everything is acknowledged, all members stay idle
for a while, and leave.
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
"""How long a process may take to answer."""
POLL_INTERVAL_S: Final = 0.05
DOWNTIME_S: Final = 1.0
"""How long the victim is down."""
KILL_AT: Final = 0.4
"""The share of its messages after which the victim is killed."""
HOLD_AT: Final = 0.5
"""The share of its messages that the victim sends before its kill."""
QUIET_S: Final = 2.0
"""How long the group stays idle at the end: only heartbeats may be sent then."""
EXIT_TIMEOUT_S: Final = 30.0
STALL_TIMEOUT_S: Final = 300.0
"""How long without an acknowledgement counts as a failure."""


class DemoProcess(LabProcess):
    """One process of the demo, and its progress."""

    def __init__(self, task: DemoTask, logs: Path) -> None:
        self.task = task
        self.acknowledged = 0
        """Up to which message all are acknowledged; of the collector, how many it has."""
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
    """The processes of the demo; ``check`` is called during every wait, and may raise."""

    def __init__(self, plan: DemoPlan, check: Callable[[], None] = lambda: None) -> None:
        self.plan = plan
        self.check = check
        self.kills = 0
        self.sent = 0
        """Messages that ended incarnations sent."""
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

    def _start(self, number: int, incarnation: int, until: int | None = None) -> None:
        self.producers[number] = DemoProcess(
            DemoTask.for_process(self.plan, number, incarnation, until), self._logs
        )

    @property
    def _victim_limit(self) -> int | None:
        """How many messages the victim sends before its kill; None if it has too few to send."""
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
        """Make the producers send everything, with the kill in between."""
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
        """Report the position of each producer to the others; check that all run."""
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
        """End the load, keep the group idle for a while, and make all members leave."""
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
