"""The bundler: messages sent closely one after another leave together, in one frame.

On sending: a message that follows another within ``BUNDLE_GAP_NS`` joins the bundle, without a lock
and without the machine, if the last turn left room in the window: one check of the room, and one
append, in the call of the application. The first message of a bundle wakes the leader. A message
that fills a frame, or comes ``bundle_delay`` after the first, makes the sending thread run a turn:
a thread that sends without a pause does not wait for another thread.

On a turn: the machine gets the bundle before any other command, so no command overtakes the bundle,
and the messages get their seqnos.

Any thread may add a message, and so may a signal handler: adding is one atomic step, and so is
taking.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from enum import IntEnum
from time import monotonic_ns
from typing import TYPE_CHECKING, Protocol

from gapless.payloads import Payloads
from gapless.protocol.events import Accepted

if TYPE_CHECKING:
    from gapless.config import Config
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.events import GivenUp, Refused
    from gapless.runtime.send_requests import SendRequests

BUNDLE_GAP_NS = 100_000
"""How closely a message must follow the last to join a bundle; then more messages are likely."""
MAX_BUNDLED_BYTES = 1 << 18
"""Maximum number of bytes in a bundle."""


class Joined(IntEnum):
    """What is to be done after a message was offered to the bundle."""

    REFUSED = 0
    """The message did not join the bundle: the caller sends it in another way."""
    QUIETLY = 1
    """Nothing: the message leaves with the messages before it."""
    FIRST = 2
    """Request a turn of any thread: no other message waits."""
    DUE = 3
    """Run a turn: the bundle fills a frame, or has waited long enough."""


REFUSED, QUIETLY, FIRST, DUE = Joined


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
    """The open bundle of one member; ``gap_ns`` is the longest wait of a message, 0: no bundles.

    A message of more than ``small_bytes`` does not join, and none does while one of the
    ``requests`` waits, which were sent before.
    """

    __slots__ = (
        "_first_ns",
        "_frame_bytes",
        "_gap_ns",
        "_is_closed",
        "_requests",
        "_room_bytes",
        "_small_bytes",
        "_wake_requested",
        "expects_more",
        "items",
        "last_ns",
        "room",
    )

    def __init__(
        self, frame_bytes: int, gap_ns: int, small_bytes: int, requests: SendRequests
    ) -> None:
        self._frame_bytes = frame_bytes
        self._gap_ns = gap_ns
        self._small_bytes = small_bytes
        self._requests = requests
        self._is_closed = False
        self.items: deque[tuple[bytes, LoneReceipt]] = deque()
        self.room = self._room_bytes = 0
        self._first_ns = self.last_ns = 0
        self.expects_more = False
        """Whether the next turn sends a message to the group: then another may follow it."""
        self._wake_requested = False

    @classmethod
    def of(cls, config: Config, requests: SendRequests) -> Bundler:
        """Return the bundler of a member with these settings."""
        small_bytes = min(config.max_frame_bytes // 4, config.max_message_bytes)
        return cls(config.max_frame_bytes, config.bundle_delay_ns, small_bytes, requests)

    # Any thread

    def note_lone_send(self) -> None:
        """Record that a message was sent without others: the next may follow closely."""
        self.last_ns = monotonic_ns()

    def join(self, payload: bytes, receipt: LoneReceipt) -> Joined:
        """Add a message if another came just before, and the message fits."""
        size_bytes, count, now_ns = len(payload), len(self.items) + 1, monotonic_ns()
        total_bytes = count * size_bytes
        if (
            count > self.room
            or total_bytes > self._room_bytes
            or size_bytes > self._small_bytes
            or now_ns - self.last_ns >= BUNDLE_GAP_NS
            or self._requests.has_new
        ):
            return REFUSED
        self.items.append((payload, receipt))
        self.last_ns = now_ns
        self.expects_more = True
        if not self._wake_requested:
            # Read after the append: ``take`` clears the flag before it takes the messages.
            self._wake_requested = True
            self._first_ns = now_ns
            return FIRST
        if total_bytes >= self._frame_bytes or now_ns - self._first_ns >= self._gap_ns:
            return DUE
        return QUIETLY

    def close(self) -> None:
        """Let no message join any more: the member leaves, or belongs to the parent process."""
        self._is_closed = True
        self.room = 0

    # Inside a turn

    def set_room(self, endpoint: Endpoint) -> None:
        """Let the bundle grow until the next turn as far as the window has room."""
        stream, window = endpoint.outbound, endpoint.outbound.window
        # However long the turn took: its sender has not come back yet.
        is_likely = self.expects_more or monotonic_ns() - self.last_ns < BUNDLE_GAP_NS
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
        room_bytes = window.room_bytes()
        self._room_bytes = (
            MAX_BUNDLED_BYTES if room_bytes is None else min(MAX_BUNDLED_BYTES, room_bytes // 2)
        )
        self.room = window.room()
        if self._is_closed:
            self.room = 0  # read last: another thread may close it at any time

    def take(self) -> Bundle | None:
        """Remove and return the bundle; None if it is empty."""
        self._wake_requested = False
        items = [self.items.popleft() for _ in range(len(self.items))]
        if not items:
            return None
        payloads, receipts = zip(*items, strict=True)
        bundle = Bundle(Payloads.of_validated(payloads))
        for at, receipt in enumerate(receipts):
            receipt._bundled = bundle, at
        return bundle
