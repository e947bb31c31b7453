"""The model of the group that checkers compare with, built from outside.

The model learns only from outside a member: calls of the application, incoming and outgoing
datagrams, deliveries and events. Checkers compare the marks of a member's windows with the model
before the model copies the marks.

Sets of seqnos are integers used as bits: bit 0 stands for the seqno right after ``delivered``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import Marks
from gapless.run import FIRST_FRAGMENT, FRAGMENT, LAST_FRAGMENT, NO_LOOPBACK
from gapless.sim.oracle.future_view_model import FutureViewModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gapless.config import Config
    from gapless.identity import Address, Roster, View, ViewId
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.member import Member
    from gapless.run import Run

ZERO_MARKS = Marks(0, 0, 0)


class QueuedMessage(NamedTuple):
    """A message of the application that has no seqno yet."""

    ticket: int
    payload: bytes
    no_loopback: bool


class StreamModel:
    """The stream of an incarnation, as first sent."""

    __slots__ = (
        "acks",
        "flags",
        "fragment_payloads",
        "high",
        "lengths",
        "marks",
        "payloads",
        "queue",
        "starts",
    )

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.lengths = bytearray()
        self.flags: list[int] = []
        self.high = 0
        self.marks = ZERO_MARKS
        self.acks: dict[Address, int] = {}
        self.starts: dict[Address, int] = {}
        self.queue: deque[QueuedMessage] = deque()
        self.fragment_payloads: list[bytes] = []

    def content(self, first: int, last: int) -> bytes:
        """Return the bytes of ``first .. last``, end to end."""
        return b"".join(self.payloads[first - 1 : last])

    def append(self, run: Run) -> None:
        """Learn the next run of the stream."""
        self.payloads += run.messages()
        self.lengths += run.lengths
        self.flags += [run.flags] * run.count
        self.high = run.last

    def next_message_start(self, seqno: int) -> int:
        """Return the first seqno from ``seqno`` on that begins a message."""
        flags = self.flags
        while seqno <= self.high and flags[seqno - 1] & (FRAGMENT | FIRST_FRAGMENT) == FRAGMENT:
            seqno += 1
        return seqno

    def retained_from(self, acked: int) -> int:
        """Return the seqno after which a returning member resumes, with ``acked`` acknowledged."""
        while (
            self.marks.low < acked
            and self.flags[acked - 1] & (FRAGMENT | LAST_FRAGMENT) == FRAGMENT
        ):
            acked -= 1
        return acked

    def end_of(self, seqno: int) -> int:
        """Return the last seqno of the message at ``seqno``; high + 1 if not fully sent."""
        flags = self.flags
        if seqno > self.high or not flags[seqno - 1] & FRAGMENT:
            return seqno
        while seqno <= self.high and not flags[seqno - 1] & LAST_FRAGMENT:
            seqno += 1
        return seqno

    def next_loopback_from(self, seqno: int) -> int:
        """Return the first seqno from ``seqno`` on with loopback to the origin."""
        flags = self.flags
        while seqno <= self.high and flags[seqno - 1] & NO_LOOPBACK:
            seqno += 1
        return seqno


class InboundModel:
    """The stream of an origin at a receiver."""

    __slots__ = (
        "_known",
        "announced",
        "before_start",
        "covered",
        "delivered",
        "epoch",
        "gone",
        "held",
        "high",
        "lost",
        "marks",
        "nak_sent_ns",
        "next",
        "not_owed_upto",
        "open",
        "restarted",
        "skipped",
        "start",
        "stream",
        "undelivered_before",
    )

    def __init__(
        self, stream: StreamModel, start: int | None, former: int = 0, epoch: int = 0
    ) -> None:
        """Open ``stream`` at ``start`` (None: not known yet), never below ``former``."""
        self.stream = stream
        self.epoch = epoch
        self.open = start is not None
        self.start = max(start or 0, former)
        self.restarted = 0
        self.not_owed_upto = 0
        self.covered = 0
        self.undelivered_before: tuple[int, int] | None = None
        self.delivered = self.next = self.high = self.start
        self.next += 1
        self.announced = 0
        self.gone = 0
        self.held = 0
        self.skipped = 0
        self.lost: list[tuple[int, int]] = []
        self.before_start: list[tuple[int, int]] = []
        self.nak_sent_ns: dict[int, int] = {}
        self._known: list[tuple[int, int]] = []
        self.marks = Marks(self.start, self.start, self.start)

    def open_at(self, start: int) -> None:
        """Open the stream at ``start``, or at its end in an earlier view."""
        start = max(start, self.start)
        self.open = True
        self.start = self.delivered = self.high = start
        self.next = max(start, self.covered) + 1
        self.marks = Marks(start, start, start)
        if self.undelivered_before is not None:
            self.resume_undelivered(*self.undelivered_before)

    def resume_undelivered(self, due: int, taken: int) -> None:
        """Resume a stream taken up to ``taken``, with ``due`` not delivered yet.

        A stream resumes undelivered if deliveries wait for the application's state while the origin
        departs and returns.
        """
        self.undelivered_before = due, taken
        if self.open:
            self.next = max(min(due, self.next), self.covered + 1)
            if self.start > taken:
                self.lost.append((taken + 1, self.start))

    def cover(self, upto: int) -> None:
        """Mark everything up to ``upto`` as part of the application's state: never delivered."""
        self.covered = max(self.covered, upto)
        self.next = max(self.next, self.covered + 1)

    def note_exists(self, high: int, now_ns: int) -> None:
        """Record that all seqnos up to ``high`` exist."""
        if not self._known or high > self._known[-1][0]:
            self._known.append((high, now_ns))

    def known_since_ns(self, seqno: int, now_ns: int) -> int:
        """Return since when ``seqno`` has been known to exist."""
        return next((since_ns for high, since_ns in self._known if high >= seqno), now_ns)

    def bits(self, first: int, last: int) -> int:
        """Return ``first .. last`` as bits, as far as above delivered."""
        first = max(first, self.delivered + 1)
        if last < first:
            return 0
        return ((1 << (last - first + 1)) - 1) << (first - self.delivered - 1)

    def consecutive(self) -> int:
        """Return the end of the seqnos that can be delivered at once, or skipped as gone."""
        # The lowest zero bit: adding one carries through exactly the consecutive ones.
        passable = self.held | self.skipped
        return self.delivered + (~passable & (passable + 1)).bit_length() - 1

    def lose(self, first: int, last: int) -> None:
        """Learn that ``first .. last`` was reported as lost."""
        self.lost.append((first, last))
        self.skipped |= self.bits(first, last)

    def restart(self, start: int) -> None:
        """Move the start of the stream: no message before ``start`` exists any more."""
        self.move_to(start)
        self.start = start
        self.restarted = start
        self.high = max(self.high, start)
        self.next = max(start, self.covered) + 1

    def end(self) -> int:
        """Return where the stream resumes if the origin departs and returns: no duplicates."""
        if not self.open:
            return self.start
        return min(self.delivered, self.due() - 1)

    def due(self) -> int:
        """Return the first seqno of the next message to deliver.

        Lost messages are skipped, as well as messages with a fragment that was lost or precedes the
        start.
        """
        stream = self.stream
        seqno = stream.next_message_start(self.next)
        for first, last in self.lost:
            if first <= stream.end_of(seqno) and seqno <= last:
                seqno = stream.next_message_start(last + 1)
        return seqno

    def move_to(self, delivered: int) -> None:
        """Move ``delivered``; forget held messages up to ``delivered``."""
        moved = max(0, delivered - self.delivered)  # never back: S6 checks that
        self.held >>= moved
        self.skipped >>= moved
        self.delivered = delivered
        while self._known and self._known[0][0] <= delivered:
            del self._known[0]
        if self.nak_sent_ns and min(self.nak_sent_ns) <= delivered:
            self.nak_sent_ns = {
                seqno: at_ns for seqno, at_ns in self.nak_sent_ns.items() if seqno > delivered
            }


class MemberModel:
    """An incarnation of a member: the view, the own stream, and the inbound streams."""

    __slots__ = (
        "_model",
        "address",
        "alive",
        "blocked",
        "confirmed",
        "covered",
        "delivered_upto",
        "departed_inbound",
        "durable",
        "epoch",
        "evicted_names",
        "former_own_next",
        "future_view_buffer",
        "inbound",
        "leaving_ns",
        "member",
        "name",
        "own_next",
        "past_inbound",
        "resumed",
        "roster",
        "stored",
        "stream",
        "tickets",
        "transferring",
        "unconsumed",
        "view",
        "view_members",
        "views",
    )

    def __init__(
        self, address: Address, name: str, member: Endpoint | Member, model: GroupModel
    ) -> None:
        self._model = model
        self.address = address
        self.name = name
        self.member = member
        self.alive = True
        self.view: View | None = None
        self.view_members: frozenset[Address] = frozenset()
        self.views = 0
        self.epoch = 0
        self.stream = model.stream_of(address, 0)
        self.former_own_next: dict[int, int] = {}
        self.future_view_buffer = FutureViewModel()
        self.roster: Roster | None = None
        self.durable = False
        self.resumed: dict[Address, int] = {}
        self.stored: Mapping[Address, int] | None = None
        self.evicted_names: set[str] = set()
        self.confirmed: set[tuple[ViewId, Address]] = set()
        self.covered: dict[tuple[Address, int], int] = {}
        self.past_inbound: dict[tuple[Address, int], InboundModel] = {}
        self.transferring = False
        self.leaving_ns: int | None = None
        self.inbound: dict[Address, InboundModel] = {}
        self.departed_inbound: dict[Address, InboundModel] = {}
        self.delivered_upto: dict[tuple[Address, int], int] = {}
        self.own_next = 1
        self.tickets: set[int] = set()
        self.blocked: set[int] = set()
        self.unconsumed = 0

    def has_delivered(self, origin: Address, epoch: int = 0) -> int:
        """Return the highest seqno of ``origin`` ever delivered here, in any view."""
        inbound = self.inbound.get(origin)
        now = inbound.delivered if inbound is not None and inbound.epoch == epoch else 0
        return max(self.delivered_upto.get((origin, epoch), 0), now)

    def inbound_of(self, origin: Address, epoch: int = 0) -> InboundModel | None:
        """Return the inbound stream of ``origin``, even an ended stream."""
        inbound = self.inbound.get(origin)
        if inbound is not None and inbound.epoch == epoch:
            return inbound
        inbound = self.departed_inbound.get(origin)
        return (
            inbound
            if inbound is not None and inbound.epoch == epoch
            else self.past_inbound.get((origin, epoch))
        )

    def restart(self, epoch: int) -> None:
        """Restart the own stream: the new stream sends the messages without a seqno."""
        before = self.stream
        self.former_own_next[self.epoch] = self.own_next
        self.epoch, self.own_next = epoch, 1
        self.stream = self._model.stream_of(self.address, epoch)
        self.stream.queue = before.queue


class GroupModel:
    """Every incarnation of the run, by address."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.capacity = config.capacity
        self.members: dict[Address, MemberModel] = {}
        self._streams: dict[tuple[Address, int], StreamModel] = {}
        self.views: dict[int | ViewId, tuple[Address, ...]] = {}

    def stream_of(self, origin: Address, epoch: int) -> StreamModel:
        """Return the stream ``epoch`` of ``origin``, whether or not the incarnation started."""
        stream = self._streams.get((origin, epoch))
        if stream is None:
            stream = self._streams[origin, epoch] = StreamModel()
        return stream

    def owed_from(self, origin: Address, model: MemberModel) -> int | None:
        """Return the seqno after which ``origin`` owes everything to ``model``; None if nothing.

        A member that had removed the origin from its view has dropped the acknowledged part of a
        fragmented message, and all messages purged by the origin in the meantime.
        """
        inbound = model.inbound.get(origin)
        counted_from = None
        if (
            inbound is not None
            and origin in self.members
            and inbound.epoch == self.members[origin].epoch
        ):
            counted_from = inbound.stream.starts.get(model.address)
        return (
            None
            if counted_from is None or inbound is None
            else max(counted_from, inbound.not_owed_upto)
        )
