"""A producer, as a process of its own: ``python -m gapless_lab.chaos.producer TASK``.

It comes into the group, waits until the collector has a place there, and sends acknowledged batches
at a bounded rate until it hears ``stop``; then it waits until all of them are delivered, leaves,
and says ``done``. It says ``in STREAM``, and ``acked N`` as messages are delivered. Everything of
importance is in its log before and after it is done.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from gapless import blocking
from gapless.discovery import Discovery
from gapless.errors import GaplessError
from gapless.faults import faults
from gapless.faults.faulty_transport import FaultyTransport
from gapless.protocol.ready import Transmit
from gapless.rng import split
from gapless.transport import UdpMesh
from gapless_lab.chaos import letters
from gapless_lab.chaos.letters import ProducerLogEntry

MAX_UNCONFIRMED = 50
"""So many batches may wait for their delivery; then nothing is sent."""
MAX_BATCH = 40
LARGE_SHARE = 0.004
"""Share of messages that travel in pieces."""
TIMEOUT_S = 600.0
"""How long coming in, and the end, may take."""


@dataclass(frozen=True)
class ProducerTask:
    """What a producer is told."""

    number: int
    incarnation: int
    group: str
    collector: str
    discovery_dir: str
    config: dict[str, Any]
    log: str
    seed: int
    rate: int
    loss: float
    size_bytes: int = 60
    patience_s: float = 600.0

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> ProducerTask:
        """Return the task that a text tells."""
        return cls(**json.loads(text))


class LossyTransport(FaultyTransport):
    """A network that loses a share of what comes, and of what goes."""

    def __init__(self, transport: UdpMesh, rng: Random, loss: float) -> None:
        super().__init__(transport, [faults.Loss(rng, [loss])], call=str)
        self._rng = rng
        self._loss = loss

    def send(self, transmits: Any) -> None:
        """Put on the network what is not lost."""
        kept: list[Transmit] = [one for one in transmits if self._rng.random() >= self._loss]
        super().send(kept)


class ChaosProducer:
    """One life of a producer."""

    def __init__(self, task: ProducerTask) -> None:
        self.task = task
        self.rng = split(task.seed, f"producer {task.number} life {task.incarnation}")
        path = Path(task.log)
        self.count = letters.last_count(letters.read_log(path))
        self.log = letters.ProducerLog(path)
        self.acked = 0
        self.stopping = threading.Event()
        self.unconfirmed: queue.Queue[tuple[ProducerLogEntry, blocking.Receipt] | None] = (
            queue.Queue(MAX_UNCONFIRMED)
        )

    def run(self) -> None:
        """Come in, send, leave."""
        task = self.task
        discovery = Discovery.parse(f"dir://{task.discovery_dir}", group=task.group)
        mesh = UdpMesh("127.0.0.1", 0, discovery=discovery)
        transport = LossyTransport(
            mesh, split(task.seed, f"network {task.number} life {task.incarnation}"), task.loss
        )
        threading.Thread(target=self._listen, daemon=True).start()
        with blocking.join(
            task.group, transport=transport, config=task.config, listen=False, timeout=TIMEOUT_S
        ) as group:
            group.wait_for(task.collector, timeout=TIMEOUT_S)
            report("in", group.me)
            confirming = threading.Thread(target=self._confirm, daemon=True)
            confirming.start()
            self._send_all(group)
            self.unconfirmed.put(None)
            confirming.join()
        report("done", self.count)

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
        self.stopping.set()

    def _send_all(self, group: blocking.Group) -> None:
        began_s, first = time.monotonic(), self.count
        while not self.stopping.is_set():
            self._send(group)
            ahead_s = (self.count - first) / self.task.rate - (time.monotonic() - began_s)
            if ahead_s > 0:
                self.stopping.wait(ahead_s)
            else:
                began_s -= ahead_s  # what is late is not made up for by a burst

    def _send(self, group: blocking.Group) -> None:
        size = self.rng.randint(1, MAX_BATCH)
        first, last = self.count + 1, self.count + size
        payloads = [
            letters.encode_message(self.task.number, count, self._random_body())
            for count in range(first, last + 1)
        ]
        self.log.write(ProducerLogEntry(letters.TRY, first, last))
        self.count = last
        me = group.me
        sent = group.send_many(payloads, mode="acknowledged", timeout=self.task.patience_s)
        # A member that was expelled comes back under another address; then nobody knows under which
        # this went.
        stream = str(me) if group.me == me else "-"
        self.log.write(
            step := ProducerLogEntry(letters.SENT, first, last, stream, sent.first, sent.last)
        )
        self.unconfirmed.put((step, sent))

    def _random_body(self) -> bytes:
        if self.rng.random() < LARGE_SHARE:
            return self.rng.randbytes(self.rng.randint(2_000, 20_000))
        return self.rng.randbytes(self.rng.randint(0, 2 * self.task.size_bytes))

    def _confirm(self) -> None:
        while (entry := self.unconfirmed.get()) is not None:
            step, sent = entry
            try:
                sent.delivered(timeout=self.task.patience_s)
            except GaplessError as error:
                self.log.write(step._replace(what=letters.FAILED))
                report("failed", step.first, step.last, type(error).__name__, error)
                continue
            self.log.write(step._replace(what=letters.ACKED))
            self.acked += step.last - step.first + 1
            report("acked", self.acked)


def report(*words: object) -> None:
    """Tell the parent something, in one piece."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


if __name__ == "__main__":
    ChaosProducer(ProducerTask.decode(sys.argv[1])).run()
