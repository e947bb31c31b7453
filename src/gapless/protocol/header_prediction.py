"""Header prediction: the short path of an input that brings exactly what was expected.

Most inputs continue a known stream: the next run with nothing missing and nothing waiting, an ack
of a known receiver with nothing queued, or a send with room in the window, the budget and the
queue. The fields of such a datagram are known in advance, so they are compared and not decoded, and
only the marks that move are touched (Van Jacobson's header prediction of TCP, for this machine).

On any input: the short path first looks, and changes nothing. A condition that does not hold
returns None, and the caller takes the general path, which handles every input. Timers that no step
of the short path moves keep their deadlines, so they are not looked at.

On reception of a run: store and deliver in one step, then owe an ack or send the ack that is due.

On reception of an ack: raise the entry of the receiver, and purge if the minimum rises.

On sending: number, store, send and deliver one run in one step.

Both paths have the same effect: the same Ready, trace and state. The simulator and the exhaustive
search run the machine with the short path, without, and with a choice at every input
(docs/internals/short-path.md). A condition that would need a copy of more than a few lines of the
general path is left to the general path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from gapless.delivery_mode import DeliveryMode
from gapless.protocol import timers
from gapless.protocol.buggify import GENERAL_PATH
from gapless.protocol.delivery import MIN_ACKS_PER_SHARE
from gapless.protocol.events import Accepted
from gapless.protocol.membership.membership import MEMBER
from gapless.protocol.ready import GROUP, Delivery, Transmit
from gapless.protocol.ready_builder import RECEIVED_COUNTERS, SENT_COUNTERS
from gapless.protocol.stream.connections import ConnectionState
from gapless.protocol.stream.flow_control import ACTIVE_SENDER_NS
from gapless.run import LENGTH_BYTES, NO_LOOPBACK, DatagramRun, Run, total_bytes
from gapless.wire.codec import ADDRESSED, BARE, FLAGS_AT, LARGE_RUN_BYTES, SAFE_SEQNO
from gapless.wire.expected_frames import (
    ADDRESS,
    CHECKED_FROM,
    GROUP_ACK,
    GROUP_ID,
    GROUP_RUN,
    MEMBER_ACK,
    MEMBER_RUN,
    PLAIN_ACK,
    PLAIN_MEMBER_ACK,
    PLAIN_MEMBER_RUN,
    PLAIN_RUN_FLAGS,
    PREAMBLES,
    TO_ALL_OTHER_BYTES,
    TO_ONE_OTHER_BYTES,
    RunEncoder,
)
from gapless.wire.frames import Ack, Data

if TYPE_CHECKING:
    from collections.abc import Callable

    from gapless.identity import Address
    from gapless.payloads import Payloads
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.endpoint import Endpoint
    from gapless.protocol.member import Member
    from gapless.protocol.membership.membership import Membership
    from gapless.protocol.ready import Ready
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.connections import OutgoingConnection
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.outbound import OutboundStream
    from gapless.protocol.stream.window import Window

_ORDERED, _OPEN = DeliveryMode.ORDERED, ConnectionState.OPEN
_RECEIVED_DATA, _RECEIVED_ACK = RECEIVED_COUNTERS[Data], RECEIVED_COUNTERS[Ack]
_SENT_DATA = SENT_COUNTERS[Data]
_TO_ALL = frozenset((PREAMBLES[0], PREAMBLES[BARE]))
_TO_ONE = frozenset((PREAMBLES[ADDRESSED], PREAMBLES[ADDRESSED | BARE]))
_TO_ONE_CHECKED = PREAMBLES[ADDRESSED]
# The constructor of a named tuple is a Python function around this one.
_make = tuple.__new__


class HeaderPrediction:
    """The short path of one endpoint; each input returns a Ready, or None if not as expected."""

    __slots__ = (
        "_active",
        "_connections",
        "_counters",
        "_credit",
        "_deliveries",
        "_encoder",
        "_endpoint",
        "_group",
        "_is_on",
        "_longest_bytes",
        "_me",
        "_membership",
        "_on_traffic",
        "_out",
        "_own_address",
        "_pause_after_ns",
        "_receive_buffer_bytes",
        "_streams",
        "_tickets",
        "_timers",
        "takes_general",
    )

    def __init__(self, endpoint: Endpoint) -> None:
        """Serve ``endpoint``, whose parts exist already."""
        config = endpoint.config
        self._endpoint = endpoint
        self._me = endpoint.me
        self._own_address = ADDRESS.pack(*endpoint.me)
        self._group = GROUP_ID.pack(endpoint.group)
        self._out = endpoint.out
        self._counters = endpoint.out.counters
        self._timers = endpoint.timers
        self._credit = endpoint.credit
        self._deliveries = endpoint.deliveries
        self._connections = endpoint.connections
        self._active = endpoint.active_senders
        self._tickets = endpoint.sender._tickets
        self._receive_buffer_bytes = config.receive_buffer_bytes
        self._longest_bytes = min(
            config.max_message_bytes, endpoint.outbound.queue.max_fragment_bytes
        )
        self._encoder = RunEncoder(
            endpoint.group,
            endpoint.me,
            bare=config.checksum in {"headers", "none"},
            checked=config.checksum != "none",
        )
        self._is_on = True
        self._streams: dict[bytes, InboundStream] = {}
        """The stream of each other member, by the bytes of its address; see ``on_view``."""
        self.takes_general: RareBranchHook | None = None
        """Whether an expected input takes the general path all the same: for the simulator."""
        # Of a member with a membership; an endpoint alone has neither.
        self._membership: Membership | None = None
        self._on_traffic: Callable[[Address, int], None] | None = None
        self._pause_after_ns = 0

    def follow(self, member: Member) -> None:
        """Serve a member: only in a steady view, with every datagram as a heartbeat."""
        self._membership = member.membership
        self._on_traffic = member.failure_detector.on_traffic
        # A timer that is overdue by more means that this process was paused.
        self._pause_after_ns = member.config.heartbeat_interval_ns

    def switch_off(self) -> None:
        """Leave every input to the general path."""
        self._is_on = False

    def on_view(self) -> None:
        """Learn the streams of a view: those of all other members, if their frames are expected."""
        endpoint = self._endpoint
        # Where stability releases messages, every delivery counts towards a vote, and numbers may
        # restart with a view: the general path does both.
        served = self._is_on and endpoint.stability is None
        self._streams = {
            ADDRESS.pack(*origin): stream
            for origin, stream in endpoint.inbound.items()
            # The acks of a member that stores follow the storage.
            if served and stream.stored is None
        }
        assert not self._streams or endpoint.epoch == 0, "acks release numbers that never restart"

    def _is_steady(self, now_ns: int) -> bool:
        """Return whether the end of an input has nothing to do but what the short path does."""
        if not self._streams:
            return False  # no other member, or streams that the general path serves
        membership, endpoint = self._membership, self._endpoint
        earliest_ns = self._timers.earliest_ns
        if membership is not None and (
            # A member that joins, leaves or is over does more at the end of an input.
            membership.phase != MEMBER
            # The next tick installs a view first.
            or membership.pending is not None
            # Starts are announced at the end of an input, and the own stream opens.
            or endpoint.unannounced
            or endpoint.outbound.closed
            # This process was paused: the silence of others is no evidence.
            or (earliest_ns is not None and now_ns - earliest_ns > self._pause_after_ns)
        ):
            return False
        transfer, own = endpoint.state_transfer, endpoint.outbound.window
        return (
            # Deliveries pass through the state transfer.
            not (transfer is not None and transfer.engaged)
            # Deliveries wait for a state.
            and not self._credit.held
            # Own messages wait for credit: the end of every input tries to deliver them.
            and own.delivered == own.high
            # The same of messages of this member to itself.
            and self._me not in self._connections.outgoing
            # The simulator, or a test, wants the general path.
            and (self.takes_general is None or not self.takes_general(GENERAL_PATH))
        )

    # On reception

    def receive(self, datagram: bytes, now_ns: int, *, opened: bool = False) -> Ready | None:
        """Handle a datagram with one expected frame; an ``opened`` one needs no checksum."""
        size_bytes = len(datagram)
        # Too short for a run or an ack.
        if size_bytes < GROUP_ACK.size or not self._is_steady(now_ns):
            return None
        if not datagram[FLAGS_AT] & ADDRESSED:
            return (
                self._on_group_run(datagram, now_ns, opened)
                if size_bytes > GROUP_RUN.size
                else None
            )
        # No run of a connection is as short as an ack.
        if size_bytes > MEMBER_RUN.size:
            return self._on_member_run(datagram, now_ns, opened)
        return self._on_ack(datagram, now_ns, opened)

    def _on_group_run(self, datagram: bytes, now_ns: int, opened: bool) -> Ready | None:
        """Handle a run to the group."""
        fields = GROUP_RUN.unpack_from(datagram)
        preamble, _, group, sender, kind, length, origin = fields[:7]
        stream = self._streams.get(sender)
        if (
            # A stranger, this member itself, or a stream that the general path serves.
            stream is None
            # Another kind of frame, a repair, a fragment, or a message of another mode.
            or kind not in PLAIN_RUN_FLAGS
            # For another group.
            or group != self._group
            # A repair by another holder.
            or origin != sender
            # Another version, or a flag that the general path checks.
            or preamble not in _TO_ALL
            # More than one frame, or more than a length field can hold.
            or length != len(datagram) - TO_ALL_OTHER_BYTES
        ):
            return None
        flags = PLAIN_RUN_FLAGS[kind]
        return self._on_next_run(datagram, GROUP_RUN.size, fields, flags, stream, now_ns, opened)

    def _on_member_run(self, datagram: bytes, now_ns: int, opened: bool) -> Ready | None:
        """Handle a run of a connection, to this member alone."""
        fields = MEMBER_RUN.unpack_from(datagram)
        preamble, _, group, sender, addressee, kind, length, origin, epoch = fields[:9]
        known = self._streams.get(sender)
        if (
            # As of a run to the group. The first message of a connection has a flag.
            known is None
            or kind != PLAIN_MEMBER_RUN
            or group != self._group
            or origin != sender
            or preamble not in _TO_ONE
            or length != len(datagram) - TO_ONE_OTHER_BYTES
            # For a former incarnation of this member.
            or addressee != self._me.incarnation
        ):
            return None
        connection = self._connections.incoming.get(known.origin)
        if (
            # The connection is not known, or another one is current.
            connection is None
            or connection.stream.epoch != epoch
            # Data opens a closing connection again, and that is reported.
            or connection.state is not _OPEN
        ):
            return None
        stream = connection.stream
        ready = self._on_next_run(datagram, MEMBER_RUN.size, fields, 0, stream, now_ns, opened)
        if ready is not None:
            connection.since_ns = now_ns
        return ready

    def _on_next_run(
        self,
        datagram: bytes,
        table_at: int,
        fields: tuple[Any, ...],
        flags: int,
        stream: InboundStream,
        now_ns: int,
        opened: bool,
    ) -> Ready | None:
        """Handle the run with these fields, if the run is the next one of ``stream``."""
        first, view, sent_ns, count = fields[-4:]
        window, detector, last = stream.window, stream.loss_detector, first + count - 1
        payload_at = table_at + LENGTH_BYTES * count
        lengths = datagram[table_at:payload_at]
        payload_bytes = int.from_bytes(lengths, "little") if count == 1 else total_bytes(lengths)
        if (
            # The start of the stream is not known.
            window is None
            # Repeated, or behind a gap.
            or first != window.high + 1
            # Stored messages wait for credit, or behind a gap.
            or window.delivered != window.high
            # The window has no room for all messages.
            or last > window.ceiling
            # Messages are gone at the origin: delivery would skip them.
            or stream.gone_upto > window.delivered
            # A gap is watched: the run ends it, or restarts its grace.
            or detector.due_ns is not None
            # The ack of an announcement is due.
            or stream.ack_now
            # No messages, seqnos without end, or lengths that do not add up.
            or not count
            or first >= SAFE_SEQNO
            or payload_at + payload_bytes != len(datagram)
        ):
            return None
        header_flags = datagram[FLAGS_AT]
        if not opened and fields[1] != crc32(
            datagram[CHECKED_FROM:payload_at]
            if header_flags & BARE
            else memoryview(datagram)[CHECKED_FROM:],
            header_flags,
        ):
            return None  # damaged: the general path counts the drop
        if not self._credit.try_spend(count, payload_bytes + len(lengths)):
            return None  # the application has no room for all messages
        assert not window.keep_delivered, "a stream released by acks keeps no delivered message"
        assert not window.stored, "every message up to high was delivered"
        assert not detector.open_naks, "no message is requested unless a gap is watched"
        # From here on the input has an effect.
        origin = stream.origin
        run: Run
        if payload_bytes >= LARGE_RUN_BYTES:
            run = DatagramRun(
                origin, first, lengths, ((datagram, payload_at),), flags, view, sent_ns
            )
        else:
            run = Run(origin, first, lengths, datagram[payload_at:], flags, view, sent_ns)
        return self._deliver(stream, window, run, now_ns)

    def _deliver(self, stream: InboundStream, window: Window, run: Run, now_ns: int) -> Ready:
        """Store, deliver and acknowledge the next run, for which there is room everywhere."""
        origin, first, last, count = stream.origin, run.first, run.last, run.count
        out, epoch, scheduler = self._out, stream.epoch, stream.ack_scheduler
        self._begin(_RECEIVED_DATA, origin, now_ns)
        last_data_ns = self._active.last_data_ns
        last_data_ns[origin] = now_ns
        if out.tracing:
            out.trace("STORE", origin, first, last, peer=origin, k=count, epoch=epoch)
        # The window stores the run and hands it out in one step: its ceiling moves with its marks.
        window.low = window.delivered = window.high = last
        window.ceiling += count
        if stream.profile.naks:
            stream._scanned_upto = stream._last_high = last  # no gap up to here
        out._ready.deliveries.append(
            _make(Delivery, (origin, first, last, run, stream.kind, epoch, 0, 0, 0))
        )
        ack_bytes = self._receive_buffer_bytes // (MIN_ACKS_PER_SHARE * len(last_data_ns))
        due = scheduler.on_delivery(count, run.size_bytes, ack_bytes, now_ns, False)
        self._deliveries.schedule_ack(stream, out, due=due)
        # Of all timers only that of the acks may have been set, and never to a later time.
        armed = self._timers
        ack_ns = armed.get(timers.ACK)
        if ack_ns is not None and (armed.earliest_ns is None or ack_ns < armed.earliest_ns):
            armed.earliest_ns = ack_ns
        return self._end()

    def _on_ack(self, datagram: bytes, now_ns: int, opened: bool) -> Ready | None:
        """Handle an ack, of the stream to the group or of a connection."""
        epoch, expected_kind = 0, PLAIN_ACK
        if len(datagram) == GROUP_ACK.size:
            fields = GROUP_ACK.unpack(datagram)
        elif len(datagram) == MEMBER_ACK.size:
            fields, expected_kind = MEMBER_ACK.unpack(datagram), PLAIN_MEMBER_ACK
            epoch = fields[8]
        else:
            return None  # another frame
        preamble, checksum, group, sender, addressee, kind, length, origin = fields[:8]
        known = self._streams.get(sender)
        if (
            # A stranger, or a stream that the general path serves.
            known is None
            # Another frame of the same size.
            or kind != expected_kind
            or length != len(datagram) - TO_ONE_OTHER_BYTES
            # For another group, or for a former incarnation of this member.
            or group != self._group
            or addressee != self._me.incarnation
            # About the stream of another incarnation.
            or origin != self._own_address
            # Another version, or a flag that the general path checks; an ack is never bare.
            or preamble != _TO_ONE_CHECKED
            # Damaged.
            or not (opened or crc32(datagram[CHECKED_FROM:], ADDRESSED) == checksum)
        ):
            return None
        peer, seqno, buffer_bytes = known.origin, fields[-2], fields[-1]
        if not epoch:
            stream = self._endpoint.outbound
            return self._on_next_ack(stream, peer, seqno, buffer_bytes, now_ns)
        connection = self._connections.outgoing.get(peer)
        if connection is None or connection.stream.epoch != epoch:
            return None  # of a connection that is over
        ready = self._on_next_ack(connection.stream, peer, seqno, buffer_bytes, now_ns)
        if ready is not None:
            connection.since_ns = now_ns
        return ready

    def _on_next_ack(
        self, stream: OutboundStream, peer: Address, seqno: int, buffer_bytes: int, now_ns: int
    ) -> Ready | None:
        """Raise the entry of ``peer`` in the ack table, and purge if the minimum rises."""
        acks, flow, window = stream.acks, stream.flow_control, stream.window
        before = acks._acks.get(peer)
        if (
            # Not a receiver of this stream.
            before is None
            # Repeated, or overtaken by a later ack.
            or seqno <= before
            # Impossible: the general path drops the ack.
            or seqno > window.high
            # Sends wait for the room that the ack may make.
            or stream.queue.sends
            # The application waits for acks of single sends.
            or stream._tracked
            # A receiver has not confirmed its start.
            or stream._unconfirmed
            # Absent durable members need what all present members have acknowledged.
            or stream.retention.retained
            or stream.retention._expired
            # The receiver advertises another buffer, or not all buffers are equal: the share of
            # this sender changes.
            or flow.buffers_differ
            or flow._buffers.get(peer) != buffer_bytes
            # Without naks an ack says that nothing is lost, and restarts the probe.
            or not stream.profile.naks
        ):
            return None
        # From here on the input has an effect.
        out = self._out
        self._begin(_RECEIVED_ACK, peer, now_ns)
        out.trace("ACK_IN", self._me, seqno_last=seqno, peer=peer, epoch=stream.epoch)
        stream.acked_ns[peer] = now_ns
        if acks.on_ack(peer, seqno):
            self._release(stream, out)
        return self._end()

    def _release(self, stream: OutboundStream, out: ReadyBuilder) -> None:
        """Purge up to the minimum of the acks; see ``OutboundStream.release``.

        The share of the receive buffers counts from the minimum, so the byte limit stays.
        """
        window = stream.window
        low, purged = window.low, window.purge(stream.acks.minimum)
        assert window.low == stream.acks.minimum, "every receiver has delivered up to the minimum"
        epoch, to = stream.epoch, stream.to
        out.trace("PURGE", self._me, low + 1, window.low, k=purged, epoch=epoch, to=to)
        stream.restart_progress_watch(out.now_ns)
        stream.flow_control.purge(window.low)
        if not stream.senders:
            stream.update_byte_limit(stream.senders)  # no send has found the share yet
        if window.low == window.high:
            stream.tail_due_ns = None
        if out.rarely is not None:
            # Nothing is queued; but the simulator draws whether a run would have been small.
            stream.flush(out, "ack")
        if to is not None:
            self._connections.note_change(to)
        self._arm_timers(out)

    # On sending

    def send(
        self,
        payloads: Payloads,
        now_ns: int,
        to: Address | None,
        mode: DeliveryMode | None,
        wait: bool,
        timeout_ns: int | None,
        loopback: bool | None,
    ) -> Ready | None:
        """Send messages as one run at once, in order and without options, if there is room."""
        out, endpoint = self._out, self._endpoint
        count = len(payloads)
        cost_bytes = payloads.size_bytes + LENGTH_BYTES * count
        stream, connection = endpoint.outbound, None
        if to is not None:
            connection = self._connections.outgoing.get(to)
            if connection is None or connection.state is not _OPEN:
                return None  # the send opens the connection
            stream = connection.stream
        if (
            # A mode of its own, or a switch for the next message.
            (mode is not None and mode is not _ORDERED)
            or endpoint.sender._next_mode is not None
            # A send with a timeout has a timer.
            or timeout_ns is not None
            # The simulator forces small runs, refusals and early probes: choices of a send.
            or out.rarely is not None
            # Messages too long, fragments, or more than a frame holds.
            or payloads.longest_bytes > self._longest_bytes
            or cost_bytes > stream.queue.room_bytes
            # This member must not send yet, or earlier sends wait.
            or stream.closed
            or stream.queue.sends
            # A new member has yet to confirm its start, and no message puts that off.
            or stream._unconfirmed
            # Without retransmission, or without naks, messages restart no probe.
            or not stream._retransmits
            or not stream.profile.naks
            # The first message of a connection has a flag.
            or (to is not None and not stream.window.high)
            or not self._is_steady(now_ns)
        ):
            return None
        out.now_ns = now_ns
        if loopback is None:
            loopback = endpoint.config.loopback
        # The sender is no receiver of a message to another member: there is nothing to leave out.
        flags = 0 if loopback or to is not None else NO_LOOPBACK
        if not self._finds_room(stream, count, cost_bytes, flags, now_ns, wait=wait):
            return None  # the send waits, or is refused
        ticket = self._send_run(payloads, cost_bytes, flags, stream, connection, out)
        if out.tracing:
            endpoint.trace_marks(out)
        ready = out.build(self._timers.earliest_ns)
        ready.ticket = ticket
        return ready

    def _finds_room(
        self,
        stream: OutboundStream,
        count: int,
        cost_bytes: int,
        flags: int,
        now_ns: int,
        *,
        wait: bool,
    ) -> bool:
        """Share the receive buffers, and return whether messages may leave now.

        If so, the credit for their delivery to this member is spent.
        """
        to, endpoint = stream.to, self._endpoint
        # The general path does this first, too, and again: sharing twice has no other effect.
        active, connections = self._active, self._connections
        if to is not None:
            pass  # the streams of connections do not count
        elif now_ns - active._last_send_ns < ACTIVE_SENDER_NS:
            active._last_send_ns = now_ns
        else:
            active.on_send(now_ns, wait=wait)  # after a pause
        if (
            # A member may have stopped to send, or others may send with this one after a pause.
            now_ns >= active.settled_until_ns
            # Another number of members sends.
            or len(active.last_data_ns) != active.settled_count
            # A stream has another share.
            or endpoint.outbound.senders != active.settled_shares
            or (connections.outgoing and connections.has_unshared(active.settled_shares))
        ):
            endpoint.divide_receive_buffers(now_ns)
        window = stream.window
        return (
            # The window has room for the messages.
            count <= window.ceiling - window.high
            # And for their bytes; but an empty window takes one message, however small it is.
            and (
                window.max_bytes is None
                or cost_bytes <= window.max_bytes - window.stored_bytes
                or (count == 1 and window.low == window.high)
            )
            # And the application for the own delivery, if the messages go to all with loopback.
            and (to is not None or flags != 0 or self._credit.try_spend(count, cost_bytes))
        )

    def _send_run(
        self,
        payloads: Payloads,
        cost_bytes: int,
        flags: int,
        stream: OutboundStream,
        connection: OutgoingConnection | None,
        out: ReadyBuilder,
    ) -> int:
        """Number, store and send the messages as one run; return the ticket.

        Messages to all are also delivered here.
        """
        window, to, now_ns, count = stream.window, stream.to, out.now_ns, len(payloads)
        first, sent_ns, me = window.high + 1, now_ns + out.wall_offset_ns, self._me
        ticket = next(self._tickets)
        if count == 1:
            lengths = payloads.longest_bytes.to_bytes(LENGTH_BYTES, "little")
            run = Run(me, first, lengths, payloads[0], flags, stream.view, sent_ns)
        else:
            each_bytes = payloads.longest_bytes if payloads.uniform else None
            run = Run.of(me, first, payloads, flags, stream.view, sent_ns, each_bytes)
        last = run.last
        assert run.size_bytes == cost_bytes, "room was found for these bytes"
        assert last <= window.ceiling, "room was found for these messages"
        # The window stores the run and hands it out in one step. It keeps the run until all
        # receivers have acknowledged it, so the ceiling stays.
        window._runs.append(run)
        window._firsts.append(first)
        window.stored += count
        window.stored_bytes += cost_bytes
        window.delivered = window.high = last
        flow = stream.flow_control
        flow._lasts.append(last)
        flow._totals.append(flow._totals[-1] + cost_bytes)
        if out.tracing:
            out.trace("SEND", me, first, last, epoch=stream.epoch, to=to, run=run)
        ready = out._ready
        ready.events.append(_make(Accepted, (ticket, first, last, 0)))
        stream._tail_interval_ns = stream._min_tail_interval_ns
        stream.tail_due_ns = now_ns + stream._tail_interval_ns
        if stream._blocked_since_ns is None:
            stream.restart_progress_watch(now_ns)
        if connection is None:
            if not flags:
                own = _make(Delivery, (me, first, last, run, GROUP, 0, 0, 0, 0))
                ready.deliveries.append(own)
            # The own delivery is the own ack, also without loopback; the minimum is that of others.
            assert stream.acks._acks[me] == first - 1, "own messages were delivered up to high"
            stream.acks._acks[me] = last
            datagram = self._encoder.to_all(run)
        else:
            assert to is not None, "a connection has a receiver"
            connection.since_ns = now_ns
            self._connections.note_change(to)
            datagram = self._encoder.to_member(run, stream.epoch, to.incarnation)
        counters = self._counters
        counters[_SENT_DATA] = counters.get(_SENT_DATA, 0) + 1
        if out.last_sent_ns is not None:
            out.last_sent_ns[to] = now_ns
        ready.transmits.append(_make(Transmit, (to, datagram)))
        self._arm_timers(out)
        return ticket

    # What every input begins and ends with

    def _begin(self, counter: str, sender: Address, now_ns: int) -> None:
        """Start an input with a frame of ``sender``, which is a heartbeat."""
        self._out.now_ns = now_ns
        self._counters[counter] = self._counters.get(counter, 0) + 1
        if self._on_traffic is not None:
            self._on_traffic(sender, now_ns)

    def _arm_timers(self, out: ReadyBuilder) -> None:
        """Set the timers of the streams, which have moved."""
        armed, connections = self._timers, self._connections
        if connections.outgoing or connections.incoming or timers.REAP in armed:
            self._endpoint.arm_timers(out)
        else:
            # As ``Endpoint.arm_timers`` without connections.
            outbound = self._endpoint.outbound
            tail_ns, slow_ns = outbound.tail_due_ns, outbound.slow_receiver_due_ns
            if tail_ns is None:
                armed.pop(timers.TAIL, None)
            else:
                armed[timers.TAIL] = tail_ns
            if slow_ns is None:
                armed.pop(timers.SLOW_RECEIVER, None)
            else:
                armed[timers.SLOW_RECEIVER] = slow_ns
        armed.earliest_ns = min(armed.values(), default=None)

    def _end(self) -> Ready:
        """End an input: the timers are set already."""
        out, endpoint = self._out, self._endpoint
        if out.tracing:
            endpoint.trace_marks(out)
        return out.build(self._timers.earliest_ns)
