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

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, Marks
from gapless.payloads import Payloads
from gapless.protocol import buggify, timers
from gapless.protocol.dispatch import ACTIVE_SENDER_NS, StreamEndpoint
from gapless.protocol.events import Discarded, Refused, Undelivered, ViewInstalled
from gapless.protocol.ready import Ready
from gapless.protocol.ready_builder import RECEIVED_COUNTERS, ReadyBuilder
from gapless.protocol.stream.durable_retention import check_retention
from gapless.protocol.stream.inbound import STORED_UNKNOWN, InboundStream
from gapless.protocol.stream.outbound import OutboundStream
from gapless.run import ACKED, NO_LOOPBACK
from gapless.wire.codec import decode
from gapless.wire.frames import (
    FIRST_CONNECTION_EPOCH,
    Ack,
    Close,
    Data,
    Gone,
    MembershipFrame,
    Nak,
    OutOfBand,
    OutOfBandAck,
    Stable,
    StateFrame,
    Tail,
    Unreliable,
    Vote,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gapless.config import Config
    from gapless.identity import Address, Digest, View
    from gapless.wire.frames import Datagram, Frame

_NO_ADDRESSES: Mapping[Any, Address] = MappingProxyType({})
_STALL_XMIT_INTERVAL_NS = 500_000_000
"""The interval with which a stall switches retransmission on, or the least that the other knobs allow."""


class Endpoint(StreamEndpoint):
    """One member: give it inputs, work through the ``Ready`` that each returns."""

    timer_handlers: ClassVar[dict[str, Callable[..., None]]]
    """What each timer does."""

    # Inputs of the application

    def send(
        self,
        payloads: Sequence[bytes],
        now_ns: int,
        *,
        to: Address | None = None,
        mode: DeliveryMode | None = None,
        wait: bool = True,
        timeout_ns: int | None = None,
        loopback: bool | None = None,
    ) -> Ready:
        """Send messages to the group, or to one member, in this order; ``ticket`` of the answer names the send.

        With ``wait=False`` all of them are taken at once or none is. ``loopback``: whether the
        sender gets them too.
        """
        switched = self._next_mode if mode is None and to is None else None
        mode = DeliveryMode.of(mode or switched or DeliveryMode.ORDERED)
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
        flags = 0 if loopback else NO_LOOPBACK
        deadline_ns = None if timeout_ns is None else now_ns + timeout_ns
        if mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}:
            ticket = self._send_unordered(payloads, flags, to, mode, deadline_ns, wait=wait)
        else:
            flags |= ACKED if mode is DeliveryMode.ACKNOWLEDGED else 0
            ticket = self._send_stream(payloads, flags, to, deadline_ns, wait=wait)
        if deadline_ns is not None:
            self._arm_send_timeout()
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
        out = self._out
        stream = self.outbound if to is None else self.connections.open(to, out)
        if to is None:
            if wait and out.now_ns - self._last_send_ns >= ACTIVE_SENDER_NS:
                self._resumed_ns = out.now_ns  # what must not wait is not refused for that
            self._last_send_ns = out.now_ns
        self._divide_receive_buffers(out.now_ns)
        if to not in {None, self.me}:
            flags &= ~NO_LOOPBACK
        if wait or (stream.make_room(payloads, out) and not out.rarely(buggify.REFUSE)):
            high = stream.window.high
            ticket = stream.send(payloads, flags, deadline_ns, out)
            if to is not None and stream.window.high > high:
                self.connections.touch(to, out)
            return ticket
        ticket = self._tickets.next_ticket()
        out.emit(Refused(ticket))
        return ticket

    def _send_unordered(
        self,
        payloads: Sequence[bytes],
        flags: int,
        to: Address | None,
        mode: DeliveryMode,
        deadline_ns: int | None,
        *,
        wait: bool,
    ) -> int:
        out, ticket = self._out, self._tickets.next_ticket()
        if mode is DeliveryMode.UNRELIABLE:
            self.out_of_band.send_unreliable(ticket, payloads, flags, to, out)
        elif wait or self.out_of_band.has_room(payloads):
            self.out_of_band.send(ticket, payloads, flags, to, deadline_ns, out)
        else:
            out.emit(Refused(ticket))
        return ticket

    def set_next_mode(self, mode: DeliveryMode) -> None:
        """Let the next message to the group, and only that one, be sent in ``mode`` (OL-04).

        A message that names a mode itself, one to a single member (OL-21), and one that is refused
        do not use it up.
        """
        self._next_mode = DeliveryMode.of(mode)

    def cancel(self, ticket: int, now_ns: int) -> Ready:
        """Give up a waiting send; without a GivenUp event in the answer it was accepted before."""
        self._give_up(ticket, "cancel", self._begin(now_ns))
        return self._finish(())

    def _give_up(self, ticket: int, reason: str, out: ReadyBuilder) -> None:
        for stream in self._outbounds():
            if stream.give_up(ticket, reason, out):
                stream.flush(out, reason)
                return
        self.out_of_band.give_up(ticket, reason, out)

    def close_connection(self, peer: Address, now_ns: int) -> Ready:
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
        out = self._begin(now_ns)
        self._credit.refund(messages)
        self._deliver_awaiting_credit(out)
        return self._finish_streams(())

    def set_xmit_interval(self, xmit_interval_ns: int, now_ns: int) -> Ready:
        """Switch retransmission off (0 or less) or on at run time; what is queued or missing is not lost by it."""
        self._begin(now_ns)
        self._apply_config(self.config.replace(xmit_interval=f"{max(0, xmit_interval_ns)}ns"))
        return self._finish(())

    def _apply_config(self, config: Config) -> None:
        now_ns = self._out.now_ns
        self.config = self.out_of_band.config = self.future_view_buffer.config = config
        self.outbound.apply_config(config, now_ns)
        self.connections.apply_config(config, now_ns)
        for stream in self.inbound.values():
            stream.apply_config(config, now_ns)
        self._timers.arm(timers.GAP, None)
        self._arm_gap_timer(self._inbounds())

    # Inputs of the network and the clock

    def receive(self, datagram: bytes, now_ns: int) -> Ready:
        """Take in a datagram, whatever it holds."""
        try:
            said = decode(datagram)
        except RemoteProtocolError as error:
            return self._drop_undecodable(error.reason, now_ns)
        return self.receive_decoded(said, now_ns)

    def _drop_undecodable(self, reason: str, now_ns: int) -> Ready:
        """Count what cannot be understood, and do nothing else, not even what happens to be due."""
        self._begin(now_ns).drop(reason)
        return self._out.build(self._timers.next_ns)

    def receive_decoded(self, datagram: Datagram, now_ns: int) -> Ready:
        """Take in what a datagram says, which somebody has decoded already."""
        out = self._begin(now_ns)
        sender = datagram.sender
        stream = self.inbound.get(sender)
        if datagram.group != self.group:
            out.drop("group", peer=sender)
        elif datagram.addressee is not None and datagram.addressee != self.me.incarnation:
            out.drop("addressee", peer=sender)
        elif stream is None:
            self._on_stranger(datagram, out)
        else:
            return self._finish(self._handle_frames(datagram, stream, out))
        return self._finish(())

    def _on_stranger(self, said: Datagram, out: ReadyBuilder) -> None:
        sender = said.sender
        if sender == self.me:
            out.drop("own", peer=sender)
        elif self.future_view_buffer.buffer_datagram(
            said, departed=self.view is not None and sender in self._departed_marks
        ):
            out.trace("EARLY", sender, peer=sender)
        elif not self._buffer_from_joiner(said, out):
            out.drop("incarnation" if sender.node in self._nodes else "stranger", peer=sender)

    def _buffer_from_joiner(self, said: Datagram, out: ReadyBuilder) -> bool:
        """Keep what one who is to join sent in a later view, where messages belong to views; return whether it is."""
        if self.view is None or self.profile.numbering != "view":
            return False
        found = [
            frame
            for frame in said.frames
            if isinstance(frame, Data) and self._epoch < frame.epoch < FIRST_CONNECTION_EPOCH
        ]
        kept = [
            frame
            for frame in found
            if frame.run.origin == said.sender and self.future_view_buffer.buffer_frame(frame)
        ]
        for frame in kept:
            out.trace("EARLY", said.sender, frame.run.first, frame.run.last, peer=said.sender)
        return bool(kept)

    def _handle_frames(
        self, said: Datagram, stream: InboundStream, out: ReadyBuilder
    ) -> Iterable[InboundStream]:
        """Let every frame have its effect; return the streams that may have moved."""
        sender, frames = said.sender, said.frames
        if len(frames) == 1:
            moved = self._on_frame(frames[0], sender, stream, out)
            return () if moved is None else (moved,)
        touched: dict[tuple[Address, int], InboundStream] = {}
        for frame in self.connections.opening_first(frames):
            if (moved := self._on_frame(frame, sender, stream, out)) is not None:
                touched[moved.key] = moved
        return touched.values()

    def _on_frame(
        self, frame: Frame, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        """Let a frame have its effect; return the stream that it spoke of and that may have moved."""
        if isinstance(frame, Data):
            return self._on_data(frame, sender, stream, out)
        if isinstance(frame, Ack):
            self._on_own_stream(frame, sender, out)
            return None
        if isinstance(frame, (Nak, OutOfBandAck)):
            if frame.origin == self.me:
                self._on_own_stream(frame, sender, out)
            else:
                self._on_nak_for_another(frame, sender, out)
            return None
        return self._on_other_frame(frame, sender, stream, out)

    def _on_data(
        self, frame: Data, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        origin, epoch = frame.run.origin, frame.epoch
        if origin != sender:
            # Somebody who holds the message repairs it in the place of its origin.
            holding = (
                self.inbound.get(origin)
                if frame.repair and stream.retains_delivered and epoch < FIRST_CONNECTION_EPOCH
                else None
            )
            if holding is None:
                out.drop("origin", origin, peer=sender)
                return None
            stream = holding
        if epoch != self._epoch:
            if epoch >= FIRST_CONNECTION_EPOCH:
                out.count(RECEIVED_COUNTERS[Data])
                self._active_senders[sender] = out.now_ns
                return self.connections.on_frame(sender, frame, out)
            self._on_other_view(frame, out)
            return None
        out.count(RECEIVED_COUNTERS[Data])
        self._active_senders[sender] = out.now_ns
        stream.on_data(frame.run, frame.repair, out)
        return stream

    def _on_other_view(self, frame: Data, out: ReadyBuilder) -> None:
        """Keep a message of a later view until that view; drop one of an earlier view (OL-06, OL-07)."""
        run = frame.run
        if (
            self.profile.numbering == "view"
            and frame.epoch > self._epoch
            and self.future_view_buffer.buffer_frame(frame)
        ):
            out.trace("EARLY", run.origin, run.first, run.last, peer=run.origin)
            return
        reason = (
            "early" if frame.epoch > self._epoch and self.profile.numbering == "view" else "view"
        )
        out.drop(reason, run.origin, run.first, run.last, peer=run.origin, message_count=run.count)

    def _on_other_frame(
        self, frame: Frame, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        assert not isinstance(frame, (Data, Ack, Nak, OutOfBandAck))
        if isinstance(frame, (MembershipFrame, StateFrame)):
            out.drop(
                "membership", peer=sender
            )  # This member is told its views, and does not look for them.
            return None
        aside = isinstance(frame, (OutOfBand, Unreliable))
        origin = frame.run.origin if isinstance(frame, (OutOfBand, Unreliable)) else frame.origin
        if origin != sender:
            out.drop("origin", origin, peer=sender)
            return None
        if not aside and not isinstance(frame, (Vote, Stable)):
            assert isinstance(frame, (Tail, Gone, Close))
            return self._on_stream_marks(frame, sender, stream, out)
        out.count(RECEIVED_COUNTERS[type(frame)])
        if isinstance(frame, OutOfBand):
            self.out_of_band.on_message(frame, out)
        elif isinstance(frame, Unreliable):
            self.out_of_band.on_unreliable(frame, out)
        elif self.stability is None:
            out.drop("stability", origin, peer=sender)
        elif isinstance(frame, Vote):
            self._on_stable(self.stability.on_vote(sender, frame, self._marks, out), out)
        elif isinstance(frame, Stable) and self.stability.accepts(sender, frame, out):
            self._on_stable(frame.progress, out)
        return None

    def _on_stream_marks(
        self, frame: Tail | Gone | Close, sender: Address, stream: InboundStream, out: ReadyBuilder
    ) -> InboundStream | None:
        epoch = frame.epoch
        if epoch < FIRST_CONNECTION_EPOCH and epoch != self._epoch:
            out.drop("other view", sender, peer=sender)
            return None
        out.count(RECEIVED_COUNTERS[type(frame)])
        if epoch >= FIRST_CONNECTION_EPOCH or isinstance(frame, Close):
            return self.connections.on_frame(sender, frame, out)
        if isinstance(frame, Tail):
            stream.on_tail(frame, self.me, out)
        else:
            stream.on_gone(frame.low)
        return stream

    def _on_own_stream(
        self, frame: Ack | Nak | OutOfBandAck, sender: Address, out: ReadyBuilder
    ) -> None:
        """Take in what ``sender`` says of a stream of this member."""
        origin = frame.origin
        if origin != self.me:
            out.drop(
                "not mine" if origin.node != self.me.node else "incarnation", origin, peer=sender
            )
            return
        epoch = 0 if isinstance(frame, OutOfBandAck) else frame.epoch
        if (
            epoch != self._epoch
            and epoch < FIRST_CONNECTION_EPOCH
            and not isinstance(frame, OutOfBandAck)
        ):
            out.drop("other view", origin, peer=sender)
            return
        out.count(RECEIVED_COUNTERS[type(frame)])
        if isinstance(frame, OutOfBandAck):
            self.out_of_band.on_ack(sender, frame.ranges, out)
        elif epoch >= FIRST_CONNECTION_EPOCH:
            self.connections.on_feedback(sender, frame, out)
        elif isinstance(frame, Nak):
            self.outbound.on_nak(sender, frame.ranges, out)
        else:
            if len(self.outbound.queue):
                self._divide_receive_buffers(out.now_ns)
            self.outbound.on_ack(sender, frame.seqno, frame.buffer_bytes, out)

    def _on_nak_for_another(
        self, frame: Nak | OutOfBandAck, sender: Address, out: ReadyBuilder
    ) -> None:
        """Repair a message of another member that is held here, if this profile holds any."""
        held = self.inbound.get(frame.origin)
        if (
            held is None
            or not held.retains_delivered
            or isinstance(frame, OutOfBandAck)
            or frame.epoch != self._epoch
        ):
            origin = frame.origin
            out.drop(
                "not mine" if origin.node != self.me.node else "incarnation", origin, peer=sender
            )
            return
        out.count(RECEIVED_COUNTERS[Nak])
        held.on_nak(sender, frame.ranges, out)

    def tick(self, now_ns: int) -> Ready:
        """Fire every timer that is due."""
        self._begin(now_ns)
        self._divide_receive_buffers(now_ns)
        for name in self._timers.due(now_ns):
            self._fire_timer(name)
        return self._finish(())

    def fire_timer(self, name: str, now_ns: int) -> Ready:
        """Fire one timer alone; what hangs on it and is not due yet stays."""
        self._begin(now_ns)
        self._fire_timer(name)
        return self._finish(())

    def _fire_timer(self, name: str) -> None:
        self._out.trace("TIMER", self.me, reason=name)
        self._timers.arm(name, None)
        self.timer_handlers[name](self, self._out)

    def _send_acks(self, out: ReadyBuilder) -> None:
        if self._pending_acks and out.rarely(buggify.LATE_ACK):
            self._timers.arm(timers.ACK, out.now_ns + max(self.config.ack_delay_ns, 1))
            return
        owing, self._pending_acks = self._pending_acks, {}
        for key, stream in owing.items():
            if (rest_ns := stream.ack_scheduler.held_until_ns(out.now_ns)) is None:
                self._send_ack(stream, out)
            else:
                self._pending_acks[key] = stream
                self._timers.arm_earlier(timers.ACK, rest_ns)

    def _send_naks(self, out: ReadyBuilder) -> None:
        """Pass over the gaps of every stream; a stall may switch retransmission on."""
        stalls = out.counters.get("stalls", 0)
        others: list[Address] = []
        if self.config.xmit_from_random_member and self.view is not None:
            others = [member for member in self.view.members if member != self.me]
        for stream in self.inbound.values():
            stream.send_naks(out, others if stream.retains_delivered else ())
        for stream in self.connections.inbounds():
            stream.send_naks(out)
        self.connections.request_first_messages(out)
        if self.config.on_stall == "retransmit" and out.counters.get("stalls", 0) > stalls:
            config = self.config
            interval_ns = max(_STALL_XMIT_INTERVAL_NS, config.min_grace_ns, config.min_retry_ns)
            self._apply_config(config.replace(xmit_interval=f"{interval_ns}ns"))
        self._arm_gap_timer(self._inbounds())

    def _announce_tails(self, out: ReadyBuilder) -> None:
        for stream in self._outbounds():
            stream.announce_tail(out)

    def _report_slow_receivers(self, out: ReadyBuilder) -> None:
        for stream in self._outbounds():
            stream.report_slow_receivers(out, self.stability)

    def _expire_sends(self, out: ReadyBuilder) -> None:
        for stream in self._outbounds():
            for ticket in stream.queue.overdue(out.now_ns):
                stream.give_up(ticket, "timeout", out)
            stream.flush(out, "timeout")
        for ticket in self.out_of_band.overdue(out.now_ns):
            self.out_of_band.give_up(ticket, "timeout", out)
        self._arm_send_timeout()

    def _arm_send_timeout(self) -> None:
        deadlines = [stream.queue.deadline_ns for stream in self._outbounds()]
        deadlines.append(self.out_of_band.deadline_ns)
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
        absent: Mapping[str, Address] = _NO_ADDRESSES,
        returning: Mapping[Address, Address] = _NO_ADDRESSES,
    ) -> Ready:
        """Become a member of ``view``; streams in ``digest`` start behind what it says was delivered (N7-21, N7-22).

        ``absent``: the durable names of those that are away, with the last address of each; ``returning``:
        members of this view that take over the place of the last address that this member knew
        under their name (docs/durable.md).
        """
        restart = self.profile.numbering == "view"
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
        check_retention(view, absent, returning, self.profile)
        out = self._begin(now_ns)
        first_view = self.view is None
        self._durable = self._durable or (self.me in returning and self.profile.release == "acks")
        self.view = view
        self._nodes = frozenset(member.node for member in view.members)
        here = frozenset(view.members)
        for origin in [origin for origin in self.inbound if restart or origin not in here]:
            self._close_inbound(origin, out)
        if restart:
            self._restart_numbering(view, out)
            digest = dict.fromkeys(view.members, Marks(0, 0, 0))
        out.trace("VIEW", self.me, last=view.id.number)
        out.begin_view(ViewInstalled(view))
        joined = [
            member for member in view.members if member != self.me and member not in self.inbound
        ]
        for origin in joined:
            self._open_inbound(origin, digest or {}, out)
        self._install_components(view, out, absent, returning)
        # Whoever has the same digest knows this start, and who has none asks; where nobody asks,
        # all must be told.
        known = first_view and digest is not None and self.config.retransmits
        if not restart and not known:
            self._announce_start(joined, out)
        return self._finish(self._replay_buffered(out))

    def _announce_start(self, joined: Iterable[Address], out: ReadyBuilder) -> None:
        """Tell new members where the own stream starts for them."""
        for origin in joined:
            self.outbound.announce_start(origin, out)

    def _install_components(
        self,
        view: View,
        out: ReadyBuilder,
        kept: Mapping[str, Address],
        back: Mapping[Address, Address],
    ) -> None:
        if self.stability is not None:
            self.stability.install(view)
            self.outbound.reset_stable()
            for stream in self.inbound.values():
                stream.stable = 0
        self.out_of_band.install(view.id.number, view.members, out)
        self.connections.install(view.id.number, view.members, out)
        self.outbound.install(view.id.number, view.members, out, kept, back)

    def _restart_numbering(self, view: View, out: ReadyBuilder) -> None:
        """Begin all numbers anew; what the view before has not made stable is not repaired any more, and said so."""
        before = self.outbound
        self._deliver_own(out, ignore_credit=True)
        first, last = before.end_view(view.members, out)
        if first <= last:
            out.emit(Undelivered(None, first, last))
        self._epoch = view.id.number
        self._own_reassembler.clear()
        self.outbound = OutboundStream(
            self.me, self.config, self.profile, self._tickets, self._epoch
        )
        self.outbound.take_over(before)
        self._departed_marks.clear()
        self._traced_marks.clear()

    def _replay_buffered(self, out: ReadyBuilder) -> Iterable[InboundStream]:
        """Take in what came before this view; return the streams that may have moved."""
        touched: dict[tuple[Address, int], InboundStream] = {}
        assert self.view is not None
        for said in self.future_view_buffer.take_datagrams(self.view, out, any_view=self._durable):
            moved = self._handle_frames(said, self.inbound[said.sender], out)
            touched.update((stream.key, stream) for stream in moved)
        for frame in self.future_view_buffer.take_frames(self._epoch, self.inbound, out):
            stream = self.inbound[frame.run.origin]
            stream.on_data(frame.run, frame.repair, out)
            touched[stream.key] = stream
        return touched.values()

    def _close_inbound(self, origin: Address, out: ReadyBuilder) -> None:
        stream = self.inbound.pop(origin)
        for table in (self._pending_acks, self._awaiting_credit):
            table.pop(stream.key, None)
        self._active_senders.pop(origin, None)
        self._traced_marks.pop(origin, None)
        if discarded := stream.drain(self._credit, out):
            out.emit(Discarded(origin, discarded))
        if stream.window is not None or stream.delivered_before is not None:
            self._departed_marks[origin] = stream.resume_seqno
            if stream.stored is not None and self._stored_marks is not None:
                self._stored_marks[origin] = stream.stored
        if len(self._departed_marks) > self._max_departed:
            oldest = next(iter(self._departed_marks))
            del self._departed_marks[oldest]
            if self._stored_marks is not None:
                self._stored_marks.pop(oldest, None)

    def _open_inbound(self, origin: Address, digest: Digest, out: ReadyBuilder) -> None:
        # Only its sender knows where a durable member goes on.
        marks = None if self._durable else digest.get(origin)
        start, former = (
            None if marks is None else marks.delivered,
            self._departed_marks.pop(origin, None),
        )
        stored = (
            None if self._stored_marks is None else self._stored_marks.pop(origin, STORED_UNKNOWN)
        )
        stream = InboundStream(
            origin,
            self.config,
            self.profile,
            self._rng,
            start,
            former,
            self._epoch,
            durable=self._durable,
            stored=stored,
        )
        self.inbound[origin] = stream
        if marks is None:
            stream.loss_detector.on_gap(0, out.now_ns)
        else:
            out.trace("START", origin, stream.start + 1, peer=origin, epoch=self._epoch)
            stream.learn_high(marks.high)
            stream.detect_gaps(out.now_ns)
        self._arm_gap_timer((stream,))


Endpoint.timer_handlers = {
    timers.ACK: Endpoint._send_acks,
    timers.GAP: Endpoint._send_naks,
    timers.TAIL: Endpoint._announce_tails,
    timers.TIMEOUT: Endpoint._expire_sends,
    timers.SLOW_RECEIVER: Endpoint._report_slow_receivers,
    timers.STABLE: Endpoint._vote,
    timers.OUT_OF_BAND: lambda member, out: member.out_of_band.retransmit(out),
    timers.REAP: lambda member, out: member.connections.reap(out),
}
