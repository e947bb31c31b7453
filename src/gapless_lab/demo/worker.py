"""One process of the demo: ``python -m gapless_lab.demo.worker TASK``, a producer or the collector.

It says how it stands as lines of JSON, and does what its standard input says: ``at P N`` tells
where the other producers are, ``go`` to send the rest, ``rest`` that everybody is done, ``end`` to
leave.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from gapless.errors import GaplessError, TimedOutError
from gapless.spool import SpoolView
from gapless.spool.collector import Collector
from gapless.trace import Recorder
from gapless_lab.demo.plan import COLLECTOR, CONFIG, GROUP, PRODUCERS, RATE, Task
from gapless_lab.sensor_pipeline.ledger import Ledger
from gapless_lab.sensor_pipeline.producers import Pace, Producer, lossy

if TYPE_CHECKING:
    from gapless.transport.base import Transport

TELL_S: Final = 0.1
"""Time between two lines."""
TRIES: Final = 5
"""So often the collector tries to come in."""


class Part:
    """What both kinds have in common: a recorder, and lines in both directions."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.plan = task.plan
        self.over = threading.Event()
        self.recorder: Recorder | None = None
        self._opened = 0

    def options(self) -> dict[str, Any]:
        """Return what a life of the member is given beside its transport."""
        self.recorder = Recorder(self.plan.traces, member=self.task.who, seals=False)
        return {"config": CONFIG, "trace": self.recorder}

    def transport(self) -> Transport:
        """Return a new transport that loses a share of what comes in."""
        self._opened += 1
        who = f"{self.task.who} life {self.task.life}.{self._opened}"
        return lossy(GROUP, self.plan.meeting, self.plan.loss, self.plan.seed, who)

    def follow(self) -> None:
        """Do what the lines say, in a thread of its own; if nobody speaks any more, end."""
        threading.Thread(target=self._listen, name="listens", daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            what, *arguments = line.split()
            getattr(self, what)(*map(int, arguments))
        self.over.set()

    def rest(self) -> None:
        """Write down that everybody is done and this life is there."""
        assert self.recorder is not None
        self.recorder.rest()
        say(resting=True)

    def end(self) -> None:
        """Come to the end."""
        self.over.set()


class Producing(Part):
    """A producer: it goes on where its former life was."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.pace = Pace()

    def go(self) -> None:
        """Send the rest."""
        self.pace.go.set()

    def at(self, producer: int, number: int) -> None:
        """Take in how far another producer is; those that are done are not waited for."""
        if producer != self.task.producer:
            self.pace.move(producer, None if number >= self.plan.messages else number)

    def run(self) -> None:
        """Send until everything is acknowledged, stay until the end, leave."""
        plan, number = self.plan, self.task.producer
        with Ledger(plan.ledger(number)) as ledger:
            producer = Producer(
                number,
                group=GROUP,
                collector=COLLECTOR,
                transport=self.transport,
                ledger=ledger,
                kept=self._kept,
                pace=self.pace,
                seed=plan.seed,
                messages=self.task.until,
                rate=RATE,
                join=self.options,
                stay=self.over,
            )
            producer.settle()
            for other in range(1, PRODUCERS + 1):
                self.pace.move(other, ledger.next - 1)
            self.follow()
            producer.start()
            while producer.is_alive():
                self._tell(producer, ledger)
                producer.join(TELL_S)
            self._tell(producer, ledger)
        if producer.error is not None:
            raise producer.error

    @staticmethod
    def _tell(producer: Producer, ledger: Ledger) -> None:
        say(sent=producer.sent, at=ledger.next - 1)

    def _kept(self, origin: str) -> int:
        view = SpoolView(self.plan.spool)
        view.refresh()
        return view.high().get(origin, 0)


class Collecting(Part):
    """The collector."""

    def run(self) -> None:
        """Collect until the end."""
        collector = self._joined()
        try:
            self.follow()
            while not self.over.wait(TELL_S):
                collector.check()
                say(collected=collector.status.messages)
        finally:
            collector.stop()

    def _joined(self) -> Collector:
        """Come into the group; where that takes too long, as on a busy machine, once more with another transport."""
        for left in reversed(range(TRIES)):
            options: Any = {"transport": self.transport(), **self.options()}
            collector = Collector(self.plan.spool, GROUP, name=COLLECTOR, **options)
            try:
                collector.start().joined()
            except TimedOutError:
                with suppress(GaplessError):
                    collector.stop()
                if not left:
                    raise
            else:
                return collector
        raise AssertionError


def say(**what: object) -> None:
    """Tell the parent something, in one piece."""
    os.write(1, (json.dumps(what) + "\n").encode())


if __name__ == "__main__":
    _task = Task.decode(sys.argv[1])
    (Producing if _task.producer else Collecting)(_task).run()
