"""The machine: one member of one group.

Every input (a datagram, a send, a view, the time) returns one ``Ready``; nothing is called back.
Time, randomness and bytes come in from outside, so the same code runs over sockets, in the
simulator and in exhaustive search.

On sending: to the group outbound.py, to one member unicast.py, beside the stream aside.py.

On reception: the datagram is decoded; what is not for this group, or not from a member in its
present incarnation, is a counted drop that changes nothing; then each frame goes to the stream it
speaks of.

On a view: departed members' streams end, their remaining consecutive messages are delivered, and
what lies behind a gap is counted as discarded (I-08). New members' streams start where the digest
says, or else where their sender says: it tells them (I-22), and they ask until it has. Where
numbers restart with every view, so do all streams.

Every interval: see timers.py; each timer is handled by the part that it belongs to.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from gapless.delivery_mode import Mode
from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, Marks
from gapless.payloads import Payloads
from gapless.protocol import buggify, timers
from gapless.protocol.dispatch import ACTIVE_NS, Streams
from gapless.protocol.ready import Discarded, Ready, Refused, Undelivered, ViewInstalled
from gapless.protocol.ready_builder import RECEIVED, Context
from gapless.protocol.stream.durable_retention import check_places
from gapless.protocol.stream.inbound import UNKNOWN, Inbound
from gapless.protocol.stream.outbound import Outbound
from gapless.run import ACKED, NOT_BACK
from gapless.wire.codec import decode
from gapless.wire.frames import (
    CONNECTION,
    Ack,
    Close,
    Data,
    Gone,
    Membership,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    State,
    Tail,
    Unreliable,
    Vote,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gapless.config import Config
    from gapless.identity import Address, Digest, View
    from gapless.wire.frames import Datagram, Frame

_NOBODY: Mapping[Any, Address] = MappingProxyType({})
_WAKE_XMIT_INTERVAL_NS = 500_000_000
"""The interval with which a stall switches retransmission on, or the least that the other knobs allow."""


class Member(Streams):
    """One member: give it inputs, work through the ``Ready`` that each returns."""

    timed: ClassVar[dict[str, Callable[..., None]]]
    """What each timer does."""

    # Inputs of the application

    def send(
        self,
        payloads: Sequence[bytes],
        now_ns: int,
        *,
        to: Address | None = None,
        mode: Mode | None = None,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> Ready:
        """Send messages to the group, or to one member, in this order; ``ticket`` of the answer names the send.

        With ``wait=False`` all of them are taken at once or none is. ``loopback``: whether the
        sender gets them too.
        """
        switched = self._next_mode if mode is None and to is None else None
        mode = Mode.of(mode or switched or Mode.ORDERED)
        payloads = Payloads.of(payloads)
        self._check_payloads(payloads, to, mode)
        if switched is not None and len(payloads) != 1:
            raise LocalProtocolError(
                "a switch of the mode holds for one message: send that one alone"
            )
        if timeout_ns is not None and timeout_ns < 0:
            raise LocalProtocolError(
                f"a timeout of {timeout_ns} ns is over before it begins: use wait=False"
            )
        self._begin(now_ns)
        if loopback is None:
            loopback = self.config.loopback or to is not None
        flags = 0 if loopback else NOT_BACK
        deadline_ns = None if timeout_ns is None else now_ns + timeout_ns
        if mode in {Mode.OUT_OF_BAND, Mode.UNRELIABLE}:
            ticket = self._send_aside(payloads, flags, to, mode, deadline_ns, wait=wait)
        else:
            flags |= ACKED if mode is Mode.ACKNOWLEDGED else 0
            ticket = self._send_stream(payloads, flags, to, deadline_ns, wait=wait)
        if deadline_ns is not None:
            self._arm_timeout()
        ready = self._finish_streams(())
        ready.ticket = ticket
        if switched is not None and not any(isinstance(event, Refused) for event in ready.events):
            self._next_mode = None
        return ready

    def _send_stream(
        self,
        payloads: Payloads,
        flags: int,
        to: Address | None,
        deadline_ns: int | None,
        *,
        wait: bool,
    ) -> int:
        context = self._context
        stream = self.outbound if to is None else self.connections.open(to, context)
        if to is None:
            if wait and context.now_ns - self._sent_ns >= ACTIVE_NS:
                self._resumed_ns = context.now_ns  # what must not wait is not refused for that
            self._sent_ns = context.now_ns
        self._share_buffers(context.now_ns)
        if to not in {None, self.me}:
            flags &= ~NOT_BACK
        if wait or (stream.make_room(payloads, context) and not context.rarely(buggify.REFUSE)):
            high = stream.window.high
            ticket = stream.send(payloads, flags, deadline_ns, context)
            if to is not None and stream.window.high > high:
                self.connections.touch(to, context)
            return ticket
        ticket = self._tickets.take()
        context.event(Refused(ticket))
        return ticket

    def _send_aside(
        self,
        payloads: Sequence[bytes],
        flags: int,
        to: Address | None,
        mode: Mode,
        deadline_ns: int | None,
        *,
        wait: bool,
    ) -> int:
        context, ticket = self._context, self._tickets.take()
        if mode is Mode.UNRELIABLE:
            self.aside.send_unreliable(ticket, payloads, flags, to, context)
        elif wait or self.aside.has_room(payloads):
            self.aside.send(ticket, payloads, flags, to, deadline_ns, context)
        else:
            context.event(Refused(ticket))
        return ticket

    def switch(self, mode: Mode) -> None:
        """Let the next message to the group, and only that one, be sent in ``mode`` (OL-04).

        A message that names a mode itself, one to a single member (OL-21), and one that is refused
        do not use it up.
        """
        self._next_mode = Mode.of(mode)

    def cancel(self, ticket: int, now_ns: int) -> Ready:
        """Give up a waiting send; without a GivenUp event in the answer it was accepted before."""
        self._give_up(ticket, "cancel", self._begin(now_ns))
        return self._finish(())

    def _give_up(self, ticket: int, reason: str, context: Context) -> None:
        for stream in self._outbounds():
            if stream.give_up(ticket, reason, context):
                stream.flush(context, reason)
                return
        self.aside.give_up(ticket, reason, context)

    def close(self, peer: Address, now_ns: int) -> Ready:
        """Let the connection to ``peer`` end when it has been idle for a while; sending to it opens it again."""
        self.connections.close(peer, self._begin(now_ns))
        return self._finish(())

    def consumed(self, messages: int, now_ns: int) -> Ready:
        """Note that the application is done with messages it was handed: there is room for as many more.

        Streams that wait for room, the own one among them, take turns: who was served goes to the
        end of the line.
        """
        if messages < 0:
            raise LocalProtocolError(
                f"{messages} messages cannot have been consumed: report how many were"
            )
        context = self._begin(now_ns)
        self._credit.refund(messages)
        self._deliver_stalled(context)
        return self._finish_streams(())

    def set_xmit_interval(self, xmit_interval_ns: int, now_ns: int) -> Ready:
        """Switch retransmission off (0 or less) or on at run time; what is queued or missing is not lost by it."""
        self._begin(now_ns)
        self._retune(self.config.replace(xmit_interval=f"{max(0, xmit_interval_ns)}ns"))
        return self._finish(())

    def _retune(self, config: Config) -> None:
        now_ns = self._context.now_ns
        self.config = self.aside.config = self.early.config = config
        self.outbound.retune(config, now_ns)
        self.connections.retune(config, now_ns)
        for stream in self.inbound.values():
            stream.retune(config, now_ns)
        self._timers.arm(timers.GAP, None)
        self._arm_gap(self._inbounds())

    # Inputs of the network and the clock

    def receive(self, datagram: bytes, now_ns: int) -> Ready:
        """Take in a datagram, whatever it holds."""
        try:
            said = decode(datagram)
        except RemoteProtocolError as error:
            return self._refuse(error.reason, now_ns)
        return self.hear(said, now_ns)

    def _refuse(self, reason: str, now_ns: int) -> Ready:
        """Count what cannot be understood, and do nothing else, not even what happens to be due."""
        self._begin(now_ns).drop(reason)
        return self._context.ready(self._timers.next_ns)

    def hear(self, said: Datagram, now_ns: int) -> Ready:
        """Take in what a datagram says, which somebody has decoded already."""
        context = self._begin(now_ns)
        sender = said.sender
        stream = self.inbound.get(sender)
        if said.group != self.group:
            context.drop("group", peer=sender)
        elif said.addressee is not None and said.addressee != self.me.incarnation:
            context.drop("addressee", peer=sender)
        elif stream is None:
            self._on_stranger(said, context)
        else:
            return self._finish(self._take_in(said, stream, context))
        return self._finish(())

    def _on_stranger(self, said: Datagram, context: Context) -> None:
        sender = said.sender
        if sender == self.me:
            context.drop("own", peer=sender)
        elif self.early.keep(said, departed=self.view is not None and sender in self._former):
            context.step("EARLY", sender, peer=sender)
        elif not self._keep_of_joiner(said, context):
            context.drop("incarnation" if sender.node in self._nodes else "stranger", peer=sender)

    def _keep_of_joiner(self, said: Datagram, context: Context) -> bool:
        """Keep what one who is to join sent in a later view, where messages belong to views; return whether it is."""
        if self.view is None or self.row.numbering != "view":
            return False
        found = [
            frame
            for frame in said.frames
            if isinstance(frame, Data) and self._epoch < frame.epoch < CONNECTION
        ]
        kept = [
            frame
            for frame in found
            if frame.run.origin == said.sender and self.early.keep_later(frame)
        ]
        for frame in kept:
            context.step("EARLY", said.sender, frame.run.first, frame.run.last, peer=said.sender)
        return bool(kept)

    def _take_in(self, said: Datagram, stream: Inbound, context: Context) -> Iterable[Inbound]:
        """Let every frame have its effect; return the streams that may have moved."""
        sender, frames = said.sender, said.frames
        if len(frames) == 1:
            moved = self._on_frame(frames[0], sender, stream, context)
            return () if moved is None else (moved,)
        touched: dict[tuple[Address, int], Inbound] = {}
        for frame in self.connections.in_order(frames):
            if (moved := self._on_frame(frame, sender, stream, context)) is not None:
                touched[moved.key] = moved
        return touched.values()

    def _on_frame(
        self, frame: Frame, sender: Address, stream: Inbound, context: Context
    ) -> Inbound | None:
        """Let a frame have its effect; return the stream that it spoke of and that may have moved."""
        if isinstance(frame, Data):
            return self._on_data(frame, sender, stream, context)
        if isinstance(frame, Ack):
            self._on_own_stream(frame, sender, context)
            return None
        if isinstance(frame, (Nak, OutOfBandAck)):
            if frame.origin == self.me:
                self._on_own_stream(frame, sender, context)
            else:
                self._on_nak_for_another(frame, sender, context)
            return None
        return self._on_other(frame, sender, stream, context)

    def _on_data(
        self, frame: Data, sender: Address, stream: Inbound, context: Context
    ) -> Inbound | None:
        origin, epoch = frame.run.origin, frame.epoch
        if origin != sender:
            # Somebody who holds the message repairs it in the place of its origin.
            holding = (
                self.inbound.get(origin)
                if frame.repair and stream.keeps and epoch < CONNECTION
                else None
            )
            if holding is None:
                context.drop("origin", origin, peer=sender)
                return None
            stream = holding
        if epoch != self._epoch:
            if epoch >= CONNECTION:
                context.count(RECEIVED[Data])
                self._active[sender] = context.now_ns
                return self.connections.on_frame(sender, frame, context)
            self._on_other_view(frame, context)
            return None
        context.count(RECEIVED[Data])
        self._active[sender] = context.now_ns
        stream.on_data(frame.run, frame.repair, context)
        return stream

    def _on_other_view(self, frame: Data, context: Context) -> None:
        """Keep a message of a later view until that view; drop one of an earlier view (OL-06, OL-07)."""
        run = frame.run
        if (
            self.row.numbering == "view"
            and frame.epoch > self._epoch
            and self.early.keep_later(frame)
        ):
            context.step("EARLY", run.origin, run.first, run.last, peer=run.origin)
            return
        reason = "early" if frame.epoch > self._epoch and self.row.numbering == "view" else "view"
        context.drop(
            reason, run.origin, run.first, run.last, peer=run.origin, message_count=run.count
        )

    def _on_other(
        self, frame: Frame, sender: Address, stream: Inbound, context: Context
    ) -> Inbound | None:
        assert not isinstance(frame, (Data, Ack, Nak, OutOfBandAck))
        if isinstance(frame, (Membership, State)):
            context.drop(
                "membership", peer=sender
            )  # This member is told its views, and does not look for them.
            return None
        aside = isinstance(frame, (OutOfBand, Unreliable))
        origin = frame.run.origin if isinstance(frame, (OutOfBand, Unreliable)) else frame.origin
        if origin != sender:
            context.drop("origin", origin, peer=sender)
            return None
        if not aside and not isinstance(frame, (Vote, Stable)):
            assert isinstance(frame, (Tail, Gone, Close))
            return self._on_marks(frame, sender, stream, context)
        context.count(RECEIVED[type(frame)])
        if isinstance(frame, OutOfBand):
            self.aside.on_message(frame, context)
        elif isinstance(frame, Unreliable):
            self.aside.on_unreliable(frame, context)
        elif self.stability is None:
            context.drop("stability", origin, peer=sender)
        elif isinstance(frame, Vote):
            self._on_stable(self.stability.on_vote(sender, frame, self._marks, context), context)
        elif isinstance(frame, Stable) and self.stability.accepts(sender, frame, context):
            self._on_stable(frame.progress, context)
        return None

    def _on_marks(
        self, frame: Tail | Gone | Close, sender: Address, stream: Inbound, context: Context
    ) -> Inbound | None:
        epoch = frame.epoch
        if epoch < CONNECTION and epoch != self._epoch:
            context.drop("other view", sender, peer=sender)
            return None
        context.count(RECEIVED[type(frame)])
        if epoch >= CONNECTION or isinstance(frame, Close):
            return self.connections.on_frame(sender, frame, context)
        if isinstance(frame, Tail):
            stream.on_tail(frame, self.me, context)
        else:
            stream.on_gone(frame.low)
        return stream

    def _on_own_stream(
        self, frame: Ack | Nak | OutOfBandAck, sender: Address, context: Context
    ) -> None:
        """Take in what ``sender`` says of a stream of this member."""
        origin = frame.origin
        if origin != self.me:
            context.drop(
                "not mine" if origin.node != self.me.node else "incarnation", origin, peer=sender
            )
            return
        epoch = 0 if isinstance(frame, OutOfBandAck) else frame.epoch
        if epoch != self._epoch and epoch < CONNECTION and not isinstance(frame, OutOfBandAck):
            context.drop("other view", origin, peer=sender)
            return
        context.count(RECEIVED[type(frame)])
        if isinstance(frame, OutOfBandAck):
            self.aside.on_ack(sender, frame.ranges, context)
        elif epoch >= CONNECTION:
            self.connections.on_own(sender, frame, context)
        elif isinstance(frame, Nak):
            self.outbound.on_nak(sender, frame.ranges, context)
        else:
            if len(self.outbound.queue):
                self._share_buffers(context.now_ns)
            self.outbound.on_ack(sender, frame.seqno, frame.buffer_bytes, context)

    def _on_nak_for_another(
        self, frame: Nak | OutOfBandAck, sender: Address, context: Context
    ) -> None:
        """Repair a message of another member that is held here, if this profile holds any."""
        held = self.inbound.get(frame.origin)
        if (
            held is None
            or not held.keeps
            or isinstance(frame, OutOfBandAck)
            or frame.epoch != self._epoch
        ):
            origin = frame.origin
            context.drop(
                "not mine" if origin.node != self.me.node else "incarnation", origin, peer=sender
            )
            return
        context.count(RECEIVED[Nak])
        held.answer(sender, frame.ranges, context)

    def tick(self, now_ns: int) -> Ready:
        """Fire every timer that is due."""
        self._begin(now_ns)
        self._share_buffers(now_ns)
        for name in self._timers.due(now_ns):
            self._fire(name)
        return self._finish(())

    def fire(self, name: str, now_ns: int) -> Ready:
        """Fire one timer alone; what hangs on it and is not due yet stays."""
        self._begin(now_ns)
        self._fire(name)
        return self._finish(())

    def _fire(self, name: str) -> None:
        self._context.step("TIMER", self.me, reason=name)
        self._timers.arm(name, None)
        self.timed[name](self, self._context)

    def _send_acks(self, context: Context) -> None:
        if self._owing and context.rarely(buggify.LATE_ACK):
            self._timers.arm(timers.ACK, context.now_ns + max(self.config.ack_delay_ns, 1))
            return
        owing, self._owing = self._owing, {}
        for key, stream in owing.items():
            if (rest_ns := stream.owed.rest_ns(context.now_ns)) is None:
                self._acknowledge(stream, context)
            else:
                self._owing[key] = stream
                self._timers.arm_sooner(timers.ACK, rest_ns)

    def _ask(self, context: Context) -> None:
        """Pass over the gaps of every stream; a stall may switch retransmission on."""
        stalls = context.counters.get("stalls", 0)
        others: list[Address] = []
        if self.config.xmit_from_random_member and self.view is not None:
            others = [member for member in self.view.members if member != self.me]
        for stream in self.inbound.values():
            stream.ask(context, others if stream.keeps else ())
        for stream in self.connections.inbounds():
            stream.ask(context)
        self.connections.ask(context)
        if self.config.on_stall == "retransmit" and context.counters.get("stalls", 0) > stalls:
            config = self.config
            interval_ns = max(_WAKE_XMIT_INTERVAL_NS, config.min_grace_ns, config.min_retry_ns)
            self._retune(config.replace(xmit_interval=f"{interval_ns}ns"))
        self._arm_gap(self._inbounds())

    def _announce(self, context: Context) -> None:
        for stream in self._outbounds():
            stream.announce(context)

    def _name_pinners(self, context: Context) -> None:
        for stream in self._outbounds():
            stream.name_pinners(context, self.stability)

    def _time_out(self, context: Context) -> None:
        for stream in self._outbounds():
            for ticket in stream.queue.overdue(context.now_ns):
                stream.give_up(ticket, "timeout", context)
            stream.flush(context, "timeout")
        for ticket in self.aside.overdue(context.now_ns):
            self.aside.give_up(ticket, "timeout", context)
        self._arm_timeout()

    def _arm_timeout(self) -> None:
        deadlines = [stream.queue.deadline_ns for stream in self._outbounds()]
        deadlines.append(self.aside.deadline_ns)
        self._timers.arm(
            timers.TIMEOUT, min((at_ns for at_ns in deadlines if at_ns is not None), default=None)
        )

    # On a view

    def install(
        self,
        view: View,
        now_ns: int,
        digest: Digest | None = None,
        *,
        kept: Mapping[str, Address] = _NOBODY,
        back: Mapping[Address, Address] = _NOBODY,
    ) -> Ready:
        """Become a member of ``view``; streams in ``digest`` start behind what it says was delivered (N7-21, N7-22).

        ``kept``: the durable names of those that are away, with the last address of each; ``back``:
        members of this view that take over the place of the last address that this member knew
        under their name (docs/durable.md).
        """
        restart = self.row.numbering == "view"
        if self.me not in view.members:
            raise LocalProtocolError(f"view {view.id.number} does not contain {self.me}")
        if not 0 <= view.id.number <= U32_MAX:
            raise LocalProtocolError(
                f"view number {view.id.number} does not fit the wire: it has 32 bits"
            )
        if self.view is not None and view.id <= self.view.id:
            raise LocalProtocolError(
                f"view {view.id.number} is not newer than view {self.view.id.number}"
            )
        if self.view is not None and restart and view.id.number == self.view.id.number:
            raise LocalProtocolError(
                f"view {view.id.number} is here: numbers restart with a view, so its own has to rise"
            )
        check_places(view, kept, back, self.row)
        context = self._begin(now_ns)
        first_view = self.view is None
        self._durable = self._durable or (self.me in back and self.row.release == "acks")
        self.view = view
        self._nodes = frozenset(member.node for member in view.members)
        here = frozenset(view.members)
        for origin in [origin for origin in self.inbound if restart or origin not in here]:
            self._forget(origin, context)
        if restart:
            self._restart(view, context)
            digest = dict.fromkeys(view.members, Marks(0, 0, 0))
        context.step("VIEW", self.me, last=view.id.number)
        context.begin_view(ViewInstalled(view))
        joined = [
            member for member in view.members if member != self.me and member not in self.inbound
        ]
        for origin in joined:
            self._welcome(origin, digest or {}, context)
        self._install_parts(view, context, kept, back)
        # Whoever has the same digest knows this start, and who has none asks; where nobody asks,
        # all must be told.
        known = first_view and digest is not None and self.config.retransmits
        if not restart and not known:
            self._greet(joined, context)
        return self._finish(self._replay(context))

    def _greet(self, joined: Iterable[Address], context: Context) -> None:
        """Tell new members where the own stream starts for them."""
        for origin in joined:
            self.outbound.welcome(origin, context)

    def _install_parts(
        self,
        view: View,
        context: Context,
        kept: Mapping[str, Address],
        back: Mapping[Address, Address],
    ) -> None:
        if self.stability is not None:
            self.stability.install(view)
            self.outbound.forget_stable()
            for stream in self.inbound.values():
                stream.stable = 0
        self.aside.install(view.id.number, view.members, context)
        self.connections.install(view.id.number, view.members, context)
        self.outbound.install(view.id.number, view.members, context, kept, back)

    def _restart(self, view: View, context: Context) -> None:
        """Begin all numbers anew; what the view before has not made stable is not repaired any more, and said so."""
        before = self.outbound
        self._deliver_own(context, whatever_room=True)
        first, last = before.end_view(view.members, context)
        if first <= last:
            context.event(Undelivered(None, first, last))
        self._epoch = view.id.number
        self._own_pieces.clear()
        self.outbound = Outbound(self.me, self.config, self.row, self._tickets, self._epoch)
        self.outbound.follow(before)
        self._former.clear()
        self._traced.clear()

    def _replay(self, context: Context) -> Iterable[Inbound]:
        """Take in what came before this view; return the streams that may have moved."""
        touched: dict[tuple[Address, int], Inbound] = {}
        assert self.view is not None
        for said in self.early.take(self.view, context, whatever_view=self._durable):
            moved = self._take_in(said, self.inbound[said.sender], context)
            touched.update((stream.key, stream) for stream in moved)
        for frame in self.early.take_later(self._epoch, self.inbound, context):
            stream = self.inbound[frame.run.origin]
            stream.on_data(frame.run, frame.repair, context)
            touched[stream.key] = stream
        return touched.values()

    def _forget(self, origin: Address, context: Context) -> None:
        stream = self.inbound.pop(origin)
        for table in (self._owing, self._stalled):
            table.pop(stream.key, None)
        self._active.pop(origin, None)
        self._traced.pop(origin, None)
        if discarded := stream.abandon(self._credit, context):
            context.event(Discarded(origin, discarded))
        if stream.window is not None or stream.former is not None:
            self._former[origin] = stream.resume
            if stream.stored is not None and self._stored is not None:
                self._stored[origin] = stream.stored
        if len(self._former) > self._most_former:
            oldest = next(iter(self._former))
            del self._former[oldest]
            if self._stored is not None:
                self._stored.pop(oldest, None)

    def _welcome(self, origin: Address, digest: Digest, context: Context) -> None:
        # Only its sender knows where a durable member goes on.
        marks = None if self._durable else digest.get(origin)
        start, former = None if marks is None else marks.delivered, self._former.pop(origin, None)
        stored = None if self._stored is None else self._stored.pop(origin, UNKNOWN)
        stream = Inbound(
            origin,
            self.config,
            self.row,
            self._rng,
            start,
            former,
            self._epoch,
            durable=self._durable,
            stored=stored,
        )
        self.inbound[origin] = stream
        if marks is None:
            stream.gaps.notice(0, context.now_ns)
        else:
            context.step("START", origin, stream.start + 1, peer=origin, epoch=self._epoch)
            stream.hint(marks.high)
            stream.look_for_gaps(context.now_ns)
        self._arm_gap((stream,))


Member.timed = {
    timers.ACK: Member._send_acks,
    timers.GAP: Member._ask,
    timers.TAIL: Member._announce,
    timers.TIMEOUT: Member._time_out,
    timers.PIN: Member._name_pinners,
    timers.STABLE: Member._vote,
    timers.ASIDE: lambda member, context: member.aside.resend(context),
    timers.REAP: lambda member, context: member.connections.reap(context),
}
