"""Connections: reliable, ordered streams between two members.

A connection is a stream like the stream to the group (outbound.py, inbound.py), with one receiver.
A connection is identified by an epoch: a 64-bit number, drawn by the sender when the connection
opens and carried by every frame of the connection.

On sending to P: the open connection to P is used. Without an open connection a new epoch begins,
and its first message is flagged as the first. A message that gets a number reopens a closing
connection (U3-17). A message waiting for room does not, because mere attempts would keep a dead
connection alive.

On reception of data of the current epoch: as in inbound.py. Without a current epoch: the flagged
first message opens the connection. A few other messages are buffered, and the receiver asks for the
first message, after a grace and not too often. The sender answers with the lowest unacknowledged
message, flagged as the first. Buffered messages count against the sender's budget of early bytes
(early_budget.py), also with retransmission off.

On reception of data of an epoch that is not current: the message is buffered in the same way, and
the epoch replaces the current epoch only after the sender confirms. A higher epoch proves nothing:
frames of a former connection may still be in flight, and the clock of a restarted sender may have
gone back (P-07).

On CLOSE with the same epoch: the connection is over, and later frames of the epoch are dropped. A
request for a connection that does not exist is answered with CLOSE.

Every interval: a connection without activity is closing after ``conn_expiry_timeout``;
unacknowledged messages are still retransmitted. After ``conn_close_timeout`` without activity the
connection is closed and removed, and the sender sends CLOSE. Unacknowledged and unsent messages are
reported, never lost silently. Activity is data and, for the sender, any feedback.

A receiver remembers the end of a removed connection as a tombstone: if the sender continues, the
connection resumes there and no message is delivered twice (P-05). A receiver does not remove a
connection while the application has no room for its messages, or while a message is incomplete.

On a view without P: the connections with P end at once. Nothing is sent to a departed member
(P-15).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gapless.identity import U64_MAX
from gapless.protocol.early_budget import ITEM_BYTES, EarlyBudget
from gapless.protocol.events import Connected, Discarded, Undelivered
from gapless.protocol.ready import UNICAST
from gapless.protocol.stream.inbound import InboundStream
from gapless.protocol.stream.outbound import OutboundStream
from gapless.protocol.stream.reassembly import Reassembler
from gapless.protocol.timers import PeerDeadlines
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Ack, Close, Data, Nak, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.flow_control import DeliveryCredit
    from gapless.wire.frames import Frame, Gone

_MAX_PARTIAL_TOMBSTONES = 16
"""Maximum number of tombstones that hold the fragments of an incomplete message."""
_MAX_TOMBSTONES = 4096
"""Maximum number of ended connections that are remembered."""
MAX_FIRST_REQUESTS = 8
"""How often a first message is requested before the buffered messages of its epoch are dropped."""
_RANDOM_BITS = 20
"""How many low bits of an epoch are drawn at random."""


class ConnectionState(StrEnum):
    """The state of an end of a connection."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class _ConnectionEnd:
    """An end of a connection: the stream, the state, and the time of the last activity."""

    __slots__ = ("since_ns", "state", "stream")

    def __init__(self, now_ns: int) -> None:
        self.state = ConnectionState.OPEN
        self.since_ns = now_ns

    def touch(self, now_ns: int) -> bool:
        """Record activity; return whether a closing connection is open again."""
        self.since_ns = now_ns
        # Only a closing end is revived: a closed one is removed.
        revived = self.state is ConnectionState.CLOSING
        self.state = ConnectionState.OPEN
        return revived

    def due_ns(self, config: Config) -> int | None:
        """Return when this end changes its state without activity; None for never."""
        wait_ns = (
            config.conn_expiry_timeout_ns
            if self.state is ConnectionState.OPEN
            else config.conn_close_timeout_ns
        )
        return self.since_ns + wait_ns if wait_ns else None


class OutgoingConnection(_ConnectionEnd):
    """The sending end; ``reassembler`` serves messages from a member to itself."""

    __slots__ = ("reassembler",)
    stream: OutboundStream
    reassembler: Reassembler


class IncomingConnection(_ConnectionEnd):
    """The receiving end."""

    __slots__ = ()
    stream: InboundStream


class _UnconfirmedEpoch:
    """Messages of an unconfirmed epoch, and the requests for the first message."""

    __slots__ = ("due_ns", "epoch", "frames", "tries")

    def __init__(self, epoch: int, due_ns: int) -> None:
        self.epoch = epoch
        self.frames: dict[tuple[int, int, bool], Data] = {}
        self.due_ns = due_ns
        self.tries = 0

    @property
    def first_message(self) -> Data | None:
        """The first message of the connection, if already here."""
        return next((frame for frame in self.frames.values() if frame.first), None)

    def buffer(self, frame: Data) -> None:
        """Buffer a message; an equal message is replaced."""
        self.frames[frame.run.first, frame.run.last, frame.first] = frame

    def has(self, frame: Data) -> bool:
        """Return whether an equal message is buffered already."""
        return (frame.run.first, frame.run.last, frame.first) in self.frames


class _Tombstone(NamedTuple):
    """The position at which a removed connection resumes, unless the sender has closed it.

    ``fragments`` are the acknowledged fragments of an incomplete message: the sender will not send
    these fragments again. ``message_start`` is the seqno before the first of them.
    """

    resume_seqno: int
    closed: bool
    fragments: tuple[object, ...] | None = None
    message_start: int = 0

    def without_fragments(self) -> _Tombstone:
        """Return a tombstone that resumes before the fragments and so reports them as lost."""
        return _Tombstone(self.message_start, self.closed)


class Connections:
    """All connections of a member, in both directions."""

    def __init__(
        self,
        me: Address,
        config: Config,
        rng: Random,
        tickets: Iterator[int],
        credit: DeliveryCredit,
        budget: EarlyBudget | None = None,
    ) -> None:
        """Create connections; messages of unconfirmed epochs count against ``budget``."""
        self.me = me
        self.config = config
        self._budget = budget or EarlyBudget(config.early_bytes)
        self.outgoing: dict[Address, OutgoingConnection] = {}
        self.incoming: dict[Address, IncomingConnection] = {}
        self._rng = rng
        self._tickets = tickets
        self._credit = credit
        self.removed: list[tuple[Address, int]] = []
        self.unconfirmed_epochs: dict[Address, _UnconfirmedEpoch] = {}
        self._first_requested_ns: dict[Address, int] = {}
        self._tombstones: dict[tuple[Address, int], _Tombstone] = {}
        self._last_epoch = FIRST_CONNECTION_EPOCH
        self._reap_ns: int | None = None
        self._tail_deadlines = PeerDeadlines()
        self._slow_deadlines = PeerDeadlines()
        # Connections whose deadlines may have changed in this input, and those without a share.
        self._changed: dict[Address, None] = {}
        self._unshared: list[OutboundStream] = []
        self._shares = 0
        self.view = 0

    @property
    def ended_count(self) -> int:
        """Number of remembered ended connections."""
        return len(self._tombstones)

    @property
    def unconfirmed_count(self) -> int:
        """Number of peers with an unconfirmed connection epoch."""
        return len(self.unconfirmed_epochs)

    def outbounds(self) -> list[OutboundStream]:
        """Return the sending half of every connection."""
        return [entry.stream for entry in self.outgoing.values()]

    # Deadlines and shares: their cost does not grow with the number of connections

    def note_change(self, peer: Address) -> None:
        """Record that the deadlines of the connection to ``peer`` may have changed."""
        self._changed[peer] = None

    def note_changes(self) -> None:
        """Record that the deadlines of any connection may have changed."""
        self._changed.update(dict.fromkeys(self.outgoing))

    def next_deadlines_ns(self) -> tuple[int | None, int | None]:
        """Return when the next tail probe, and the next report of a slow receiver, is due."""
        if self._changed:
            for peer in self._changed:
                entry = self.outgoing.get(peer)
                stream = None if entry is None else entry.stream
                self._tail_deadlines.set(peer, None if stream is None else stream.tail_due_ns)
                self._slow_deadlines.set(
                    peer, None if stream is None else stream.slow_receiver_due_ns
                )
            self._changed = {}
        return self._tail_deadlines.next_ns, self._slow_deadlines.next_ns

    def announce_tails(self, out: ReadyBuilder) -> None:
        """Probe the ends of the connections whose probe is due."""
        for stream in self._take_due(self._tail_deadlines, out.now_ns):
            stream.announce_tail(out)

    def report_slow_receivers(self, out: ReadyBuilder) -> None:
        """Report the receivers that have kept a window from moving for too long."""
        for stream in self._take_due(self._slow_deadlines, out.now_ns):
            stream.report_slow_receivers(out, None)

    def _take_due(self, deadlines: PeerDeadlines, now_ns: int) -> list[OutboundStream]:
        """Return the streams with a due deadline, the oldest connection first."""
        self.next_deadlines_ns()
        due = [self.outgoing[peer].stream for peer in deadlines.due(now_ns)]
        for stream in due:
            assert stream.to is not None, "a connection has a receiver"
            self.note_change(stream.to)
        return sorted(due, key=lambda stream: stream.epoch)

    def share_receive_buffers(self, shares: int) -> None:
        """Divide the receivers' buffers among ``shares`` senders."""
        if shares != self._shares:
            self._shares, self._unshared = shares, self.outbounds()
        if self._unshared:
            for stream in self._unshared:
                stream.update_byte_limit(shares)
            self._unshared = []

    def has_unshared(self, shares: int) -> bool:
        """Return whether a connection has another share than one of ``shares``."""
        return bool(self._unshared) or self._shares != shares

    def inbounds(self) -> list[InboundStream]:
        """Return the receiving half of every connection."""
        return [entry.stream for entry in self.incoming.values()]

    # On sending

    def open(self, to: Address, out: ReadyBuilder) -> OutboundStream:
        """Return the stream to ``to``; open a connection if there is none."""
        entry = self.outgoing.get(to)
        if entry is None:
            entry = self._new_outgoing(to, self._new_epoch(out.now_ns), out.now_ns)
            out.emit(Connected(to, entry.state, True))
        self.note_change(to)
        return entry.stream

    def _new_outgoing(self, to: Address, epoch: int, now_ns: int) -> OutgoingConnection:
        """Create the sending end of a connection."""
        assert to not in self.outgoing, f"a connection to {to} is open"
        config = self.config
        entry = self.outgoing[to] = OutgoingConnection(now_ns)
        entry.stream = OutboundStream(
            self.me, config, config.unicast_profile, self._tickets, epoch, to
        )
        entry.stream.view = self.view
        entry.stream.connect()
        entry.reassembler = Reassembler(config.max_message_bytes, UNICAST, epoch)
        self._schedule_reap(entry)
        self.note_change(to)
        self._unshared.append(entry.stream)
        return entry

    def touch(self, to: Address, out: ReadyBuilder) -> None:
        """Record that a message to ``to`` got a number: a closing connection is open again."""
        entry = self.outgoing[to]
        # A message on a closing connection opens it again (U3-17).
        if entry.touch(out.now_ns):
            self._schedule_reap(entry)
            out.emit(Connected(to, ConnectionState.OPEN, True))

    def _new_epoch(self, now_ns: int) -> int:
        """Return an epoch above all before: the time in about milliseconds, and random bits."""
        drawn = self._rng.getrandbits(_RANDOM_BITS)
        made = FIRST_CONNECTION_EPOCH | (
            (now_ns >> _RANDOM_BITS << _RANDOM_BITS | drawn) & (FIRST_CONNECTION_EPOCH - 1)
        )
        # The clock may stand still or go back: an epoch of this member is never used twice.
        self._last_epoch = max(made, self._last_epoch + 1)
        assert FIRST_CONNECTION_EPOCH < self._last_epoch <= U64_MAX, "an epoch has 64 bits"
        return self._last_epoch

    # On reception

    @staticmethod
    def opening_first(frames: Sequence[Frame]) -> list[Frame]:
        """Return the frames of a datagram, with frames that open a connection first (U3-24)."""
        return sorted(frames, key=lambda frame: not (isinstance(frame, Data) and frame.first))

    def on_frame(
        self, sender: Address, frame: Data | Tail | Gone | Close, out: ReadyBuilder
    ) -> InboundStream | None:
        """Handle a frame of ``sender``'s connection to this member.

        Return the stream of the connection if the stream may move.
        """
        if isinstance(frame, Close):
            return self._on_close(sender, frame.epoch, out)
        entry = self.incoming.get(sender)
        if entry is None or entry.stream.epoch != frame.epoch:
            entry = self._on_other_epoch(sender, frame, out)
            if entry is None:
                return None
        if isinstance(frame, Data):
            if entry.touch(out.now_ns):
                self._schedule_reap(entry)
                out.emit(Connected(sender, entry.state, False))
            entry.stream.on_data(frame.run, frame.repair, out)
        elif isinstance(frame, Tail):
            entry.stream.on_tail(frame, self.me, out)
        else:
            entry.stream.on_gone(frame.low)
        return entry.stream

    def _on_other_epoch(
        self, sender: Address, frame: Data | Tail | Gone, out: ReadyBuilder
    ) -> IncomingConnection | None:
        """Handle a frame of an epoch that is not current; return the connection if opened."""
        ended = self._tombstones.get((sender, frame.epoch))
        # The sender has closed this connection: its late frames open nothing (U3-23).
        if ended is not None and ended.closed:
            self._drop("closed", sender, frame, out)
            return None
        opening = isinstance(frame, Data) and frame.first
        if sender in self.incoming:
            # A late frame of a former epoch may be flagged first, too: ask the sender (P-07).
            confirmed = opening and self._confirms(sender, frame)
        else:
            # No current epoch: the first message opens it, and a tombstone says where it resumes
            # (P-05).
            confirmed = opening or ended is not None
        if not confirmed:
            self._buffer_unconfirmed(sender, frame, out)
            return None
        return self._open(sender, frame.epoch, frame, out)

    def _confirms(self, sender: Address, frame: Data | Tail | Gone) -> bool:
        """Return whether ``frame`` answers our request for the first message of the epoch."""
        unconfirmed = self.unconfirmed_epochs.get(sender)
        asked = (
            unconfirmed is not None and unconfirmed.epoch == frame.epoch and unconfirmed.tries > 0
        )
        return asked and isinstance(frame, Data) and frame.repair

    def _open(
        self, sender: Address, epoch: int, frame: Data | Tail | Gone, out: ReadyBuilder
    ) -> IncomingConnection:
        """Make ``epoch`` current, starting with ``frame`` or at the end of the tombstone."""
        self._remove_incoming(sender, out)
        ended = self._tombstones.pop((sender, epoch), None)
        start = 0 if ended is None else ended.resume_seqno
        if isinstance(frame, Data) and frame.first:
            start = max(start, frame.run.first - 1)
        entry = self.incoming[sender] = IncomingConnection(out.now_ns)
        self._schedule_reap(entry)
        entry.stream = InboundStream(
            sender, self.config, self.config.unicast_profile, self._rng, start, 0, epoch
        )
        # The connection resumes right behind the fragments that this member acknowledged.
        if ended is not None and ended.fragments is not None and start == ended.resume_seqno:
            entry.stream.reassembler.restore(ended.fragments)
        out.emit(Connected(sender, entry.state, False))
        unconfirmed = self.unconfirmed_epochs.get(sender)
        if unconfirmed is not None and unconfirmed.epoch == epoch:
            del self.unconfirmed_epochs[sender]
            for early in unconfirmed.frames.values():
                self._budget.release(sender, early.run.size_bytes)
                entry.stream.on_data(early.run, early.repair, out)
        assert entry.stream.key not in self._tombstones, "an open connection has no tombstone"
        return entry

    def _buffer_unconfirmed(
        self, sender: Address, frame: Data | Tail | Gone, out: ReadyBuilder
    ) -> None:
        """Buffer a message of an unconfirmed epoch, and schedule a request for the first message.

        Only the highest epoch of a sender is buffered.
        """
        unconfirmed = self.unconfirmed_epochs.get(sender)
        # One epoch per sender is buffered: the highest is the likeliest to be the live one.
        if unconfirmed is not None and unconfirmed.epoch > frame.epoch:
            self._drop("early", sender, frame, out)
            return
        if unconfirmed is None or unconfirmed.epoch < frame.epoch:
            self._drop_unconfirmed(sender, out)
            # The first message may just be late: it gets the grace of a gap before it is asked for
            # (U3-25).
            due_ns = out.now_ns + self.config.min_grace_ns
            if sender in self._first_requested_ns:
                due_ns = max(
                    due_ns, self._first_requested_ns[sender] + self.config.sync_min_interval_ns
                )
            unconfirmed = self.unconfirmed_epochs[sender] = _UnconfirmedEpoch(frame.epoch, due_ns)
        # Announcements of an unconfirmed epoch only cause the question.
        if not isinstance(frame, Data):
            return
        config = self.config
        # Early messages are limited, because a sender may never confirm them (P-09).
        limit = config.become_server_queue_size if config.retransmits else config.capacity
        if unconfirmed.has(frame):
            self._drop("duplicate", sender, frame, out)
        elif len(unconfirmed.frames) < limit and self._budget.reserve(sender, frame.run.size_bytes):
            unconfirmed.buffer(frame)
        else:
            self._drop("early", sender, frame, out)

    def _drop_unconfirmed(self, sender: Address, out: ReadyBuilder) -> None:
        """Drop the buffered messages of an unconfirmed epoch."""
        unconfirmed = self.unconfirmed_epochs.pop(sender, None)
        for frame in () if unconfirmed is None else unconfirmed.frames.values():
            self._budget.release(sender, frame.run.size_bytes)
            self._drop("early", sender, frame, out)

    @staticmethod
    def _drop(reason: str, sender: Address, frame: Data | Tail | Gone, out: ReadyBuilder) -> None:
        """Count a dropped frame, with its range of messages."""
        if isinstance(frame, Data):
            run = frame.run
            out.drop(
                reason,
                sender,
                run.first,
                run.last,
                peer=sender,
                message_count=run.count,
                epoch=FIRST_CONNECTION_EPOCH,
            )
        else:
            out.drop(reason, sender, peer=sender, epoch=FIRST_CONNECTION_EPOCH)

    def _on_close(self, sender: Address, epoch: int, out: ReadyBuilder) -> InboundStream | None:
        """Handle CLOSE; return the stream of the next epoch if its first message is buffered."""
        entry, unconfirmed = self.incoming.get(sender), self.unconfirmed_epochs.get(sender)
        if unconfirmed is not None and unconfirmed.epoch == epoch:
            self._drop_unconfirmed(sender, out)
            self._add_tombstone(sender, epoch, self._resume_seqno(sender, epoch), closed=True)
        elif entry is not None and entry.stream.epoch == epoch:
            self._remove_incoming(sender, out, closed=True)
            if unconfirmed is not None and unconfirmed.first_message is not None:
                return self._open(sender, unconfirmed.epoch, unconfirmed.first_message, out).stream
        # The connection was removed here before: from now on it cannot resume either.
        elif (sender, epoch) in self._tombstones:
            self._add_tombstone(sender, epoch, self._resume_seqno(sender, epoch), closed=True)
        else:
            out.drop("connection", sender, peer=sender, epoch=FIRST_CONNECTION_EPOCH)
        return None

    def _resume_seqno(self, sender: Address, epoch: int) -> int:
        """Return the seqno behind which a removed connection resumes; 0 if unknown."""
        ended = self._tombstones.get((sender, epoch))
        return 0 if ended is None else ended.resume_seqno

    def on_feedback(self, sender: Address, frame: Ack | Nak, out: ReadyBuilder) -> None:
        """Handle an ack or a NAK of ``sender`` for the connection from this member."""
        entry = self.outgoing.get(sender)
        if entry is None or entry.stream.epoch != frame.epoch:
            out.drop("connection", self.me, peer=sender, epoch=FIRST_CONNECTION_EPOCH)
            # The receiver waits for messages of a connection that is gone: CLOSE ends its waiting.
            if isinstance(frame, Nak):
                out.transmit(sender, Close(self.me, frame.epoch))
            return
        stream = entry.stream
        assert stream.to == sender, f"the connection to {stream.to} is filed under {sender}"
        entry.since_ns = out.now_ns
        self.note_change(sender)
        if isinstance(frame, Nak):
            stream.on_nak(sender, frame.ranges, out)
            return
        high = stream.window.high
        stream.on_ack(sender, frame.seqno, frame.buffer_bytes, out)
        # The ack made room, and a waiting message got its number: that is activity (U3-17).
        if stream.window.high > high:
            self.touch(sender, out)

    # Closing

    def close(self, peer: Address, out: ReadyBuilder) -> None:
        """Start closing the connection to ``peer``; unacknowledged messages are still repaired."""
        entry = self.outgoing.get(peer)
        if entry is not None and entry.state is ConnectionState.OPEN:
            self._start_closing(peer, entry, out)

    def end(self, out: ReadyBuilder) -> None:
        """End all connections without CLOSE, and report unacknowledged messages."""
        for peer in list(self.outgoing):
            self._end_outgoing(peer, "over", out, notify=False)

    def _start_closing(
        self, peer: Address, entry: OutgoingConnection | IncomingConnection, out: ReadyBuilder
    ) -> None:
        """Start to close an end, which then ends after ``conn_close_timeout`` without activity."""
        assert entry.state is ConnectionState.OPEN, f"{peer}: only an open connection closes"
        entry.state = ConnectionState.CLOSING
        entry.since_ns = out.now_ns
        self._schedule_reap(entry)
        out.emit(Connected(peer, entry.state, isinstance(entry, OutgoingConnection)))

    def _end_outgoing(self, peer: Address, reason: str, out: ReadyBuilder, *, notify: bool) -> None:
        """Remove the connection to ``peer``; report unacknowledged and unsent messages."""
        entry = self.outgoing.pop(peer)
        entry.state = ConnectionState.CLOSED
        stream = entry.stream
        self.note_change(peer)
        for ticket in stream.queue.tickets:
            stream.give_up(ticket, reason, out)
        first, last = stream.end(out)
        # Never lost silently: the application learns which messages were not acknowledged.
        if first <= last:
            out.emit(Undelivered(peer, first, last))
        if notify:
            out.transmit(peer, Close(self.me, stream.epoch))
        out.emit(Connected(peer, entry.state, True))

    def _remove_incoming(
        self, peer: Address, out: ReadyBuilder, *, closed: bool = False, notify: bool = False
    ) -> None:
        """Remove the connection from ``peer``; deliver consecutive messages, leave a tombstone."""
        entry = self.incoming.pop(peer, None)
        if entry is None:
            return
        entry.state = ConnectionState.CLOSED
        stream = entry.stream
        if discarded := stream.drain(self._credit, out):
            out.emit(Discarded(peer, discarded))
        # The last deliveries are acknowledged before the connection is forgotten.
        if notify and stream.ack_scheduler.pending:
            stream.acknowledge(out)
        stream.ended = True
        self.removed.append(stream.key)
        # Fragments are kept only if the sender may continue: it will not repeat acknowledged ones.
        if closed or stream.window is None or stream.reassembler.first_seqno is None:
            self._add_tombstone(peer, stream.epoch, stream.resume_seqno, closed=closed)
        else:
            self._add_tombstone(peer, stream.epoch, stream.window.delivered, stream=stream)
        out.emit(Connected(peer, entry.state, False))

    def _add_tombstone(
        self,
        peer: Address,
        epoch: int,
        resume: int,
        *,
        closed: bool = False,
        stream: InboundStream | None = None,
    ) -> None:
        """Remember where a connection ended, and forget the oldest tombstones above the limits."""
        assert resume >= 0, "a connection resumes behind a seqno"
        self._tombstones.pop((peer, epoch), None)
        fragments = None if stream is None else stream.reassembler.snapshot()
        self._tombstones[peer, epoch] = _Tombstone(
            resume, closed, fragments, 0 if stream is None else stream.resume_seqno
        )
        # Forgetting a tombstone risks a double delivery (P-05), so thousands are remembered.
        if len(self._tombstones) > _MAX_TOMBSTONES:
            del self._tombstones[next(iter(self._tombstones))]
        if fragments is not None:
            partial = [
                key for key, ended in self._tombstones.items() if ended.fragments is not None
            ]
            for key in partial[:-_MAX_PARTIAL_TOMBSTONES]:
                self._tombstones[key] = self._tombstones[key].without_fragments()

    def install(self, number: int, members: Iterable[Address], out: ReadyBuilder) -> None:
        """End the connections with departed members; send nothing to departed members (P-15)."""
        self.view = number
        present = set(members)
        for peer in [peer for peer in self.outgoing if peer not in present]:
            # No CLOSE: a new process on the same port would get it (P-15).
            self._end_outgoing(peer, "departed", out, notify=False)
        for peer in [peer for peer in self.incoming if peer not in present]:
            self._remove_incoming(peer, out)
        for peer in [peer for peer in self.unconfirmed_epochs if peer not in present]:
            self._drop_unconfirmed(peer, out)
        self._first_requested_ns = {
            peer: at_ns for peer, at_ns in self._first_requested_ns.items() if peer in present
        }
        for entry in self.outgoing.values():
            entry.stream.view = number
        self.note_changes()
        assert self.outgoing.keys() <= present, "a departed member has no connection"
        assert self.incoming.keys() <= present, "a departed member has no connection"

    # Every interval

    @property
    def reap_due_ns(self) -> int | None:
        """Next time to look for idle connections: never late, possibly early after activity."""
        return self._reap_ns if self.outgoing or self.incoming else None

    def _schedule_reap(self, entry: _ConnectionEnd) -> None:
        """Schedule a check for when ``entry`` may be idle; activity needs no rescheduling."""
        due_ns = entry.due_ns(self.config)
        if due_ns is not None and (self._reap_ns is None or due_ns < self._reap_ns):
            self._reap_ns = due_ns

    def reap(self, out: ReadyBuilder) -> None:
        """Start closing idle connections; remove connections after the closing time."""
        for peer, entry in list(self.outgoing.items()):
            if self._is_due(entry, out.now_ns):
                if entry.state is ConnectionState.OPEN:
                    self._start_closing(peer, entry, out)
                elif peer == self.me and not entry.stream.is_quiet:
                    # This member sends to itself: its own application has to make room.
                    entry.since_ns = out.now_ns
                else:
                    self._end_outgoing(peer, "closed", out, notify=peer != self.me)
        for peer, incoming in list(self.incoming.items()):
            if self._is_due(incoming, out.now_ns):
                if incoming.state is ConnectionState.OPEN:
                    self._start_closing(peer, incoming, out)
                elif (
                    incoming.stream.can_deliver
                    or incoming.stream.reassembler.first_seqno is not None
                ):
                    # Removal would flood the application or lose fragments.
                    incoming.since_ns = out.now_ns
                else:
                    self._remove_incoming(peer, out, notify=True)
        self._reschedule_reap()

    def _reschedule_reap(self) -> None:
        """Recompute the reap timer from all connections."""
        self._reap_ns = None
        for entry in (*self.outgoing.values(), *self.incoming.values()):
            self._schedule_reap(entry)

    def _is_due(self, entry: _ConnectionEnd, now_ns: int) -> bool:
        """Return whether ``entry`` changes its state now."""
        due_ns = entry.due_ns(self.config)
        return due_ns is not None and due_ns <= now_ns

    @property
    def first_request_due_ns(self) -> int | None:
        """When to ask a sender for the first message of the connection."""
        if not self.unconfirmed_epochs:
            return None
        return min(
            (unconfirmed.due_ns for unconfirmed in self.unconfirmed_epochs.values()), default=None
        )

    def request_first_messages(self, out: ReadyBuilder) -> None:
        """Request first messages, at most once per ``sync_min_interval`` (P-19)."""
        for peer, unconfirmed in list(self.unconfirmed_epochs.items()):
            if unconfirmed.due_ns > out.now_ns:
                continue
            # The sender does not know this epoch any more, or is gone (P-09).
            if unconfirmed.tries >= MAX_FIRST_REQUESTS:
                self._drop_unconfirmed(peer, out)
                continue
            unconfirmed.tries += 1
            self._first_requested_ns[peer] = out.now_ns
            unconfirmed.due_ns = out.now_ns + self.config.sync_min_interval_ns
            out.count("first.asked")
            out.transmit(peer, Nak(peer, (), unconfirmed.epoch))

    def apply_config(self, config: Config, now_ns: int) -> None:
        """Apply a configuration with retransmission switched on or off."""
        self.config = config
        self.note_changes()
        for outbound in self.outbounds():
            outbound.apply_config(config, now_ns)
        for inbound in self.inbounds():
            inbound.apply_config(config, now_ns)

    def check_invariants(self) -> None:
        """Raise AssertionError if a connection is filed wrongly or would be reaped late."""
        assert self._last_epoch >= FIRST_CONNECTION_EPOCH, (
            "connection epochs lie above view numbers"
        )
        for peer, outgoing in self.outgoing.items():
            assert outgoing.stream.to == peer, (
                f"the connection to {peer} is filed under its receiver"
            )
            assert FIRST_CONNECTION_EPOCH <= outgoing.stream.epoch <= self._last_epoch, (
                f"the connection to {peer} has an epoch that was drawn here"
            )
            assert outgoing.state is not ConnectionState.CLOSED, f"{peer}: a closed end is removed"
            outgoing.reassembler.check_invariants()
        for peer, incoming in self.incoming.items():
            stream = incoming.stream
            assert peer == stream.origin != self.me, f"{peer}: filed under its sender"
            assert stream.window is not None, f"{peer}: a connection opens with a known start"
            assert incoming.state is not ConnectionState.CLOSED, f"{peer}: a closed end is removed"
            assert not stream.ended, f"{peer}: the stream of an open connection goes on"
            assert stream.key not in self._tombstones, (
                f"{peer}: an open connection has no tombstone"
            )
        for peer, unconfirmed in self.unconfirmed_epochs.items():
            assert unconfirmed.tries <= MAX_FIRST_REQUESTS, f"{peer}: first requests are limited"
            early_bytes = sum(
                frame.run.size_bytes + ITEM_BYTES for frame in unconfirmed.frames.values()
            )
            assert early_bytes <= self._budget.kept_of(peer), f"{peer}: early bytes are counted"
            present = self.incoming.get(peer)
            assert present is None or present.stream.epoch != unconfirmed.epoch, (
                f"{peer}: the open epoch is confirmed"
            )
        self._check_tombstones()
        self._check_deadlines()
        ends = (*self.outgoing.values(), *self.incoming.values())
        due_ns = [at_ns for at_ns in (end.due_ns(self.config) for end in ends) if at_ns is not None]
        assert not due_ns or (self._reap_ns is not None and self._reap_ns <= min(due_ns)), (
            "the reap timer never fires after a connection is due"
        )

    def _check_deadlines(self) -> None:
        tails = [stream.tail_due_ns for stream in self.outbounds()]
        slow = [stream.slow_receiver_due_ns for stream in self.outbounds()]
        expected = tuple(
            min((at_ns for at_ns in all_ns if at_ns is not None), default=None)
            for all_ns in (tails, slow)
        )
        found = self.next_deadlines_ns()
        assert found == expected, f"deadlines are {found} and not {expected}"
        self._tail_deadlines.check_invariants()
        self._slow_deadlines.check_invariants()
        shared = [stream for stream in self.outbounds() if stream not in self._unshared]
        assert all(stream.senders == self._shares for stream in shared), "shares are equal"

    def _check_tombstones(self) -> None:
        partial = sum(tombstone.fragments is not None for tombstone in self._tombstones.values())
        assert len(self._tombstones) <= _MAX_TOMBSTONES, f"{len(self._tombstones)} tombstones"
        assert partial <= _MAX_PARTIAL_TOMBSTONES, f"{partial} tombstones hold fragments"

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times."""
        out = tuple(
            (
                to,
                entry.state,
                entry.stream.epoch,
                entry.stream.snapshot(),
                entry.reassembler.snapshot(),
            )
            for to, entry in self.outgoing.items()
        )
        into = tuple(
            (origin, entry.state, entry.stream.epoch, entry.stream.snapshot())
            for origin, entry in self.incoming.items()
        )
        held = tuple(
            (peer, unconfirmed.epoch, unconfirmed.tries, *unconfirmed.frames.values())
            for peer, unconfirmed in self.unconfirmed_epochs.items()
        )
        return (out, into, held, tuple(self._tombstones.items()), self._last_epoch)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Restore the state of ``snapshot``, with every delay over."""
        self.note_changes()
        self._unshared = []
        out, into, held, ended, self._last_epoch = snapshot  # type: ignore[assignment]
        self.outgoing, self.incoming, self.unconfirmed_epochs, self._first_requested_ns = (
            {},
            {},
            {},
            {},
        )
        row = self.config.unicast_profile
        for to, state, epoch, stream, fragments in out:  # type: ignore[attr-defined]
            sending = self._new_outgoing(to, epoch, 0)
            sending.state = state
            sending.stream.restore(stream)
            sending.reassembler.restore(fragments)
        for origin, state, epoch, stream in into:  # type: ignore[attr-defined]
            receiving = self.incoming[origin] = IncomingConnection(0)
            receiving.state, receiving.stream = (
                state,
                InboundStream(origin, self.config, row, self._rng, 0, 0, epoch),
            )
            receiving.stream.restore(stream)
        for peer, epoch, tries, *frames in held:  # type: ignore[attr-defined]
            unconfirmed = self.unconfirmed_epochs[peer] = _UnconfirmedEpoch(epoch, 0)
            unconfirmed.tries = tries
            for frame in frames:
                unconfirmed.buffer(frame)
                self._budget.charge(peer, frame.run.size_bytes)
        self._tombstones = dict(ended)  # type: ignore[call-overload]
        self._reschedule_reap()
