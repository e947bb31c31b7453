"""What a member consists of, and what every input ends with.

The streams to and from the group, the connections, the messages beside them, the votes, and the
timers. After every
input: streams that moved are delivered from and acknowledged, the own messages are delivered, and
the timers are set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.delivery_mode import DeliveryMode
from gapless.errors import LocalProtocolError
from gapless.identity import U64_MAX
from gapless.protocol import buggify, timers
from gapless.protocol.ready import GROUP, UNICAST, Delivery, Ready
from gapless.protocol.ready_builder import ReadyBuilder
from gapless.protocol.state_transfer.held_deliveries import StateCoverage
from gapless.protocol.stream.connections import Connections
from gapless.protocol.stream.flow_control import DeliveryCredit
from gapless.protocol.stream.future_view_buffer import FutureViewBuffer
from gapless.protocol.stream.inbound import STORED_UNKNOWN, InboundStream
from gapless.protocol.stream.out_of_band import OutOfBandChannel
from gapless.protocol.stream.outbound import OutboundStream
from gapless.protocol.stream.reassembly import Reassembler
from gapless.protocol.stream.send_queue import TicketCounter
from gapless.protocol.stream.stability import Stability
from gapless.run import FRAGMENT, LENGTH_BYTES, MAX_ENTRY_BYTES, NO_LOOPBACK
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, OUT_OF_BAND_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address, Digest, Marks, View
    from gapless.payloads import Payloads
    from gapless.protocol.buggify import RareBranchHook
    from gapless.protocol.stream.window import Window
    from gapless.run import Run
    from gapless.wire.frames import StreamProgress

_MIN_ACKS_PER_SHARE = 4
"""How many acks a sender gets, at the least, for its share of the receive buffer."""
_MAX_DEPARTED_STREAMS = 1024
"""Departed streams of which the end is remembered, in case the same life comes back."""
ACTIVE_SENDER_NS = 500_000_000
"""A member counts as sending for so long after its last data."""


class StreamEndpoint:
    """Everything that one member keeps."""

    def __init__(
        self,
        me: Address,
        group: int,
        config: Config,
        rng: Random,
        *,
        tracing: int = 0,
        rarely: RareBranchHook = buggify.never,
    ) -> None:
        if not all(0 <= number <= U64_MAX for number in (*me, group)):
            raise LocalProtocolError(
                f"address {me} or group {group:x} does not fit the wire: use 64-bit numbers"
            )
        self.me = me
        self.group = group
        self.config = config
        self.profile = config.group_profile
        self.view: View | None = None
        self._tickets = TicketCounter()
        self.outbound = OutboundStream(me, config, self.profile, self._tickets)
        self.inbound: dict[Address, InboundStream] = {}
        self._rng = rng
        self._out = ReadyBuilder(me, group, config, rarely, tracing=tracing)
        self._credit = DeliveryCredit(config.unread_limit, config.max_batch_size)
        self.connections = Connections(me, config, rng, self._tickets, self._credit)
        self.out_of_band = OutOfBandChannel(me, config, self._credit)
        self.stability = Stability(me, config, rng) if self.profile.release == "stability" else None
        self.future_view_buffer = FutureViewBuffer(config)
        self._own_reassembler = Reassembler(config.max_message_bytes)
        self._timers = timers.Timers()
        self._pending_acks: dict[tuple[Address, int], InboundStream] = {}
        self._awaiting_credit: dict[tuple[Address, int], InboundStream | None] = {}
        self._departed_marks: dict[Address, int] = {}
        self._max_departed = _MAX_DEPARTED_STREAMS
        self._durable = False
        self._stored_marks: dict[Address, int] | None = None
        self._active_senders: dict[Address, int] = {}
        self._last_send_ns = -ACTIVE_SENDER_NS
        self._resumed_ns: int | None = None
        self._nodes: frozenset[int] = frozenset()
        self._traced_marks: dict[Address, tuple[int, int, int]] = {}
        self._epoch = 0
        self._next_mode: DeliveryMode | None = None

    def resume(self, marks: Mapping[Address, int], *, stores: bool = False) -> None:
        """Be a durable member, which goes on where its former life was; to be called before the first view.

        ``marks`` says up to which seqno the application has the messages of each origin safely, as
        far as it knows. No stream starts below its mark, and if one starts above it, what lies
        between is reported as lost. A durable member also acknowledges a message in pieces as a
        whole, unless it is large. One that ``stores`` acknowledges only what it has reported as
        stored.
        """
        if self.view is not None:
            raise LocalProtocolError(f"{self.me} is a member already: resume before the first view")
        if self.profile.release != "acks":
            raise LocalProtocolError(
                f"profile {self.profile.name} has no durable members: use profile nakack4"
            )
        for origin, seqno in marks.items():
            if not 0 <= seqno <= U64_MAX:
                raise LocalProtocolError(
                    f"mark {seqno} of {origin} is not a seqno: use 64-bit numbers"
                )
        self._durable = True
        self._stored_marks = dict(marks) if stores else None
        self._departed_marks.update(marks)
        self._max_departed += len(marks)

    def confirm_stored(self, marks: Mapping[Address, int], now_ns: int) -> Ready:
        """Note up to where the application has stored the messages of each origin: that is acknowledged at once.

        For a durable member that has said before its first view that it stores what it gets.
        """
        if self._stored_marks is None:
            raise LocalProtocolError(
                f"{self.me} does not say what it stores: resume with stores=True"
            )
        out = self._begin(now_ns)
        for origin, seqno in marks.items():
            stream = self.inbound.get(origin)
            if stream is None:
                if seqno > self._stored_marks.get(origin, seqno):
                    self._stored_marks[origin] = seqno
            elif stream.on_stored(seqno) and stream.window is not None:
                self._send_ack(stream, out)
        return self._finish(())

    def resume_marks(self) -> dict[Address, int]:
        """Return up to where the application has each stream, for its next life: what it stored, or was handed."""
        if self._stored_marks is None:
            return dict(self.coverage().marks)
        streams = {
            origin: stream.stored or 0
            for origin, stream in self.inbound.items()
            if stream.stored != STORED_UNKNOWN
        }
        return {**self._stored_marks, **streams}

    @property
    def counters(self) -> dict[str, int]:
        """Frames sent and received by kind, and what was dropped by reason."""
        return self._out.counters

    @property
    def deadline_ns(self) -> int | None:
        """When ``tick`` is to be called next."""
        return self._timers.next_ns

    def digest(self) -> Digest:
        """Return the marks of every stream whose start is known, the own included."""
        marks = {
            origin: stream.window.marks
            for origin, stream in self.inbound.items()
            if stream.window is not None
        }
        return {self.me: self.outbound.window.marks, **marks}

    def set_digest(self, digest: Digest, now_ns: int) -> Ready:
        """Open the streams that wait for their start behind what ``digest`` says was delivered; leave others alone.

        What is missing up to the digest's high is a gap (N7-22), of an open stream too.
        """
        out = self._begin(now_ns)
        if self.profile.numbering == "view":
            return self._finish(
                ()
            )  # every stream starts with its view, and a digest does not say of which it is
        named = [
            (stream, digest[origin]) for origin, stream in self.inbound.items() if origin in digest
        ]
        for stream, marks in named:
            if stream.window is None and not self._durable:
                stream.open_at(marks.delivered, out)
            stream.learn_high(marks.high)
        return self._finish([stream for stream, _ in named])

    def _marks(self, origin: Address) -> Marks | None:
        """Return the marks of one stream, if its start is known."""
        stream = self.outbound if origin == self.me else self.inbound.get(origin)
        return None if stream is None or stream.window is None else stream.window.marks

    # What a state transfer stands on

    def stream_starts(self) -> dict[Address, int | None]:
        """Return where the stream of every other member starts here; None if that is not known yet."""
        return {
            origin: None if stream.window is None else stream.start
            for origin, stream in self.inbound.items()
        }

    def delivered_upto(self, origin: Address) -> int | None:
        """Return up to where whole messages of ``origin`` were delivered; None if its stream is not known."""
        if origin == self.me:
            unfinished = self._own_reassembler.first_seqno
            return self.outbound.window.delivered if unfinished is None else unfinished - 1
        stream = self.inbound.get(origin)
        if stream is None:
            return self._departed_marks.get(origin)
        return None if stream.window is None else stream.resume_seqno

    def coverage(self) -> StateCoverage:
        """Return everything that was delivered, of those that have left too, as far as it is remembered."""
        marks = {
            **self._departed_marks,
            **{origin: stream.resume_seqno for origin, stream in self.inbound.items()},
        }
        marks[self.me] = self.delivered_upto(self.me) or 0
        return StateCoverage(self._epoch, marks, self.out_of_band.delivered())

    def mark_covered(self, covered: StateCoverage) -> None:
        """Count the out-of-band messages that a state covers as delivered."""
        for origin, seen in covered.out_of_band.items():
            self.out_of_band.mark_covered(origin, seen)

    @property
    def is_quiet(self) -> bool:
        """Whether everything that was sent is known to have arrived, and nothing is owed to anybody."""
        if self.stability is not None and self._has_unstable:
            return False
        return self.out_of_band.is_quiet and all(stream.is_quiet for stream in self._outbounds())

    @property
    def waiting_sends(self) -> int:
        """How many sends wait for room, to the group or to one member."""
        return sum(len(stream.queue) for stream in self._outbounds())

    def _outbounds(self) -> list[OutboundStream]:
        return (
            [self.outbound, *self.connections.outbounds()]
            if self.connections.outgoing
            else [self.outbound]
        )

    def _inbounds(self) -> list[InboundStream]:
        return [*self.inbound.values(), *self.connections.inbounds()]

    def _check_payloads(self, payloads: Payloads, to: Address | None, mode: DeliveryMode) -> None:
        if self.view is None:
            raise LocalProtocolError("not a member yet: install a view before sending")
        if to is not None and to not in self.view.members:
            raise LocalProtocolError(
                f"{to} is not a member of view {self.view.id.number}: send to one that is"
            )
        largest_bytes = payloads.longest_bytes
        limit_bytes, knob = self.config.max_message_bytes, "max_message_bytes"
        if mode in {DeliveryMode.OUT_OF_BAND, DeliveryMode.UNRELIABLE}:
            overhead_bytes = ADDRESSED_HEADER_BYTES + OUT_OF_BAND_OVERHEAD_BYTES + LENGTH_BYTES
            limit_bytes = min(
                limit_bytes, self.config.max_frame_bytes - overhead_bytes, MAX_ENTRY_BYTES
            )
            knob = f"what one frame takes of an {mode} message"
        if largest_bytes > limit_bytes:
            raise LocalProtocolError(
                f"a message of {largest_bytes} bytes is over {knob} ({limit_bytes})"
            )

    # What every input ends with

    def _begin(self, now_ns: int) -> ReadyBuilder:
        self._out.now_ns = now_ns
        return self._out

    def _finish(self, touched: Iterable[InboundStream]) -> Ready:
        out = self._out
        if self.connections.removed:
            self._forget_removed_connections()
        for stream in touched:
            self._deliver_and_ack(stream, out)
        self._deliver_own(out)
        self._arm_timers(out)
        if out.tracing:
            self._trace_marks(out)
        return out.build(self._timers.next_ns)

    def _finish_streams(self, touched: Iterable[InboundStream]) -> Ready:
        """Do what an input ends with that was about streams and nothing else."""
        return self._finish(touched)

    def _forget_removed_connections(self) -> None:
        """Neither acknowledge nor deliver from connections that have ended."""
        for key in self.connections.removed:
            self._pending_acks.pop(key, None)
            self._awaiting_credit.pop(key, None)
        self.connections.removed.clear()

    def _arm_timers(self, out: ReadyBuilder) -> None:
        arm, outbound, connections = self._timers.arm, self.outbound, self.connections
        if not connections.outgoing and not connections.incoming:
            arm(timers.TAIL, outbound.tail_due_ns)
            arm(timers.SLOW_RECEIVER, outbound.slow_receiver_due_ns)
            if self._timers.is_armed(timers.REAP):
                arm(timers.REAP, None)
        else:
            tail_ns, pin_ns = outbound.tail_due_ns, outbound.slow_receiver_due_ns
            for entry in connections.outgoing.values():
                tail_ns = timers.earlier(tail_ns, entry.stream.tail_due_ns)
                pin_ns = timers.earlier(pin_ns, entry.stream.slow_receiver_due_ns)
            arm(timers.TAIL, tail_ns)
            arm(timers.SLOW_RECEIVER, pin_ns)
            arm(timers.REAP, connections.reap_due_ns)
        if (ask_ns := connections.first_request_due_ns) is not None:
            self._timers.arm_earlier(timers.GAP, ask_ns)
        if (aside_ns := self.out_of_band.due_ns) is not None or self._timers.is_armed(
            timers.OUT_OF_BAND
        ):
            arm(timers.OUT_OF_BAND, aside_ns)
        if self.stability is not None:
            self.stability.schedule_vote(out.now_ns, unstable=self._has_unstable)
            arm(timers.STABLE, self.stability.due_ns)

    def _deliver_and_ack(self, stream: InboundStream, out: ReadyBuilder) -> None:
        """Deliver from a stream, then owe, send or plan its ack and its next pass over gaps."""
        if stream.ended:
            return
        ack_bytes = self.config.receive_buffer_bytes // (
            _MIN_ACKS_PER_SHARE * self._active_sender_count
        )
        due = stream.deliver(self._credit, ack_bytes, out) or stream.ack_now
        if due or (stream.ack_scheduler.pending and out.rarely(buggify.EARLY_ACK)):
            self._send_ack(stream, out)
        elif stream.ack_scheduler.pending and stream.key not in self._pending_acks:
            self._pending_acks[stream.key] = stream
            self._timers.arm_earlier(
                timers.ACK, stream.ack_scheduler.schedule_ns(out.now_ns, self._rng)
            )
        if stream.can_deliver:
            self._awaiting_credit[stream.key] = stream
        self._arm_gap_timer((stream,))
        if self.stability is not None and stream.kind == GROUP:
            taken, taken_bytes = stream.unvoted, stream.unvoted_bytes
            stream.unvoted = stream.unvoted_bytes = 0
            self._count_toward_vote(taken, taken_bytes, out)

    @property
    def _active_sender_count(self) -> int:
        """How many members fill the buffer of this one just now."""
        return max(1, len(self._active_senders))

    def _send_ack(self, stream: InboundStream, out: ReadyBuilder) -> None:
        """Send the ack that is owed for a stream."""
        stream.acknowledge(out, self._active_sender_count)
        self._pending_acks.pop(stream.key, None)

    def _deliver_awaiting_credit(self, out: ReadyBuilder) -> None:
        """Deliver from the streams that wait for room, as far as there is some."""
        for key in list(self._awaiting_credit):
            if self._credit.limit() == 0:
                break
            stream = self._awaiting_credit.pop(key)
            if stream is None:
                self._deliver_own(out)
            else:
                self._deliver_and_ack(stream, out)

    def _count_toward_vote(self, messages: int, size_bytes: int, out: ReadyBuilder) -> None:
        """Vote at once when much was delivered since the last vote."""
        if not messages or self.stability is None:
            return
        if self.stability.on_delivered(messages, size_bytes) or out.rarely(buggify.EARLY_VOTE):
            self._vote(out)

    def _arm_gap_timer(self, streams: Iterable[InboundStream]) -> None:
        for stream in streams:
            if stream.loss_detector.due_ns is not None:
                self._timers.arm_earlier(timers.GAP, stream.loss_detector.due_ns)

    def _deliver_own(self, out: ReadyBuilder, *, ignore_credit: bool = False) -> None:
        """Deliver the own messages, in order like everybody else's; this counts as the own ack."""
        self._deliver_own_stream(
            self.outbound, self._own_reassembler, out, ignore_credit=ignore_credit
        )
        if (mine := self.connections.outgoing.get(self.me)) is not None:
            self._deliver_own_stream(mine.stream, mine.reassembler, out)

    def _deliver_own_stream(
        self,
        outbound: OutboundStream,
        pieces: Reassembler,
        out: ReadyBuilder,
        *,
        ignore_credit: bool = False,
    ) -> None:
        window = outbound.window
        while window.delivered < window.high:
            runs = window.take(None if ignore_credit else self._own_delivery_limit(window))
            if not runs:
                self._awaiting_credit.setdefault((self.me, outbound.epoch), None)
                return
            for run in runs:
                self._deliver_own_run(run, outbound, pieces, out)
            if not ignore_credit:
                outbound.acknowledge_self(out)
                if outbound is self.outbound:
                    self._count_toward_vote(
                        runs[-1].last - runs[0].first + 1,
                        sum(run.size_bytes for run in runs),
                        out,
                    )

    def _own_delivery_limit(self, window: Window) -> int | None:
        """Return how many own messages may be delivered; one that is not wanted back needs no room (M-11)."""
        limit = self._credit.limit()
        if limit is None:
            return None
        run = window.next_run()
        return run.last - window.delivered if run.flags & NO_LOOPBACK else limit

    def _deliver_own_run(
        self, run: Run, outbound: OutboundStream, pieces: Reassembler, out: ReadyBuilder
    ) -> None:
        if run.flags & NO_LOOPBACK:
            return
        kind = GROUP if outbound.to is None else UNICAST
        delivery: Delivery | None = Delivery(
            run.origin, run.first, run.last, run, kind, outbound.epoch
        )
        if run.flags & FRAGMENT:
            whole = pieces.add(run, out)
            delivery = whole and whole._replace(epoch=outbound.epoch)
        if delivery is not None:
            self._credit.spend(delivery.message_count)
            out.deliver(delivery)

    def _divide_receive_buffers(self, now_ns: int) -> None:
        """Divide the receivers' buffers by the number of members that are sending just now; nobody fills its own.

        After a pause others may begin at the same moment, or have the whole buffer: all count,
        twice, until each has acknowledged something since.
        """
        self._active_senders = {
            origin: at_ns
            for origin, at_ns in self._active_senders.items()
            if now_ns - at_ns < ACTIVE_SENDER_NS
        }
        others = len(self.inbound)
        senders = max(1, min(1 + len(self._active_senders), others))
        if self._resumed_ns is not None and others > 1:
            acked_ns = self.outbound.acked_ns
            if any(acked_ns.get(peer, -1) < self._resumed_ns for peer in self.inbound):
                senders = 2 * others
            else:
                self._resumed_ns = None
        for stream in self._outbounds():
            if stream.senders != senders:
                stream.update_byte_limit(senders)

    def _trace_marks(self, out: ReadyBuilder) -> None:
        traced, every = self._traced_marks, out.tracing
        windows = [(origin, stream.window, stream.epoch) for origin, stream in self.inbound.items()]
        for origin, window, epoch in (self.me, self.outbound.window, self.outbound.epoch), *windows:
            if window is None:
                continue
            low, delivered, high = window.low, window.delivered, window.high
            marks = low // every, delivered // every, high // every
            if traced.get(origin) != marks:
                traced[origin] = marks
                out.trace("STATE", origin, low=low, delivered=delivered, high=high, epoch=epoch)

    def _vote(self, out: ReadyBuilder) -> None:
        assert self.stability is not None
        self._on_stable(self.stability.vote(self.digest(), out), out)

    def _on_stable(self, progress: Iterable[StreamProgress], out: ReadyBuilder) -> None:
        """Purge what is stable; a stream that this member does not know is left alone (N7-24)."""
        for origin, seqno, high in progress:
            stream = self.inbound.get(origin)
            if origin == self.me:
                self.outbound.on_stable(seqno, out)
            elif stream is not None:
                stream.on_stable(seqno, high)
                self._deliver_and_ack(stream, out)

    @property
    def _has_unstable(self) -> bool:
        """Whether something that was delivered here is not known to be stable."""
        outbound = self.outbound
        if outbound.window.high > outbound.stable:
            return True
        return any(
            stream.window is not None and stream.window.delivered > stream.stable
            for stream in self.inbound.values()
        )

    # For tests, simulation and exhaustive search

    def check_invariants(self) -> None:
        """Raise AssertionError if the machine contradicts its own law."""
        for outbound in self._outbounds():
            outbound.check_invariants()
        self.connections.check_invariants()
        self.out_of_band.check_invariants()
        self.future_view_buffer.check_invariants()
        self._credit.check_invariants()
        self._own_reassembler.check_invariants()
        if self.stability is not None:
            self.stability.check_invariants()
        for origin, stream in self.inbound.items():
            assert origin == stream.origin != self.me, "streams are filed under their origin"
        for stream in self._inbounds():
            stream.check_invariants()
            if stream.ack_scheduler.pending and stream.window is not None:
                assert stream.key in self._pending_acks, "what is owed is on the list"
            if stream.loss_detector.due_ns is not None:
                assert self._timers.is_armed(timers.GAP), "a gap is being watched"
        assert not self._pending_acks or self._timers.is_armed(timers.ACK), (
            "an owed ack has its timer"
        )

    def armed_timers(self) -> tuple[str, ...]:
        """Return the timers that could fire."""
        return self._timers.snapshot()

    def snapshot(self) -> tuple[object, ...]:
        """Return the state as a hashable value, without times and counters; the view must not change meanwhile."""
        unconsumed = self._credit.outstanding if self.config.unread_limit else 0
        streams = tuple(stream.snapshot() for stream in self.inbound.values())
        stability = None if self.stability is None else self.stability.snapshot()
        beside = (
            self.connections.snapshot(),
            self.out_of_band.snapshot(),
            self.future_view_buffer.snapshot(),
            stability,
        )
        return (
            unconsumed,
            self._own_reassembler.snapshot(),
            self.outbound.snapshot(),
            streams,
            beside,
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says, with every armed timer due at time zero."""
        self._credit.outstanding, own_pieces, outbound, streams, beside = snapshot  # type: ignore[assignment]
        self._own_reassembler.restore(own_pieces)  # type: ignore[arg-type]
        self.outbound.restore(outbound)  # type: ignore[arg-type]
        for stream, state in zip(self.inbound.values(), streams, strict=True):  # type: ignore[call-overload]
            stream.restore(state)
        parts = (self.connections, self.out_of_band, self.future_view_buffer, self.stability)
        for part, state in zip(parts, beside, strict=True):  # type: ignore[call-overload]
            if part is not None:
                part.restore(state)
        self._pending_acks = {
            stream.key: stream for stream in self._inbounds() if stream.ack_scheduler.pending
        }
        self._awaiting_credit = {
            stream.key: stream for stream in self._inbounds() if stream.can_deliver
        }
        if self.outbound.window.has_next:
            self._awaiting_credit[self.me, self._epoch] = None
        self._restore_timers()
        self._active_senders = {}
        self._resumed_ns = None

    def _restore_timers(self) -> None:
        gaps = any(stream.loss_detector.due_ns is not None for stream in self._inbounds())
        armed = {
            timers.ACK: bool(self._pending_acks),
            timers.GAP: gaps or self.connections.first_request_due_ns is not None,
            timers.TAIL: any(stream.tail_due_ns is not None for stream in self._outbounds()),
            timers.STABLE: self.stability is not None and self.stability.due_ns is not None,
            timers.OUT_OF_BAND: self.out_of_band.due_ns is not None,
        }
        self._timers.restore(tuple(name for name, on in armed.items() if on))
