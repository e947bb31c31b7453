"""One process of a soak: ``python -m gapless_lab.soak.worker TASK``. It does what its standard input says, line by line.

``members N``: wait until N are in its view. ``go``: begin to send. ``halt``: send no more.
``look``: say where it stands. ``end``: write that it is there at the end, say what it has counted,
and be gone, without leaving the group.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gapless.errors import GaplessError
from gapless.faults.faulty_transport import FaultyTransport
from gapless.protocol.events import Started, ViewInstalled
from gapless.protocol.ready import Delivery
from gapless.rng import split
from gapless.runtime.handle import MemberHandle
from gapless.trace import Recorder
from gapless_lab.soak.plan import SoakTask

if TYPE_CHECKING:
    from random import Random

    from gapless.identity import Address, View
    from gapless.protocol.member import Member
    from gapless.runtime.send_requests import SendRequest

TICK_S = 0.02
"""Messages are sent in beats of this length."""
MAX_IN_FLIGHT = 256
"""So many messages may wait for their numbers; with so many nothing more is sent."""
LARGE_SHARE = 0.005
"""Share of messages that travel in pieces."""
JOIN_TIMEOUT_S = 60.0
"""How long a member waits for the others to come."""


class SoakWorker:
    """A member that sends numbered messages at a bounded rate, and records everything."""

    def __init__(self, task: SoakTask) -> None:
        config = task.plan.config()
        self.task = task
        self.recorder = Recorder(task.folder)
        self.changed = threading.Condition()
        self.view: View | None = None
        self.delivered_up_to: dict[Address, int] = {}
        self.number = 0
        self._room = threading.Semaphore(MAX_IN_FLIGHT)
        self._pending_sends: set[SendRequest] = set()
        self._sending = threading.Event()
        self.handle = MemberHandle("soak", task.open(), config, node=task.node, trace=self.recorder)
        threading.Thread(target=self._read_deliveries, daemon=True).start()
        threading.Thread(target=self._send_load, daemon=True).start()

    # What comes

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

    # What goes

    def _send_load(self) -> None:
        task = self.task
        rng = split(task.plan.seed, f"load {task.node} start {task.start}")
        while True:
            self._sending.wait()
            began_s, sent = time.monotonic(), 0
            while self._sending.is_set():
                due = (time.monotonic() - began_s) * task.plan.rate
                while sent < due and self._room.acquire(timeout=TICK_S):
                    self._send(self._payload(rng))
                    sent += 1
                threading.Event().wait(TICK_S)

    def _payload(self, rng: Random) -> bytes:
        self.number += 1
        size_bytes = (
            rng.randrange(2_000, 20_000) if rng.random() < LARGE_SHARE else rng.randrange(400)
        )
        return b"%d.%d %d " % (self.task.node, self.task.start, self.number) + rng.randbytes(
            size_bytes
        )

    def _send(self, payload: bytes) -> None:
        sent = self.handle.submit([payload])
        self._pending_sends.add(sent)
        sent.add_done_callback(lambda _: self._on_sent(sent))

    def _on_sent(self, sent: SendRequest) -> None:
        self._pending_sends.discard(sent)
        self._room.release()

    # What the lines of the parent do

    def members(self, count: str) -> dict[str, Any]:
        """Wait until so many are in the view."""
        with self.changed:
            met = self.changed.wait_for(
                lambda: self.view is not None and len(self.view.members) == int(count),
                JOIN_TIMEOUT_S,
            )
        return {"met": met}

    def go(self) -> dict[str, Any]:
        """Begin to send."""
        self._sending.set()
        return {}

    def halt(self) -> dict[str, Any]:
        """Send no more."""
        self._sending.clear()
        return {}

    def look(self) -> dict[str, Any]:
        """Say where this member stands: its view, up to where it has or need not have each stream, its own marks."""
        me, low, high = self.handle.query(_marks).result(JOIN_TIMEOUT_S)
        with self.changed:
            view = self.view
            heard = {str(origin): seqno for origin, seqno in self.delivered_up_to.items()}
            members = [] if view is None else [str(member) for member in view.members]
        idle = not self._sending.is_set() and not self._pending_sends
        return {
            "me": me,
            "low": low,
            "high": high,
            "heard": heard,
            "members": members,
            "idle": idle,
        }

    def end(self) -> dict[str, Any]:
        """Write that this life is there at the end; say what was counted."""
        self.recorder.mark_end_of_load()
        self.recorder.finish()
        chaos = self.handle.transport
        assert isinstance(chaos, FaultyTransport)
        return {"struck": chaos.chain.strike_counts}


def _marks(member: Member) -> tuple[str, int, int]:
    window = member.outbound.window
    return str(member.me), window.low, window.high


def main() -> None:
    """Do what the lines say, until there are no more."""
    soaked = SoakWorker(SoakTask.decode(sys.argv[1]))
    for line in sys.stdin:
        what, *arguments = line.split()
        try:
            answer = getattr(soaked, what)(*arguments)
        except (GaplessError, TimeoutError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)  # noqa: T201 - the parent listens
    os._exit(0)


if __name__ == "__main__":
    main()
