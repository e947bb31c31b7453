"""Events of the machine: what one input of a member reports beside transmits and deliveries.

These tuples are internal. The runtime resolves the events of sends itself; group/ turns those that
concern an application into the documented dataclasses of :mod:`gapless.events`. Each kind has one
snake_case name, :data:`EVENT_NAMES`, under which metrics count it.
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.identity import Address, View, ViewId


class Accepted(NamedTuple):
    """Every message of the ticket has its seqno and was sent: ``first .. last``."""

    ticket: int
    first: int
    last: int


class Refused(NamedTuple):
    """A send that must not wait found no room; none of its messages was accepted."""

    ticket: int


class GivenUp(NamedTuple):
    """A waiting send ended early; the first ``accepted`` of its messages were sent.

    ``reason`` is ``timeout``, ``cancelled``, ``departed`` or ``over``.
    """

    ticket: int
    accepted: int
    reason: str


class Acknowledged(NamedTuple):
    """Every receiver of the ticket's messages that is still a member has delivered them."""

    ticket: int


class Unacknowledged(NamedTuple):
    """The view or connection of an acknowledged send ended before ``members`` delivered it."""

    ticket: int
    members: tuple[Address, ...]


class Undelivered(NamedTuple):
    """The stream to ``to`` (the group, if None) ended; ``first .. last`` may not have arrived."""

    to: Address | None
    first: int
    last: int


class Stalled(NamedTuple):
    """Delivery of ``origin`` waits for ``seqno`` (its start, if 0), which nobody will resend."""

    origin: Address
    seqno: int
    since_ns: int


class Connected(NamedTuple):
    """A connection with ``peer`` has entered ``state``: open, closing or closed."""

    peer: Address
    state: str
    outgoing: bool


class SlowReceivers(NamedTuple):
    """The window has not moved for too long: ``members`` have not acknowledged ``low + 1``."""

    members: tuple[Address, ...]
    low: int
    high: int
    since_ns: int


class Started(NamedTuple):
    """The stream of ``origin`` starts here: its first message is ``start + 1``."""

    origin: Address
    start: int


class Lost(NamedTuple):
    """Messages ``first .. last`` of ``origin`` cannot be repaired: the origin purged them."""

    origin: Address
    first: int
    last: int


class Discarded(NamedTuple):
    """``message_count`` stored messages of a departed ``origin`` behind a gap were dropped."""

    origin: Address
    message_count: int


class Oversized(NamedTuple):
    """A fragmented message of ``origin`` exceeded the limit; ``first .. last`` were skipped."""

    origin: Address
    first: int
    last: int


class ViewInstalled(NamedTuple):
    """The deliveries that follow belong to ``view``."""

    view: View


class Located(NamedTuple):
    """``address`` is reached at ``locator``; a transport stores this before it transmits."""

    address: Address
    locator: bytes


class Suspected(NamedTuple):
    """``member`` was silent for too long, here or at another monitor; it is probed once more."""

    member: Address


class Expelled(NamedTuple):
    """The group continues without this incarnation, in ``view``. A new incarnation may join."""

    view: ViewId


class Left(NamedTuple):
    """This incarnation has left, as requested; with ``confirmed`` the group installed that view."""

    confirmed: bool


class Retained(NamedTuple):
    """Messages are retained for the durable member ``name`` while it is absent."""

    name: str
    last: Address


class RetentionReleased(NamedTuple):
    """Messages are no longer retained for the durable member ``name``.

    ``reason`` is ``back`` (it returned), ``timeout`` (``retention_timeout`` passed) or ``capacity``
    (the window was full).
    """

    name: str
    last: Address
    reason: str


class RetentionBlocking(NamedTuple):
    """The window is full of messages retained for ``name``; sends wait for it or its timeout."""

    name: str
    last: Address


class StateWanted(NamedTuple):
    """A joining member needs the application's state as of the deliveries before this event.

    The application answers with ``provide``.
    """

    transfer: int
    peer: Address


class StateReceived(NamedTuple):
    """The application's state from ``provider`` (None: no member could provide one).

    It precedes the deliveries of the same ready, which continue from this state.
    """

    provider: Address | None
    state: bytes


Event = (
    Accepted
    | Refused
    | GivenUp
    | Acknowledged
    | Unacknowledged
    | Undelivered
    | Stalled
    | Connected
    | SlowReceivers
    | Started
    | Lost
    | Discarded
    | Oversized
    | ViewInstalled
    | Located
    | Suspected
    | Expelled
    | Left
    | Retained
    | RetentionReleased
    | RetentionBlocking
    | StateWanted
    | StateReceived
)

EVENT_NAMES: dict[type, str] = {
    Accepted: "accepted",
    Refused: "refused",
    GivenUp: "given_up",
    Acknowledged: "acknowledged",
    Unacknowledged: "unacknowledged",
    Undelivered: "messages_undelivered",
    Stalled: "stream_stalled",
    Connected: "connection_changed",
    SlowReceivers: "window_blocked",
    Started: "stream_started",
    Lost: "messages_lost",
    Discarded: "messages_discarded",
    Oversized: "message_oversized",
    ViewInstalled: "view_changed",
    Located: "located",
    Suspected: "member_suspected",
    Expelled: "expelled",
    Left: "left_group",
    Retained: "retention_started",
    RetentionReleased: "retention_ended",
    RetentionBlocking: "retention_full",
    StateWanted: "state_wanted",
    StateReceived: "state_received",
}
"""The name of each kind in metrics and logs; public events have the same names."""
