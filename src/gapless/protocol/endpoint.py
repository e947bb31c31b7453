"""The endpoint: all streams of one member, under views given from outside.

Every input (a send, a datagram, a view, the time) returns one ``Ready``; there are no callbacks.
Time, randomness and bytes come from outside, so the same code runs over sockets, in the simulator
and in exhaustive search.

An input begins with ``Endpoint.begin``, takes effect, and ends with ``Endpoint.finish``. A member
(member.py) uses the methods that take a ``ReadyBuilder`` and return no ``Ready``, and does the work
of the membership before, between and after the calls.

On sending: sending.py checks the messages and passes them to the stream of the group, to a
connection or to the out-of-band channel.

On reception: the datagram is decoded, and dispatch.py routes the frames. Streams that moved are
delivered from and acknowledged (delivery.py).

On a view: streams of departed members end; the remaining consecutive messages are delivered, and
messages behind a gap are counted as discarded (I-08). Streams of new members start where the digest
says, or else where the sender says: the sender announces the start (I-22), and receivers ask until
the announcement arrives. Where numbers restart with every view, all streams restart.

Every interval: timers.py names the timers; the machine that owns a timer handles it.
"""

from __future__ import annotations

from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gapless.errors import LocalProtocolError, RemoteProtocolError
from gapless.identity import U32_MAX, U64_MAX, Marks
from gapless.payloads import Payloads
from gapless.profiles import NumberingScope, ReleasePolicy
from gapless.protocol import timers
from gapless.protocol.delivery import DeliveryScheduler
from gapless.protocol.dispatch import FrameDispatcher
from gapless.protocol.early_budget import EarlyBudget
from gapless.protocol.events import Discarded, Undelivered, ViewInstalled
from gapless.protocol.header_prediction import HeaderPrediction
from gapless.protocol.marks_tracer import MarksTracer
from gapless.protocol.ready import Ready
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.resume_positions import ResumePositions
from gapless.protocol.sending import Sender
from gapless.protocol.state_transfer.held_deliveries import StateCoverage
from gapless.protocol.stream.connections import Connections
from gapless.protocol.stream.durable_retention import check_retention
from gapless.protocol.stream.flow_control import ActiveSenders, DeliveryCredit
from gapless.protocol.stream.future_view_buffer import FutureViewBuffer
from gapless.protocol.stream.inbound import STORED_UNKNOWN, InboundStream
from gapless.protocol.stream.out_of_band import OutOfBandChannel
from gapless.protocol.stream.outbound import OutboundStream
from gapless.protocol.stream.stability import Stability
from gapless.protocol.stream.start_requests import StartRequests
from gapless.wire.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from random import Random

    from gapless.config import Config
    from gapless.delivery_mode import DeliveryMode
    from gapless.identity import Address, Digest, View
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.state_transfer.transfer import StateTransfer
    from gapless.wire.frames import Datagram

_NO_ADDRESSES: Mapping[Any, Address] = MappingProxyType({})
_STALL_XMIT_INTERVAL_NS = 500_000_000
"""Retransmission interval that a stall switches on, unless other settings demand a longer one."""


class Endpoint:
    """The streams of one member. Every input returns a ``Ready`` for the runtime to handle."""

    def __init__(
        self,
        me: Address,
        group: int,
        config: Config,
        rng: Random,
        *,
        tracing: int = 0,
        rarely: RareBranchHook | None = None,
        state_transfer: StateTransfer | None = None,
    ) -> None:
        """Create an endpoint without a view.

        ``state_transfer``, if given, may hold deliveries back until the application has its state.
        """
        if not all(0 <= number <= U64_MAX for number in (*me, group)):
            raise LocalProtocolError(
                f"address {me} or group {group:x} does not fit the wire format: use 64-bit numbers"
            )
        assert state_transfer is None or state_transfer.me == me
        self.me = me
        self.group = group
        self.config = config
        self.profile = config.group_profile
        self.view: View | None = None
        self.epoch = 0
        self.nodes: frozenset[int] = frozenset()
        self.unannounced: list[Address] = []
        self.timers = timers.Timers()
        self.out = ReadyBuilder(me, group, config, rarely, tracing=tracing)
        self._rng = rng
        self._tickets = count(1)
        self.outbound = OutboundStream(me, config, self.profile, self._tickets)
        self.inbound: dict[Address, InboundStream] = {}
        self.credit = DeliveryCredit(
            config.unread_limit, config.max_batch_size, config.unread_bytes
        )
        self.early_budget = EarlyBudget(config.early_bytes)
        self.connections = Connections(
            me, config, rng, self._tickets, self.credit, self.early_budget
        )
        self.out_of_band = OutOfBandChannel(me, config, self.credit)
        self.stability = (
            Stability(me, config, rng) if self.profile.release is ReleasePolicy.STABILITY else None
        )
        self.state_transfer = state_transfer
        self.future_view_buffer = FutureViewBuffer(config, self.early_budget)
        self.resume_positions = ResumePositions()
        self.active_senders = ActiveSenders()
        self._start_requests = StartRequests(me)
        self._marks_tracer = MarksTracer(me)
        self.deliveries = DeliveryScheduler(
            me,
            config,
            rng,
            timers=self.timers,
            credit=self.credit,
            active_senders=self.active_senders,
            inbound=self.inbound,
            outbound=self.outbound,
            connections=self.connections,
            stability=self.stability,
        )
        self.dispatcher = FrameDispatcher(self)
        self.sender = Sender(self, self._tickets)
        self.prediction = HeaderPrediction(self)

    # What every input begins and ends with

    def begin(self, now_ns: int) -> ReadyBuilder:
        """Start an input at ``now_ns``; return the builder for the outcome."""
        self.out.now_ns = now_ns
        return self.out

    def finish(self, touched: Iterable[InboundStream]) -> Ready:
        """End an input: deliver from ``touched`` streams, set the timers, return the outcome."""
        out, deliveries, connections = self.out, self.deliveries, self.connections
        if connections.removed:
            # A connection that ended in this input is neither acknowledged nor delivered from.
            for key in connections.removed:
                deliveries.forget(key)
            connections.removed.clear()
        for stream in touched:
            deliveries.deliver_and_ack(stream, out)
        deliveries.deliver_own(out)
        transfer = self.state_transfer
        if transfer is not None and (transfer.engaged or self.credit.held):
            self._advance_state_transfer(transfer, out)
        self.arm_timers(out)
        if out.tracing:
            self.trace_marks(out)
        return out.build(self.timers.find_earliest_ns())

    def trace_marks(self, out: ReadyBuilder) -> None:
        """Write the marks that have moved into the trace."""
        self._marks_tracer.trace(self.outbound, self.inbound, out)

    def _advance_state_transfer(self, transfer: StateTransfer, out: ReadyBuilder) -> None:
        """Show the deliveries of the input to the state transfer, once all of them are made."""
        if self.credit.held or not transfer.idle:
            transfer.on_deliveries(self, out)
            self.timers.arm(timers.STATE, transfer.due_ns)
        else:
            self.timers.arm(timers.STATE, None)
        transfer.engaged = not transfer.idle or timers.STATE in self.timers

    def arm_timers(self, out: ReadyBuilder) -> None:
        """Set the timers of the streams, of the out-of-band channel and of the votes."""
        armed, outbound, connections = self.timers, self.outbound, self.connections
        tail_ns, slow_ns = outbound.tail_due_ns, outbound.slow_receiver_due_ns
        if connections.outgoing or connections.incoming or timers.REAP in armed:
            if self.me in connections.outgoing:
                connections.note_change(self.me)  # its messages were delivered here
            next_tail_ns, next_slow_ns = connections.next_deadlines_ns()
            tail_ns = timers.earlier(tail_ns, next_tail_ns)
            slow_ns = timers.earlier(slow_ns, next_slow_ns)
            armed.arm(timers.REAP, connections.reap_due_ns)
        # These two move with every send, so they are set here without a call.
        if tail_ns is None:
            armed.pop(timers.TAIL, None)
        else:
            armed[timers.TAIL] = tail_ns
        if slow_ns is None:
            armed.pop(timers.SLOW_RECEIVER, None)
        else:
            armed[timers.SLOW_RECEIVER] = slow_ns
        if (
            connections.unconfirmed_epochs
            and (request_ns := connections.first_request_due_ns) is not None
        ):
            armed.arm_earlier(timers.GAP, request_ns)
        if self.out_of_band.pending or timers.OUT_OF_BAND in armed:
            armed.arm(timers.OUT_OF_BAND, self.out_of_band.due_ns)
        if self.stability is not None:
            # Votes go on until everything delivered is stable, and rest afterwards.
            self.stability.schedule_vote(out.now_ns, unstable=self.deliveries.has_unstable)
            armed.arm(timers.STABLE, self.stability.due_ns)

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
        """Send messages to the group, or to one member, in the given order.

        ``ticket`` of the returned ready names the send. With ``wait=False`` all messages are taken
        at once or none. ``loopback``: whether the messages are delivered to the sender as well.
        """
        payloads = Payloads.of(payloads)
        expected = self.prediction.send(payloads, now_ns, to, mode, wait, timeout_ns, loopback)
        if expected is not None:
            return expected
        send_mode = self.sender.check(payloads, to, mode, timeout_ns)
        ticket = self.sender.submit(
            payloads,
            send_mode,
            to,
            self.begin(now_ns),
            wait=wait,
            timeout_ns=timeout_ns,
            loopback=loopback,
            mode_given=mode is not None,
        )
        ready = self.finish(())
        ready.ticket = ticket
        return ready

    def set_next_mode(self, mode: DeliveryMode) -> None:
        """Send the next message to the group, and no other, in ``mode`` (OL-04)."""
        self.sender.set_next_mode(mode)

    def cancel(self, ticket: int, now_ns: int) -> Ready:
        """Give up a waiting send. Without a GivenUp event in the ready, the send was accepted."""
        self.sender.give_up(ticket, "cancel", self.begin(now_ns))
        return self.finish(())

    def close_connection(self, peer: Address, now_ns: int) -> Ready:
        """Close the connection to ``peer`` once idle; the next send to ``peer`` opens another."""
        self.connections.close(peer, self.begin(now_ns))
        return self.finish(())

    def consumed(self, messages: int, now_ns: int) -> Ready:
        """Note that the application has consumed messages, which makes room for as many more."""
        self.check_consumed(messages)
        self.on_consumed(messages, self.begin(now_ns))
        return self.finish(())

    def check_consumed(self, messages: int) -> None:
        """Raise if ``messages`` is no number of messages."""
        if messages < 0:
            raise LocalProtocolError(
                f"{messages} messages cannot have been consumed: pass a number of at least 0"
            )

    def on_consumed(self, messages: int, out: ReadyBuilder) -> None:
        """Refund credit, and deliver from the waiting streams in turn."""
        assert messages >= 0
        self.credit.refund(messages)
        self.deliveries.deliver_awaiting_credit(out)

    def set_xmit_interval(self, xmit_interval_ns: int, now_ns: int) -> Ready:
        """Switch retransmission off (0 or less) or on; queued and missing messages stay as such."""
        self.begin(now_ns)
        self.apply_xmit_interval(xmit_interval_ns)
        return self.finish(())

    def apply_xmit_interval(self, xmit_interval_ns: int) -> None:
        """Replace the retransmission interval in every stream."""
        config = self.config.replace(xmit_interval=f"{max(0, xmit_interval_ns)}ns")
        now_ns = self.out.now_ns
        self.config = self.out_of_band.config = self.future_view_buffer.config = config
        self.outbound.apply_config(config, now_ns)
        self.connections.apply_config(config, now_ns)
        for stream in self.inbound.values():
            stream.apply_config(config, now_ns)
        self.timers.arm(timers.GAP, None)
        self._arm_gap_timer()

    def resume(self, marks: Mapping[Address, int], *, stores: bool = False) -> None:
        """Continue the previous incarnation of a durable member; call before the first view.

        ``marks`` holds the last safely processed seqno of each origin, as far as the application
        knows. No stream starts below the mark. If a stream starts above the mark, the messages in
        between are reported as lost. A durable member also acknowledges a fragmented message as a
        whole, unless the message is large. A member that ``stores`` acknowledges only messages
        confirmed as stored.
        """
        if self.view is not None:
            raise LocalProtocolError("this member has a view already: resume before the first view")
        if self.profile.release is not ReleasePolicy.ACKS:
            raise LocalProtocolError(
                f"profile {self.profile.name} has no durable members: use profile nakack4"
            )
        self.resume_positions.resume(marks, stores=stores)

    def confirm_stored(self, marks: Mapping[Address, int], now_ns: int) -> Ready:
        """Note the last stored seqno of each stream, and acknowledge the streams at once.

        Only a durable member that has resumed with ``stores=True`` confirms storage.
        """
        self.check_stores()
        self.on_stored(marks, self.begin(now_ns))
        return self.finish(())

    def check_stores(self) -> None:
        """Raise if this member acknowledges on delivery and not on storage."""
        if self.resume_positions.stored is None:
            raise LocalProtocolError(
                "this member does not confirm storage: resume with stores=True"
            )

    def on_stored(self, marks: Mapping[Address, int], out: ReadyBuilder) -> None:
        """Acknowledge each stream up to the last stored message."""
        for origin, seqno in marks.items():
            stream = self.inbound.get(origin)
            if stream is None:
                self.resume_positions.on_stored(origin, seqno)
            elif stream.on_stored(seqno) and stream.window is not None:
                self.deliveries.send_ack(stream, out)

    def request_state(self) -> None:
        """Request the state with the first view; deliver nothing before the state arrives."""
        if self.view is not None:
            raise LocalProtocolError(
                "this member has a view already: request the state before joining"
            )
        assert self.state_transfer is not None, "an endpoint alone transfers no state"
        self.state_transfer.request_state()
        self.credit.held = True

    def provide(self, transfer: int, state: bytes | None, now_ns: int) -> Ready:
        """Answer ``StateWanted(transfer, …)`` with the state as of then; None: there is none."""
        assert self.state_transfer is not None, "an endpoint alone transfers no state"
        self.state_transfer.provide(transfer, state, self.begin(now_ns))
        return self.finish(())

    # Inputs of the network and the clock

    def receive(self, datagram: bytes, now_ns: int) -> Ready:
        """Handle a datagram with any content."""
        if (expected := self.receive_expected(datagram, now_ns)) is not None:
            return expected
        try:
            decoded = decode(datagram)
        except RemoteProtocolError as error:
            # Garbage is counted and has no other effect: nothing that is due happens either.
            self.begin(now_ns).drop(error.reason)
            return self.out.build(self.timers.next_ns)
        return self.receive_decoded(decoded, now_ns)

    def receive_expected(self, datagram: bytes, now_ns: int) -> Ready | None:
        """Handle a datagram on the short path, or return None without an effect."""
        return self.prediction.receive(datagram, now_ns)

    def receive_decoded(self, datagram: Datagram, now_ns: int) -> Ready:
        """Handle a datagram already decoded by the caller."""
        return self.finish(self.dispatcher.on_datagram(datagram, self.begin(now_ns)))

    def tick(self, now_ns: int) -> Ready:
        """Fire all due timers."""
        out = self.begin(now_ns)
        self.divide_receive_buffers(now_ns)
        for name in self.timers.due(now_ns):
            self.fire(name, out)
        return self.finish(())

    def fire_timer(self, name: str, now_ns: int) -> Ready:
        """Fire one timer, due or not, and no other."""
        self.fire(name, self.begin(now_ns))
        return self.finish(())

    def fire(self, name: str, out: ReadyBuilder) -> None:
        """Handle a timer of the streams."""
        out.trace("TIMER", self.me, reason=name)
        self.timers.arm(name, None)
        _TIMER_HANDLERS[name](self, out)

    def divide_receive_buffers(self, now_ns: int) -> None:
        """Divide the receivers' buffers among the members that are sending now."""
        shares = self.active_senders.shares(now_ns, self.inbound, self.outbound.acked_ns)
        if self.outbound.senders != shares:
            self.outbound.update_byte_limit(shares)
        if self.connections.outgoing:
            self.connections.share_receive_buffers(shares)

    def _send_naks(self, out: ReadyBuilder) -> None:
        """Ask for the gaps of every stream; a stall may switch retransmission on."""
        config, stalls = self.config, out.counters.get("stalls", 0)
        others: list[Address] = []
        if config.xmit_from_random_member and self.view is not None:
            others = [member for member in self.view.members if member != self.me]
        if config.retransmits:
            interval_ns, admitted = config.xmit_interval_ns, not self.unannounced
            self._start_requests.select(
                self.inbound.values(), out.now_ns, interval_ns, admitted=admitted
            )
        for stream in self.inbound.values():
            stream.send_naks(out, others if stream.retains_delivered else ())
        for stream in self.connections.inbounds():
            stream.send_naks(out)
        self.connections.request_first_messages(out)
        if config.on_stall == "retransmit" and out.counters.get("stalls", 0) > stalls:
            self.apply_xmit_interval(
                max(_STALL_XMIT_INTERVAL_NS, config.min_grace_ns, config.min_retry_ns)
            )
        self._arm_gap_timer()

    def _arm_gap_timer(self) -> None:
        for stream in self.inbounds():
            if stream.loss_detector.due_ns is not None:
                self.timers.arm_earlier(timers.GAP, stream.loss_detector.due_ns)

    def _announce_tails(self, out: ReadyBuilder) -> None:
        self.outbound.announce_tail(out)
        self.connections.announce_tails(out)

    def report_slow_receivers(self, out: ReadyBuilder) -> None:
        """Report the members that keep a window from moving."""
        self.outbound.report_slow_receivers(out, self.stability)
        self.connections.report_slow_receivers(out)

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
        """Become a member of ``view``.

        Streams in ``digest`` start behind the delivered mark of the digest (N7-21, N7-22).
        ``absent``: the last address of each absent durable member, by name. ``returning``: for each
        returning member of the view, the last address known here under the same name
        (docs/guides/durable-members.md).
        """
        self.check_view(view, absent, returning)
        out = self.begin(now_ns)
        return self.finish(
            self.install_view(view, out, digest, absent=absent, returning=returning, announce=True)
        )

    def check_view(
        self, view: View, absent: Mapping[str, Address], returning: Mapping[Address, Address]
    ) -> None:
        """Raise if ``view`` cannot follow the present view."""
        restart = self.profile.numbering is NumberingScope.VIEW
        if self.me not in view.members:
            raise LocalProtocolError(
                f"view {view.id.number} does not include this member ({self.me})"
            )
        if not 0 <= view.id.number <= U32_MAX:
            raise LocalProtocolError(
                f"view number {view.id.number} does not fit the wire format: use 32-bit numbers"
            )
        if self.view is not None and view.id <= self.view.id:
            raise LocalProtocolError(
                f"view {view.id.number} is not newer than view {self.view.id.number}"
            )
        if self.view is not None and restart and view.id.number == self.view.id.number:
            raise LocalProtocolError(
                f"view {view.id.number} is installed already:"
                " numbers restart with a view, so the view number has to rise"
            )
        check_retention(view, absent, returning, self.profile)

    def install_view(
        self,
        view: View,
        out: ReadyBuilder,
        digest: Digest | None = None,
        *,
        absent: Mapping[str, Address],
        returning: Mapping[Address, Address],
        announce: bool,
    ) -> Iterable[InboundStream]:
        """Install a view approved by ``check_view``; return the streams that moved.

        Without ``announce``, new members learn the start of the own stream only from
        ``start_sending``.
        """
        restart, first_view = self.profile.numbering is NumberingScope.VIEW, self.view is None
        assert self.me in view.members, "check_view refuses a view without this member"
        positions = self.resume_positions
        positions.durable |= self.me in returning and self.profile.release is ReleasePolicy.ACKS
        self.view = view
        self.nodes = frozenset(member.node for member in view.members)
        here = frozenset(view.members)
        self.early_budget.install(here)
        for origin in [origin for origin in self.inbound if restart or origin not in here]:
            self._close_inbound(origin, out)
        if restart:
            self._restart_numbering(view, out)
            digest = dict.fromkeys(view.members, Marks(0, 0, 0))
        out.trace("VIEW", self.me, seqno_last=view.id.number)
        out.begin_view(ViewInstalled(view))
        joined = [
            member for member in view.members if member != self.me and member not in self.inbound
        ]
        for origin in joined:
            self._open_inbound(origin, digest or {}, out)
        self._install_machines(view, out, absent, returning)
        self.active_senders.unsettle()
        self.prediction.on_view()
        # A member that has the same digest knows this start, and one that has none asks for it.
        # Without retransmission no member asks, so the start is announced to all.
        known = first_view and digest is not None and self.config.retransmits
        if not restart and not known:
            if announce:
                self._announce_start(joined, out)
            else:
                self.unannounced += joined
        return self._replay_buffered(view, out)

    def _announce_start(self, members: Iterable[Address], out: ReadyBuilder) -> None:
        for member in members:
            self.outbound.announce_start(member, out)

    def start_sending(self, out: ReadyBuilder) -> None:
        """Announce the own stream to members without a known start, and open the stream."""
        unannounced, self.unannounced = self.unannounced, []
        present = [member for member in unannounced if member in self.inbound]
        self._announce_start(present, out)
        for stream in (self.inbound[member] for member in present):
            if stream.window is None:
                # The others announce their starts now: only now the grace of a request begins.
                stream.loss_detector.on_gap(0, out.now_ns)
                self.timers.arm_earlier(timers.GAP, out.now_ns + stream.loss_detector.grace_ns)
        if self.outbound.closed and self.view is not None:
            self.outbound.closed = False
            self.outbound.flush(out, "view")

    def _install_machines(
        self,
        view: View,
        out: ReadyBuilder,
        absent: Mapping[str, Address],
        returning: Mapping[Address, Address],
    ) -> None:
        number, members = view.id.number, view.members
        if self.stability is not None:
            self.stability.install(view)
            self.outbound.reset_stable()
            for stream in self.inbound.values():
                stream.stable = 0
        self.out_of_band.install(number, members, out)
        self.connections.install(number, members, out)
        self.outbound.install(number, members, out, absent, returning)
        if self.state_transfer is not None:
            self.state_transfer.on_view(members, out)

    def _restart_numbering(self, view: View, out: ReadyBuilder) -> None:
        """Restart all numbers; report the unstable messages of the previous view."""
        before = self.outbound
        self.deliveries.deliver_own(out, ignore_credit=True)
        first, last = before.end_view(view.members, out)
        if first <= last:
            out.emit(Undelivered(None, first, last, self.epoch))
        self.epoch = view.id.number
        self.outbound = OutboundStream(
            self.me, self.config, self.profile, self._tickets, self.epoch
        )
        self.deliveries.restart(self.outbound)
        self.outbound.take_over(before)
        self.resume_positions.clear()
        self._marks_tracer.clear()
        assert not self.inbound, "no stream of the view before goes on"

    def _replay_buffered(self, view: View, out: ReadyBuilder) -> Iterable[InboundStream]:
        """Handle the frames buffered for this view; return the streams that may have moved."""
        touched: dict[tuple[Address, int], InboundStream] = {}
        buffer, durable = self.future_view_buffer, self.resume_positions.durable
        for datagram in buffer.take_datagrams(view, out, any_view=durable):
            moved = self.dispatcher.on_frames(datagram, self.inbound[datagram.sender], out)
            touched.update((stream.key, stream) for stream in moved)
        for frame in buffer.take_frames(self.epoch, self.inbound, out):
            stream = self.inbound[frame.run.origin]
            stream.on_data(frame.run, frame.repair, out)
            touched[stream.key] = stream
        return touched.values()

    def _close_inbound(self, origin: Address, out: ReadyBuilder) -> None:
        stream = self.inbound.pop(origin)
        self.deliveries.forget(stream.key)
        self.active_senders.forget(origin)
        self._marks_tracer.forget(origin)
        if discarded := stream.drain(self.credit, out):
            out.emit(Discarded(origin, discarded))
        self.resume_positions.on_closed(stream)

    def _open_inbound(self, origin: Address, digest: Digest, out: ReadyBuilder) -> None:
        assert origin != self.me
        assert origin not in self.inbound
        durable = self.resume_positions.durable
        # Only the sender knows where the stream continues for a durable member.
        marks = None if durable else digest.get(origin)
        former, stored = self.resume_positions.take(origin)
        stream = InboundStream(
            origin,
            self.config,
            self.profile,
            self._rng,
            None if marks is None else marks.delivered,
            former,
            self.epoch,
            durable=durable,
            stored=stored,
            budget=self.early_budget,
        )
        self.inbound[origin] = stream
        if marks is None:
            stream.loss_detector.on_gap(0, out.now_ns)
        else:
            out.trace("START", origin, stream.start + 1, peer=origin, epoch=self.epoch)
            stream.learn_high(marks.high)
            stream.detect_gaps(out.now_ns)
        if stream.loss_detector.due_ns is not None:
            self.timers.arm_earlier(timers.GAP, stream.loss_detector.due_ns)

    def set_digest(self, digest: Digest, now_ns: int) -> Ready:
        """Start the streams without a known start behind the delivered marks of ``digest``.

        Missing messages up to the high mark of the digest are a gap (N7-22), also in a stream that
        has started.
        """
        out = self.begin(now_ns)
        if self.profile.numbering is NumberingScope.VIEW:
            # Every stream started with its view, and a digest does not name its view.
            return self.finish(())
        named = [
            (stream, digest[origin]) for origin, stream in self.inbound.items() if origin in digest
        ]
        for stream, marks in named:
            if stream.window is None and not self.resume_positions.durable:
                stream.open_at(marks.delivered, out)
            stream.learn_high(marks.high)
        return self.finish([stream for stream, _ in named])

    def end(self, out: ReadyBuilder) -> None:
        """End all streams; report every waiting send and every send not known to have arrived."""
        for ticket in self.outbound.queue.tickets:
            self.outbound.give_up(ticket, "over", out)
        first, last = self.outbound.end(out)
        if first <= last:
            out.emit(Undelivered(None, first, last, self.epoch))
        self.connections.end(out)
        self.out_of_band.end(out)

    # What a state transfer needs to know of the streams

    def stream_starts(self) -> dict[Address, int | None]:
        """Return where each stream of another member starts here; None: not known yet."""
        return {
            origin: None if stream.window is None else stream.start
            for origin, stream in self.inbound.items()
        }

    def delivered_upto(self, origin: Address) -> int | None:
        """Return the last seqno of a whole delivered message; None: no stream of ``origin``."""
        if origin == self.me:
            unfinished = self.deliveries.own_reassembler.first_seqno
            return self.outbound.window.delivered if unfinished is None else unfinished - 1
        stream = self.inbound.get(origin)
        if stream is None:
            return self.resume_positions.delivered.get(origin)
        return None if stream.window is None else stream.resume_seqno

    def coverage(self) -> StateCoverage:
        """Return all delivered positions, also of departed members as far as remembered."""
        marks = {
            **self.resume_positions.delivered,
            **{origin: stream.resume_seqno for origin, stream in self.inbound.items()},
        }
        marks[self.me] = self.delivered_upto(self.me) or 0
        return StateCoverage(self.epoch, marks, self.out_of_band.delivered())

    def mark_covered(self, covered: StateCoverage) -> None:
        """Count the out-of-band messages covered by a state as delivered."""
        for origin, seqnos in covered.out_of_band.items():
            self.out_of_band.mark_covered(origin, seqnos)

    # Introspection

    def resume_marks(self) -> dict[Address, int]:
        """Return the position of the application in each stream, for the next incarnation.

        The position is the last stored message of a member that stores, and the last delivered
        message otherwise.
        """
        if self.resume_positions.stored is None:
            return dict(self.coverage().marks)
        streams = {
            origin: stream.stored or 0
            for origin, stream in self.inbound.items()
            if stream.stored != STORED_UNKNOWN
        }
        return {**self.resume_positions.stored, **streams}

    @property
    def counters(self) -> dict[str, int]:
        """Frames sent and received by kind, and drops by reason."""
        return self.out.counters

    @property
    def tracing(self) -> int:
        """The sampling interval of the trace; 0 if there is none."""
        return self.out.tracing

    @property
    def deadline_ns(self) -> int | None:
        """When ``tick`` is to be called next."""
        return self.timers.next_ns

    def digest(self) -> Digest:
        """Return the marks of all streams with a known start, the own stream first."""
        return self.deliveries.digest()

    @property
    def all_acknowledged(self) -> bool:
        """Whether every receiver has acknowledged all sent messages."""
        return self.out_of_band.is_quiet and all(stream.is_received for stream in self.outbounds())

    @property
    def is_quiet(self) -> bool:
        """Whether all sent messages have arrived, and are stable where the profile votes."""
        if self.stability is not None and self.deliveries.has_unstable:
            return False
        return self.out_of_band.is_quiet and all(stream.is_quiet for stream in self.outbounds())

    @property
    def waiting_sends(self) -> int:
        """The number of sends waiting for room, to the group or to one member."""
        return sum(len(stream.queue) for stream in self.outbounds())

    def outbounds(self) -> list[OutboundStream]:
        """Return the stream to the group and the streams of all outgoing connections."""
        if not self.connections.outgoing:
            return [self.outbound]
        return [self.outbound, *self.connections.outbounds()]

    def inbounds(self) -> list[InboundStream]:
        """Return the streams of all members and of all incoming connections."""
        return [*self.inbound.values(), *self.connections.inbounds()]

    def armed_timers(self) -> tuple[str, ...]:
        """Return the timers that could fire."""
        return self.timers.snapshot()

    def check_invariants(self) -> None:
        """Raise AssertionError if the streams contradict each other or the timers."""
        inbounds = self.inbounds()
        for outbound in self.outbounds():
            outbound.check_invariants()
        for stream in inbounds:
            stream.check_invariants()
        for origin, stream in self.inbound.items():
            assert origin == stream.origin != self.me, "streams are filed under their origin"
            assert stream.epoch == self.epoch, "the streams of a view have one epoch"
        assert self.deliveries.outbound is self.outbound, "one own stream is delivered from"
        assert self.outbound.epoch == self.epoch
        if self.view is None:
            assert not self.inbound, "streams of others need a view"
        else:
            assert self.inbound.keys() == set(self.view.members) - {self.me}, "a stream a member"
        self.connections.check_invariants()
        self.out_of_band.check_invariants()
        self.future_view_buffer.check_invariants()
        self.early_budget.check_invariants()
        if self.stability is not None:
            self.stability.check_invariants()
        if self.state_transfer is not None:
            self._check_state_transfer(self.state_transfer)
        self.deliveries.check_invariants(inbounds)
        self.active_senders.check_invariants(self.inbound)
        self._start_requests.check_invariants()
        self.resume_positions.check_invariants(self.inbound)
        self._marks_tracer.check_invariants(self.inbound)
        self.sender.check_invariants()
        self.timers.check_invariants()

    def _check_state_transfer(self, transfer: StateTransfer) -> None:
        """Raise AssertionError if held and completed deliveries disagree."""
        transfer.check_invariants()
        if transfer.is_holding:
            assert self.credit.held, "held messages take no credit"
        if transfer.full:
            assert self.credit.blocked, "a full backlog stops the windows"
        assert self.credit.blocked == self.out_of_band.blocked, "and every other channel"

    # For exhaustive search

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times, counters and the view."""
        unconsumed = self.credit.outstanding if self.config.unread_limit else 0
        streams = tuple(stream.snapshot() for stream in self.inbound.values())
        machines = (
            self.connections.snapshot(),
            self.out_of_band.snapshot(),
            self.future_view_buffer.snapshot(),
            None if self.stability is None else self.stability.snapshot(),
        )
        fragments = self.deliveries.own_reassembler.snapshot()
        return (unconsumed, fragments, self.outbound.snapshot(), streams, machines)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Return to the state of ``snapshot``, with every armed timer due at time zero."""
        self.credit.outstanding, fragments, outbound, streams, machine_states = snapshot  # type: ignore[assignment]
        self.deliveries.own_reassembler.restore(fragments)  # type: ignore[arg-type]
        self.outbound.restore(outbound)  # type: ignore[arg-type]
        self.early_budget.clear()
        for stream, state in zip(self.inbound.values(), streams, strict=True):  # type: ignore[call-overload]
            stream.restore(state)
        machines = (self.connections, self.out_of_band, self.future_view_buffer, self.stability)
        for machine, state in zip(machines, machine_states, strict=True):  # type: ignore[call-overload]
            if machine is not None:
                machine.restore(state)
        self.deliveries.restore(self.inbounds())
        self._restore_timers()
        self.active_senders.reset()
        self._start_requests = StartRequests(self.me)

    def _restore_timers(self) -> None:
        gaps = any(stream.loss_detector.due_ns is not None for stream in self.inbounds())
        armed = {
            timers.ACK: bool(self.deliveries.pending_acks),
            timers.GAP: gaps or self.connections.first_request_due_ns is not None,
            timers.TAIL: any(stream.tail_due_ns is not None for stream in self.outbounds()),
            timers.STABLE: self.stability is not None and self.stability.due_ns is not None,
            timers.OUT_OF_BAND: self.out_of_band.due_ns is not None,
        }
        self.timers.restore(tuple(name for name, on in armed.items() if on))


def _on_state_timer(endpoint: Endpoint, out: ReadyBuilder) -> None:
    assert endpoint.state_transfer is not None, "its timer is armed by a state transfer"
    endpoint.state_transfer.on_timer(out)


_TIMER_HANDLERS: dict[str, Callable[[Endpoint, ReadyBuilder], None]] = {
    timers.ACK: lambda endpoint, out: endpoint.deliveries.send_pending_acks(out),
    timers.GAP: Endpoint._send_naks,
    timers.TAIL: Endpoint._announce_tails,
    timers.TIMEOUT: lambda endpoint, out: endpoint.sender.expire(out),
    timers.SLOW_RECEIVER: Endpoint.report_slow_receivers,
    timers.STABLE: lambda endpoint, out: endpoint.deliveries.vote(out),
    timers.OUT_OF_BAND: lambda endpoint, out: endpoint.out_of_band.retransmit(out),
    timers.REAP: lambda endpoint, out: endpoint.connections.reap(out),
    timers.STATE: _on_state_timer,
}
"""What each timer of the streams does."""
