"""The load generator of the lab, and the base of all producer processes.

A load is a sequence of batches, sent at a rate or at full speed. On each turn: if too many sends
are unconfirmed, wait for the oldest; else send the next batch. With a rate, confirm sends until the
next batch is due. After a delay the generator catches up, for at most ``catch_up_s`` of lost time.

A producer joins the group, waits until the collector is a member, sends the load, and stays a
member until the command ``end``. Then the producer stops sending, waits for acknowledgements up to
a limit, and leaves. The ledger remains for the next incarnation.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gapless import blocking
from gapless.identity import Address
from gapless_lab.process import serve_in_background
from gapless_lab.workload import ProducerLedger, ledger_path

POLL_INTERVAL_S = 0.1
"""How long a wait may last before ``stop`` is looked at again."""
TICK_S = 0.02
"""How long between two batches at a rate."""

SentT = TypeVar("SentT")


class LoadBatch(NamedTuple):
    """Numbers of messages to send at once, and the recipient; an empty range means wait."""

    numbers: range
    to: Address | None = None


def batch_size(rate: float | None, most: int) -> int:
    """Return how many messages a batch holds: the messages of a tick, at most ``most``."""
    return most if rate is None else max(1, min(most, round(rate * TICK_S)))


class LoadGenerator(Generic[SentT]):
    """Sends batches with ``send``; ``confirm`` waits for a send, or raises TimeoutError."""

    def __init__(
        self,
        send: Callable[[LoadBatch], SentT],
        confirm: Callable[[SentT, float | None], object],
        *,
        max_in_flight: int,
        rate: float | None = None,
        catch_up_s: float = 1.0,
    ) -> None:
        assert max_in_flight > 0
        assert rate is None or rate > 0
        self.in_flight: deque[SentT] = deque()
        self._send = send
        self._confirm = confirm
        self._max_in_flight = max_in_flight
        self._rate = rate
        self._catch_up_s = catch_up_s

    def run(
        self, batches: Iterator[LoadBatch], stop: threading.Event, until_s: float = inf
    ) -> None:
        """Send until the batches or the time end, or ``stop`` is set."""
        due_s = time.monotonic()
        while not stop.is_set() and (now_s := time.monotonic()) < until_s:
            if len(self.in_flight) >= self._max_in_flight:
                with suppress(TimeoutError):
                    self.confirm_oldest(min(POLL_INTERVAL_S, until_s - now_s))
                continue
            batch = next(batches, None)
            if batch is None:
                return
            if not batch.numbers:
                self._wait(now_s + POLL_INTERVAL_S, stop)
                continue
            self.in_flight.append(self._send(batch))
            if self._rate is not None:
                due_s = max(due_s + len(batch.numbers) / self._rate, now_s - self._catch_up_s)
                self._wait(min(due_s, until_s), stop)

    def confirm_oldest(self, timeout_s: float | None) -> None:
        """Wait until the oldest send is confirmed."""
        self._confirm(self.in_flight[0], timeout_s)
        self.in_flight.popleft()

    def drain(self, timeout_s: float | None) -> None:
        """Wait until every send is confirmed, for each at most ``timeout_s``."""
        while self.in_flight:
            self.confirm_oldest(timeout_s)

    def _wait(self, until_s: float, stop: threading.Event) -> None:
        with suppress(TimeoutError):
            while self.in_flight:
                self.confirm_oldest(max(0.0, until_s - time.monotonic()))
        stop.wait(max(0.0, until_s - time.monotonic()))


@dataclass(frozen=True, kw_only=True)
class ProducerTask:
    """The task of an incarnation of a producer."""

    number: int
    incarnation: int = 1
    group: str
    collector: str
    discovery_dir: Path
    ledgers: Path
    """The folder of the ledgers of all producers."""
    settings: dict[str, Any]
    seed: int
    rate: float | None
    loss: float

    @property
    def ledger(self) -> Path:
        """The path of the ledger."""
        return ledger_path(self.ledgers, self.number)


TaskT = TypeVar("TaskT", bound=ProducerTask)


class ProducerWorker(ABC, Generic[TaskT, SentT]):
    """A producer process; subclasses define the load and the records."""

    max_in_flight: ClassVar[int]
    """Maximum number of unacknowledged batches."""
    catch_up_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float]
    """How long joining may take, and the wait for the collector."""
    drain_timeout_s: ClassVar[float]
    """How long the end waits for each acknowledgement."""

    def __init__(self, task: TaskT) -> None:
        self.task = task
        self.ledger = ProducerLedger(task.ledger)
        self.ended = threading.Event()
        self.member: blocking.Group

    def serve(self) -> None:
        """Serve commands from now on; end with the supervisor."""
        serve_in_background(self, self.ended)

    def end(self) -> None:
        """Send no more, and leave."""
        self.ended.set()

    def run_incarnation(self, **options: Any) -> None:
        """Join, send the load, and stay until the end."""
        task = self.task
        load = LoadGenerator(
            self._send,
            self._confirm,
            max_in_flight=self.max_in_flight,
            rate=task.rate,
            catch_up_s=self.catch_up_s,
        )
        joining: dict[str, Any] = {"config": task.settings, "timeout": self.timeout_s, **options}
        with blocking.join(task.group, listen=False, **joining) as self.member:
            self.member.wait_for_member(task.collector, self.timeout_s)
            self._on_joined()
            load.run(self._batches(), self.ended)
            while load.in_flight and not self.ended.is_set():
                with suppress(TimeoutError):
                    load.confirm_oldest(POLL_INTERVAL_S)
            self.ended.wait()
            load.drain(self.drain_timeout_s)

    @abstractmethod
    def _on_joined(self) -> None:
        """Handle the end of joining: the collector is a member."""

    @abstractmethod
    def _batches(self) -> Iterator[LoadBatch]:
        """Return the load."""

    @abstractmethod
    def _send(self, batch: LoadBatch) -> SentT:
        """Send a batch."""

    @abstractmethod
    def _confirm(self, sent: SentT, timeout_s: float | None) -> None:
        """Wait for the acknowledgement of a batch, and record the acknowledgement."""
