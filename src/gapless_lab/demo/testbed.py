"""The processes of the demo: three producers and a collector, one of them killed and back.

On the start: the collector founds the group, the producers come in and send one message each. On
``go`` they send the rest. One producer, drawn from the seed, is killed on its way and started again
a moment later; it goes on where the collector says it was. When everything is acknowledged all are
told so, stay a while in silence, and leave.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import gapless
from gapless.rng import split
from gapless_lab.chaos.processes import ChaosError, Process, environ_with
from gapless_lab.demo.plan import PRODUCERS, Plan, Task

START_S: Final = 60.0
"""How long a process may take to come in."""
LOOK_S: Final = 0.05
AWAY_S: Final = 1.0
"""How long the one that was killed is gone."""
KILL_AT: Final = 0.4
"""At this share of its messages a producer is killed."""
HELD_AT: Final = 0.5
"""It sends no more than this share before that."""
QUIET_S: Final = 2.0
"""How long the group is left alone when all is done: nothing but signs of life may be sent then."""
END_S: Final = 30.0
SEND_S: Final = 300.0
"""If nothing moves for so long, something is wrong."""


class Member(Process):
    """One of the processes, and what it has said of itself."""

    def __init__(self, task: Task, logs: Path) -> None:
        self.task = task
        self.at = 0
        """Up to which message everything is acknowledged; of the collector, how many it has."""
        self.sent = 0
        self.is_in = self.resting = False
        root = Path(gapless.__file__).parent.parent
        command = [sys.executable, "-m", "gapless_lab.demo.worker", task.encode()]
        super().__init__(f"{task.who}.{task.life}", command, logs, environ_with(root))

    def on_line(self, line: str) -> None:
        """Take in how it stands."""
        told: dict[str, Any] = json.loads(line)
        self.is_in = True
        self.at = max(self.at, told.get("at", told.get("collected", 0)))
        self.sent = told.get("sent", self.sent)
        self.resting = told.get("resting", self.resting)


class Stage:
    """All of the processes. ``check`` is called again and again while something is waited for, and may raise."""

    def __init__(self, plan: Plan, check: Callable[[], None] = lambda: None) -> None:
        self.plan = plan
        self.check = check
        self.kills = 0
        self.sent = 0
        """Messages that were sent by lives that are over."""
        self._logs = plan.output / "logs"
        self._logs.mkdir()
        self._victim = 1 + split(plan.seed, "who is killed").randrange(PRODUCERS)
        self.collector: Member | None = None
        self.producers: dict[int, Member] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the collector and the producers; kill whatever is left at the end."""
        try:
            self.collector = Member(Task.of(self.plan, 0, 1), self._logs)
            for number in range(1, PRODUCERS + 1):
                self._start(number, 1, self._held if number == self._victim else None)
            yield
        finally:
            for member in self._members():
                member.kill()

    def _start(self, number: int, life: int, until: int | None = None) -> None:
        self.producers[number] = Member(Task.of(self.plan, number, life, until), self._logs)

    @property
    def _held(self) -> int | None:
        """How far the victim comes before it is killed; None if it has too little to send for that."""
        return int(self.plan.messages * HELD_AT) or None

    @property
    def is_ready(self) -> bool:
        """Whether all are there: each producer has its first message acknowledged."""
        self._check()
        return all(member.at > 0 for member in self.producers.values())

    def _members(self) -> list[Member]:
        return [
            member for member in (*self.producers.values(), self.collector) if member is not None
        ]

    @property
    def acknowledged(self) -> int:
        """How many messages are acknowledged."""
        return sum(member.at for member in self.producers.values())

    def send_all(self) -> None:
        """Let the producers send everything, with the kill in between."""
        for member in self.producers.values():
            member.tell("go")
        killed_s = None
        moved_s, before = time.monotonic(), -1
        while self.acknowledged < self.plan.sent:
            self._look()
            victim = self.producers[self._victim]
            if (
                killed_s is None
                and self._held is not None
                and victim.at >= max(1, int(KILL_AT * self.plan.messages))
            ):
                killed_s = self._kill(victim)
            elif killed_s is not None and victim.is_over and time.monotonic() - killed_s > AWAY_S:
                self._start(self._victim, victim.task.life + 1)
                self.producers[self._victim].at = victim.at
                self.producers[self._victim].tell("go")
            if self.acknowledged != before:
                moved_s, before = time.monotonic(), self.acknowledged
            elif time.monotonic() - moved_s > SEND_S:
                raise self._stuck(f"nothing was acknowledged for {SEND_S:.0f} s")

    def _kill(self, victim: Member) -> float:
        victim.kill()
        self.kills += 1
        self.sent += victim.sent
        return time.monotonic()

    def _look(self) -> None:
        """Tell each producer where the others are, and see that all live."""
        there = {
            number: member
            for number, member in self.producers.items()
            if member.is_in and not member.is_over
        }
        for number, member in there.items():
            for other in there.values():
                if other is not member:
                    other.tell(f"at {number} {member.at}")
        self._check()
        self.check()
        threading.Event().wait(LOOK_S)

    def _check(self) -> None:
        for member in self._members():
            if member.is_over and not member.killed:
                raise self._stuck(f"{member.name} has ended by itself")

    def rest(self) -> None:
        """Tell everybody that all is done, leave them alone for a while, and let them leave."""
        for member in self._members():
            member.tell("rest")
            self._wait(member, lambda member: member.resting, "has not come to rest", START_S)
        until_s = time.monotonic() + QUIET_S
        while time.monotonic() < until_s:
            self.check()
            threading.Event().wait(LOOK_S)
        for (
            member
        ) in self._members():  # one after the other: who leaves is let go by somebody that stays
            member.tell("end")
            self.sent += member.sent
            if code := member.end(END_S):
                raise self._stuck(f"{member.name} has ended with code {code}")

    def _wait(
        self, member: Member, holds: Callable[[Member], bool], what: str, within_s: float
    ) -> None:
        member.until(lambda: holds(member), f"{what} in time", within_s)

    def _stuck(self, what: str) -> ChaosError:
        words = "; ".join(f"{member.name}: {member.last_words()}" for member in self._members())
        return ChaosError(f"{what}. {words}")
