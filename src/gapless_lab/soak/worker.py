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
from gapless.faults.faulty_transport import Chaos
from gapless.protocol.ready import Delivery, Started, ViewInstalled
from gapless.rng import split
from gapless.runtime.handle import Handle
from gapless.trace import Recorder
from gapless_lab.soak.plan import Task

if TYPE_CHECKING:
    from random import Random

    from gapless.identity import Address, View
    from gapless.protocol.member import Participant
    from gapless.runtime.send_requests import Sent

BEAT_S = 0.02
"""Messages are sent in beats of this length."""
IN_FLIGHT = 256
"""So many messages may wait for their numbers; with so many nothing more is sent."""
LARGE = 0.005
"""Share of messages that travel in pieces."""
PATIENCE_S = 60.0
"""How long a member waits for the others to come."""


class Soaked:
    """A member that sends numbered messages at a bounded rate, and records everything."""

    def __init__(self, task: Task) -> None:
        config = task.plan.config()
        self.task = task
        self.recorder = Recorder(task.folder)
        self.turn = threading.Condition()
        self.view: View | None = None
        self.heard: dict[Address, int] = {}
        self.number = 0
        self._room = threading.Semaphore(IN_FLIGHT)
        self._unsettled: set[Sent] = set()
        self._going = threading.Event()
        self.handle = Handle("soak", task.open(), config, node=task.node, trace=self.recorder)
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._load, daemon=True).start()

    # What comes

    def _read(self) -> None:
        handle = self.handle
        while handle.wait() or not handle.is_closed:
            items = handle.take()
            messages = 0
            with self.turn:
                for item in items:
                    if isinstance(item, Delivery):
                        messages += item.message_count
                        self.heard[item.origin] = item.last
                    elif isinstance(item, Started):
                        self.heard[item.origin] = max(self.heard.get(item.origin, 0), item.start)
                    elif isinstance(item, ViewInstalled):
                        self.view = item.view
                self.turn.notify_all()
            handle.consumed(messages)

    # What goes

    def _load(self) -> None:
        task = self.task
        rng = split(task.plan.seed, f"load {task.node} start {task.start}")
        while True:
            self._going.wait()
            began_s, sent = time.monotonic(), 0
            while self._going.is_set():
                due = (time.monotonic() - began_s) * task.plan.rate
                while sent < due and self._room.acquire(timeout=BEAT_S):
                    self._send(self._payload(rng))
                    sent += 1
                threading.Event().wait(BEAT_S)

    def _payload(self, rng: Random) -> bytes:
        self.number += 1
        size_bytes = rng.randrange(2_000, 20_000) if rng.random() < LARGE else rng.randrange(400)
        return b"%d.%d %d " % (self.task.node, self.task.start, self.number) + rng.randbytes(
            size_bytes
        )

    def _send(self, payload: bytes) -> None:
        sent = self.handle.send([payload])
        self._unsettled.add(sent)
        sent.add_done_callback(lambda _: self._settled(sent))

    def _settled(self, sent: Sent) -> None:
        self._unsettled.discard(sent)
        self._room.release()

    # What the lines of the parent do

    def members(self, count: str) -> dict[str, Any]:
        """Wait until so many are in the view."""
        with self.turn:
            met = self.turn.wait_for(
                lambda: self.view is not None and len(self.view.members) == int(count), PATIENCE_S
            )
        return {"met": met}

    def go(self) -> dict[str, Any]:
        """Begin to send."""
        self._going.set()
        return {}

    def halt(self) -> dict[str, Any]:
        """Send no more."""
        self._going.clear()
        return {}

    def look(self) -> dict[str, Any]:
        """Say where this member stands: its view, up to where it has or need not have each stream, its own marks."""
        me, low, high = self.handle.ask(_marks).result(PATIENCE_S)
        with self.turn:
            view = self.view
            heard = {str(origin): seqno for origin, seqno in self.heard.items()}
            members = [] if view is None else [str(member) for member in view.members]
        idle = not self._going.is_set() and not self._unsettled
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
        self.recorder.rest()
        self.recorder.end()
        chaos = self.handle.transport
        assert isinstance(chaos, Chaos)
        return {"struck": chaos.chain.struck}


def _marks(member: Participant) -> tuple[str, int, int]:
    window = member.outbound.window
    return str(member.me), window.low, window.high


def main() -> None:
    """Do what the lines say, until there are no more."""
    soaked = Soaked(Task.decode(sys.argv[1]))
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
