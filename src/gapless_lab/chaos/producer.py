"""A chaos producer, as a process: ``python -m gapless_lab.chaos.producer TASK``.

It joins the group, waits until the collector is a member, and sends acknowledged batches at a
bounded rate until the command ``stop``; then it waits until all are delivered, leaves, and exits.
It sends the event ``joined``, ``acked`` as messages are delivered, and ``failed`` for a batch of
unknown fate. The ledger has each step before and after it is taken.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless import blocking
from gapless.discovery import Discovery
from gapless.errors import GaplessError
from gapless.faults import faults
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.transport import UdpMesh
from gapless_lab.process import emit, read_task, serve_commands
from gapless_lab.producer import LoadBatch, LoadGenerator
from gapless_lab.workload import AckedBatch, ProducerLedger, encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MAX_UNCONFIRMED = 50
"""Maximum number of batches that wait for their delivery."""
MAX_BATCH = 40
LARGE_SHARE = 0.004
"""Share of messages that are sent in fragments."""
TIMEOUT_S = 600.0
"""How long joining, a send and its delivery may take."""


@dataclass(frozen=True)
class ProducerTask:
    """The task of one incarnation of a producer."""

    number: int
    incarnation: int
    group: str
    collector: str
    discovery_dir: str
    config: dict[str, Any]
    ledger: str
    seed: int
    rate: int
    loss: float
    size_bytes: int = 60


class LossyTransport(FaultyTransport):
    """A transport that loses a share of incoming and of outgoing datagrams."""

    def __init__(self, transport: UdpMesh, rng: Random, loss: float) -> None:
        super().__init__(transport, [faults.Loss(rng, [loss])], call=str)
        self._rng = rng
        self._loss = loss

    def send(self, transmits: Any) -> None:
        """Send the datagrams that are not lost."""
        super().send([each for each in transmits if self._rng.random() >= self._loss])


class ChaosProducer:
    """One incarnation of a producer; it numbers on from the last attempt of the one before."""

    def __init__(self, task: ProducerTask) -> None:
        self.task = task
        self.rng = split(task.seed, f"producer {task.number} life {task.incarnation}")
        self.ledger = ProducerLedger(Path(task.ledger))
        self.acked = 0
        self.stopping = threading.Event()
        self._group: blocking.Group | None = None

    def run(self) -> None:
        """Join, send, leave."""
        task = self.task
        discovery = Discovery.parse(f"dir://{task.discovery_dir}", group=task.group)
        transport = LossyTransport(
            UdpMesh("127.0.0.1", 0, discovery=discovery),
            split(task.seed, f"network {task.number} life {task.incarnation}"),
            task.loss,
        )
        threading.Thread(target=self._serve, daemon=True).start()
        load = LoadGenerator(
            self._send, self._confirm, max_in_flight=MAX_UNCONFIRMED, rate=task.rate, catch_up_s=0.0
        )
        with blocking.join(
            task.group, transport=transport, config=task.config, listen=False, timeout=TIMEOUT_S
        ) as group:
            group.wait_for_member(task.collector, timeout=TIMEOUT_S)
            self._group = group
            emit("joined", member=str(group.me))
            load.run(self._batches(), self.stopping)
            load.drain(TIMEOUT_S)

    def _serve(self) -> None:
        serve_commands(self)
        self.stopping.set()

    def stop(self) -> None:
        """Send no more."""
        self.stopping.set()

    def _batches(self) -> Iterator[LoadBatch]:
        while True:
            first = self.ledger.contents.tried + 1
            yield LoadBatch(range(first, first + self.rng.randint(1, MAX_BATCH)))

    def _send(self, batch: LoadBatch) -> tuple[AckedBatch, blocking.Receipt]:
        assert self._group is not None
        group, first, last = self._group, batch.numbers[0], batch.numbers[-1]
        payloads = [
            encode_message(self.task.number, number, self._random_body())
            for number in batch.numbers
        ]
        self.ledger.attempt(last)
        me = group.me
        sent = group.send_many(payloads, mode="acknowledged", timeout=TIMEOUT_S)
        # A member that was expelled rejoins under another address; which one sent this is unknown.
        origin = str(me) if group.me == me else ""
        return AckedBatch(first, last, origin, sent.first, sent.last), sent

    def _random_body(self) -> bytes:
        if self.rng.random() < LARGE_SHARE:
            return self.rng.randbytes(self.rng.randint(2_000, 20_000))
        return self.rng.randbytes(self.rng.randint(0, 2 * self.task.size_bytes))

    def _confirm(self, sent: tuple[AckedBatch, blocking.Receipt], timeout_s: float | None) -> None:
        batch, receipt = sent
        try:
            receipt.delivered(timeout=timeout_s)
        except TimeoutError:
            raise
        except GaplessError as error:
            emit("failed", first=batch.first, last=batch.last, error=f"{error!r}")
            return
        self.ledger.acknowledge_batch(batch)
        self.acked += batch.last - batch.first + 1
        emit("acked", count=self.acked)


if __name__ == "__main__":
    ChaosProducer(ProducerTask(**read_task())).run()
