"""An outbound stream: the messages of this member to the group, or to one other member.

On sending: messages wait for room, then they are numbered, stored and sent in one step
(send_queue.py, N4-11, N4-13).

On reception of an ack from P: the entry of P rises. When the minimum rises, the window is purged up
to the minimum, and waiting sends continue (N4-24). An ack beyond high is impossible and ignored
(N4-28). Acknowledged sends up to the minimum are reported. Where stability releases messages, acks
have no other effect, and stable messages are purged. Messages not acknowledged by an absent durable
member are retained (durable_retention.py), but no frame is sent to the member and no send waits.

On reception of a NAK from P: stored messages are retransmitted (retransmit.py). Purged messages are
answered with "gone up to low" (P-01). A NAK without ranges asks for the start of the stream, and is
answered with the start.

Every tail interval: while a receiver has unacknowledged messages, and no message was sent lately,
low and high are announced: to the single lagging receiver, or to all. A new member gets its start
until confirmed. The interval doubles up to ``xmit_interval``. A connection does not announce: the
sender retransmits the last message when two probes in a row see the same marks (unicast3, U3-08),
or all unacknowledged messages (unicast). Messages that must be acknowledged are retransmitted to
each receiver without an ack (OL-20). With retransmission off only starts are sent.

While the window does not move: before the slow receivers are reported, the sender sends its start,
with low and high, to the receivers without an ack of the next message, unless acks and probes do
so anyway. Each answers with an ack, so that the report names those that lag where stability
releases messages. A receiver that lacks the last message learns of it, and reports its stall also
with retransmission off (NR-18).

Flow control: beside ``capacity`` and ``window_bytes``, the outstanding bytes never exceed the share
of this sender in the smallest advertised receive buffer (design rule 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gapless.profiles import AckPolicy, NumberingScope, ReleasePolicy, TailPolicy
from gapless.protocol import buggify
from gapless.protocol.events import Accepted, Acknowledged, SlowReceivers, Unacknowledged
from gapless.protocol.stream import ranges
from gapless.protocol.stream.acks import AckTable
from gapless.protocol.stream.durable_retention import DurableRetention, unrecoverable_send
from gapless.protocol.stream.flow_control import FlowControl
from gapless.protocol.stream.retransmit import RetransmitHandler, send_repairs
from gapless.protocol.stream.send_queue import SendQueue
from gapless.protocol.stream.window import FixedWindow, Window
from gapless.run import ACKED, LENGTH_BYTES, Run
from gapless.wire.codec import RUN_MAX_COUNT, run_room_bytes
from gapless.wire.frames import Data, Gone, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.payloads import Payloads
    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.send_queue import SendBatch
    from gapless.protocol.stream.stability import Stability
    from gapless.wire.frames import Range

_MIN_SHARE_BYTES = 16_384
"""Minimum bytes a sender may have outstanding, however many others send."""
_QUERIES = 3
"""How often receivers are asked for an ack before a report: a question or an ack may be lost."""


class OutboundStream:
    """An own stream: window, ack table, retransmissions, and queued sends."""

    def __init__(
        self,
        me: Address,
        config: Config,
        profile: Profile,
        tickets: Iterator[int],
        epoch: int = 0,
        to: Address | None = None,
    ) -> None:
        """Begin the stream ``epoch``: to the group, or to one member."""
        self.me = me
        self.config = config
        self.profile = profile
        self._releases_by_acks = profile.release is ReleasePolicy.ACKS
        self.epoch = epoch
        self.to = to
        # A sender counts from low, not from the own delivery: no receiver may get more than it
        # accepts.
        self.window = Window(
            FixedWindow(config.reach), keep_delivered=True, max_bytes=config.window_bytes
        )
        self.acks = AckTable()
        self.retention = DurableRetention()
        numbered = int(epoch > 0 or profile.numbering is NumberingScope.VIEW)
        self.retransmit_handler = RetransmitHandler(config, numbered, unicast=to is not None)
        self._tickets = tickets
        self.queue = SendQueue(
            run_room_bytes(config.max_frame_bytes, numbered), config.max_run_bytes
        )
        self._split_bytes = max(self.queue.room_bytes, config.max_run_bytes * config.whole_runs)
        self.starts: dict[Address, int] = {}
        self.closed = False
        self.stable = 0
        # What had been sent when a view was installed that was not the next one.
        self._skipped_view_high = 0
        self._unconfirmed: set[Address] = set()
        self._tracked: dict[int, int] = {}
        self.view = 0
        self.flow_control = FlowControl()
        self.acked_ns: dict[Address, int] = {}
        self.senders = 0  # not known yet
        self.tail_due_ns: int | None = None
        """When the next tail probe is due."""
        self._tail_interval_ns = config.tail_delay_ns
        periodic = profile.acks is AckPolicy.PERIODIC
        self._min_tail_interval_ns = (
            # Periodic acks get the time of their period before the first probe.
            config.stability_interval_ns if periodic else config.tail_delay_ns
        )
        self._retransmits = config.retransmits
        self._last_probe_marks: tuple[int, int] | None = None
        self._first_requested = False
        self._blocked_since_ns: int | None = None
        self.slow_receiver_due_ns: int | None = None
        """When slow receivers are to be reported."""
        self._progress_mark = 0
        self._queries_left = self._queries_sent = 0

    # On sending

    def send(
        self, messages: Payloads, flags: int, deadline_ns: int | None, out: ReadyBuilder
    ) -> int:
        """Send ``messages`` as far as there is room, queue the rest, return the ticket."""
        room: int | None = None
        if not self.closed and not self.queue.sends:
            room = self._next_run_room(out)
            if self._fits_one_run(messages, room):
                # The ordinary case: all of it leaves at once, as one run.
                ticket = next(self._tickets)
                each_bytes = messages.longest_bytes if messages.uniform else None
                last = self._send_run(messages, flags, each_bytes, out)
                self._accept(ticket, last - len(messages) + 1, last, flags, out)
                self._watch_tail(out)
                self.flush(out, "ack")
                return ticket
        waiting = self.queue.enqueue(next(self._tickets), messages, flags, deadline_ns)
        self.flush(out, "ack", room)
        if not waiting.done:
            waiting.blocked, waiting.since_ns = True, out.now_ns
            out.count("blocked")
            out.trace("BLOCK", seqno=waiting.ticket)
        return waiting.ticket

    @property
    def is_quiet(self) -> bool:
        """Whether the queue is empty, and every receiver has confirmed all messages."""
        return not self.queue.sends and not self._has_unfinished

    @property
    def is_received(self) -> bool:
        """Whether the queue is empty, and every receiver has all messages.

        A receiver that has not confirmed the start of the stream may still have every message.
        """
        return not self.queue.sends and not self._has_unacked

    def has_room(self, messages: Payloads) -> bool:
        """Return whether a send of ``messages`` would be accepted whole, without waiting."""
        window, slots = self.window, len(messages)
        if messages.longest_bytes > self.queue.max_fragment_bytes:
            slots = self.queue.seqno_count(messages)
        if self.closed or self.queue.sends or slots > window.room():
            return False
        room_bytes, cost_bytes = window.room_bytes(), messages.size_bytes + LENGTH_BYTES * slots
        return (
            room_bytes is None
            or cost_bytes <= room_bytes
            or (slots == 1 and window.low == window.high)
        )

    def _fits_one_run(self, messages: Payloads, room: int) -> bool:
        """Return whether ``messages`` could leave as a single run of at most ``room`` messages."""
        window, count = self.window, len(messages)
        if count > min(room, RUN_MAX_COUNT):
            return False
        if messages.longest_bytes > self.queue.max_fragment_bytes:
            return False
        if count == 1 and window.low == window.high:
            return True  # an empty window takes one message, however small its byte limit is
        room_bytes, cost_bytes = window.room_bytes(), messages.size_bytes + LENGTH_BYTES * count
        if room_bytes is not None and cost_bytes > room_bytes:
            return False
        return cost_bytes <= self.queue.max_run_bytes

    def _next_run_room(self, out: ReadyBuilder) -> int:
        """Return how many messages the next run may hold."""
        room = self.window.room()
        return min(1, room) if out.rarely and out.rarely(buggify.SMALL_RUN) else room

    def flush(self, out: ReadyBuilder, reason: str, room: int | None = None) -> None:
        """Number, store and send queued messages as far as there is room, unless closed.

        ``room``: how many messages the first run may hold, if known.
        """
        window = self.window
        while not self.closed:
            room = self._next_run_room(out) if room is None else room
            if not self.queue.sends:
                return
            batch = self.queue.next_batch(room, window.room_bytes(), window.low == window.high)
            room = None
            if batch is not None:
                self._send_batch(batch, out, reason)
            elif not self._free_retained(out):
                return

    def make_room(self, messages: Payloads, out: ReadyBuilder) -> bool:
        """Return whether a send of ``messages`` would be accepted whole.

        If the configuration allows, retained messages of absent members are released for the send.
        """
        while not self.closed and not self.has_room(messages):
            most = self.window.policy.ceiling(self.acks.minimum, 0) - self.window.high
            if (
                self.queue.sends
                or self.queue.seqno_count(messages) > most
                or not self._free_retained(out)
            ):
                return False
        return not self.closed

    def _free_retained(self, out: ReadyBuilder) -> bool:
        """Release retained messages that fill the window, or report the absent members."""
        window = self.window
        if not self.retention.retained:
            return False
        crowded = window.max_bytes == self.config.window_bytes or self.acks.minimum == window.high
        if window.room() and not crowded:
            return False  # it is the members' buffers that are full
        if not self.retention.release_or_report(
            self.acks.minimum, out, release=self.config.on_retention_full == "release"
        ):
            return False
        self._purge(out)
        return True

    def _send_batch(self, batch: SendBatch, out: ReadyBuilder, reason: str) -> None:
        """Send a run of queued messages; report the sends completed by the run."""
        last = self._send_run(batch.messages, batch.flags, batch.each_bytes, out)
        first = last - len(batch.messages) + 1
        for waiting, count in batch.portions:
            waiting.assign_seqnos(first, first + count - 1)
            first += count
            if waiting.done and not waiting.given_up:
                if waiting.blocked:
                    out.count("blocked_ns", out.now_ns - waiting.since_ns)
                    out.trace("UNBLOCK", seqno=waiting.ticket, reason=reason)
                self._accept(waiting.ticket, waiting.first, waiting.last, waiting.flags, out)
        self._watch_tail(out)

    def _send_run(
        self, messages: Sequence[bytes], flags: int, each_bytes: int | None, out: ReadyBuilder
    ) -> int:
        """Number, store and send messages as a single run; return the last seqno.

        ``each_bytes`` is the common length of the messages, if all are equally long.
        """
        first = self.window.high + 1
        run = Run.of(self.me, first, messages, flags, self.view, out.sent_ns, each_bytes)
        added = self.window.add(run)
        assert added.accepted == run.count, f"{run} had room, yet {added}"
        self.flow_control.on_sent(run, self._split_bytes)
        if out.tracing and self.to != self.me:
            for part in run.split_to_fit(self._split_bytes):
                out.trace(
                    "SEND", self.me, part.first, part.last, epoch=self.epoch, to=self.to, run=part
                )
        if self.to is None:
            out.transmit(None, Data(run, False, self.epoch))
        elif self.to != self.me:
            out.transmit(self.to, Data(run, False, self.epoch, first == 1))
            self.window.take()  # the application of this member does not get it
        return run.last

    def _accept(self, ticket: int, first: int, last: int, flags: int, out: ReadyBuilder) -> None:
        """Report that all messages of a send have a seqno; track messages that need acks."""
        out.emit(Accepted(ticket, first, last, self.epoch if self.to is None else 0))
        if flags & ACKED:
            self._tracked[ticket] = last

    def _watch_tail(self, out: ReadyBuilder) -> None:
        """Watch the arrival of the messages just sent."""
        self._schedule_tail(out.now_ns)
        if self.tail_due_ns is not None and out.rarely and out.rarely(buggify.EARLY_TAIL):
            self.tail_due_ns = out.now_ns
        if self._blocked_since_ns is None:
            self.restart_progress_watch(out.now_ns)

    def give_up(self, ticket: int, reason: str, out: ReadyBuilder) -> bool:
        """End a queued send; return whether there was such a send."""
        event = self.queue.give_up(ticket, reason)
        if event is None:
            return False
        out.trace("UNBLOCK", seqno=ticket, reason=reason)
        out.emit(event)
        return True

    # On reception of an ack

    def on_ack(self, peer: Address, seqno: int, buffer_bytes: int, out: ReadyBuilder) -> None:
        """Handle an ack of ``peer``."""
        assert peer in self.starts, "the caller ignores acks of strangers (N4-27)"
        if seqno > self.window.high:
            # Of a former stream of this address, or forged: it must purge nothing (N4-28).
            out.drop("ack beyond high", self.me, seqno, seqno, peer=peer, epoch=self.epoch)
            return
        out.trace("ACK_IN", self.me, seqno_last=seqno, peer=peer, epoch=self.epoch)
        self.acked_ns[peer] = out.now_ns
        if seqno >= self.starts[peer]:
            # An ack at or behind the start proves that the peer knows it.
            self._unconfirmed.discard(peer)
        raised = self.acks.on_ack(peer, seqno)
        if self.flow_control.advertise(peer, buffer_bytes) or self.flow_control.buffers_differ:
            self.update_byte_limit(self.senders)
            if not raised and self.queue.sends:
                # Only the buffer of the peer has grown; ``release`` would flush as well.
                self.flush(out, "ack")
        if raised:
            self.release(out, "ack")
        elif not self._has_unfinished:
            self.tail_due_ns = None

    def acknowledge_self(self, out: ReadyBuilder) -> None:
        """Count the own delivery as the own ack (N4-26)."""
        assert self.window.delivered <= self.window.high, "only sent messages are delivered"
        if self.acks.on_ack(self.me, self.window.delivered):
            self.release(out, "ack")

    def on_stable(self, seqno: int, out: ReadyBuilder) -> None:
        """Purge messages delivered by all, never beyond the own delivered mark (N7-19)."""
        assert self.profile.release is ReleasePolicy.STABILITY, "the profile releases by stability"
        seqno = min(seqno, self.window.delivered)
        if seqno > self.stable:
            self.stable = seqno
            self.release(out, "stable")

    def reset_stable(self) -> None:
        """Forget the stable mark: a view begins."""
        self.stable = 0

    @property
    def _has_unfinished(self) -> bool:
        """Whether a receiver has messages or a start left to confirm."""
        return bool(self._unconfirmed) or self._has_unacked

    @property
    def _has_unacked(self) -> bool:
        """Whether a receiver has a message left to acknowledge."""
        # With retained positions tracked sends may wait for absent members, who are sent nothing.
        tracked = self._tracked and not self.retention.retained
        return bool(tracked) or self._acked_by_members != self.window.high

    @property
    def _acked_by_members(self) -> int:
        """Up to where every member has acknowledged; absent durable members do not count."""
        return self.acks.minimum if self.retention.retained else self.window.low

    @property
    def delivered_by_members(self) -> bool:
        """Whether the queue is empty and every member has delivered all messages."""
        return not self.queue.sends and self._acked_by_members == self.window.high

    def release(self, out: ReadyBuilder, reason: str) -> None:
        """Purge messages acknowledged by all, report acknowledged sends, continue queued sends."""
        self._purge(out)
        if not self._has_unfinished:
            self.tail_due_ns = None
        self.flush(out, reason)

    def _purge(self, out: ReadyBuilder) -> None:
        low = self.window.low
        upto = self.acks.minimum if self._releases_by_acks else self.stable
        # Stable messages were delivered by all members, even if their acks are lost.
        known = max(self.acks.minimum, self.stable)
        if self.retention.minimum is not None:
            # An absent durable member needs everything behind its position.
            upto = known = min(upto, self.retention.minimum)
        for member, acked in self.retention.take_expired():
            for ticket in [ticket for ticket, last in self._tracked.items() if last > acked]:
                del self._tracked[ticket]
                out.emit(Unacknowledged(ticket, (member,)))
        for ticket in [ticket for ticket, last in self._tracked.items() if last <= known]:
            del self._tracked[ticket]
            out.emit(Acknowledged(ticket))
        purged = self.window.purge(upto)
        if self.window.low > low:
            epoch, to = self.epoch, self.to
            out.trace("PURGE", self.me, low + 1, self.window.low, k=purged, epoch=epoch, to=to)
            if not self.profile.naks:
                # Acks arrive, so nothing is known to be lost: the wait for the rest starts anew.
                self.tail_due_ns = None
                self._schedule_tail(out.now_ns)
        if self._acked_by_members != self._progress_mark:
            self.restart_progress_watch(out.now_ns)
        self.flow_control.purge(self.window.low)
        self.update_byte_limit(self.senders)
        assert self.window.low <= self.window.delivered, "only delivered messages are purged"

    def restart_progress_watch(self, now_ns: int) -> None:
        """Restart the measurement of how long the members have not moved."""
        self._progress_mark = self.acks.minimum if self.retention.retained else self.window.low
        self._blocked_since_ns = now_ns if self._progress_mark < self.window.high else None
        self._queries_sent = 0
        self._schedule_report(now_ns)

    def _schedule_report(self, now_ns: int) -> None:
        """Schedule the next report of slow receivers, and the queries before it, if any."""
        if self._blocked_since_ns is None:
            self.slow_receiver_due_ns = None
            return
        delay_ns, self._queries_left = self.config.slow_receiver_after_ns, 0
        if not (self._releases_by_acks and self._retransmits):
            delay_ns, self._queries_left = delay_ns // (_QUERIES + 1), _QUERIES
        self.slow_receiver_due_ns = now_ns + delay_ns

    # On reception of a nak

    def on_nak(self, peer: Address, asked: Sequence[Range], out: ReadyBuilder) -> None:
        """Answer a NAK of ``peer``."""
        for first, last in asked:
            out.trace("NAK_IN", self.me, first, last, peer=peer, epoch=self.epoch)
        if not asked:
            if self.to is None:
                self._resend_start(peer, out)
            else:
                self._send_first(out)
            return
        out.count("naks.answered", ranges.count(asked))
        if asked[0][0] <= self.window.low:
            out.trace("GONE_OUT", self.me, seqno_last=self.window.low, peer=peer, epoch=self.epoch)
            out.transmit(peer, Gone(self.me, self.window.low, self.epoch))
        if asked[-1][1] > self.window.high and self.to is None:
            # Such a message does not exist: somebody has told the peer otherwise.
            out.transmit(peer, Tail(self.me, self.window.low, self.window.high, epoch=self.epoch))
        alive = ranges.clip(asked, self.window.low + 1, self.window.high)
        send_repairs(self.retransmit_handler, self.window, peer, alive, self.epoch, self.me, out)

    def _send_first(self, out: ReadyBuilder) -> None:
        """Send the lowest unacknowledged message, marked as the first (U3-26)."""
        assert self.to is not None, "only a connection has a first message"
        first = self.window.low + 1
        for run in self.window.get(first, first):
            self._first_requested = not self.retransmit_handler.spend_budget(
                run.size_bytes, out.now_ns
            )
            if not self._first_requested:
                self._send_repair(run, self.to, out, first=True)

    def _send_repair(
        self, run: Run, to: Address | None, out: ReadyBuilder, *, first: bool = False
    ) -> None:
        out.trace(
            "REPAIR",
            self.me,
            run.first,
            run.last,
            peer=to,
            reason="unasked",
            epoch=self.epoch,
            run=run,
        )
        out.transmit(to, Data(run, True, self.epoch, first))
        out.count("sent.repair")

    def send_start(self, peer: Address, out: ReadyBuilder) -> None:
        """Send ``peer`` the start of this stream."""
        assert peer in self.starts, "a receiver has a start"
        out.trace(
            "TAIL_OUT",
            self.me,
            peer=peer,
            low=self.window.low,
            high=self.window.high,
            epoch=self.epoch,
        )
        start, reader = self.starts[peer], peer.incarnation
        out.transmit(
            peer, Tail(self.me, self.window.low, self.window.high, start, reader, self.epoch)
        )

    def _resend_start(self, peer: Address, out: ReadyBuilder) -> None:
        """Send ``peer`` its start again.

        A peer that asks again after confirming the start left in a view skipped here: without
        retransmission the peer starts behind the messages sent before that view.
        """
        if not self.config.retransmits and peer not in self._unconfirmed:
            self.starts[peer] = max(self.starts[peer], self._skipped_view_high)
            self._unconfirmed.add(peer)
        self.send_start(peer, out)

    def announce_start(self, peer: Address, out: ReadyBuilder) -> None:
        """Send a new member the start of the stream, and repeat until the member confirms."""
        assert peer != self.me, "a member knows its own start"
        self._unconfirmed.add(peer)
        self.send_start(peer, out)
        if self.tail_due_ns is None:
            self._tail_interval_ns = self._min_tail_interval_ns
            self.tail_due_ns = out.now_ns + self._tail_interval_ns
        assert self.tail_due_ns is not None, "the start is repeated until it is confirmed"

    # Every interval

    def _schedule_tail(self, now_ns: int) -> None:
        """Schedule a tail probe, because high has moved.

        Without NAKs a scheduled probe stays: new data gives no information about losses.
        """
        if self._unconfirmed and self.tail_due_ns is not None:
            return  # more data must not put off the start that a new member waits for
        if self._retransmits and (self.profile.naks or self.tail_due_ns is None):
            self._tail_interval_ns = self._min_tail_interval_ns
            self.tail_due_ns = now_ns + self._tail_interval_ns

    def announce_tail(self, out: ReadyBuilder) -> None:
        """Send new members their start, and probe the tail by the rule of the profile."""
        if self.tail_due_ns is None or self.tail_due_ns > out.now_ns:
            return
        all_started = not self._unconfirmed
        if not self._has_unfinished or (
            # Without retransmission only starts are repeated. The own ack needs no probe: it
            # follows from the own delivery.
            all_started and (not self.config.retransmits or self._only_self_unacked)
        ):
            self.tail_due_ns = None
            return
        for peer in sorted(self._unconfirmed):
            self.send_start(peer, out)
        longest_ns = self.config.stability_interval_ns
        if self.config.retransmits:
            self._probe_tail(out)
            longest_ns = max(self.config.xmit_interval_ns, self._min_tail_interval_ns)
        self._tail_interval_ns = min(2 * self._tail_interval_ns, longest_ns)
        self.tail_due_ns = out.now_ns + self._tail_interval_ns

    def _probe_tail(self, out: ReadyBuilder) -> None:
        window = self.window
        tail = self.profile.tail
        starved, self.retransmit_handler.starved = self.retransmit_handler.starved, False
        if tail is TailPolicy.ANNOUNCE:
            self._announce_tail_marks(out)
        elif starved:
            return  # the budget goes to repairs that were requested and held back
        elif self._first_requested:
            # The first message was requested and held back. Sent now it would use up the budget
            # without counting as the answer, so the tail makes the receiver ask again.
            self._first_requested = False
            self._send_tail(self.to, out)
        elif tail is TailPolicy.RESEND_ALL:
            self._retransmit(window.low + 1, window.high, self.to, out)
        elif self._marks_unchanged:
            self._retransmit(window.high, window.high, self.to, out)
        self._last_probe_marks = window.low, window.high
        if self._tracked and self.to is None and not starved:
            self._retransmit_tracked(out)

    @property
    def _marks_unchanged(self) -> bool:
        """Whether the marks equal the marks of the last probe, where the profile requires that."""
        return self.profile.tail is TailPolicy.RESEND_LAST and self._last_probe_marks == (
            self.window.low,
            self.window.high,
        )

    def _announce_tail_marks(self, out: ReadyBuilder) -> None:
        """Announce low and high: to the single lagging receiver, or to all."""
        window = self.window
        if window.low == window.high:
            return  # every message was acknowledged and purged
        if self._releases_by_acks:
            behind = [
                peer
                for peer in self.acks.lagging(window.high)
                if peer not in {self.me, *self._unconfirmed}
            ]
            if not behind:
                return
            to = behind[0] if len(behind) == 1 else None
        else:
            to = None
        self._send_tail(to, out)

    def _send_tail(self, to: Address | None, out: ReadyBuilder) -> None:
        low, high = self.window.low, self.window.high
        out.trace("TAIL_OUT", self.me, peer=to, low=low, high=high, epoch=self.epoch)
        out.transmit(to, Tail(self.me, low, high, None, 0, self.epoch))

    def _retransmit(
        self, first: int, last: int, to: Address | None, out: ReadyBuilder, flags: int = 0
    ) -> None:
        """Retransmit ``first .. last`` without a NAK, as far as the repair budget goes."""
        stored = self.window.get(max(first, self.window.low + 1), last)
        for run in [part for whole in stored for part in whole.split_to_fit(self.queue.room_bytes)]:
            if run.flags & flags == flags and self.retransmit_handler.spend_budget(
                run.size_bytes, out.now_ns
            ):
                self._send_repair(run, to, out, first=run.first == 1 and self.to is not None)

    def _retransmit_tracked(self, out: ReadyBuilder) -> None:
        """Retransmit to each member the messages without a required ack (OL-20)."""
        assert self._tracked, "something is tracked"
        last = max(self._tracked.values())
        for peer in self.acks.lagging(last):
            if peer != self.me and peer not in self._unconfirmed:
                self._retransmit(self.acks[peer] + 1, last, peer, out, ACKED)

    @property
    def blocked_since_ns(self) -> int | None:
        """When members last acknowledged progress; None if all messages are acknowledged."""
        return self._blocked_since_ns

    def lagging_members(self, stability: Stability | None) -> tuple[Address, ...]:
        """Return the members without an ack of the next message of this stream.

        Where stability releases messages, the coordinator has their votes. Any other member has
        asked them; if all have the message, then the coordinator has not said so.
        """
        behind = tuple(self.acks.lagging(self._acked_by_members + 1))
        if self._releases_by_acks or stability is None:
            return behind
        if stability.is_coordinator:
            return stability.lagging(self.me, self.window.low + 1)
        if self._queries_sent < 2:
            return ()  # the answers to the first query are still on their way
        asked = tuple(peer for peer in behind if self._may_query(peer))
        # Of a receiver that was not asked nothing is known: nobody is blamed for it.
        return asked if behind else stability.coordinator

    def _may_query(self, peer: Address) -> bool:
        """Return whether the start of ``peer`` can be sent to ask for an ack.

        Without retransmission, a peer that left in a view skipped here asks for a later start.
        """
        return self.config.retransmits or self.starts[peer] >= self._skipped_view_high

    def _query_receivers(self, out: ReadyBuilder, stability: Stability | None) -> None:
        """Ask the receivers without an ack of the next message how far they are."""
        votes = self._releases_by_acks or stability is None or stability.is_coordinator
        if votes and self.config.retransmits:
            return  # acks or votes tell who lags, and probes tell the receivers of the end
        for peer in self.acks.lagging(self._acked_by_members + 1):
            if peer != self.me and peer not in self._unconfirmed and self._may_query(peer):
                self.send_start(peer, out)

    def report_slow_receivers(self, out: ReadyBuilder, stability: Stability | None) -> None:
        """Report the members that held low for too long, by name; ask the receivers before."""
        if self.slow_receiver_due_ns is None or self.slow_receiver_due_ns > out.now_ns:
            return
        config, since_ns = self.config, self._blocked_since_ns or 0
        if self._queries_left:
            self._query_receivers(out, stability)
            self._queries_left -= 1
            self._queries_sent += 1
            self.slow_receiver_due_ns = out.now_ns + config.slow_receiver_after_ns // (_QUERIES + 1)
            return
        members = self.lagging_members(stability)
        patience_ns = config.slow_receiver_after_ns + 2 * config.stability_interval_ns
        if stability is not None and members == stability.coordinator != (self.me,):
            # All have the messages: the coordinator gets the time of two votes more.
            members = () if out.now_ns - since_ns < patience_ns else members
        self._schedule_report(out.now_ns)
        if members:
            out.emit(SlowReceivers(members, self._acked_by_members, self.window.high, since_ns))
            if config.on_slow_receiver == "wait":
                self.slow_receiver_due_ns = None

    # On a view

    def install(
        self,
        number: int,
        members: Iterable[Address],
        out: ReadyBuilder,
        absent: Mapping[str, Address] | None = None,
        returning: Mapping[Address, Address] | None = None,
    ) -> None:
        """Count the acks of exactly ``members``; new members start behind the sent messages.

        ``absent`` and ``returning`` are as in ``gapless.protocol.endpoint.Endpoint.install``.
        """
        members = tuple(members)
        high = self.window.high
        self._skipped_view_high = high if number > self.view + 1 else self._skipped_view_high
        self.view = number
        returned = self.retention.install(
            members, absent or {}, returning or {}, self.acks, self.window, out
        )
        self.starts = {
            member: self.starts.get(member, returned.get(member, high)) for member in members
        }
        self._unconfirmed.intersection_update(members)
        self.flow_control.retain_members(members)
        self.acked_ns = {
            member: self.acked_ns[member] for member in members if member in self.acked_ns
        }
        self.acks.set_members(members, high)
        for member, acked in returned.items():
            self.acks.restore_member(member, acked)
            if member in (returning or {}) and (
                ticket := unrecoverable_send(acked, self.window, self.queue, self._tracked)
            ):
                out.emit(Unacknowledged(ticket, (member,)))
        self.update_byte_limit(self.senders)
        self.release(out, "view")
        if returned and self.tail_due_ns is None and self._has_unfinished:
            self._schedule_tail(out.now_ns)  # a returning member is behind

    def connect(self) -> None:
        """Count the acks of the single receiver of this connection, from the first message on."""
        assert self.to is not None
        self.starts = {self.to: 0}
        self.acks.set_members((self.to,), 0)
        assert self.to in self.acks, "the receiver acknowledges"

    def end(self, out: ReadyBuilder) -> tuple[int, int]:
        """Report acknowledged sends that will not complete; return the unconfirmed range."""
        for ticket, last in self._tracked.items():
            behind = (*self.acks.lagging(last), *self.retention.lagging(last))
            out.emit(Unacknowledged(ticket, behind) if behind else Acknowledged(ticket))
        self._tracked = {}
        return max(self.window.low, self.acks.minimum) + 1, self.window.high

    def end_view(self, staying: Iterable[Address], out: ReadyBuilder) -> tuple[int, int]:
        """End the stream of a view; return the range that ``staying`` may not have.

        Queued sends continue in the next view. The sent part of a send belongs to this view: if the
        send had to be acknowledged and is not, the send is reported, and the rest is sent
        untracked.
        """
        self.acks.on_ack(self.me, self.window.delivered)
        self.acks.set_members(
            [member for member, _ in self.acks.items() if member in set(staying)], 0
        )
        for waiting in self.queue.queued_sends():
            part_out = waiting.flags & ACKED and waiting.taken and not waiting.given_up
            if part_out and (behind := self.acks.lagging(waiting.last)):
                waiting.flags &= ~ACKED
                out.emit(Unacknowledged(waiting.ticket, tuple(behind)))
        first, last = self.end(out)
        return first, last - self.queue.restart_numbering()

    def take_over(self, before: OutboundStream) -> None:
        """Replace ``before``, an ended stream, and send its queued messages."""
        assert self.window.high == 0, "the new stream has sent nothing"
        self.queue = before.queue
        self.closed = before.closed
        self.flow_control = before.flow_control
        self.flow_control.reset((), 0)
        self.senders = before.senders

    def apply_config(self, config: Config, now_ns: int) -> None:
        """Apply a configuration with retransmission switched on or off (NR-12)."""
        self.config = config
        self._retransmits = config.retransmits
        self.retransmit_handler.apply_config(config)
        if config.retransmits and self._has_unfinished:
            self._schedule_tail(now_ns)

    def update_byte_limit(self, senders: int) -> None:
        """Share the advertised receive buffers among ``senders``."""
        config = self.config
        self.senders = max(1, senders)
        if not self._releases_by_acks:
            return  # unstable messages were mostly delivered, and fill no receive buffer
        least_bytes, default_bytes = (
            min(config.max_frame_bytes, _MIN_SHARE_BYTES),
            config.receive_buffer_bytes,
        )
        room_bytes = self.flow_control.limit_bytes(
            self.acks, self.window.low, self.senders, least_bytes, default_bytes
        )
        self.window.max_bytes = min(config.window_bytes, room_bytes)
        assert self.window.max_bytes > 0, "one message always fits"

    def check_invariants(self) -> None:
        """Raise AssertionError if the stream contradicts the law of this file."""
        self.window.check_invariants()
        self.acks.check_invariants()
        self.flow_control.check_invariants()
        self.retransmit_handler.check_invariants()
        self.queue.check_invariants()
        self._check_members()
        acked = not self._releases_by_acks or self.window.low <= self.acks.minimum
        assert acked or not list(self.acks.items()), "nothing is purged before its acks"
        held_bytes = self.flow_control.bytes_upto(self.window.high) - self.flow_control.bytes_upto(
            self.window.low
        )
        assert self.window.stored_bytes <= held_bytes, "the bytes of the window are known"
        self.retention.check_invariants(self.window.low, self.window.high, self.acks)
        for member, ack in self.acks.items():
            assert ack <= self.window.high, (
                f"{member} acknowledged {ack}, beyond high {self.window.high}"
            )
        assert all(last <= self.window.high for last in self._tracked.values()), (
            "only what was sent is tracked"
        )
        watched = self.tail_due_ns is not None or not self.config.retransmits
        assert watched or self.window.low == self.window.high or self._only_self_unacked, (
            "tail armed"
        )

    def _check_members(self) -> None:
        members = {member for member, _ in self.acks.items()}
        assert self.starts.keys() == members, "every receiver has a start"
        assert self._unconfirmed <= members, "only receivers confirm their start"
        assert self.acked_ns.keys() <= members, "only receivers acknowledge"
        assert 0 <= self.stable <= self.window.delivered, "what is stable was delivered here"
        assert self._progress_mark <= self.window.high, "progress ends at high"
        assert self.slow_receiver_due_ns is None or self._blocked_since_ns is not None, (
            "only a window that does not move has slow receivers"
        )

    @property
    def _only_self_unacked(self) -> bool:
        """Whether only this member itself has messages left to acknowledge."""
        return self._releases_by_acks and all(
            member == self.me for member in self.acks.lagging(self.window.high)
        )

    def snapshot(self) -> tuple[object, ...]:
        """Return the state without times."""
        return (
            self.window.snapshot(),
            self.acks.snapshot(),
            self.queue.snapshot(),
            self.tail_due_ns is not None,
            self.stable,
            self._marks_unchanged,
            tuple(sorted(self._tracked.values())),
            tuple(sorted(self._unconfirmed)),
            self.retention.snapshot(),
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Take the state of ``snapshot``, with every timer due."""
        window, acks, queue, tail, self.stable, stands_still, tracked, unconfirmed, holds = snapshot  # type: ignore[assignment]
        self._unconfirmed = set(unconfirmed)  # type: ignore[call-overload]
        self._tracked = {-at: last for at, last in enumerate(cast("tuple[int, ...]", tracked), 1)}
        self.window.restore(window)  # type: ignore[arg-type]
        self.acks.restore(acks)  # type: ignore[arg-type]
        self.retention.restore(holds)  # type: ignore[arg-type]
        self.queue.restore(queue, self._tickets)  # type: ignore[arg-type]
        self.retransmit_handler.reset()
        self.tail_due_ns = 0 if tail else None
        self._last_probe_marks = (self.window.low, self.window.high) if stands_still else None
        self._first_requested = False
        self._progress_mark = self._acked_by_members
        self._blocked_since_ns = 0 if self._progress_mark < self.window.high else None
        self.slow_receiver_due_ns = None
        self.flow_control.reset(
            self.window.get(self.window.low + 1, self.window.high), self.window.low
        )
        self.senders = 0
