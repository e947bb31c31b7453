"""One process of a soak: ``python -m gapless_lab.soak.worker TASK``.

Commands: ``members`` waits until so many are in the view, ``go`` starts the load, ``halt`` ends it,
``look`` answers the state of the member, ``end`` marks the end of the load in the trace. When the
supervisor closes the standard input, the process exits without leaving the group.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from gapless import blocking
from gapless.errors import GaplessError
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.trace import Recorder
from gapless_lab.process import read_task, serve_commands
from gapless_lab.producer import LoadBatch, LoadGenerator, batch_size
from gapless_lab.soak.plan import SoakTask
from gapless_lab.workload import encode_message

MAX_BATCH = 256
"""Maximum number of messages of a batch."""
LARGE_SHARE = 0.005
"""Share of messages that are sent in fragments."""
JOIN_TIMEOUT_S = 60.0
"""How long a member waits for the others to join."""


class SoakWorker:
    """A member that sends numbered messages at a bounded rate, and records everything."""

    def __init__(self, task: SoakTask) -> None:
        self.task = task
        self.recorder = Recorder(task.folder)
        self.transport = task.open()
        self._rng = split(task.plan.seed, f"load {task.node} start {task.start}")
        self._halted = threading.Event()
        self._load: threading.Thread | None = None
        self._batch_size = batch_size(task.plan.rate, MAX_BATCH)
        self.group = blocking.join(
            "soak",
            transport=self.transport,
            config=task.plan.config(),
            node=task.node,
            listen=False,
            trace=self.recorder,
        ).open()

    def _batches(self) -> Iterator[LoadBatch]:
        number = 1
        while True:
            yield LoadBatch(range(number, number + self._batch_size))
            number += self._batch_size

    def _send(self, batch: LoadBatch) -> None:
        for number in batch.numbers:
            with suppress(GaplessError):  # an expelled member may refuse a message
                self.group.send(self._payload(number))

    def _payload(self, number: int) -> bytes:
        rng = self._rng
        size_bytes = (
            rng.randrange(2_000, 20_000) if rng.random() < LARGE_SHARE else rng.randrange(400)
        )
        return encode_message(self.task.node, number, rng.randbytes(size_bytes))

    # Commands

    def members(self, count: int) -> None:
        """Wait until the view has so many members."""
        self.group.wait_for_members(count, JOIN_TIMEOUT_S)

    def go(self) -> None:
        """Start the load."""
        load = LoadGenerator(
            self._send, lambda _sent, _timeout_s: None, max_in_flight=1, rate=self.task.plan.rate
        )
        work = (self._batches(), self._halted)
        self._load = threading.Thread(target=load.run, args=work, daemon=True)
        self._load.start()

    def halt(self) -> None:
        """End the load."""
        self._halted.set()

    def look(self) -> dict[str, Any]:
        """Return the view, how far each stream is delivered here, and the own window."""
        seen = self.group.snapshot()
        return {
            "me": str(seen.me),
            "low": seen.streams[0].low,
            "high": seen.streams[0].high,
            "heard": {str(peer.member): peer.delivered for peer in seen.peers},
            "members": [] if seen.view is None else [str(member) for member in seen.view.members],
            "idle": self._load is None or not self._load.is_alive(),
        }

    def end(self) -> dict[str, Any]:
        """Mark the end of the load in the trace; return the faults that were injected."""
        self.recorder.mark_end_of_load()
        self.recorder.finish()
        assert isinstance(self.transport, FaultyTransport)
        return {"struck": self.transport.chain.strike_counts}


def main() -> None:
    """Serve commands until the supervisor ends."""
    serve_commands(SoakWorker(read_task(SoakTask)))
    os._exit(0)


if __name__ == "__main__":
    main()
