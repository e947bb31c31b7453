"""Messages beside the stream: out of band and unreliable.

On sending out of band: the message gets a number of its own kind, which never restarts, and goes
out at once, however full the window is; at most ``max_out_of_band`` may wait for acks, more have to
wait their turn. It is for those that are members when it goes out, or for one member.

On reception: what was not delivered before is delivered, in no order, across views (OL-12); in any
case it is acknowledged, for the last ack may have been lost. The floor says what nobody will send
again, and can be forgotten. What is further above it than any sender goes is dropped, or one could
make others remember without end. While the application takes no more (``closed``), nothing is taken
nor acknowledged: it comes again.

On an ack from P: P is done with these numbers. When nobody is left, the message is forgotten and
reported.

Every interval: what P has not acknowledged is sent to it again, until it has, or has left (OL-20).

On a view without P: nobody waits for P any more. A message to P alone is reported as not
acknowledged; one to P that waited its turn is given up. Numbers, pending messages and what was
delivered all go on (I-19).

An unreliable message is sent once and delivered whenever it arrives.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from gapless.delivery_mode import MAX_OUT_OF_BAND
from gapless.protocol.events import Accepted, Acknowledged, GivenUp, Unacknowledged
from gapless.protocol.ready import OUT_OF_BAND, UNRELIABLE, Delivery
from gapless.protocol.stream import ranges
from gapless.run import NO_LOOPBACK, PRIVATE, Run
from gapless.wire.frames import OutOfBand, OutOfBandAck, Unreliable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.flow_control import DeliveryCredit
    from gapless.wire.frames import Range

_MAX_REMEMBERED_ORIGINS = 1024
"""Departed origins of which it is remembered what they sent out of band, in case the same life comes back."""

_MAX_SPAN_FACTOR = 4
"""How far ahead of the oldest pending message others may go, in multiples of ``max_out_of_band``."""


class _UnackedMessage(NamedTuple):
    run: Run
    ticket: int
    to: Address | None
    unacked_by: set[Address]
    retransmit_ns: int
    interval_ns: int


class _QueuedOutOfBand:
    """One send that waits its turn: how many of its messages have gone out, and the number of the first."""

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
    """The out-of-band and unreliable messages of one member, both ways."""

    def __init__(self, me: Address, config: Config, credit: DeliveryCredit) -> None:
        self.me = me
        self.config = config
        self.view = 0
        self.blocked = False
        self._credit = credit
        self._members: tuple[Address, ...] = ()
        self._high = 0
        self._pending: dict[int, _UnackedMessage] = {}
        self._due_ns = 0
        # What is still to be acknowledged of each send; while some of it has not even gone out, a
        # zero is in the set.
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
        """Send ``messages`` out of band, as many as may go; the rest waits its turn."""
        self._queue.append(_QueuedOutOfBand(ticket, messages, flags, to, deadline_ns))
        self._unacked_by_ticket[ticket] = {0}
        self._flush(out)

    def has_room(self, messages: Sequence[bytes]) -> bool:
        """Return whether as many messages could go out at once."""
        return not self._queue and len(messages) <= self._room

    @property
    def _room(self) -> int:
        """How many messages may go out now; receivers remember numbers from the oldest pending one on."""
        most = self.config.max_out_of_band
        span = self._high - self._floor(self._high + 1)
        return max(0, min(most - len(self._pending), _MAX_SPAN_FACTOR * most - span))

    def _flush(self, out: ReadyBuilder) -> None:
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
        queued.first = queued.first or self._high + 1
        queued.taken += len(messages)
        targets = {queued.to} if queued.to is not None else set(self._members)
        own = self.me in targets and not queued.flags & NO_LOOPBACK
        missing = targets - {self.me}
        flags = queued.flags & NO_LOOPBACK | (0 if queued.to is None else PRIVATE)
        interval_ns = self.config.tail_delay_ns
        again_ns = out.now_ns + interval_ns
        self._due_ns = min(self._due_ns, again_ns) if self._pending else again_ns
        for message in messages:
            self._high += 1
            run = Run.of(self.me, self._high, (message,), flags, self.view, out.sent_ns)
            out.trace("SEND_ASIDE", self.me, run.first, run.last, peer=queued.to, run=run)
            if missing:
                self._pending[run.first] = _UnackedMessage(
                    run, queued.ticket, queued.to, set(missing), again_ns, interval_ns
                )
                self._unacked_by_ticket[queued.ticket].add(run.first)
                out.transmit(queued.to, OutOfBand(run, self._floor(run.first)))
            if own:
                self._deliver(Delivery(self.me, run.first, run.last, run, OUT_OF_BAND), out)

    def _floor(self, seqno: int) -> int:
        return min(next(iter(self._pending), seqno), seqno) - 1

    def _report_acknowledged(self, ticket: int, out: ReadyBuilder) -> None:
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
        """Send ``messages`` once, each by itself."""
        out.emit(Accepted(ticket, 0, 0))
        own = not flags & NO_LOOPBACK and to in {None, self.me}
        for message in messages:
            run = Run.of(self.me, 1, (message,), flags & NO_LOOPBACK, self.view, out.sent_ns)
            if to != self.me:
                out.transmit(to, Unreliable(run))
            if own:
                self._deliver(Delivery(self.me, 0, 0, run, UNRELIABLE), out)

    def _deliver(self, delivery: Delivery, out: ReadyBuilder) -> None:
        """Deliver without waiting for room: what is beside the stream is not stopped by it."""
        self._credit.spend(delivery.message_count)
        out.deliver(delivery)

    def give_up(self, ticket: int, reason: str, out: ReadyBuilder) -> bool:
        """End a send that waits its turn; return whether there was one."""
        queued = next((queued for queued in self._queue if queued.ticket == ticket), None)
        if queued is None:
            return False
        self._abort_queued(queued, reason, out)
        self._flush(out)
        return True

    def _abort_queued(self, queued: _QueuedOutOfBand, reason: str, out: ReadyBuilder) -> None:
        """Take a send out of the queue; what has gone out of it is still seen to, but not reported any more."""
        self._queue.remove(queued)
        del self._unacked_by_ticket[queued.ticket]
        out.emit(GivenUp(queued.ticket, queued.taken, reason))

    @property
    def deadline_ns(self) -> int | None:
        """The earliest deadline of a send that waits its turn."""
        return min(
            (queued.deadline_ns for queued in self._queue if queued.deadline_ns is not None),
            default=None,
        )

    def overdue(self, now_ns: int) -> list[int]:
        """Return the tickets whose time is over."""
        timed = (queued for queued in self._queue if queued.deadline_ns is not None)
        return [
            queued.ticket
            for queued in timed
            if queued.deadline_ns is not None and queued.deadline_ns <= now_ns
        ]

    # On reception

    def on_message(self, frame: OutOfBand, out: ReadyBuilder) -> None:
        """Deliver what is new, and acknowledge all of it."""
        run = frame.run
        if self.blocked:
            out.drop(
                "backlog", run.origin, run.first, run.last, peer=run.origin, message_count=run.count
            )
            return
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
        if not fresh:
            out.drop("duplicate aside", run.origin, run.first, run.last, peer=run.origin)
        if frame.floor:
            ranges.insert(
                seen, 1, frame.floor
            )  # all up to there is done with: one range says so, however many there were
        out.transmit(run.origin, OutOfBandAck(run.origin, ((run.first, run.last),)))

    def delivered(self) -> dict[Address, tuple[Range, ...]]:
        """Return which messages of each member count as delivered here, the own included."""
        own = {self.me: ((1, self._high),)} if self._high else {}
        return {
            **own,
            **{origin: tuple(seen) for origin, seen in self._delivered_ranges.items() if seen},
        }

    def mark_covered(self, origin: Address, covered: Iterable[Range]) -> None:
        """Count what the application has got otherwise as delivered, should it still come."""
        if origin != self.me:
            self._delivered_ranges[origin] = ranges.merge(
                [*self._delivered_ranges.get(origin, ()), *covered]
            )

    def on_unreliable(self, frame: Unreliable, out: ReadyBuilder) -> None:
        """Deliver what has come."""
        self._deliver(Delivery(frame.run.origin, 0, 0, frame.run, UNRELIABLE), out)

    def on_ack(self, peer: Address, acked: Iterable[Range], out: ReadyBuilder) -> None:
        """Take an ack of ``peer`` in."""
        for first, last in acked:
            if last > self._high:
                out.drop("ack beyond high", self.me, first, last, peer=peer)
                continue
            few = last - first < len(self._pending)
            for seqno in range(first, last + 1) if few else list(self._pending):
                if first <= seqno <= last and seqno in self._pending:
                    self._on_acked(seqno, peer, out)
        self._flush(out)

    def _on_acked(self, seqno: int, peer: Address, out: ReadyBuilder) -> None:
        pending = self._pending[seqno]
        pending.unacked_by.discard(peer)
        if not pending.unacked_by:
            del self._pending[seqno]
            if pending.ticket in self._unacked_by_ticket:
                self._unacked_by_ticket[pending.ticket].discard(seqno)
                self._report_acknowledged(pending.ticket, out)

    # On a view, every interval

    def install(self, number: int, members: Iterable[Address], out: ReadyBuilder) -> None:
        """Wait no more for those that have left; remember what others sent, for they may come back."""
        self.view = number
        self._members = tuple(members)
        for queued in [
            queued
            for queued in self._queue
            if queued.to is not None and queued.to not in self._members
        ]:
            self._abort_queued(queued, "departed", out)
        for seqno, pending in list(self._pending.items()):
            if pending.to is not None and pending.to not in self._members:
                del self._pending[seqno]
                if self._unacked_by_ticket.pop(pending.ticket, None) is not None:
                    out.emit(Unacknowledged(pending.ticket, (pending.to,)))
                continue
            for peer in pending.unacked_by.difference(self._members):
                self._on_acked(seqno, peer, out)
        gone = [origin for origin in self._delivered_ranges if origin not in self._members]
        for origin in gone[: max(0, len(self._delivered_ranges) - _MAX_REMEMBERED_ORIGINS)]:
            del self._delivered_ranges[origin]
        self._flush(out)

    def end(self, out: ReadyBuilder) -> None:
        """Report every send that nobody will complete: this life is over."""
        for queued in list(self._queue):
            self._abort_queued(queued, "over", out)
        behind: dict[int, set[Address]] = {}
        for pending in self._pending.values():
            behind.setdefault(pending.ticket, set()).update(pending.unacked_by)
        self._pending.clear()
        for ticket, members in behind.items():
            if self._unacked_by_ticket.pop(ticket, None) is not None:
                out.emit(Unacknowledged(ticket, tuple(sorted(members))))

    @property
    def due_ns(self) -> int | None:
        """When to look for what is to be sent again: never too late, at worst when nothing is any more."""
        return self._due_ns if self._pending and self.config.retransmits else None

    def retransmit(self, out: ReadyBuilder) -> None:
        """Send what is due again to those that have not acknowledged it."""
        for seqno, pending in list(self._pending.items()):
            if pending.retransmit_ns > out.now_ns:
                continue
            for peer in sorted(pending.unacked_by):
                out.trace("REPAIR_ASIDE", self.me, seqno, seqno, peer=peer, run=pending.run)
                out.transmit(peer, OutOfBand(pending.run, self._floor(seqno)))
            interval_ns = min(2 * pending.interval_ns, self.config.xmit_interval_ns)
            again_ns = out.now_ns + interval_ns
            self._pending[seqno] = pending._replace(retransmit_ns=again_ns, interval_ns=interval_ns)
        self._due_ns = min((pending.retransmit_ns for pending in self._pending.values()), default=0)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, neither for its turn nor for acks."""
        return not self._pending and not self._queue

    @property
    def unacked_count(self) -> int:
        """Number of messages sent and not acknowledged by all."""
        return len(self._pending)

    @property
    def waiting_count(self) -> int:
        """Number of sends that wait for room."""
        return len(self._queue)

    def check_invariants(self) -> None:
        """Raise AssertionError if a pending message, a ticket or a delivered range is misfiled."""
        most, oldest, before = self.config.max_out_of_band, next(iter(self._pending), 0), 0
        assert len(self._pending) <= most, f"{len(self._pending)} messages wait for acks"
        assert not oldest or self._high - oldest < _MAX_SPAN_FACTOR * most, "numbers run ahead"
        for seqno, pending in self._pending.items():
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
            for seqno, entry in self._pending.items()
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
        """Become what ``snapshot`` says, with everything due and no deadline; tickets are numbered anew."""
        self._high, pending, queue, seen = snapshot  # type: ignore[assignment]
        self._pending, self._unacked_by_ticket, self._queue = {}, {}, deque()
        self._due_ns = 0
        for seqno, run, ticket, to, missing in pending:  # type: ignore[attr-defined]
            self._pending[seqno] = _UnackedMessage(
                run, ticket, to, set(missing), 0, self.config.tail_delay_ns
            )
            if ticket:
                self._unacked_by_ticket.setdefault(ticket, set()).add(seqno)
        for ticket, messages, flags, to, taken, first in queue:  # type: ignore[attr-defined]
            queued = _QueuedOutOfBand(ticket, messages, flags, to, None)
            queued.taken, queued.first = taken, first
            self._queue.append(queued)
            self._unacked_by_ticket.setdefault(ticket, set()).add(0)
        self._delivered_ranges = {origin: list(found) for origin, *found in seen}  # type: ignore[attr-defined]
