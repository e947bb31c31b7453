"""Messages outside the stream: out-of-band and unreliable.

On an out-of-band send: the message gets a number of a separate sequence, which never restarts, and
is sent at once, however full the window is. At most ``max_out_of_band`` messages may wait for acks;
further sends wait in a queue. The receivers are the members at the time of sending, or one member.

On reception: a message not delivered before is delivered, in no order, across views (OL-12). Every
message is acknowledged, delivered before or not, because the last ack may have been lost. The
*floor* of a frame is the highest number below all messages that the sender may send again;
receivers forget numbers up to the floor. A number too far above the floor is dropped, so that no
sender can make others remember numbers without limit. While the application accepts no more
messages (``blocked``), a message is neither delivered nor acknowledged, so the sender repeats it.

On an ack from P: P has delivered the listed messages. When every receiver has delivered a message,
the message is removed and reported as Acknowledged.

Every interval: a message not acknowledged by P is sent to P again, until P acknowledges or leaves
(OL-20).

On a view without P: no message waits for P any more. A message to P alone is reported as
Unacknowledged; a queued send to P is given up. Numbers, pending messages and delivered ranges
continue (I-19).

An unreliable message is sent once and delivered on arrival.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import MAX_OUT_OF_BAND
from gapless.identity import Address
from gapless.protocol.events import Accepted, Acknowledged, GivenUp, Unacknowledged
from gapless.protocol.ready import OUT_OF_BAND, UNRELIABLE, Delivery
from gapless.protocol.stream import ranges
from gapless.run import NO_LOOPBACK, PRIVATE, Run
from gapless.wire.frames import OutOfBand, OutOfBandAck, Unreliable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.config import Config
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.flow_control import DeliveryCredit
    from gapless.wire.frames import Range

_MAX_REMEMBERED_ORIGINS = 1024
"""Maximum number of origins, departed ones included, whose delivered ranges are remembered.

The same incarnation may return after a partition.
"""

_MAX_SPAN_FACTOR = 4
"""Maximum distance from the oldest pending number, in multiples of ``max_out_of_band``."""


class _UnackedMessage(NamedTuple):
    """A sent message without the acks of all receivers."""

    run: Run
    ticket: int
    to: Address | None
    unacked_by: set[Address]
    retransmit_ns: int
    interval_ns: int


class _QueuedOutOfBand:
    """A send waiting for room: the number of sent messages, and the number of the first."""

    __slots__ = ("deadline_ns", "first", "flags", "messages", "taken", "ticket", "to")

    def __init__(
        self,
        ticket: int,
        messages: Sequence[bytes],
        flags: int,
        to: Address | None,
        deadline_ns: int | None,
    ) -> None:
        self.ticket = ticket
        self.messages = tuple(messages)
        self.flags = flags
        self.to = to
        self.deadline_ns = deadline_ns
        self.taken = 0
        self.first = 0


class OutOfBandChannel:
    """The out-of-band and unreliable messages of a member, sent and received."""

    def __init__(self, me: Address, config: Config, credit: DeliveryCredit) -> None:
        self.me = me
        self.config = config
        self.view = 0
        self.blocked = False
        self._credit = credit
        self._members: tuple[Address, ...] = ()
        self._high = 0
        self.pending: dict[int, _UnackedMessage] = {}
        self._due_ns = 0
        # The unacknowledged numbers of each ticket; 0 stands for messages that are still queued.
        self._unacked_by_ticket: dict[int, set[int]] = {}
        self._queue: deque[_QueuedOutOfBand] = deque()
        self._delivered_ranges: dict[Address, list[Range]] = {}

    # On sending

    def send(
        self,
        ticket: int,
        messages: Sequence[bytes],
        flags: int,
        to: Address | None,
        deadline_ns: int | None,
        out: ReadyBuilder,
    ) -> None:
        """Send ``messages`` out of band, as many as there is room for; queue the rest."""
        assert ticket not in self._unacked_by_ticket, f"ticket {ticket} is used twice"
        self._queue.append(_QueuedOutOfBand(ticket, messages, flags, to, deadline_ns))
        self._unacked_by_ticket[ticket] = {0}
        self._flush(out)

    def has_room(self, messages: Sequence[bytes]) -> bool:
        """Return whether all ``messages`` could be sent at once."""
        return not self._queue and len(messages) <= self._room

    @property
    def _room(self) -> int:
        """How many messages may be sent now."""
        most = self.config.max_out_of_band
        # Receivers remember numbers from the oldest pending one on: one slow receiver must not make
        # that
        # span grow without limit.
        span = self._high - self._floor(self._high + 1)
        return max(0, min(most - len(self.pending), _MAX_SPAN_FACTOR * most - span))

    def _flush(self, out: ReadyBuilder) -> None:
        """Send queued messages, oldest first, while there is room."""
        while self._queue and (room := self._room):
            head = self._queue[0]
            messages = head.messages[head.taken : head.taken + room]
            self._send(head, messages, out)
            if head.taken == len(head.messages):
                self._queue.popleft()
                out.emit(Accepted(head.ticket, head.first, self._high))
                self._unacked_by_ticket[head.ticket].discard(0)
                self._report_acknowledged(head.ticket, out)

    def _send(self, queued: _QueuedOutOfBand, messages: Sequence[bytes], out: ReadyBuilder) -> None:
        """Send ``messages``, the next messages of ``queued``, to the receivers."""
        assert messages, "a send has messages left"
        queued.first = queued.first or self._high + 1
        queued.taken += len(messages)
        # The receivers are fixed now: members that join later need not acknowledge.
        targets = {queued.to} if queued.to is not None else set(self._members)
        loops_back = self.me in targets and not queued.flags & NO_LOOPBACK
        receivers = targets - {self.me}
        flags = queued.flags & NO_LOOPBACK | (0 if queued.to is None else PRIVATE)
        interval_ns = self.config.tail_delay_ns
        again_ns = out.now_ns + interval_ns
        self._due_ns = min(self._due_ns, again_ns) if self.pending else again_ns
        for message in messages:
            self._high += 1
            run = Run.of(self.me, self._high, (message,), flags, self.view, out.sent_ns)
            out.trace("SEND_ASIDE", self.me, run.first, run.last, peer=queued.to, run=run)
            # A member that sends to itself alone waits for no ack.
            if receivers:
                self.pending[run.first] = _UnackedMessage(
                    run, queued.ticket, queued.to, set(receivers), again_ns, interval_ns
                )
                self._unacked_by_ticket[queued.ticket].add(run.first)
                out.transmit(queued.to, OutOfBand(run, self._floor(run.first)))
            if loops_back:
                self._deliver(Delivery(self.me, run.first, run.last, run, OUT_OF_BAND), out)

    def _floor(self, seqno: int) -> int:
        """Return the highest number below ``seqno`` and below every pending message."""
        return min(next(iter(self.pending), seqno), seqno) - 1

    def _report_acknowledged(self, ticket: int, out: ReadyBuilder) -> None:
        """Emit Acknowledged if every message of ``ticket`` was sent and acknowledged."""
        if not self._unacked_by_ticket.get(ticket, {0}):
            del self._unacked_by_ticket[ticket]
            out.emit(Acknowledged(ticket))

    def send_unreliable(
        self,
        ticket: int,
        messages: Sequence[bytes],
        flags: int,
        to: Address | None,
        out: ReadyBuilder,
    ) -> None:
        """Send each of ``messages`` once, without a number."""
        out.emit(Accepted(ticket, 0, 0))
        loops_back = not flags & NO_LOOPBACK and to in {None, self.me}
        for message in messages:
            run = Run.of(self.me, 1, (message,), flags & NO_LOOPBACK, self.view, out.sent_ns)
            if to != self.me:
                out.transmit(to, Unreliable(run))
            if loops_back:
                self._deliver(Delivery(self.me, 0, 0, run, UNRELIABLE), out)

    def _deliver(self, delivery: Delivery, out: ReadyBuilder) -> None:
        """Deliver without waiting for credit: the stream's back-pressure does not apply here."""
        self._credit.spend(delivery.message_count)
        out.deliver(delivery)

    def give_up(self, ticket: int, reason: str, out: ReadyBuilder) -> bool:
        """Give up a queued send; return whether ``ticket`` was queued."""
        queued = next((queued for queued in self._queue if queued.ticket == ticket), None)
        if queued is None:
            return False
        self._abort_queued(queued, reason, out)
        self._flush(out)
        return True

    def _abort_queued(self, queued: _QueuedOutOfBand, reason: str, out: ReadyBuilder) -> None:
        """Remove a send from the queue.

        Messages already sent are repaired but no longer reported.
        """
        assert 0 in self._unacked_by_ticket[queued.ticket], f"ticket {queued.ticket} is sent"
        self._queue.remove(queued)
        del self._unacked_by_ticket[queued.ticket]
        out.emit(GivenUp(queued.ticket, queued.taken, reason))

    @property
    def deadline_ns(self) -> int | None:
        """The earliest deadline of a queued send."""
        return min(
            (queued.deadline_ns for queued in self._queue if queued.deadline_ns is not None),
            default=None,
        )

    def overdue(self, now_ns: int) -> list[int]:
        """Return the tickets of queued sends with an expired deadline."""
        timed = (queued for queued in self._queue if queued.deadline_ns is not None)
        return [
            queued.ticket
            for queued in timed
            if queued.deadline_ns is not None and queued.deadline_ns <= now_ns
        ]

    # On reception

    def on_message(self, frame: OutOfBand, out: ReadyBuilder) -> None:
        """Deliver the new messages of ``frame``, and acknowledge all of them."""
        run = frame.run
        # No ack: the sender repeats the message when the application reads again.
        if self.blocked:
            out.drop(
                "backlog", run.origin, run.first, run.last, peer=run.origin, message_count=run.count
            )
            return
        # No sender with a valid configuration runs so far ahead of its floor.
        if run.last - frame.floor > _MAX_SPAN_FACTOR * MAX_OUT_OF_BAND:
            out.drop(
                "far aside",
                run.origin,
                run.first,
                run.last,
                peer=run.origin,
                message_count=run.count,
            )
            return
        seen = self._delivered_ranges.setdefault(run.origin, [])
        fresh = ranges.insert(seen, run.first, run.last)
        for part in run.parts(fresh):
            out.trace("STORE_ASIDE", run.origin, part.first, part.last, peer=run.origin)
            self._deliver(Delivery(run.origin, part.first, part.last, part, OUT_OF_BAND), out)
        # Acknowledged again: the sender repeats a message only if an ack was lost (P-04).
        if not fresh:
            out.drop("duplicate aside", run.origin, run.first, run.last, peer=run.origin)
        if frame.floor:
            # No number up to the floor is sent again: one range replaces all ranges below it.
            ranges.insert(seen, 1, frame.floor)
        out.transmit(run.origin, OutOfBandAck(run.origin, ((run.first, run.last),)))

    def delivered(self) -> dict[Address, tuple[Range, ...]]:
        """Return the delivered ranges of each origin, this member included."""
        own = {self.me: ((1, self._high),)} if self._high else {}
        return {
            **own,
            **{origin: tuple(seen) for origin, seen in self._delivered_ranges.items() if seen},
        }

    def mark_covered(self, origin: Address, covered: Iterable[Range]) -> None:
        """Count ranges as delivered that a state transfer already gave the application."""
        if origin != self.me:
            self._delivered_ranges[origin] = ranges.merge(
                [*self._delivered_ranges.get(origin, ()), *covered]
            )

    def on_unreliable(self, frame: Unreliable, out: ReadyBuilder) -> None:
        """Deliver an unreliable message."""
        self._deliver(Delivery(frame.run.origin, 0, 0, frame.run, UNRELIABLE), out)

    def on_ack(self, peer: Address, acked: Iterable[Range], out: ReadyBuilder) -> None:
        """Record an ack of ``peer``."""
        for first, last in acked:
            if last > self._high:
                # An ack for a number that was never sent (N4-28).
                out.drop("ack beyond high", self.me, first, last, peer=peer)
                continue
            is_short = last - first < len(self.pending)
            # An ack may name a huge range: look at the smaller of the range and the pending
            # messages.
            for seqno in range(first, last + 1) if is_short else list(self.pending):
                if first <= seqno <= last and seqno in self.pending:
                    self._on_acked(seqno, peer, out)
        self._flush(out)

    def _on_acked(self, seqno: int, peer: Address, out: ReadyBuilder) -> None:
        """Record that ``peer`` no longer needs ``seqno``.

        Complete the message once no receiver needs it.
        """
        assert seqno in self.pending, f"{seqno} is not pending"
        pending = self.pending[seqno]
        pending.unacked_by.discard(peer)
        if not pending.unacked_by:
            del self.pending[seqno]
            if pending.ticket in self._unacked_by_ticket:
                self._unacked_by_ticket[pending.ticket].discard(seqno)
                self._report_acknowledged(pending.ticket, out)

    # On a view, every interval

    def install(self, number: int, members: Iterable[Address], out: ReadyBuilder) -> None:
        """Stop waiting for departed members; keep the delivered ranges in case members return."""
        self.view = number
        self._members = tuple(members)
        for queued in [
            queued
            for queued in self._queue
            if queued.to is not None and queued.to not in self._members
        ]:
            self._abort_queued(queued, "departed", out)
        for seqno, pending in list(self.pending.items()):
            # The only receiver has left, so the message cannot be delivered any more (OL-20).
            if pending.to is not None and pending.to not in self._members:
                del self.pending[seqno]
                # Reported once for each ticket, however many messages it has.
                if self._unacked_by_ticket.pop(pending.ticket, None) is not None:
                    out.emit(Unacknowledged(pending.ticket, (pending.to,)))
                continue
            for peer in pending.unacked_by.difference(self._members):
                self._on_acked(seqno, peer, out)
        departed = [origin for origin in self._delivered_ranges if origin not in self._members]
        # The same incarnation may return after a partition and repeat its messages (OL-12).
        for origin in departed[: max(0, len(self._delivered_ranges) - _MAX_REMEMBERED_ORIGINS)]:
            del self._delivered_ranges[origin]
        self._flush(out)

    def end(self, out: ReadyBuilder) -> None:
        """End this incarnation: report every send that will not be completed."""
        for queued in list(self._queue):
            self._abort_queued(queued, "over", out)
        unacked_by: dict[int, set[Address]] = {}
        for pending in self.pending.values():
            unacked_by.setdefault(pending.ticket, set()).update(pending.unacked_by)
        self.pending.clear()
        for ticket, members in unacked_by.items():
            if self._unacked_by_ticket.pop(ticket, None) is not None:
                out.emit(Unacknowledged(ticket, tuple(sorted(members))))
        assert self.is_quiet, "an incarnation that is over sends nothing"

    @property
    def due_ns(self) -> int | None:
        """Next resend deadline: never late, possibly early when no message is left to resend."""
        return self._due_ns if self.pending and self.config.retransmits else None

    def retransmit(self, out: ReadyBuilder) -> None:
        """Send each due message again to the receivers without an ack."""
        for seqno, pending in list(self.pending.items()):
            if pending.retransmit_ns > out.now_ns:
                continue
            for peer in sorted(pending.unacked_by):
                out.trace("REPAIR_ASIDE", self.me, seqno, seqno, peer=peer, run=pending.run)
                out.transmit(peer, OutOfBand(pending.run, self._floor(seqno)))
            # Back off, so that a receiver that cannot answer is not flooded (P-11).
            interval_ns = min(2 * pending.interval_ns, self.config.xmit_interval_ns)
            again_ns = out.now_ns + interval_ns
            self.pending[seqno] = pending._replace(retransmit_ns=again_ns, interval_ns=interval_ns)
        self._due_ns = min((pending.retransmit_ns for pending in self.pending.values()), default=0)
        assert not self.pending or self._due_ns > out.now_ns, "a resend waits for an interval"

    @property
    def is_quiet(self) -> bool:
        """Whether no message waits for room or for acks."""
        return not self.pending and not self._queue

    @property
    def unacked_count(self) -> int:
        """Number of messages sent and not acknowledged by all."""
        return len(self.pending)

    @property
    def waiting_count(self) -> int:
        """Number of sends waiting for room."""
        return len(self._queue)

    def check_invariants(self) -> None:
        """Raise AssertionError if a pending message, a ticket or a delivered range is misfiled."""
        most, oldest, before = self.config.max_out_of_band, next(iter(self.pending), 0), 0
        assert len(self.pending) <= most, f"{len(self.pending)} messages wait for acks"
        assert not oldest or self._high - oldest < _MAX_SPAN_FACTOR * most, "numbers run ahead"
        for seqno, pending in self.pending.items():
            assert before < seqno <= self._high, (
                "pending messages are in the order of their numbers"
            )
            assert pending.run.first == pending.run.last == seqno, (
                f"{seqno} is filed under its number"
            )
            assert pending.unacked_by, f"{seqno} is acknowledged by everybody and still pending"
            assert pending.unacked_by <= set(self._members) - {self.me}, (
                f"{seqno} waits for members"
            )
            assert seqno in self._unacked_by_ticket.get(pending.ticket, {seqno}), (
                f"{seqno} is pending and not tracked by its ticket"
            )
            assert self._due_ns <= pending.retransmit_ns, f"{seqno} would be sent again too late"
            before = seqno
        for queued in self._queue:
            assert queued.taken <= len(queued.messages), f"ticket {queued.ticket} is sent twice"
            assert 0 in self._unacked_by_ticket[queued.ticket], f"ticket {queued.ticket} is queued"
        assert self.me not in self._delivered_ranges, "own messages are not received"
        for origin, delivered in self._delivered_ranges.items():
            assert delivered == ranges.merge(delivered), f"{origin}: delivered ranges are merged"

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times; sends are named by their order."""
        names = {ticket: -at for at, ticket in enumerate(self._unacked_by_ticket, 1)}
        pending = tuple(
            (
                seqno,
                entry.run,
                names.get(entry.ticket, 0),
                entry.to,
                tuple(sorted(entry.unacked_by)),
            )
            for seqno, entry in self.pending.items()
        )
        queue = tuple(
            (
                names[queued.ticket],
                queued.messages,
                queued.flags,
                queued.to,
                queued.taken,
                queued.first,
            )
            for queued in self._queue
        )
        seen = tuple((origin, *found) for origin, found in self._delivered_ranges.items())
        return (self._high, pending, queue, seen)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``: all messages due, no deadlines, new tickets."""
        self._high, pending, queue, seen = snapshot  # type: ignore[assignment]
        self.pending, self._unacked_by_ticket, self._queue = {}, {}, deque()
        self._due_ns = 0
        for seqno, run, ticket, to, receivers in pending:  # type: ignore[attr-defined]
            self.pending[seqno] = _UnackedMessage(
                run, ticket, to, set(receivers), 0, self.config.tail_delay_ns
            )
            if ticket:
                self._unacked_by_ticket.setdefault(ticket, set()).add(seqno)
        for ticket, messages, flags, to, taken, first in queue:  # type: ignore[attr-defined]
            queued = _QueuedOutOfBand(ticket, messages, flags, to, None)
            queued.taken, queued.first = taken, first
            self._queue.append(queued)
            self._unacked_by_ticket.setdefault(ticket, set()).add(0)
        self._delivered_ranges = {origin: list(found) for origin, *found in seen}  # type: ignore[attr-defined]
