"""Events of the machine: the results of an input beside transmits and deliveries.

The tuples are internal. The runtime resolves the events of sends; group/ turns the events for an
application into the documented dataclasses of ``gapless.events``. Each kind has a snake_case name,
``EVENT_NAMES``, for the metrics.
"""

from __future__ import annotations

from typing import NamedTuple

from gapless.identity import Address, View, ViewId


class Accepted(NamedTuple):
    """All messages of the ticket have a seqno and were sent: ``first .. last``.

    ``view`` is the number of the view in which the seqnos count; 0 if seqnos outlive a view.
    """

    ticket: int
    first: int
    last: int
    view: int = 0


class Refused(NamedTuple):
    """A send that must not wait found no room; none of the messages was accepted."""

    ticket: int


class GivenUp(NamedTuple):
    """A waiting send ended early, after the first ``accepted`` messages were sent.

    ``reason`` is ``timeout``, ``cancelled``, ``departed`` or ``over``.
    """

    ticket: int
    accepted: int
    reason: str


class Acknowledged(NamedTuple):
    """All receivers still in the group have delivered the messages of the ticket."""

    ticket: int


class Unacknowledged(NamedTuple):
    """The view or connection of an acknowledged send ended before ``members`` delivered."""

    ticket: int
    members: tuple[Address, ...]


class Undelivered(NamedTuple):
    """The stream to ``to`` (the group, if None) ended; ``first .. last`` may not have arrived.

    ``view`` is the number of the view in which the seqnos count; 0 if seqnos outlive a view.
    """

    to: Address | None
    first: int
    last: int
    view: int = 0


class Stalled(NamedTuple):
    """Delivery of ``origin`` waits for ``seqno`` (0: for the start), and no member can resend."""

    origin: Address
    seqno: int
    since_ns: int


class Connected(NamedTuple):
    """A connection with ``peer`` has entered ``state``: open, closing or closed."""

    peer: Address
    state: str
    outgoing: bool


class Unheard(NamedTuple):
    """``receiver`` does not hear ``sender``, though both live: one of them is expelled."""

    sender: Address
    receiver: Address


class SlowReceivers(NamedTuple):
    """The window has not moved for too long: ``members`` have not acknowledged ``low + 1``."""

    members: tuple[Address, ...]
    low: int
    high: int
    since_ns: int


class Started(NamedTuple):
    """The stream of ``origin`` starts here: the first message is ``start + 1``."""

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
    """The following deliveries belong to ``view``."""

    view: View


class Located(NamedTuple):
    """``address`` is reached at ``locator``; a transport stores the locator before transmits."""

    address: Address
    locator: bytes


class Suspected(NamedTuple):
    """``member`` was silent for too long, here or at another monitor, and is probed once more."""

    member: Address


class Expelled(NamedTuple):
    """The group continues without this incarnation, in ``view``. A new incarnation may join."""

    view: ViewId


class NameInUse(NamedTuple):
    """This incarnation cannot join: ``holder`` is alive and has its durable name.

    ``locator`` is where the holder is reached.
    """

    holder: Address
    locator: bytes


class Left(NamedTuple):
    """This incarnation has left as requested; ``confirmed``: the group installed the next view."""

    confirmed: bool


class Retained(NamedTuple):
    """Messages are retained for the durable member ``name`` while it is absent."""

    name: str
    last: Address


class RetentionReleased(NamedTuple):
    """Messages are no longer retained for the durable member ``name``.

    ``reason`` is ``back`` (the member returned), ``timeout`` (``retention_timeout`` passed) or
    ``capacity`` (the window was full).
    """

    name: str
    last: Address
    reason: str


class RetentionBlocking(NamedTuple):
    """The window is full of messages retained for ``name``; sends wait for the member."""

    name: str
    last: Address


class StateWanted(NamedTuple):
    """A joining member needs the application's state as of the deliveries before this event.

    The application answers with ``provide``.
    """

    transfer: int
    peer: Address


class StateReceived(NamedTuple):
    """The application's state from ``provider`` (None: no member could provide a state).

    ``failed`` are the members whose application failed to provide its state. The event precedes the
    deliveries of the same ready, which continue from the state.
    """

    provider: Address | None
    state: bytes
    failed: tuple[Address, ...] = ()


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
    | Unheard
    | Expelled
    | NameInUse
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
    Unheard: "link_broken",
    Expelled: "expelled",
    NameInUse: "name_in_use",
    Left: "left_group",
    Retained: "retention_started",
    RetentionReleased: "retention_ended",
    RetentionBlocking: "retention_full",
    StateWanted: "state_wanted",
    StateReceived: "state_received",
}
"""The name of each kind in metrics and logs; public events have the same names."""
