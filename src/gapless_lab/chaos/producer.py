"""A chaos producer, as a process: ``python -m gapless_lab.chaos.producer TASK``.

The producer sends acknowledged batches of any size at a bounded rate. Events: ``joined``, ``acked``
as messages are delivered, and ``failed`` for a batch of unknown fate. The ledger records every
attempt before the send, and every acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from gapless.blocking import Receipt
from gapless.errors import GaplessError
from gapless.faults import faults
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.transport.base import Transport
from gapless_lab.process import emit, read_task
from gapless_lab.producer import LoadBatch, ProducerTask, ProducerWorker
from gapless_lab.workload import AckedBatch, default_seal, loopback_transport, random_message

MAX_BATCH = 40
"""Maximum number of messages of a send."""


@dataclass(frozen=True, kw_only=True)
class ChaosTask(ProducerTask):
    """The task of an incarnation of a producer."""

    size_bytes: int = 60
    """The mean size of a message."""


class LossyTransport(FaultyTransport):
    """A transport with a loss of incoming and outgoing datagrams."""

    def __init__(self, transport: Transport, rng: Random, loss: float) -> None:
        super().__init__(transport, [faults.Loss(rng, [loss])], call=str)
        self._rng = rng
        self._loss = loss

    def send(self, transmits: Any) -> None:
        """Send the datagrams, without the lost share."""
        super().send([each for each in transmits if self._rng.random() >= self._loss])


class ChaosProducer(ProducerWorker[ChaosTask, tuple[AckedBatch, "Receipt"]]):
    """An incarnation of a producer; numbers continue after the last attempt in the ledger."""

    max_in_flight = 50
    catch_up_s = 0.0
    timeout_s = drain_timeout_s = 600.0

    def __init__(self, task: ChaosTask) -> None:
        super().__init__(task)
        self.rng = split(task.seed, f"producer {task.number} life {task.incarnation}")
        self.acked = 0

    def run(self) -> None:
        """Join, send, leave."""
        task = self.task
        network = split(task.seed, f"network {task.number} life {task.incarnation}")
        transport = loopback_transport(
            task.group, f"dir://{task.discovery_dir}", seal=default_seal(task.group)
        )
        self.serve()
        self.run_incarnation(transport=LossyTransport(transport, network, task.loss))

    def _on_joined(self) -> None:
        emit("joined", member=str(self.member.me))

    def _batches(self) -> Iterator[LoadBatch]:
        while True:
            first = self.ledger.contents.tried + 1
            yield LoadBatch(range(first, first + self.rng.randint(1, MAX_BATCH)))

    def _send(self, batch: LoadBatch) -> tuple[AckedBatch, Receipt]:
        group, first, last = self.member, batch.numbers[0], batch.numbers[-1]
        number, most_bytes = self.task.number, 2 * self.task.size_bytes
        payloads = [random_message(self.rng, number, each, most_bytes) for each in batch.numbers]
        self.ledger.attempt(last)
        me = group.me
        sent = group.send_many(payloads, mode="acknowledged", timeout=self.timeout_s)
        # A member that was expelled rejoins under another address; which one sent this is unknown.
        origin = str(me) if group.me == me else ""
        return AckedBatch(first, last, origin, sent.first, sent.last), sent

    def _confirm(self, sent: tuple[AckedBatch, Receipt], timeout_s: float | None) -> None:
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
    ChaosProducer(read_task(ChaosTask)).run()
