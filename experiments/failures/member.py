"""A member in a separate process: ``python -m experiments.failures.member TASK``.

The process joins, reports every view and the first message of another member as events, and counts
received messages by sender. All times are times of the monotonic clock, common to all processes of
a machine. Commands start and end the load, and return the received, sent and acknowledged messages.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any

from gapless import blocking
from gapless.delivery_mode import DeliveryMode
from gapless.errors import GaplessError, TimedOutError, UndeliveredError
from gapless.events import ViewChange
from gapless_lab.process import emit, read_task, serve_in_background

if TYPE_CHECKING:
    from gapless.blocking import Group, Receipt

CLOSE_TIMEOUT_S = 2.0
"""How long a leaving process waits for its group."""
_HEADER = Struct("<IQ")
_WAIT_S = 0.5


@dataclass(frozen=True)
class MemberTask:
    """The group, the arguments of ``join``, the own number, and how long to stay."""

    group: str
    index: int
    options: dict[str, Any] = field(default_factory=dict)
    stay_s: float | None = None
    """How long to stay before leaving; None: until the supervisor ends."""
    greet: bool = False
    """Whether to send one message to each new view."""


class MemberProcess:
    """The member, with the threads of reader and load."""

    def __init__(self, task: MemberTask) -> None:
        self.task = task
        emit("joining", at_s=time.monotonic())
        self.group: Group = blocking.join(task.group, **task.options).open()
        emit("joined", at_s=time.monotonic())
        self._received: dict[int, list[list[int]]] = {}
        """Numbers by sender, as first and last of runs: a long load takes no memory."""
        self._bytes = 0
        self._met: set[int] = set()
        self._sent = 0
        self._acknowledged: list[tuple[int, list[str]]] = []
        """Numbers that every member has confirmed; with the view, if it was the same throughout."""
        self._longest_send_s = 0.0
        self._heard_s: dict[int, float] = {}
        """When the last message of each other member was delivered."""
        self._last_heard_s = 0.0
        self._pause_s = self._sender_pause_s = 0.0
        self._halted = threading.Event()
        self._load: list[threading.Thread] = []
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                item = self.group.receive_event(_WAIT_S)
            except TimedOutError:
                continue
            except GaplessError:
                return
            if item is None:
                return
            if isinstance(item, ViewChange):
                emit(
                    "view",
                    at_s=time.monotonic(),
                    number=item.view.id.number,
                    members=sorted(map(str, item.view)),
                )
                if self.task.greet and len(item.view) > 1:
                    self.group.send(_HEADER.pack(self.task.index, self._next_number()))
            elif (payload := getattr(item, "payload", None)) is not None:
                self._take(payload)

    def _take(self, payload: bytes) -> None:
        index, number = _HEADER.unpack_from(payload)
        runs = self._received.setdefault(index, [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
        self._bytes += len(payload)
        if index != self.task.index:
            self._note_pause(index)
        if index != self.task.index and index not in self._met:
            self._met.add(index)
            emit("met", at_s=time.monotonic(), index=index)

    def _note_pause(self, index: int) -> None:
        """Measure the time since the last message of another member, and of this one."""
        now_s = time.monotonic()
        since_s = now_s - self._heard_s.get(index, now_s)
        self._pause_s = max(self._pause_s, now_s - (self._last_heard_s or now_s))
        self._sender_pause_s = max(self._sender_pause_s, since_s)
        self._heard_s[index] = self._last_heard_s = now_s

    def take_pauses(self) -> dict[str, float]:
        """Return the longest pauses since the last call, in all and of one sender."""
        # A pause that still lasts counts, too.
        now_s = time.monotonic()
        for at_s in self._heard_s.copy().values():
            self._sender_pause_s = max(self._sender_pause_s, now_s - at_s)
        found = {"pause_s": self._pause_s, "sender_pause_s": self._sender_pause_s}
        self._pause_s = self._sender_pause_s = 0.0
        return {name: round(pause_s, 4) for name, pause_s in found.items()}

    def _next_number(self) -> int:
        self._sent += 1
        return self._sent

    # The load

    def go(self, rate: float, size_bytes: int = 100, *, acknowledged: bool = False) -> None:
        """Start to send ``rate`` messages a second."""
        self._halted.clear()
        receipts: deque[tuple[int, list[str], Receipt]] = deque()
        load = threading.Thread(
            target=self._send_load, args=(rate, size_bytes, receipts, acknowledged), daemon=True
        )
        self._load = [load]
        if acknowledged:
            self._load.append(threading.Thread(target=self._await, args=(receipts,), daemon=True))
        for thread in self._load:
            thread.start()

    def _send_load(
        self,
        rate: float,
        size_bytes: int,
        receipts: deque[tuple[int, list[str], Receipt]],
        acknowledged: bool,
    ) -> None:
        filling = bytes(max(0, size_bytes - _HEADER.size))
        began_s = time.monotonic()
        count = 0
        while not self._halted.is_set():
            number = self._next_number()
            view = self._view() if acknowledged else []
            start_s = time.monotonic()
            mode = DeliveryMode.ACKNOWLEDGED if acknowledged else DeliveryMode.ORDERED
            receipt = self.group.send(_HEADER.pack(self.task.index, number) + filling, mode=mode)
            self._longest_send_s = max(self._longest_send_s, time.monotonic() - start_s)
            if acknowledged:
                receipts.append((number, view, receipt))
            count += 1
            ahead_s = began_s + count / rate - time.monotonic()
            if ahead_s > 0:
                self._halted.wait(ahead_s)
            elif ahead_s < -1:
                began_s -= ahead_s  # what a wait has cost is not made up for

    def _await(self, receipts: deque[tuple[int, list[str], Receipt]]) -> None:
        """Wait for the deliveries of the load, in order; note the confirmed messages."""
        load = self._load[0]
        while load.is_alive() or receipts:
            if not receipts:
                self._halted.wait(0.01)
                continue
            number, view, receipt = receipts[0]
            try:
                receipt.delivered(_WAIT_S)
            except TimedOutError:
                continue
            except UndeliveredError:
                pass
            else:
                self._acknowledged.append((number, view if view == self._view() else []))
            receipts.popleft()

    def _view(self) -> list[str]:
        """Return the number and the members of the view in force, perhaps not read yet.

        Equal answers before and after a send mean: the send was in the returned view.
        """
        view = self.group.snapshot().view
        return [] if view is None else [str(view.id.number), *map(str, view)]

    # Commands

    def halt(self) -> dict[str, Any]:
        """End the load; return the results."""
        self._halted.set()
        for thread in self._load:
            thread.join(30)
        return {
            "sent": self._sent,
            "stuck": sum(thread.is_alive() for thread in self._load),
            "longest_send_s": round(self._longest_send_s, 4),
            "acknowledged": self._acknowledged,
        }

    def look(self) -> dict[str, Any]:
        """Return the view, the counters and how much was received."""
        seen = self.group.snapshot()
        return {
            "me": str(self.group.me),
            "members": sorted(self._view()[1:]),
            "number": 0 if self.group.view is None else self.group.view.id.number,
            "locator": self.locator,
            "counters": seen.counters,
            "keys": None if seen.keys is None else asdict(seen.keys),
            "received": sum(
                last - first + 1 for runs in self._received.values() for first, last in runs
            ),
            "received_bytes": self._bytes,
            "longest_send_s": round(self._longest_send_s, 4),
        }

    @property
    def locator(self) -> str:
        """Where the member can be reached."""
        return str(self.group._session.handle.transport.locator)

    def numbers(self, index: int) -> dict[str, Any]:
        """Return the numbers of the messages received of a sender, as first and last of runs."""
        return {"runs": self._received.get(index, [])}


def main() -> None:
    """Serve commands until the supervisor ends, or leave the group after a while."""
    task = read_task(MemberTask)
    ended = threading.Event()
    member = MemberProcess(task)
    serve_in_background(member, ended)
    if not ended.wait(task.stay_s):
        member.group.close(CLOSE_TIMEOUT_S)
        emit("left", at_s=time.monotonic())
    os._exit(0)


if __name__ == "__main__":
    main()
