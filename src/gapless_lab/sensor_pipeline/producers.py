"""Producers: members of a lossy group that send readings until each is acknowledged.

A producer that ended, killed or not, resumes in its next incarnation: what the spool has of the
former one is not sent again. No producer runs far ahead of the others, or the readings of the slow
ones would be too late for the watermark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gapless import blocking
from gapless.config import Config
from gapless.errors import GaplessError
from gapless_lab.producer import LoadBatch, LoadGenerator, batch_size
from gapless_lab.sensor_pipeline.readings import reading
from gapless_lab.workload import ProducerLedger

if TYPE_CHECKING:
    from gapless.blocking import Group, Receipt
    from gapless.transport.base import Transport

log = logging.getLogger("gapless.pipeline")

MAX_LEAD: Final = 1000
"""Maximum number of readings one producer may be ahead of another."""
MAX_BATCH: Final = 200
"""Maximum number of readings of one send."""
MAX_IN_FLIGHT: Final = 8
"""Maximum number of unacknowledged sends."""
JOIN_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
"""How long a stop waits for acknowledgements."""
MAX_FAILURES: Final = 20
"""Maximum number of failures in a row without an acknowledgement."""
RETRY_INTERVAL_S: Final = 0.5
POLL_INTERVAL_S: Final = 0.1

CONFIG: Final = Config.make(found_after="200ms", join_interval="50ms", loopback=False)
"""Settings that form a group quickly."""


class ProducerPacer:
    """Keeps producers together: after their first reading they wait for ``started``."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self._at: dict[int, int] = {}
        self._moved = threading.Condition()

    def report_position(self, producer: int, number: int | None) -> None:
        """Report up to which reading a producer is acknowledged; None if it is done."""
        with self._moved:
            if number is None:
                self._at.pop(producer, None)
            else:
                self._at[producer] = number
            self._moved.notify_all()

    def wait_for_turn(self, number: int, timeout_s: float) -> bool:
        """Wait until the slowest producer is near enough to send reading ``number``."""
        with self._moved:
            return self._moved.wait_for(
                lambda: number <= min(self._at.values(), default=number) + MAX_LEAD, timeout_s
            )


class SensorProducer(threading.Thread):
    """A thread that sends the readings of one site up to ``messages`` (None: without end).

    ``join_options`` returns more options for each incarnation. When all is acknowledged the member
    stays until ``leave_event`` is set.
    """

    def __init__(
        self,
        number: int,
        *,
        group: str,
        collector: str,
        transport: Callable[[], Transport],
        ledger: ProducerLedger,
        stored_seqno: Callable[[str], int],
        pace: ProducerPacer,
        seed: int,
        messages: int | None,
        rate: float | None,
        join_options: Callable[[], Mapping[str, Any]] = dict,
        leave_event: threading.Event | None = None,
    ) -> None:
        super().__init__(name=f"producer {number}", daemon=True)
        self.number = number
        self.group = group
        self.collector = collector
        self.transport = transport
        self.ledger = ledger
        self.stored_seqno = stored_seqno
        self.pace = pace
        self.seed = seed
        self.messages = messages
        self.rate = rate
        self._join_options = join_options
        self._leave_event = leave_event
        self.sent = self.acknowledged = 0
        """How many readings this run has sent, and how many of them are acknowledged."""
        self.error: BaseException | None = None
        self._stop_requested = threading.Event()
        self._member: Group | None = None
        if ledger.contents.incarnations:
            self._acknowledge_stored()
        pace.report_position(number, ledger.next_number - 1)

    @property
    def remaining(self) -> int | None:
        """How many readings are still to be sent; None without end."""
        return (
            None if self.messages is None else max(0, self.messages - self.ledger.next_number + 1)
        )

    def stop(self) -> None:
        """Send no more; end when every send is acknowledged, or after STOP_TIMEOUT_S."""
        self._stop_requested.set()
        self.join(STOP_TIMEOUT_S)
        if self.is_alive() and self._member is not None:
            self._member.leave()
            self.join(STOP_TIMEOUT_S)

    def run(self) -> None:
        """Send everything, in as many incarnations as it takes."""
        failures = 0
        try:
            while self.remaining != 0 and not self._stop_requested.is_set():
                before = self.acknowledged
                try:
                    self._run_incarnation()
                except GaplessError as error:
                    failures = failures + 1 if self.acknowledged == before else 0
                    if failures > MAX_FAILURES:
                        raise
                    log.warning("%s: %s; it goes on in a new incarnation", self.name, error)
                    self.wait_for_spool()
        except BaseException as error:  # noqa: BLE001 - the owner of the thread reports it
            self.error = error
        finally:
            self.pace.report_position(self.number, None)
            self.ledger.close()

    def _run_incarnation(self) -> None:
        options: dict[str, Any] = {
            "listen": False,
            "rejoin": False,
            "config": CONFIG,
            "timeout": JOIN_TIMEOUT_S,
        }
        with blocking.join(
            self.group, transport=self.transport(), **options | dict(self._join_options())
        ) as member:
            self._member = member
            member.wait_for_member(self.collector, JOIN_TIMEOUT_S)
            self.ledger.begin(str(member.me), self.ledger.next_number)
            load = LoadGenerator(
                self._send, self._confirm, max_in_flight=MAX_IN_FLIGHT, rate=self.rate
            )
            load.run(self._batches(), self._stop_requested)
            load.drain(STOP_TIMEOUT_S if self._stop_requested.is_set() else None)
            if self._leave_event is not None and not self._stop_requested.is_set():
                self.pace.report_position(self.number, None)
                self._leave_event.wait()

    def _batches(self) -> Iterator[LoadBatch]:
        """Return one reading, and the rest once the producers may start; none runs far ahead."""
        nothing = LoadBatch(range(0))
        number = self.ledger.next_number
        yield LoadBatch(range(number, number + 1))
        number += 1
        while not self.pace.started.is_set():
            yield nothing
        count = batch_size(self.rate, MAX_BATCH)
        while self.messages is None or number <= self.messages:
            if not self.pace.wait_for_turn(number, POLL_INTERVAL_S):
                yield nothing
                continue
            last = number + count - 1
            last = last if self.messages is None else min(last, self.messages)
            yield LoadBatch(range(number, last + 1))
            number = last + 1

    def _send(self, batch: LoadBatch) -> Receipt:
        assert self._member is not None
        payloads = [reading(self.seed, self.number, at).payload() for at in batch.numbers]
        sent = self._member.send_many(payloads, mode="acknowledged")
        first = self.ledger.contents.incarnations[-1].first
        assert sent.last == batch.numbers[-1] + 1 - first, "a reading is one message"
        self.sent += len(payloads)
        return sent

    def _confirm(self, sent: Receipt, timeout_s: float | None) -> None:
        sent.delivered(timeout_s)
        self.acknowledged += sent.count
        self.ledger.acknowledge(sent.last)
        self.pace.report_position(self.number, self.ledger.next_number - 1)

    def _acknowledge_stored(self) -> None:
        """Record as acknowledged what the spool has of the last incarnation."""
        self.ledger.acknowledge(self.stored_seqno(self.ledger.contents.incarnations[-1].origin))

    def wait_for_spool(self) -> None:
        """Wait until the spool gets no more of the ended incarnation, and resume after it."""
        while self.ledger.contents.incarnations and not self._stop_requested.wait(RETRY_INTERVAL_S):
            before = self.ledger.next_number
            self._acknowledge_stored()
            self.acknowledged += self.ledger.next_number - before
            if self.ledger.next_number == before:
                return
