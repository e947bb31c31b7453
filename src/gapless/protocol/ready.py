"""The result of every input of the machine: one ``Ready``.

The runtime handles a ready in the order of the fields: puts the transmits on the network, passes
the deliveries and the events to the application, and calls ``tick`` at the deadline. Only transmits
may be dropped, because a network may lose datagrams anyway. A view takes effect between two
deliveries: the first ``before_view`` deliveries precede the view (P-21).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.delivery_mode import DeliveryMode
from gapless.identity import NO_MEMBER, Address
from gapless.protocol.events import Event
from gapless.run import ACKED, Run

ANYONE = NO_MEMBER
"""A destination: every place where discovery expects a process, member or not."""


class Transmit(NamedTuple):
    """A datagram to one member, to all other members (``to`` is None), or to ``ANYONE``."""

    to: Address | None
    datagram: bytes


GROUP = "group"
"""Kind of delivery: next in order of the origin's stream to the group."""
UNICAST = "one"
"""Kind of delivery: next in order of a connection, ``epoch``."""
OUT_OF_BAND = "out of band"
"""Kind of delivery: once, in no order, with seqnos of a separate sequence."""
UNRELIABLE = "unreliable"
"""Kind of delivery: as received, without seqnos."""


class Delivery(NamedTuple):
    """Messages ``first .. last`` of one stream, next in order for the application.

    ``content`` is a run, or the bytes of a reassembled message. A reassembled message spans several
    seqnos; ``flags``, ``view`` and ``sent_ns`` then hold the values of its run.
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
        """Number of messages for the application."""
        return self.content.count if isinstance(self.content, Run) else 1

    @property
    def size_bytes(self) -> int:
        """Number of bytes of all messages, with the table of their lengths."""
        content = self.content
        return content.size_bytes if isinstance(content, Run) else len(content)

    @property
    def mode(self) -> DeliveryMode:
        """The delivery mode in which the messages were sent."""
        if self.kind == OUT_OF_BAND:
            return DeliveryMode.OUT_OF_BAND
        if self.kind == UNRELIABLE:
            return DeliveryMode.UNRELIABLE
        flags = self.content.flags if isinstance(self.content, Run) else self.flags
        return DeliveryMode.ACKNOWLEDGED if flags & ACKED else DeliveryMode.ORDERED

    @property
    def sent_in_view(self) -> int:
        """The number of the view in which the messages were sent; 0 if the sender recorded none."""
        return (self.content.view if isinstance(self.content, Run) else 0) or self.view

    def messages(self) -> list[bytes]:
        """Return the messages, in order."""
        return self.content.messages() if isinstance(self.content, Run) else [self.content]


class TraceEntry(NamedTuple):
    """A row of the trace: one step of the machine, in the terms of docs/internals/invariants.md.

    Fields with a column in the trace have the names of ``gapless.trace.schema.COLUMNS``. ``to`` is
    the receiver of an own connection; ``run`` refers to the sent run; ``sent_ns`` is the wall-clock
    time of the step, because the row may be written later.
    """

    event: str
    origin: Address | None = None
    seqno: int = 0
    seqno_last: int = 0
    peer: Address | None = None
    k: int = 0
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
    """The result of one input.

    ``send`` sets ``ticket``. ``install`` sets ``before_view``: the number of deliveries in the
    previous view. ``trace`` is filled only while tracing is on. ``view_keys``: the keys that open
    messages from now on, and the first one seals; None as before.
    """

    transmits: list[Transmit] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deadline_ns: int | None = None
    ticket: int = 0
    before_view: int = 0
    trace: list[TraceEntry] = field(default_factory=list)
    view_keys: tuple[bytes, ...] | None = field(default=None, repr=False)
