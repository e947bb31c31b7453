"""What every input of the machine gives back: one ``Ready``.

The shell works through a ready in the order of its fields: it puts the transmits on the network,
hands the deliveries to the application, tells it the events, and calls ``tick`` at the deadline.
Only transmits may be dropped, for the network may lose those anyway. A view is told between two
deliveries: ``before_view`` of them come before it (P-21).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.identity import Address, View, ViewId
from gapless.run import Run

ANYONE = Address(0, 0)
"""A destination: whoever may be there, members or not, wherever discovery says that one could be."""


class Transmit(NamedTuple):
    """A datagram to one member, to all others (``to`` is None), or to whoever may be there (:data:`ANYONE`)."""

    to: Address | None
    datagram: bytes


GROUP = "group"
"""Kind of delivery: next in order of the origin's stream to the group."""
UNICAST = "one"
"""Kind of delivery: next in order of a connection, ``epoch``."""
OUT_OF_BAND = "out of band"
"""Kind of delivery: once, in no order, with numbers of its own."""
UNRELIABLE = "unreliable"
"""Kind of delivery: as it came, without numbers."""


class Delivery(NamedTuple):
    """Messages ``first .. last`` of one stream, next in order for the application.

    ``content`` is a run, or the bytes of one message that travelled in pieces (it then spans
    several seqnos, and ``flags``, ``view`` and ``sent_ns`` say what its run would).
    """

    origin: Address
    first: int
    last: int
    content: Run | bytes
    kind: str = GROUP
    epoch: int = 0
    flags: int = 0
    view: int = 0
    sent_ns: int = 0

    @property
    def message_count(self) -> int:
        """How many messages the application gets."""
        return self.content.count if isinstance(self.content, Run) else 1

    def messages(self) -> list[bytes]:
        """Return the messages, in order."""
        return self.content.messages() if isinstance(self.content, Run) else [self.content]


class Accepted(NamedTuple):
    """Every message of the ticket has its number and is on its way: ``first .. last``."""

    ticket: int
    first: int
    last: int


class Refused(NamedTuple):
    """A send that was not to wait found no room; none of its messages was taken."""

    ticket: int


class GivenUp(NamedTuple):
    """A waiting send ended by timeout or cancellation; the first ``accepted`` of its messages had been taken."""

    ticket: int
    accepted: int
    reason: str


class Acknowledged(NamedTuple):
    """Every receiver of the ticket's messages that is still a member has delivered them."""

    ticket: int


class Unacknowledged(NamedTuple):
    """An acknowledged send ended, with its view or connection, before ``members`` had delivered it."""

    ticket: int
    members: tuple[Address, ...]


class Undelivered(NamedTuple):
    """The stream to ``to`` (to all, if None) ended; messages ``first .. last`` are not known to have arrived."""

    to: Address | None
    first: int
    last: int


class Stalled(NamedTuple):
    """Nothing of ``origin`` can be delivered before ``seqno`` (its start, if 0), which nobody will send again."""

    origin: Address
    seqno: int
    since_ns: int


class Connected(NamedTuple):
    """A connection with ``peer`` has come into the state ``state``: open, closing or closed."""

    peer: Address
    state: str
    outgoing: bool


class Pinned(NamedTuple):
    """The window has not moved for too long because ``members`` have not acknowledged ``low + 1``."""

    members: tuple[Address, ...]
    low: int
    high: int
    since_ns: int


class Started(NamedTuple):
    """The stream of ``origin`` starts here: its first message is ``start + 1``."""

    origin: Address
    start: int


class Lost(NamedTuple):
    """Messages ``first .. last`` of ``origin`` will never come: the origin does not have them any more."""

    origin: Address
    first: int
    last: int


class Discarded(NamedTuple):
    """``message_count`` stored messages of a departed ``origin`` were behind a gap and are given up."""

    origin: Address
    message_count: int


class Oversized(NamedTuple):
    """A message of ``origin`` in pieces grew beyond the limit and was left out: seqnos ``first .. last``."""

    origin: Address
    first: int
    last: int


class ViewInstalled(NamedTuple):
    """From here on deliveries belong to ``view``."""

    view: View


class Located(NamedTuple):
    """``address`` is reached at ``locator``: a transport takes note before it works through the transmits."""

    address: Address
    locator: bytes


class Suspected(NamedTuple):
    """Nothing was heard of ``member`` for too long, here or at another; it is asked once more, then expelled."""

    member: Address


class Expelled(NamedTuple):
    """This life is over: the group has gone on without it, in ``view``. A new incarnation may join."""

    view: ViewId


class Left(NamedTuple):
    """This life is over, as the application wished; with ``confirmed`` the group has taken note."""

    confirmed: bool


class Held(NamedTuple):
    """The place of the durable member ``name`` is kept while it is away."""

    name: str
    last: Address


class Released(NamedTuple):
    """The place of the durable member ``name`` is not kept any more: it came back, or ``reason`` is a limit.

    ``reason`` is ``back``, ``timeout`` (``hold_timeout`` is over) or ``capacity`` (the window was
    full).
    """

    name: str
    last: Address
    reason: str


class HoldFull(NamedTuple):
    """The window is full because the place of ``name`` is kept; sends wait until it is back or its time is over."""

    name: str
    last: Address


class StateWanted(NamedTuple):
    """A new member wants the application's state, as it is after everything that was delivered before this event.

    The application answers with ``provide``.
    """

    transfer: int
    peer: Address


class StateReceived(NamedTuple):
    """The application's state, from ``provider`` (None: nobody could give one); deliveries that follow go on from it.

    It comes before the deliveries of the same ready.
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
    | Pinned
    | Started
    | Lost
    | Discarded
    | Oversized
    | ViewInstalled
    | Located
    | Suspected
    | Expelled
    | Left
    | Held
    | Released
    | HoldFull
    | StateWanted
    | StateReceived
)


class TraceEntry(NamedTuple):
    """One row of the trace: what the machine did, in the words of docs/invariants.md.

    ``to`` is whom an own connection goes to; ``run`` is what was sent, by reference; ``sent_ns`` is
    the time of day as far as the machine was told, where its pace is looked at: a row may be
    written down later.
    """

    event: str
    origin: Address | None = None
    first: int = 0
    last: int = 0
    peer: Address | None = None
    message_count: int = 0
    size_bytes: int = 0
    low: int = 0
    delivered: int = 0
    high: int = 0
    reason: str = ""
    epoch: int = 0
    to: Address | None = None
    run: Run | None = None
    sent_ns: int = 0


@dataclass(slots=True)
class Ready:
    """The answer to one input.

    ``ticket`` is set by ``send``; ``before_view`` by ``install``: so many of the deliveries belong
    to the view before; ``trace`` is filled only when tracing is on.
    """

    transmits: list[Transmit] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deadline_ns: int | None = None
    ticket: int = 0
    before_view: int = 0
    trace: list[TraceEntry] = field(default_factory=list)
