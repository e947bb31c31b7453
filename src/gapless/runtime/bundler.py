"""The tray: messages that are sent one after another wait a moment for each other, and leave in one frame.

On sending: a message that follows another at once is laid here, without a lock and without the
machine, if the last turn has left room for it. The first one wakes whoever leads. One that fills a
frame, or comes ``bundle_delay`` after the first, takes a turn itself: whoever sends without a pause
need not wait for another thread to come to it.

On a turn: the machine is given what lies here before anything else, so nothing overtakes it, and it
gets its numbers.

Any thread may lay a message, and the handler of a signal may: what is laid is one step, and so is
what is taken.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from gapless.payloads import Payloads
from gapless.protocol.events import Accepted

if TYPE_CHECKING:
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.events import GivenUp, Refused

BUNDLE_GAP_NS = 100_000
"""A message that comes so soon after the last one is likely not the last of them."""
MAX_BUNDLED_BYTES = 1 << 18
"""So many bytes lie here at most."""


class LoneReceipt(Protocol):
    """The receipt of one message. A bundle tells it where the seqno will be found."""

    _accepted: Accepted | None
    """The seqno, if the message was sent by itself."""
    _bundled: tuple[Bundle, int] | None
    """The bundle and the index in it, if the message left with others."""


class Bundle(Future[Accepted]):
    """What left together; the result has the numbers. It is what a send is to those that count them."""

    def __init__(self, payloads: Payloads) -> None:
        super().__init__()
        self.payloads = payloads

    def resolve(self, outcome: Accepted | Refused | GivenUp) -> None:
        """Tell the numbers; if there are none, since the group is gone, they are 0."""
        accepted = outcome if isinstance(outcome, Accepted) else Accepted(outcome.ticket, 0, -1)
        if not self.done():
            self.set_result(accepted)

    def fail(self, error: BaseException) -> None:
        """End it."""
        if not self.done():
            self.set_exception(error)


class Bundler:
    """The messages to the group that wait for each other; ``gap_ns`` is for how long, 0: not at all."""

    __slots__ = (
        "_first_ns",
        "_frame_bytes",
        "_gap_ns",
        "_room_bytes",
        "_wake_requested",
        "items",
        "last_ns",
        "room",
    )

    def __init__(self, frame_bytes: int, gap_ns: int) -> None:
        self._frame_bytes = frame_bytes
        self._gap_ns = gap_ns
        self.items: deque[tuple[bytes, LoneReceipt]] = deque()
        self.room = self._room_bytes = 0
        self._first_ns = self.last_ns = 0
        self._wake_requested = False

    # Any thread

    def note_lone_send(self) -> None:
        """Note that a message was sent by itself: the next one may follow it closely."""
        self.last_ns = time.monotonic_ns()

    def accepts(self, size_bytes: int) -> bool:
        """Return whether a message of this size may be laid here: it follows another, and there is room."""
        laid = len(self.items) + 1
        if laid > self.room or laid * size_bytes > self._room_bytes:
            return False
        return time.monotonic_ns() - self.last_ns < BUNDLE_GAP_NS

    def add(self, payload: bytes, receipt: LoneReceipt) -> bool | None:
        """Lay a message here; return True if it is time for a turn, False if nobody knows of it yet."""
        self.items.append((payload, receipt))
        now_ns = self.last_ns = time.monotonic_ns()
        if (
            not self._wake_requested
        ):  # looked at behind the append, as take clears it before it takes
            self._wake_requested = True
            self._first_ns = now_ns
            return False
        is_time = (
            now_ns - self._first_ns >= self._gap_ns
            or len(self.items) * len(payload) >= self._frame_bytes
        )
        return True if is_time else None

    # Inside a turn

    def set_room(self, endpoint: Endpoint) -> None:
        """Let the bundle grow until the next turn as far as the window has room."""
        stream, window = endpoint.outbound, endpoint.outbound.window
        is_recent = self._gap_ns and time.monotonic_ns() - self.last_ns < BUNDLE_GAP_NS
        if not is_recent or endpoint.view is None or stream.closed or stream.queue.sends:
            # Without a message sent just before, no message follows one closely.
            self.room = 0
            return
        self.room = window.ceiling - window.high
        self._room_bytes = MAX_BUNDLED_BYTES
        if window.max_bytes is not None:
            room_bytes = max(0, window.max_bytes - window.stored_bytes)
            self._room_bytes = min(MAX_BUNDLED_BYTES, room_bytes // 2)

    def take(self) -> Bundle | None:
        """Return what lies here, if anything does."""
        self._wake_requested = False
        items = [self.items.popleft() for _ in range(len(self.items))]
        if not items:
            return None
        bundle = Bundle(Payloads.of_validated([payload for payload, _ in items]))
        for at, (_, receipt) in enumerate(items):
            receipt._bundled = bundle, at
        return bundle
