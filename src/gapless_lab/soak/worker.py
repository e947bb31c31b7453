"""One process of a soak: ``python -m gapless_lab.soak.worker TASK``.

Commands: ``members`` waits until so many are in the view, ``go`` starts the load, ``halt`` ends it,
``look`` answers the state of the member, ``end`` marks the end of the load in the trace. When the
supervisor closes the standard input, the process exits without leaving the group.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from gapless.errors import GaplessError
from gapless.faults.faulty_transport import FaultyTransport
from gapless.identity import Address, View
from gapless.protocol.events import Started, ViewInstalled
from gapless.protocol.member import Member
from gapless.protocol.ready import Delivery
from gapless.rng import split
from gapless.runtime.handle import MemberHandle
from gapless.runtime.send_requests import SendRequest
from gapless.trace import Recorder
from gapless_lab.process import read_task, serve_commands
from gapless_lab.producer import LoadBatch, LoadGenerator, batch_size
from gapless_lab.soak.plan import SoakTask
from gapless_lab.workload import encode_message

MAX_IN_FLIGHT = 256
"""Maximum number of messages that the machine has not accepted yet."""
LARGE_SHARE = 0.005
"""Share of messages that are sent in fragments."""
JOIN_TIMEOUT_S = 60.0
"""How long a member waits for the others to join."""


class SoakWorker:
    """A member that sends numbered messages at a bounded rate, and records everything."""

    def __init__(self, task: SoakTask) -> None:
        self.task = task
        self.recorder = Recorder(task.folder)
        self.changed = threading.Condition()
        self.view: View | None = None
        self.delivered_up_to: dict[Address, int] = {}
        self._rng = split(task.plan.seed, f"load {task.node} start {task.start}")
        self._halted = threading.Event()
        self._halted.set()
        self._go = threading.Event()
        self._batch_size = batch_size(task.plan.rate, MAX_IN_FLIGHT)
        self._load = LoadGenerator(
            self._send,
            _wait_decided,
            max_in_flight=MAX_IN_FLIGHT // self._batch_size,
            rate=task.plan.rate,
        )
        self.handle = MemberHandle(
            "soak", task.open(), task.plan.config(), node=task.node, trace=self.recorder
        )
        threading.Thread(target=self._read_deliveries, daemon=True).start()
        threading.Thread(target=self._send_load, daemon=True).start()

    def _read_deliveries(self) -> None:
        handle = self.handle
        while handle.wait() or not handle.is_closed:
            items = handle.take()
            messages = 0
            with self.changed:
                for item in items:
                    if isinstance(item, Delivery):
                        messages += item.message_count
                        self.delivered_up_to[item.origin] = item.last
                    elif isinstance(item, Started):
                        self.delivered_up_to[item.origin] = max(
                            self.delivered_up_to.get(item.origin, 0), item.start
                        )
                    elif isinstance(item, ViewInstalled):
                        self.view = item.view
                self.changed.notify_all()
            handle.consumed(messages)

    def _send_load(self) -> None:
        batches = self._batches()
        while self._go.wait():
            self._go.clear()
            self._load.run(batches, self._halted)
            self._load.drain(None)

    def _batches(self) -> Iterator[LoadBatch]:
        number = 1
        while True:
            yield LoadBatch(range(number, number + self._batch_size))
            number += self._batch_size

    def _send(self, batch: LoadBatch) -> list[SendRequest]:
        return [
            self.handle.submit(SendRequest.of([self._payload(number)])) for number in batch.numbers
        ]

    def _payload(self, number: int) -> bytes:
        rng = self._rng
        size_bytes = (
            rng.randrange(2_000, 20_000) if rng.random() < LARGE_SHARE else rng.randrange(400)
        )
        return encode_message(self.task.node, number, rng.randbytes(size_bytes))

    # Commands

    def members(self, count: int) -> dict[str, Any]:
        """Wait until the view has so many members."""
        with self.changed:
            met = self.changed.wait_for(
                lambda: self.view is not None and len(self.view.members) == count, JOIN_TIMEOUT_S
            )
        return {"met": met}

    def go(self) -> None:
        """Start the load."""
        self._halted.clear()
        self._go.set()

    def halt(self) -> None:
        """End the load."""
        self._halted.set()

    def look(self) -> dict[str, Any]:
        """Return the view, how far each stream is delivered here, and the own window."""
        me, low, high = self.handle.query(_window).result(JOIN_TIMEOUT_S)
        with self.changed:
            view = self.view
            heard = {str(origin): seqno for origin, seqno in self.delivered_up_to.items()}
        return {
            "me": me,
            "low": low,
            "high": high,
            "heard": heard,
            "members": [] if view is None else [str(member) for member in view.members],
            "idle": self._halted.is_set() and not self._load.in_flight,
        }

    def end(self) -> dict[str, Any]:
        """Mark the end of the load in the trace; return the faults that were injected."""
        self.recorder.mark_end_of_load()
        self.recorder.finish()
        transport = self.handle.transport
        assert isinstance(transport, FaultyTransport)
        return {"struck": transport.chain.strike_counts}


def _wait_decided(requests: list[SendRequest], timeout_s: float | None) -> None:
    """Wait until the machine has accepted or refused the messages; both end their wait."""
    for request in requests:
        try:
            request.result(timeout_s)
        except GaplessError:
            continue
        except TimeoutError:
            if not request.done():
                raise


def _window(member: Member) -> tuple[str, int, int]:
    window = member.outbound.window
    return str(member.me), window.low, window.high


def main() -> None:
    """Serve commands until the supervisor ends."""
    serve_commands(SoakWorker(read_task(SoakTask)))
    os._exit(0)


if __name__ == "__main__":
    main()
