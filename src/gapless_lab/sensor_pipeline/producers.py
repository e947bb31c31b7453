"""The producers: members of a lossy group that send readings and see to it that each is acknowledged.

A producer that ends, killed or not, goes on in its next life where it was: the spool knows what it
had of the former one, and nothing of that is sent again. Nobody runs far ahead of the others, or
time in the plant would pass for some while it stands still for others, and their readings would be
too late.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gapless import blocking
from gapless.config import Config
from gapless.discovery import Directory, Discovery
from gapless.errors import GaplessError, TimedOutError
from gapless.faults.faults import Loss
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.transport.udp import UdpMesh
from gapless_lab.sensor_pipeline.ledger import ProducerLedger
from gapless_lab.sensor_pipeline.readings import reading

if TYPE_CHECKING:
    from gapless.blocking import Group, Receipt
    from gapless.transport.base import Transport

log = logging.getLogger("gapless.pipeline")

MAX_LEAD: Final = 1000
"""So many readings one producer may be ahead of another."""
TICK_S: Final = 0.02
"""Time between two sends at a given rate."""
MAX_BATCH: Final = 200
"""So many readings are sent at once at most."""
MAX_IN_FLIGHT: Final = 8
"""So many sends may wait for their acknowledgement."""
JOIN_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
"""How long the end waits for acknowledgements."""
MAX_FAILURES: Final = 20
"""After so many failures in a row, with nothing acknowledged in between, a producer gives up."""
RETRY_INTERVAL_S: Final = 0.5
POLL_INTERVAL_S: Final = 0.1

CONFIG: Final = Config.make(found_after="200ms", join_interval="50ms", loopback=False)
"""Knobs that let a group gather quickly."""


def lossy_transport(group: str, meeting: Path, loss: float, seed: int, who: str) -> Transport:
    """Return a transport on this machine that loses datagrams; members meet in a folder."""
    meeting.mkdir(parents=True, exist_ok=True)
    transport = UdpMesh("127.0.0.1", 0, discovery=Discovery([Directory(meeting, group=group)]))
    return (
        FaultyTransport(
            transport, [Loss(split(seed, f"loss of {who}"), [loss])], name=who, call=str
        )
        if loss
        else transport
    )


class ProducerPacer:
    """Keeps producers together, and lets them begin together: after their first reading they wait for ``go``."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self._at: dict[int, int] = {}
        self._moved = threading.Condition()

    def report_position(self, producer: int, number: int | None) -> None:
        """Say up to which reading a producer is done; None when it is done with all."""
        with self._moved:
            if number is None:
                self._at.pop(producer, None)
            else:
                self._at[producer] = number
            self._moved.notify_all()

    def wait_for_turn(self, number: int, timeout_s: float) -> bool:
        """Wait until the slowest producer is near enough for somebody to send reading ``number``."""
        with self._moved:
            return self._moved.wait_for(
                lambda: number <= min(self._at.values(), default=number) + MAX_LEAD, timeout_s
            )


class SensorProducer(threading.Thread):
    """Sends the readings of one site up to ``messages`` (None: without end), in a thread of its own.

    ``join`` gives more options for each life of its member. When all is sent and acknowledged it
    stays a member until ``stay`` is set.
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
        if ledger.incarnations:
            self._acknowledge_stored()
        pace.report_position(number, ledger.next_number - 1)

    @property
    def remaining(self) -> int | None:
        """How many readings are still to be sent; None without end."""
        return (
            None if self.messages is None else max(0, self.messages - self.ledger.next_number + 1)
        )

    def stop(self) -> None:
        """Send no more; end when what was sent is acknowledged, or after END_S."""
        self._stop_requested.set()
        self.join(STOP_TIMEOUT_S)
        if self.is_alive() and self._member is not None:
            self._member.leave()
            self.join(STOP_TIMEOUT_S)

    def run(self) -> None:
        """Live until everything is sent, again and again if need be."""
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
                    log.warning("%s: %s; it goes on in a new life", self.name, error)
                    self.wait_for_spool()
        except BaseException as error:  # noqa: BLE001 - whoever watches is told
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
            member.wait_for(self.collector, JOIN_TIMEOUT_S)
            self.ledger.begin(str(member.me), self.ledger.next_number)
            flying: deque[Receipt] = deque()
            self._send_all(member, flying)
            while flying:
                self._acknowledge(flying, STOP_TIMEOUT_S if self._stop_requested.is_set() else None)
            if self._leave_event is not None and not self._stop_requested.is_set():
                self.pace.report_position(self.number, None)
                self._leave_event.wait()

    def _send_all(self, member: Group, flying: deque[Receipt]) -> None:
        number = self.ledger.next_number
        self._send(member, flying, number, 1)
        number += 1
        while not (self.pace.started.is_set() or self._stop_requested.is_set()):
            self._wait(flying, POLL_INTERVAL_S)
        due_s = time.monotonic()
        while not self._stop_requested.is_set() and (
            self.messages is None or number <= self.messages
        ):
            if not self.pace.wait_for_turn(number, POLL_INTERVAL_S):
                self._wait(flying, 0.0)
                continue
            count = (
                MAX_BATCH
                if self.rate is None
                else max(1, min(MAX_BATCH, round(self.rate * TICK_S)))
            )
            count = count if self.messages is None else min(count, self.messages - number + 1)
            self._send(member, flying, number, count)
            number += count
            if self.rate is not None:
                # Time that was lost is made good for, but not more than a second of it.
                due_s = max(due_s + count / self.rate, time.monotonic() - 1.0)
                self._wait(flying, due_s - time.monotonic())
            while len(flying) > MAX_IN_FLIGHT:
                self._acknowledge(flying, None)

    def _send(self, member: Group, flying: deque[Receipt], number: int, count: int) -> None:
        payloads = [
            reading(self.seed, self.number, at).payload() for at in range(number, number + count)
        ]
        sent = member.send_many(payloads, mode="acknowledged")
        assert sent.last == number + count - self.ledger.incarnations[-1].first, (
            "a reading is one message"
        )
        flying.append(sent)
        self.sent += count

    def _wait(self, flying: deque[Receipt], wait_s: float) -> None:
        """Wait so long, and look meanwhile what is acknowledged."""
        until_s = time.monotonic() + wait_s
        with suppress(TimedOutError):
            while flying:
                self._acknowledge(flying, max(0.0, until_s - time.monotonic()))
        self._stop_requested.wait(max(0.0, until_s - time.monotonic()))

    def _acknowledge(self, flying: deque[Receipt], timeout_s: float | None) -> None:
        """Wait for the oldest send to be acknowledged."""
        flying[0].delivered(timeout_s)
        sent = flying.popleft()
        self.acknowledged += sent.count
        self.ledger.acknowledge(sent.last)
        self.pace.report_position(self.number, self.ledger.next_number - 1)

    def _acknowledge_stored(self) -> None:
        """Take for acknowledged what the spool has of the last life: it is on disk, only nobody was told."""
        self.ledger.acknowledge(self.stored_seqno(self.ledger.incarnations[-1].origin))

    def wait_for_spool(self) -> None:
        """Wait until the spool gets no more of a life that has ended, and go on from there."""
        while self.ledger.incarnations and not self._stop_requested.wait(RETRY_INTERVAL_S):
            before = self.ledger.next_number
            self._acknowledge_stored()
            self.acknowledged += self.ledger.next_number - before
            if self.ledger.next_number == before:
                return
