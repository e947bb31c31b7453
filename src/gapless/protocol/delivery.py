"""Delivery: hands messages to the application in order, acknowledges them, and votes on them.

On reception: the scheduler delivers from a stream that moved, as far as the application has credit.
After many deliveries the ack is sent at once; otherwise the ack is owed until the ack timer fires.
A stream with messages but without credit waits in line.

On sending: own messages are delivered like those of other members, in order and within the credit.
The delivery counts as the ack of this member. A message without loopback takes no credit (M-11).

On consumption: the scheduler delivers from the streams in line, in turn. A served stream with
messages left goes to the end of the line.

Where the profile releases messages by stability: delivered messages count towards the next vote,
and messages delivered by all members are purged.

Every interval: owed acks are sent when the ack timer fires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.protocol import buggify, timers
from gapless.protocol.ready import GROUP, UNICAST, Delivery
from gapless.protocol.stream.reassembly import Reassembler
from gapless.run import FRAGMENT, NO_LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address, Digest, Marks
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.connections import Connections
    from gapless.protocol.stream.flow_control import ActiveSenders, DeliveryCredit
    from gapless.protocol.stream.inbound import InboundStream
    from gapless.protocol.stream.outbound import OutboundStream
    from gapless.protocol.stream.stability import Stability
    from gapless.protocol.timers import Timers
    from gapless.run import Run
    from gapless.wire.frames import StreamProgress

MIN_ACKS_PER_SHARE = 4
"""Minimum number of acks that a sender gets for its share of the receive buffer."""

StreamKey = tuple["Address", int]
"""A stream: its origin and its epoch."""


class DeliveryScheduler:
    """Schedules deliveries, and the acks and votes that follow a delivery."""

    __slots__ = (
        "_ack_delay_ns",
        "_active_senders",
        "_connections",
        "_inbound",
        "_me",
        "_receive_buffer_bytes",
        "_rng",
        "_stability",
        "_timers",
        "awaiting_credit",
        "credit",
        "outbound",
        "own_reassembler",
        "pending_acks",
    )

    def __init__(
        self,
        me: Address,
        config: Config,
        rng: Random,
        *,
        timers: Timers,
        credit: DeliveryCredit,
        active_senders: ActiveSenders,
        inbound: dict[Address, InboundStream],
        outbound: OutboundStream,
        connections: Connections,
        stability: Stability | None,
    ) -> None:
        """Deliver from ``inbound`` (a live table), ``outbound`` and ``connections``."""
        self._me = me
        self._receive_buffer_bytes = config.receive_buffer_bytes
        self._ack_delay_ns = config.ack_delay_ns
        self._rng = rng
        self._timers = timers
        self.credit = credit
        self._active_senders = active_senders
        self._inbound = inbound
        self.outbound = outbound
        self._connections = connections
        self._stability = stability
        self.own_reassembler = Reassembler(config.max_message_bytes)
        self.pending_acks: dict[StreamKey, InboundStream] = {}
        self.awaiting_credit: dict[StreamKey, InboundStream | None] = {}

    # Streams of others

    def deliver_and_ack(self, stream: InboundStream, out: ReadyBuilder) -> None:
        """Deliver from a stream, then send or schedule the ack and the next check of gaps."""
        if stream.ended:
            return  # an earlier frame of the same input ended the connection
        senders = len(self._active_senders.last_data_ns) or 1
        ack_bytes = self._receive_buffer_bytes // (MIN_ACKS_PER_SHARE * senders)
        due = stream.deliver(self.credit, ack_bytes, out) or stream.ack_now
        self.schedule_ack(stream, out, due=due)
        window = stream.window
        if window is not None and window.delivered < window.high and window.has_next:
            self.awaiting_credit[stream.key] = stream
        if stream.loss_detector.due_ns is not None:
            self._timers.arm_earlier(timers.GAP, stream.loss_detector.due_ns)
        if self._stability is not None and stream.kind == GROUP:
            messages, size_bytes = stream.unvoted, stream.unvoted_bytes
            stream.unvoted = stream.unvoted_bytes = 0
            self._count_toward_vote(messages, size_bytes, out)

    def schedule_ack(self, stream: InboundStream, out: ReadyBuilder, *, due: bool) -> None:
        """Send the ack of a stream if ``due``; otherwise an ack that is owed has a time."""
        pending_acks, ack_scheduler = self.pending_acks, stream.ack_scheduler
        if due or (ack_scheduler.pending and out.rarely and out.rarely(buggify.EARLY_ACK)):
            self.send_ack(stream, out)
        elif ack_scheduler.pending and stream.key not in pending_acks:
            pending_acks[stream.key] = stream
            # As Timers.arm_earlier, without the call: every first delivery passes here.
            due_ns = ack_scheduler.schedule_ns(out.now_ns, self._rng)
            if due_ns < self._timers.get(timers.ACK, due_ns + 1):
                self._timers[timers.ACK] = due_ns

    def send_ack(self, stream: InboundStream, out: ReadyBuilder) -> None:
        """Send the ack of a stream; none is owed afterwards."""
        stream.acknowledge(out, self._active_senders.count)
        self.pending_acks.pop(stream.key, None)

    def send_pending_acks(self, out: ReadyBuilder) -> None:
        """Send the owed acks when the ack timer fires."""
        if self.pending_acks and out.rarely and out.rarely(buggify.LATE_ACK):
            self._timers.arm(timers.ACK, out.now_ns + max(self._ack_delay_ns, 1))
            return
        owed, self.pending_acks = self.pending_acks, {}
        for key, stream in owed.items():
            if (until_ns := stream.ack_scheduler.held_until_ns(out.now_ns)) is None:
                self.send_ack(stream, out)
            else:
                # A connection keeps a minimum time between two acks: the ack stays owed.
                self.pending_acks[key] = stream
                self._timers.arm_earlier(timers.ACK, until_ns)
        assert not self.pending_acks or timers.ACK in self._timers

    def deliver_awaiting_credit(self, out: ReadyBuilder) -> None:
        """Deliver from the streams in line, each once, until the credit is spent."""
        for key in list(self.awaiting_credit):
            if self.credit.limit() == 0:
                break
            stream = self.awaiting_credit.pop(key)
            if stream is None:
                self.deliver_own(out)
            else:
                assert stream.key == key, "streams stand in line under their key"
                self.deliver_and_ack(stream, out)

    def forget(self, key: StreamKey) -> None:
        """Stop acknowledging and delivering a stream that has ended."""
        self.pending_acks.pop(key, None)
        self.awaiting_credit.pop(key, None)

    # The own streams

    def deliver_own(self, out: ReadyBuilder, *, ignore_credit: bool = False) -> None:
        """Deliver own messages; with ``ignore_credit`` all of them, because the view ends."""
        outbound = self.outbound
        if outbound.window.delivered < outbound.window.high:
            self._deliver_own_stream(outbound, self.own_reassembler, out, ignore_credit)
        if (own := self._connections.outgoing.get(self._me)) is not None:
            self._deliver_own_stream(own.stream, own.reassembler, out, False)

    def _deliver_own_stream(
        self,
        outbound: OutboundStream,
        reassembler: Reassembler,
        out: ReadyBuilder,
        ignore_credit: bool,
    ) -> None:
        window = outbound.window
        while window.delivered < window.high:
            limit = None if ignore_credit else self.credit.limit()
            if limit is not None and (run := window.next_run()).flags & NO_LOOPBACK:
                # Messages without loopback need no credit: the application never sees them.
                limit = run.last - window.delivered
            runs = window.take(limit)
            if not runs:
                # The own messages stay in the window until the application has read some.
                self.awaiting_credit.setdefault((self._me, outbound.epoch), None)
                return
            for run in runs:
                self._deliver_own_run(run, outbound, reassembler, out)
            if not ignore_credit:
                outbound.acknowledge_self(out)
                if self._stability is not None and outbound is self.outbound:
                    messages = runs[-1].last - runs[0].first + 1
                    self._count_toward_vote(messages, sum(run.size_bytes for run in runs), out)

    def _deliver_own_run(
        self, run: Run, outbound: OutboundStream, reassembler: Reassembler, out: ReadyBuilder
    ) -> None:
        assert run.origin == self._me, "own streams hold own messages"
        if run.flags & NO_LOOPBACK:
            return
        if run.flags & FRAGMENT:
            if (whole := reassembler.add(run, out)) is not None:
                self.credit.spend(1, whole.size_bytes)
                out.deliver(whole._replace(epoch=outbound.epoch))
            return
        kind = GROUP if outbound.to is None else UNICAST
        self.credit.spend(run.count, run.size_bytes)
        out.deliver(Delivery(run.origin, run.first, run.last, run, kind, outbound.epoch))

    def restart(self, outbound: OutboundStream) -> None:
        """Deliver from a new own stream: the numbering restarts with the view."""
        self.outbound = outbound
        self.own_reassembler.clear()

    # Stability

    def digest(self) -> Digest:
        """Return the marks of all streams with a known start, the own stream first."""
        marks = {
            origin: stream.window.marks
            for origin, stream in self._inbound.items()
            if stream.window is not None
        }
        return {self._me: self.outbound.window.marks, **marks}

    def marks(self, origin: Address) -> Marks | None:
        """Return the marks of a stream, or None while the start of the stream is unknown."""
        stream = self.outbound if origin == self._me else self._inbound.get(origin)
        return None if stream is None or stream.window is None else stream.window.marks

    @property
    def has_unstable(self) -> bool:
        """Whether this member delivered a message not known to be stable."""
        outbound = self.outbound
        if outbound.window.high > outbound.stable:
            return True
        return any(
            stream.window is not None and stream.window.delivered > stream.stable
            for stream in self._inbound.values()
        )

    def _count_toward_vote(self, messages: int, size_bytes: int, out: ReadyBuilder) -> None:
        """Vote at once when much was delivered since the last vote."""
        if not messages or self._stability is None:
            return
        if self._stability.on_delivered(messages, size_bytes) or (
            out.rarely and out.rarely(buggify.EARLY_VOTE)
        ):
            self.vote(out)

    def vote(self, out: ReadyBuilder) -> None:
        """Vote with the marks of all streams, and purge the messages that become stable."""
        assert self._stability is not None, "only a profile with stability votes"
        self.on_stable(self._stability.vote(self.digest(), out), out)

    def on_stable(self, progress: Iterable[StreamProgress], out: ReadyBuilder) -> None:
        """Purge stable messages, only of streams that are open here (N7-24)."""
        for origin, seqno, high in progress:
            stream = self._inbound.get(origin)
            if origin == self._me:
                self.outbound.on_stable(seqno, out)
            elif stream is not None:
                stream.on_stable(seqno, high)
                self.deliver_and_ack(stream, out)

    # For tests, simulation and exhaustive search

    def check_invariants(self, streams: Iterable[InboundStream]) -> None:
        """Raise AssertionError if an ack, a gap or a delivery of ``streams`` is not scheduled."""
        keys = set()
        for stream in streams:
            keys.add(stream.key)
            if stream.ack_scheduler.pending and stream.window is not None:
                assert stream.key in self.pending_acks, "an owed ack is on the list"
            if stream.loss_detector.due_ns is not None:
                assert timers.GAP in self._timers, "a gap is being watched"
        assert not self.pending_acks or timers.ACK in self._timers, "an owed ack has its timer"
        assert self.pending_acks.keys() <= keys, "acks are owed for open streams"
        for key, waiting in self.awaiting_credit.items():
            # The entry of an own stream may outlive the stream: its turn is then without effect.
            expected = key[0] == self._me if waiting is None else key in keys
            assert expected, "only open streams stand in line"
        self.credit.check_invariants()
        self.own_reassembler.check_invariants()

    def restore(self, streams: Iterable[InboundStream]) -> None:
        """Owe the acks and the deliveries that follow from the state of ``streams``."""
        streams = tuple(streams)
        self.pending_acks = {
            stream.key: stream for stream in streams if stream.ack_scheduler.pending
        }
        self.awaiting_credit = {stream.key: stream for stream in streams if stream.can_deliver}
        if self.outbound.window.has_next:
            self.awaiting_credit[self._me, self.outbound.epoch] = None
