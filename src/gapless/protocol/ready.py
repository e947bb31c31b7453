"""The result of every input of the machine: one ``Ready``.

The runtime handles a ready in the order of its fields: it puts the transmits on the network, passes
the deliveries and the events to the application, and calls ``tick`` at the deadline. Only transmits
may be dropped, because the network may lose those anyway. A view takes effect between two
deliveries: the first ``before_view`` of them precede it (P-21).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gapless.identity import NO_MEMBER, Address
from gapless.protocol.events import Event
from gapless.run import Run

ANYONE = NO_MEMBER
"""A destination: every place where discovery expects a process, member or not."""


class Transmit(NamedTuple):
    """A datagram to one member, to all others (``to`` is None), or to :data:`ANYONE`."""

    to: Address | None
    datagram: bytes


GROUP = "group"
"""Kind of delivery: next in order of the origin's stream to the group."""
UNICAST = "one"
"""Kind of delivery: next in order of a connection, ``epoch``."""
OUT_OF_BAND = "out of band"
"""Kind of delivery: once, in no order, with seqnos of its own."""
UNRELIABLE = "unreliable"
"""Kind of delivery: as received, without seqnos."""


class Delivery(NamedTuple):
    """Messages ``first .. last`` of one stream, next in order for the application.

    ``content`` is a run, or the bytes of one reassembled message. That message spans several
    seqnos, and ``flags``, ``view`` and ``sent_ns`` hold what its run would.
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

    def messages(self) -> list[bytes]:
        """Return the messages, in order."""
        return self.content.messages() if isinstance(self.content, Run) else [self.content]


class TraceEntry(NamedTuple):
    """One row of the trace: one step of the machine, in the words of docs/invariants.md.

    Fields that are columns of a trace have the names of ``gapless.trace.schema.COLUMNS``.
    ``to`` is the receiver of an own connection; ``run`` refers to the run that was sent;
    ``sent_ns`` is the wall-clock time of the step, because the row may be written later.
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

    ``send`` sets ``ticket``. ``install`` sets ``before_view``: the number of deliveries that belong
    to the previous view. ``trace`` is filled only while tracing is on.
    """

    transmits: list[Transmit] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    deadline_ns: int | None = None
    ticket: int = 0
    before_view: int = 0
    trace: list[TraceEntry] = field(default_factory=list)
