"""A member of the pipeline, as a process: ``python -m gapless_lab.sensor_pipeline.worker TASK``.

A producer sends readings up to a limit, waits for acknowledgements, and sends the event
``progress``. After a kill or an error the next incarnation resumes: readings already in the spool
are not sent again. The collector keeps the readings in a spool.

Commands: ``allow`` raises the limit of a producer, ``rest`` marks the end of the load in the trace,
``end`` makes the member leave.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from gapless.blocking import Receipt
from gapless.config import Config
from gapless.errors import GaplessError, TimedOutError
from gapless.spool import SpoolReader
from gapless.spool.collector import Collector
from gapless.trace import Recorder
from gapless_lab.process import emit, read_task, serve_in_background
from gapless_lab.producer import LoadBatch, ProducerTask, ProducerWorker, batch_size
from gapless_lab.sensor_pipeline.readings import reading
from gapless_lab.workload import lossy_transport

MAX_BATCH: Final = 200
"""Maximum number of readings of one send."""
MAX_FAILURES: Final = 20
"""Maximum number of failures in a row without an acknowledgement."""
RETRY_INTERVAL_S: Final = 0.5
"""How long the spool has to stay the same before a producer resumes after it."""
REPORT_INTERVAL_S: Final = 0.1
"""How long between two events of the collector."""
MAX_JOIN_ATTEMPTS: Final = 5
"""Maximum number of attempts of the collector to join."""


@dataclass(frozen=True, kw_only=True)
class SensorTask(ProducerTask):
    """The task of a member; ``number`` is 0 for the collector.

    A producer sends up to reading ``messages``, or without end.
    """

    messages: int | None
    spool: Path
    spool_keys: str = ""
    """The path of the keyring of an encrypted spool; empty without one."""
    traces: str = ""
    """The folder of the traces; empty if none are recorded."""

    @property
    def member_name(self) -> str:
        """The display name of the member."""
        return f"producer-{self.number}" if self.number else self.collector


class SensorMember:
    """Base of producers and the collector: a lossy transport, and a recorder if traced."""

    task: SensorTask
    recorder: Recorder | None = None
    _attempts = 0

    def join_options(self) -> dict[str, Any]:
        """Return the options of the next attempt to join, with a new transport."""
        task = self.task
        if task.traces:
            self.recorder = Recorder(task.traces, member=task.member_name, seals=False)
        self._attempts += 1
        name = f"{task.member_name} life {task.incarnation}.{self._attempts}"
        return {
            "config": Config.make(**task.settings),
            "trace": self.recorder,
            "transport": lossy_transport(
                task.group, task.discovery_dir, task.loss, task.seed, name
            ),
        }

    def rest(self) -> None:
        """Mark the end of the load in the trace."""
        assert self.recorder is not None
        self.recorder.mark_end_of_load()


class SensorProducer(SensorMember, ProducerWorker[SensorTask, "Receipt"]):
    """A producer; each incarnation resumes at the end of the former incarnation."""

    max_in_flight = 8
    timeout_s = 60.0
    drain_timeout_s = 10.0

    _sent = 0
    _limit = 0

    def allow(self, number: int) -> None:
        """Permit readings up to ``number``."""
        self._limit = number

    def run(self) -> None:
        """Send all readings, in as many incarnations as needed, and stay until the end."""
        self._resume_after_spool()
        self._limit = self.ledger.contents.next_number  # one reading shows that it is there
        self._report_progress()
        self.serve()
        failures = 0
        last = inf if self.task.messages is None else self.task.messages
        while not self.ended.is_set() and self.ledger.contents.next_number <= last:
            before = self.ledger.contents.next_number
            try:
                self.run_incarnation(rejoin=False, **self.join_options())
            except GaplessError as error:
                failures = failures + 1 if self.ledger.contents.next_number == before else 0
                if failures > MAX_FAILURES:
                    raise
                emit("warning", text=f"{error}; it goes on in a new incarnation")
                self._resume_after_spool()
        self.ended.wait()
        self._report_progress()
        self.ledger.close()

    def _report_progress(self) -> None:
        emit("progress", sent=self._sent, acknowledged=self.ledger.contents.next_number - 1)

    def _on_joined(self) -> None:
        self.ledger.begin(str(self.member.me), self.ledger.contents.next_number)

    def _batches(self) -> Iterator[LoadBatch]:
        """Return batches up to the limit, and empty batches at the limit."""
        number = self.ledger.contents.next_number
        count = batch_size(self.task.rate, MAX_BATCH)
        while self.task.messages is None or number <= self.task.messages:
            last = min(number + count - 1, self._limit, self.task.messages or self._limit)
            yield LoadBatch(range(number, last + 1))
            number = max(number, last + 1)

    def _send(self, batch: LoadBatch) -> Receipt:
        payloads = [reading(self.task.seed, self.task.number, at).payload() for at in batch.numbers]
        sent = self.member.send_many(payloads, mode="acknowledged")
        first = self.ledger.contents.incarnations[-1].first
        assert sent.last == batch.numbers[-1] + 1 - first, "a reading is one message"
        self._sent += len(payloads)
        return sent

    def _confirm(self, sent: Receipt, timeout_s: float | None) -> None:
        sent.delivered(timeout_s)
        self.ledger.acknowledge(sent.last)
        self._report_progress()

    def _resume_after_spool(self) -> None:
        """Wait until the spool has all readings of the ended incarnation; resume after the last."""
        incarnations = self.ledger.contents.incarnations
        while incarnations and not self.ended.wait(RETRY_INTERVAL_S):
            before = self.ledger.contents.next_number
            view = SpoolReader(self.task.spool, keys=self.task.spool_keys or None)
            view.refresh()
            self.ledger.acknowledge(view.high().get(incarnations[-1].origin, 0))
            if self.ledger.contents.next_number == before:
                return


class CollectorWorker(SensorMember):
    """The collector."""

    def __init__(self, task: SensorTask) -> None:
        self.task = task
        self.ended = threading.Event()

    def end(self) -> None:
        """Leave."""
        self.ended.set()

    def run(self) -> None:
        """Collect until the end."""
        collector = self._join()
        try:
            serve_in_background(self, self.ended)
            while not self.ended.wait(REPORT_INTERVAL_S):
                collector.check()
                emit("progress", sent=0, acknowledged=collector.status.messages)
        finally:
            collector.stop()

    def _join(self) -> Collector:
        """Join the group; if a busy machine takes too long, retry with another transport."""
        while True:
            task, options = self.task, self.join_options()
            if task.spool_keys:
                options["spool_keys"] = task.spool_keys
            collector = Collector(task.spool, task.group, name=task.collector, **options)
            try:
                collector.start().wait_joined()
            except TimedOutError:
                with suppress(GaplessError):
                    collector.stop()
                if self._attempts == MAX_JOIN_ATTEMPTS:
                    raise
            else:
                return collector


if __name__ == "__main__":
    _task = read_task(SensorTask)
    (SensorProducer if _task.number else CollectorWorker)(_task).run()
