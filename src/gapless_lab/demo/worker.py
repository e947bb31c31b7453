"""One process of the demo, a producer or the collector: ``python -m gapless_lab.demo.worker TASK``.

It sends the event ``progress``. Commands: ``at`` reports the position of another producer, ``go``
starts the load, ``rest`` marks its end in the trace, ``end`` makes the member leave.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from gapless.errors import GaplessError, TimedOutError
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless.trace import Recorder
from gapless_lab.demo.plan import COLLECTOR, CONFIG, GROUP, PRODUCERS, RATE, DemoTask
from gapless_lab.process import emit, read_task, serve_commands
from gapless_lab.sensor_pipeline.producers import ProducerPacer, SensorProducer
from gapless_lab.workload import ProducerLedger, lossy_transport

if TYPE_CHECKING:
    from gapless.transport.base import Transport

REPORT_INTERVAL_S: Final = 0.1
"""How long between two events."""
MAX_JOIN_ATTEMPTS: Final = 5
"""Maximum number of attempts of the collector to join."""


class DemoWorker:
    """What both kinds share: a recorder and the commands."""

    def __init__(self, task: DemoTask) -> None:
        self.task = task
        self.plan = task.plan
        self.ended = threading.Event()
        self.recorder: Recorder | None = None
        self._transports_opened = 0

    def options(self) -> dict[str, Any]:
        """Return the options of an incarnation beside its transport."""
        self.recorder = Recorder(self.plan.traces, member=self.task.member_name, seals=False)
        return {"config": CONFIG, "trace": self.recorder}

    def transport(self) -> Transport:
        """Return a new transport that loses a share of what comes in."""
        self._transports_opened += 1
        who = f"{self.task.member_name} life {self.task.incarnation}.{self._transports_opened}"
        return lossy_transport(GROUP, self.plan.discovery_dir, self.plan.loss, self.plan.seed, who)

    def start_listening(self) -> None:
        """Serve commands in a thread; end when the supervisor does."""
        threading.Thread(target=self._listen, name="listens", daemon=True).start()

    def _listen(self) -> None:
        serve_commands(self)
        self.ended.set()

    def rest(self) -> None:
        """Mark the end of the load in the trace."""
        assert self.recorder is not None
        self.recorder.mark_end_of_load()

    def end(self) -> None:
        """Come to the end."""
        self.ended.set()


class DemoProducer(DemoWorker):
    """A producer, which resumes where its former incarnation ended."""

    def __init__(self, task: DemoTask) -> None:
        super().__init__(task)
        self.pace = ProducerPacer()

    def go(self) -> None:
        """Send the rest."""
        self.pace.started.set()

    def at(self, producer: int, number: int) -> None:
        """Report how far another producer is; none waits for one that is done."""
        if producer != self.task.producer:
            self.pace.report_position(producer, None if number >= self.plan.messages else number)

    def run(self) -> None:
        """Send until everything is acknowledged, stay until the end, leave."""
        plan, number = self.plan, self.task.producer
        with ProducerLedger(plan.ledger(number)) as ledger:
            producer = SensorProducer(
                number,
                group=GROUP,
                collector=COLLECTOR,
                transport=self.transport,
                ledger=ledger,
                stored_seqno=self._stored_seqno,
                pace=self.pace,
                seed=plan.seed,
                messages=self.task.until,
                rate=RATE,
                join_options=self.options,
                leave_event=self.ended,
            )
            producer.wait_for_spool()
            for other in range(1, PRODUCERS + 1):
                self.pace.report_position(other, ledger.next_number - 1)
            self.start_listening()
            producer.start()
            while producer.is_alive():
                self._report_progress(producer, ledger)
                producer.join(REPORT_INTERVAL_S)
            self._report_progress(producer, ledger)
        if producer.error is not None:
            raise producer.error

    @staticmethod
    def _report_progress(producer: SensorProducer, ledger: ProducerLedger) -> None:
        emit("progress", sent=producer.sent, acknowledged=ledger.next_number - 1)

    def _stored_seqno(self, origin: str) -> int:
        view = SpoolReader(self.plan.spool)
        view.refresh()
        return view.high().get(origin, 0)


class DemoCollector(DemoWorker):
    """The collector."""

    def run(self) -> None:
        """Collect until the end."""
        collector = self._join()
        try:
            self.start_listening()
            while not self.ended.wait(REPORT_INTERVAL_S):
                collector.check()
                emit("progress", sent=0, acknowledged=collector.status.messages)
        finally:
            collector.stop()

    def _join(self) -> Collector:
        """Join the group; if a busy machine takes too long, retry with another transport."""
        for left in reversed(range(MAX_JOIN_ATTEMPTS)):
            options: Any = {"transport": self.transport(), **self.options()}
            collector = Collector(self.plan.spool, GROUP, name=COLLECTOR, **options)
            try:
                collector.start().wait_joined()
            except TimedOutError:
                with suppress(GaplessError):
                    collector.stop()
                if not left:
                    raise
            else:
                return collector
        raise AssertionError


if __name__ == "__main__":
    _task = DemoTask(**read_task())
    (DemoProducer if _task.producer else DemoCollector)(_task).run()
