"""Connections: reliable, ordered streams between two members.

A connection is a stream like the one to the group (outbound.py, inbound.py) with one receiver, named by an epoch: a
64-bit number that its sender draws when it opens the connection, and that every frame of it carries.

On sending to P: the open connection to P is used; one that is closing is open again by that (U3-17); if there is none,
a new epoch begins, and its first message says that it is the first.

On reception of data of a known epoch: as in inbound.py. Of an unknown one: the first message opens it, in the place of
any older one. Other messages are kept, a few of them, and the sender is asked for the first, after a grace and not too
often; it sends its lowest unacknowledged message, marked as the first. An epoch older than the known one is believed
only if its sender confirms it by answering that question: the frames of a former connection may still be flying, but a
restarted sender may have a clock that went back (P-07).

On CLOSE with the same epoch: the connection is over, and nothing of it is taken any more.

Every interval: an idle connection is closing after ``conn_expiry_timeout``; what is unacknowledged is still sent again.
After ``conn_close_timeout`` it is closed and removed; its sender says CLOSE. What was not acknowledged, or not even
sent, is reported, never lost in silence.

Of a connection that a receiver has removed, the end is remembered (a tombstone): it goes on there if the sender does,
and nothing is delivered twice (P-05).

On a view without P: the connections with P end at once. Nothing is sent to one that has left (P-15).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from gapless.core.inbound import Inbound
from gapless.core.outbound import Outbound
from gapless.core.ready import Connected, Discarded, Undelivered
from gapless.wire.frames import CONNECTION, Ack, Close, Data, Nak, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.core.context import Context
    from gapless.core.credit import Credit
    from gapless.core.sending import Tickets
    from gapless.identity import Address
    from gapless.wire.frames import Frame, Gone

_MOST_TOMBSTONES = 4096
"""Ended connections that are remembered."""
_MOST_QUESTIONS = 8
"""How often the first message of a connection is asked for before what is kept of it is dropped."""
_EPOCH_BITS = 63
_DRAWN_BITS = 20


class State(StrEnum):
    """Where a connection is in its life."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class _Entry:
    """One end of a connection: its stream, its state, and since when it is in that state without activity."""

    __slots__ = ("since_ns", "state", "stream")

    def __init__(self, now_ns: int) -> None:
        self.state = State.OPEN
        self.since_ns = now_ns

    def touch(self, now_ns: int) -> bool:
        """Note activity; return whether the entry was closing and is open again."""
        self.since_ns = now_ns
        revived = self.state is State.CLOSING
        self.state = State.OPEN
        return revived

    def due_ns(self, config: Config) -> int | None:
        """Return when the entry comes into its next state, if it ever does."""
        wait_ns = config.conn_expiry_timeout_ns if self.state is State.OPEN else config.conn_close_timeout_ns
        return self.since_ns + wait_ns if wait_ns else None


class Outgoing(_Entry):
    """The sending end."""

    __slots__ = ()
    stream: Outbound


class Incoming(_Entry):
    """The receiving end."""

    __slots__ = ()
    stream: Inbound


class _Unknown:
    """Messages of an epoch whose first message is not known."""

    __slots__ = ("asked_ns", "due_ns", "epoch", "frames", "tries")

    def __init__(self, epoch: int, due_ns: int) -> None:
        self.epoch = epoch
        self.frames: list[Data] = []
        self.due_ns = due_ns
        self.asked_ns: int | None = None
        self.tries = 0


class _Tombstone(NamedTuple):
    resume: int
    revivable: bool


class Connections:
    """All connections of one member, in both directions."""

    def __init__(self, me: Address, config: Config, rng: Random, tickets: Tickets, credit: Credit) -> None:
        self.me = me
        self.config = config
        self.outgoing: dict[Address, Outgoing] = {}
        self.incoming: dict[Address, Incoming] = {}
        self._rng = rng
        self._tickets = tickets
        self._credit = credit
        self._unknown: dict[Address, _Unknown] = {}
        self._ended: dict[tuple[Address, int], _Tombstone] = {}
        self._last_epoch = CONNECTION
        self.view = 0

    def outbounds(self) -> list[Outbound]:
        """Return the sending half of every connection."""
        return [entry.stream for entry in self.outgoing.values()]

    def inbounds(self) -> list[Inbound]:
        """Return the receiving half of every connection."""
        return [entry.stream for entry in self.incoming.values()]

    # On sending

    def open(self, to: Address, context: Context) -> Outbound:
        """Return the stream to ``to``, a new one if there is none."""
        entry = self.outgoing.get(to)
        if entry is None:
            entry = self.outgoing[to] = Outgoing(context.now_ns)
            entry.stream = Outbound(
                self.me, self.config, self.config.unicast_row, self._tickets, self._new_epoch(context.now_ns), to
            )
            entry.stream.view = self.view
            entry.stream.connect()
            context.event(Connected(to, entry.state, True))
        elif entry.touch(context.now_ns):
            context.event(Connected(to, entry.state, True))
        return entry.stream

    def _new_epoch(self, now_ns: int) -> int:
        """Return an epoch that is newer than all before: the time in milliseconds or so, and some drawn bits."""
        drawn = self._rng.getrandbits(_DRAWN_BITS)
        made = CONNECTION | ((now_ns >> _DRAWN_BITS << _DRAWN_BITS | drawn) & (CONNECTION - 1))
        self._last_epoch = max(made, self._last_epoch + 1)
        return self._last_epoch

    # On reception

    @staticmethod
    def in_order(frames: Sequence[Frame]) -> list[Frame]:
        """Return the frames of one datagram with those first that open a connection (U3-24)."""
        return sorted(frames, key=lambda frame: not (isinstance(frame, Data) and frame.first))

    def on_frame(self, sender: Address, frame: Data | Tail | Gone | Close, context: Context) -> Inbound | None:
        """Take in what ``sender`` says of its connection to this member; return its stream if it may have moved."""
        entry = self.incoming.get(sender)
        if isinstance(frame, Close):
            self._on_close(sender, frame.epoch, context)
            return None
        if entry is None or entry.stream.epoch != frame.epoch:
            entry = self._meet(sender, frame, context)
            if entry is None:
                return None
        if isinstance(frame, Data):
            if entry.touch(context.now_ns):
                context.event(Connected(sender, entry.state, False))
            entry.stream.on_data(frame.run, frame.repair, context)
        elif isinstance(frame, Tail):
            entry.stream.on_tail(frame, self.me, context)
        else:
            entry.stream.on_gone(frame.low)
        return entry.stream

    def _meet(self, sender: Address, frame: Data | Tail | Gone, context: Context) -> Incoming | None:
        """Decide about a frame of an epoch that is not the present one; return the entry if it is from now on."""
        epoch = frame.epoch
        ended = self._ended.get((sender, epoch))
        if ended is not None and not ended.revivable:
            context.drop("closed", sender, peer=sender)
            return None
        present = self.incoming.get(sender)
        older = present is not None and epoch < present.stream.epoch
        if ended is not None and not older:
            return self._open(sender, epoch, ended.resume, context)
        if isinstance(frame, Data) and frame.first and (not older or self._answered(sender, frame)):
            return self._open(sender, epoch, frame.run.first - 1, context)
        self._hold(sender, frame, context, older=older)
        return None

    def _answered(self, sender: Address, frame: Data) -> bool:
        """Return whether ``frame`` is the answer to the question for the first message of its epoch."""
        unknown = self._unknown.get(sender)
        return frame.repair and unknown is not None and unknown.epoch == frame.epoch and unknown.asked_ns is not None

    def _open(self, sender: Address, epoch: int, start: int, context: Context) -> Incoming:
        self._bury(sender, context, revivable=False)
        entry = self.incoming[sender] = Incoming(context.now_ns)
        entry.stream = Inbound(sender, self.config, self.config.unicast_row, self._rng, start, 0, epoch)
        self._ended.pop((sender, epoch), None)
        context.event(Connected(sender, entry.state, False))
        unknown = self._unknown.pop(sender, None)
        if unknown is not None and unknown.epoch == epoch:
            for frame in unknown.frames:
                entry.stream.on_data(frame.run, frame.repair, context)
        elif unknown is not None:
            self._drop_early(sender, unknown, context)
        return entry

    def _hold(self, sender: Address, frame: Data | Tail | Gone, context: Context, *, older: bool) -> None:
        """Keep a message that came before the first of its epoch, and plan to ask for that."""
        unknown = self._unknown.get(sender)
        if unknown is None or unknown.epoch != frame.epoch:
            if unknown is not None and (older or unknown.epoch > frame.epoch):
                context.drop("early", sender, peer=sender)
                return
            if unknown is not None:
                self._drop_early(sender, unknown, context)
            unknown = self._unknown[sender] = _Unknown(frame.epoch, context.now_ns + self.config.min_grace_ns)
        if not isinstance(frame, Data):
            return
        if older or (len(unknown.frames) >= self.config.become_server_queue_size and self.config.retransmits):
            context.drop("early", sender, frame.run.first, frame.run.last, peer=sender, message_count=frame.run.count)
        else:
            unknown.frames.append(frame)

    @staticmethod
    def _drop_early(sender: Address, unknown: _Unknown, context: Context) -> None:
        for frame in unknown.frames:
            run = frame.run
            context.drop("early", sender, run.first, run.last, peer=sender, message_count=run.count)

    def _on_close(self, sender: Address, epoch: int, context: Context) -> None:
        unknown = self._unknown.get(sender)
        if unknown is not None and unknown.epoch == epoch:
            self._drop_early(sender, self._unknown.pop(sender), context)
            return
        entry = self.incoming.get(sender)
        if entry is None or entry.stream.epoch != epoch:
            context.drop("connection", sender, peer=sender)
            return
        self._bury(sender, context, revivable=False)

    def on_own(self, sender: Address, frame: Ack | Nak, context: Context) -> None:
        """Take in what ``sender`` says of the connection from this member to it."""
        entry = self.outgoing.get(sender)
        if entry is None or entry.stream.epoch != frame.epoch:
            context.drop("connection", self.me, peer=sender)
            if isinstance(frame, Nak) and not frame.ranges:
                context.transmit(sender, Close(self.me, frame.epoch))
            return
        stream = entry.stream
        if isinstance(frame, Nak):
            stream.on_nak(sender, frame.ranges, context)
        else:
            low = stream.window.low
            stream.on_ack(sender, frame.seqno, frame.buffer_bytes, context)
            if stream.window.low > low:
                entry.since_ns = context.now_ns

    # Closing

    def close(self, peer: Address, context: Context) -> None:
        """Let the connection to ``peer`` come to its end: what is not acknowledged is still sent again."""
        entry = self.outgoing.get(peer)
        if entry is not None and entry.state is State.OPEN:
            self._begin_to_close(peer, entry, context)

    @staticmethod
    def _begin_to_close(peer: Address, entry: Outgoing | Incoming, context: Context) -> None:
        entry.state = State.CLOSING
        entry.since_ns = context.now_ns
        context.event(Connected(peer, entry.state, isinstance(entry, Outgoing)))

    def _end_outgoing(self, peer: Address, reason: str, context: Context, *, say: bool) -> None:
        """Remove the connection to ``peer``; report what was not acknowledged and what was not even sent."""
        entry = self.outgoing.pop(peer)
        entry.state = State.CLOSED
        stream = entry.stream
        for ticket in stream.queue.tickets:
            stream.give_up(ticket, reason, context)
        first, last = stream.end(context)
        if first <= last:
            context.event(Undelivered(peer, first, last))
        if say:
            context.transmit(peer, Close(self.me, stream.epoch))
        context.event(Connected(peer, entry.state, True))

    def _bury(self, peer: Address, context: Context, *, revivable: bool) -> None:
        """Remove the connection from ``peer``; deliver what is consecutive, and remember where it ended."""
        entry = self.incoming.pop(peer, None)
        if entry is None:
            return
        entry.state = State.CLOSED
        stream = entry.stream
        if discarded := stream.abandon(self._credit, context):
            context.event(Discarded(peer, discarded))
        if revivable and stream.owed.owed:
            stream.acknowledge(context)
        self._ended[peer, stream.epoch] = _Tombstone(stream.resume, revivable)
        if len(self._ended) > _MOST_TOMBSTONES:
            del self._ended[next(iter(self._ended))]
        context.event(Connected(peer, entry.state, False))

    def install(self, number: int, members: Iterable[Address], context: Context) -> None:
        """End the connections with those that have left."""
        self.view = number
        present = set(members)
        for peer in [peer for peer in self.outgoing if peer not in present]:
            self._end_outgoing(peer, "departed", context, say=False)
        for peer in [peer for peer in self.incoming if peer not in present]:
            self._bury(peer, context, revivable=True)
        for peer in [peer for peer in self._unknown if peer not in present]:
            self._drop_early(peer, self._unknown.pop(peer), context)
        for entry in self.outgoing.values():
            entry.stream.view = number

    # Every interval

    @property
    def reap_due_ns(self) -> int | None:
        """When the next connection comes into its next state."""
        entries: list[Outgoing | Incoming] = [*self.outgoing.values(), *self.incoming.values()]
        return min((due_ns for entry in entries if (due_ns := entry.due_ns(self.config)) is not None), default=None)

    def reap(self, context: Context) -> None:
        """Let idle connections close, and remove those that have been closing for long enough."""
        for peer, out in list(self.outgoing.items()):
            if self._is_due(out, context.now_ns):
                if out.state is State.OPEN:
                    self._begin_to_close(peer, out, context)
                else:
                    self._end_outgoing(peer, "closed", context, say=peer != self.me)
        for peer, entry in list(self.incoming.items()):
            if self._is_due(entry, context.now_ns):
                if entry.state is State.OPEN:
                    self._begin_to_close(peer, entry, context)
                else:
                    self._bury(peer, context, revivable=True)

    def _is_due(self, entry: _Entry, now_ns: int) -> bool:
        due_ns = entry.due_ns(self.config)
        return due_ns is not None and due_ns <= now_ns

    @property
    def ask_due_ns(self) -> int | None:
        """When a sender is to be asked for the first message of its connection."""
        return min((unknown.due_ns for unknown in self._unknown.values()), default=None)

    def ask(self, context: Context) -> None:
        """Ask for first messages, not more often than ``sync_min_interval`` (P-19); give up after a while (P-09)."""
        for peer, unknown in list(self._unknown.items()):
            if unknown.due_ns > context.now_ns:
                continue
            if unknown.tries >= _MOST_QUESTIONS or not self.config.retransmits:
                self._drop_early(peer, self._unknown.pop(peer), context)
                continue
            unknown.tries += 1
            unknown.asked_ns = context.now_ns
            unknown.due_ns = context.now_ns + self.config.sync_min_interval_ns
            context.count("first.asked")
            context.transmit(peer, Nak(peer, (), unknown.epoch))

    def retune(self, config: Config, now_ns: int) -> None:
        """Go on with retransmission switched on or off."""
        self.config = config
        for outbound in self.outbounds():
            outbound.retune(config, now_ns)
        for inbound in self.inbounds():
            inbound.retune(config, now_ns)

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times; the epochs are numbered by age."""
        out = tuple(
            (to, entry.state, entry.stream.epoch, entry.stream.snapshot()) for to, entry in self.outgoing.items()
        )
        into = tuple(
            (origin, entry.state, entry.stream.epoch, entry.stream.snapshot())
            for origin, entry in self.incoming.items()
        )
        held = tuple((peer, unknown.epoch, *unknown.frames) for peer, unknown in self._unknown.items())
        return (out, into, held, tuple(self._ended.items()), self._last_epoch)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says, with every rest over."""
        out, into, held, ended, self._last_epoch = snapshot  # type: ignore[assignment]
        self.outgoing, self.incoming, self._unknown = {}, {}, {}
        row = self.config.unicast_row
        for to, state, epoch, stream in out:  # type: ignore[attr-defined]
            sending = self.outgoing[to] = Outgoing(0)
            sending.state, sending.stream = state, Outbound(self.me, self.config, row, self._tickets, epoch, to)
            sending.stream.view = self.view
            sending.stream.connect()
            sending.stream.restore(stream)
        for origin, state, epoch, stream in into:  # type: ignore[attr-defined]
            receiving = self.incoming[origin] = Incoming(0)
            receiving.state, receiving.stream = state, Inbound(origin, self.config, row, self._rng, 0, 0, epoch)
            receiving.stream.restore(stream)
        for peer, epoch, *frames in held:  # type: ignore[attr-defined]
            unknown = self._unknown[peer] = _Unknown(epoch, 0)
            unknown.frames = list(frames)
        self._ended = dict(ended)  # type: ignore[call-overload]
