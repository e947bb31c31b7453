"""The bundler: messages sent closely one after another leave together, in one frame.

On sending: a message that follows another within ``BUNDLE_GAP_NS`` joins the bundle, without a lock
and without the machine, if the last turn left room in the window. The first message of a bundle
wakes the leader. A message that fills a frame, or comes ``bundle_delay`` after the first, makes the
sending thread run a turn: a thread that sends without a pause does not wait for another thread.

On a turn: the machine gets the bundle before any other command, so no command overtakes the bundle,
and the messages get their seqnos.

Any thread may add a message, and so may a signal handler: adding is one atomic step, and so is
taking.
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
"""How closely a message must follow the last to join a bundle; then more messages are likely."""
MAX_BUNDLED_BYTES = 1 << 18
"""Maximum number of bytes in a bundle."""


class LoneReceipt(Protocol):
    """The receipt of one message; a bundle records where to find the seqno."""

    _accepted: Accepted | None
    """The seqno of a message sent without others."""
    _bundled: tuple[Bundle, int] | None
    """The bundle of a message sent with others, and the index in the bundle."""


class Bundle(Future[Accepted]):
    """Messages that left together, with their seqnos as the result; acts as one send request."""

    def __init__(self, payloads: Payloads) -> None:
        super().__init__()
        self.payloads = payloads
        self.sent_before = 0
        """How many messages a former incarnation has sent; ``payloads`` has the others."""

    def resolve(self, outcome: Accepted | Refused | GivenUp) -> None:
        """Set the seqnos; 0 if the group ended before the messages were sent."""
        accepted = outcome if isinstance(outcome, Accepted) else Accepted(outcome.ticket, 0, -1)
        if not self.done():
            self.set_result(accepted)

    def seqno_of(self, index: int) -> Accepted:
        """Return the seqno of one message, once there is a result.

        The seqno is 0 if the message was not sent, or a former incarnation has sent it.
        """
        accepted = self.result()
        at = index - self.sent_before
        seqno = accepted.first + at if at >= 0 and accepted.last >= accepted.first else 0
        return accepted._replace(first=seqno, last=seqno)

    def fail(self, error: BaseException) -> None:
        """Set the error of all messages."""
        if not self.done():
            self.set_exception(error)


class Bundler:
    """The open bundle of one member; ``gap_ns`` is the longest wait of a message, 0: no bundles."""

    __slots__ = (
        "_first_ns",
        "_frame_bytes",
        "_gap_ns",
        "_room_bytes",
        "_wake_requested",
        "expects_more",
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
        self.expects_more = False
        """Whether the next turn sends a message to the group: then another may follow it."""
        self._wake_requested = False

    # Any thread

    def note_lone_send(self) -> None:
        """Record that a message was sent without others: the next may follow closely."""
        self.last_ns = time.monotonic_ns()

    def accepts(self, size_bytes: int) -> bool:
        """Return whether a message may join the bundle: another came just before, and it fits."""
        count = len(self.items) + 1
        if count > self.room or count * size_bytes > self._room_bytes:
            return False
        return time.monotonic_ns() - self.last_ns < BUNDLE_GAP_NS

    def add(self, payload: bytes, receipt: LoneReceipt) -> bool | None:
        """Add a message; return True if a turn is due, False if the leader must be woken."""
        self.items.append((payload, receipt))
        now_ns = self.last_ns = time.monotonic_ns()
        self.expects_more = True
        if not self._wake_requested:
            # Read after the append: ``take`` clears the flag before it takes the messages.
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
        # However long the turn took: its sender has not come back yet.
        is_likely = self.expects_more or time.monotonic_ns() - self.last_ns < BUNDLE_GAP_NS
        self.expects_more = False
        if (
            not self._gap_ns
            or not is_likely
            or endpoint.view is None
            or stream.closed
            or stream.queue.sends
        ):
            # Without a message sent just before, no message follows one closely.
            self.room = 0
            return
        self.room = window.room()
        room_bytes = window.room_bytes()
        self._room_bytes = (
            MAX_BUNDLED_BYTES if room_bytes is None else min(MAX_BUNDLED_BYTES, room_bytes // 2)
        )

    def take(self) -> Bundle | None:
        """Remove and return the bundle; None if it is empty."""
        self._wake_requested = False
        items = [self.items.popleft() for _ in range(len(self.items))]
        if not items:
            return None
        bundle = Bundle(Payloads.of_validated([payload for payload, _ in items]))
        for at, (_, receipt) in enumerate(items):
            receipt._bundled = bundle, at
        return bundle
