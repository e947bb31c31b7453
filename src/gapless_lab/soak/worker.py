"""A process of a soak: ``python -m gapless_lab.soak.worker TASK``.

Commands: ``members`` waits for a number of members in the view, ``go`` starts the load, ``halt``
ends the load, ``look`` answers with the state of the member, ``end`` marks the end of the load in
the trace. When the supervisor closes the standard input, the process exits without leaving the
group.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from itertools import count
from typing import Any

from gapless import blocking
from gapless.errors import GaplessError
from gapless.faults.faulty_transport import FaultyTransport
from gapless.rng import split
from gapless.trace import Recorder
from gapless_lab.process import read_task, serve_commands
from gapless_lab.producer import LoadBatch, LoadGenerator, batch_size
from gapless_lab.soak.plan import SoakTask
from gapless_lab.workload import random_message

MAX_BATCH = 256
"""Maximum number of messages of a batch."""
MAX_BYTES = 400
"""Maximum size of a message that is sent whole."""
JOIN_TIMEOUT_S = 60.0
"""How long a member waits for the others to join."""
HANG_S = 10.0
"""A longer wait of a send is a hang: every killed or stopped member is expelled long before."""


class SoakWorker:
    """A member under load: numbered messages at a bounded rate, recorded in a trace."""

    def __init__(self, task: SoakTask) -> None:
        self.task = task
        self.recorder = Recorder(task.folder)
        self.transport = task.open()
        self._rng = split(task.plan.seed, f"load {task.node} start {task.start}")
        self._halted = threading.Event()
        self._load: threading.Thread | None = None
        self._longest_send_s = 0.0
        self._hangs = 0
        self.group = blocking.join(
            "soak",
            transport=self.transport,
            config=task.plan.config(),
            node=task.node,
            listen=False,
            trace=self.recorder,
        ).open()

    def _send(self, batch: LoadBatch) -> None:
        for number in batch.numbers:
            began_s = time.monotonic()
            with suppress(GaplessError):  # an expelled member may refuse a message
                self.group.send(random_message(self._rng, self.task.node, number, MAX_BYTES))
            took_s = time.monotonic() - began_s
            self._longest_send_s = max(self._longest_send_s, took_s)
            self._hangs += took_s > HANG_S

    # Commands

    def members(self, count: int) -> None:
        """Wait until the view has ``count`` members."""
        self.group.wait_for_members(count, JOIN_TIMEOUT_S)

    def go(self) -> None:
        """Start the load."""
        rate = self.task.plan.rate
        size = batch_size(rate, MAX_BATCH)
        batches = (LoadBatch(range(first, first + size)) for first in count(1, size))
        load = LoadGenerator(self._send, lambda *_: None, max_in_flight=1, rate=rate)
        self._load = threading.Thread(target=load.run, args=(batches, self._halted), daemon=True)
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
        """Mark the end of the load in the trace; return the injected faults and the waits."""
        self.recorder.mark_end_of_load()
        self.recorder.finish()
        assert isinstance(self.transport, FaultyTransport)
        return {
            "struck": self.transport.chain.strike_counts,
            "longest_send_s": round(self._longest_send_s, 3),
            "hangs": self._hangs,
        }


if __name__ == "__main__":
    serve_commands(SoakWorker(read_task(SoakTask)))
    os._exit(0)
