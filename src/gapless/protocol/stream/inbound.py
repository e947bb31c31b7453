"""An inbound stream: the messages of one other member, as received by this member.

On reception of data: new messages in the acceptance range are stored; all others are dropped and
counted (N4-07, N4-08). Then consecutive messages are delivered up to the first gap, or until the
application has no room. An ack is owed.

On reception of a tail: all messages up to the announced high exist, so missing messages are a gap.
An ack is sent at once, because the last ack may be lost. A start opens a stream without a start. A
tail may overtake data in another buffer: while the stream grows without a gap, the announced
messages count as in flight.

On reception of "gone": messages at or below low will never arrive. A stream without deliveries
starts behind low; otherwise missing messages are reported as lost (P-01), and stored messages are
delivered.

On reception of a NAK for this stream, where delivered messages are kept: stored messages are
retransmitted in place of the origin (N7-13).

On a stability message: messages delivered by all members are purged, and the announced high counts
as a tail.

On acknowledging: where the application stores its messages (``stored`` is not None) the ack covers
stored messages. Messages delivered but not stored, and messages behind a gap, fill no network
buffer; the ack grants as much additional room. An ack is due whenever a quarter of a share has
arrived behind a gap, so one lost frame does not stop a stream.

Every pass of the loss detector: NAKs for gaps older than their grace go to the origin, or to any
member that may hold the messages (R-05). A stream without a start asks for the start. With
retransmission off a lasting gap is reported as a stall (NR-18).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gapless.identity import U32_MAX
from gapless.profiles import AckPolicy, ReleasePolicy
from gapless.protocol import buggify
from gapless.protocol.early_budget import EarlyBudget
from gapless.protocol.events import Lost, Stalled, Started
from gapless.protocol.ready import GROUP, UNICAST, Delivery
from gapless.protocol.stream import ranges
from gapless.protocol.stream.acks import AckScheduler
from gapless.protocol.stream.loss_detector import LossDetector
from gapless.protocol.stream.reassembly import Reassembler
from gapless.protocol.stream.retransmit import RetransmitHandler, send_repairs
from gapless.protocol.stream.window import GrowingWindow, Window, window_policy
from gapless.run import ACKED, FIRST_FRAGMENT, FRAGMENT
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, NAK_OVERHEAD_BYTES, RANGE_BYTES
from gapless.wire.frames import FIRST_CONNECTION_EPOCH, Ack, Nak

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import ReadyBuilder
    from gapless.protocol.stream.flow_control import DeliveryCredit
    from gapless.run import Run
    from gapless.wire.frames import Range, Tail


REPAIRED_COUNTERS = (
    "repaired.unasked",
    "repaired.1",
    "repaired.2",
    "repaired.3",
    "repaired.4",
    "repaired.more",
)
"""The counter of runs that arrived by repair, by the number of NAKs before."""

STORED_UNKNOWN = -1
"""The application has stored nothing of a stream: ``stored`` becomes its start."""


class InboundStream:
    """The stream of ``origin`` as received by this member."""

    def __init__(
        self,
        origin: Address,
        config: Config,
        profile: Profile,
        rng: Random,
        start: int | None,
        delivered_before: int | None = None,
        epoch: int = 0,
        *,
        durable: bool = False,
        stored: int | None = None,
        budget: EarlyBudget | None = None,
    ) -> None:
        """Open the stream at ``start``, or wait for a start; never below ``delivered_before``.

        ``delivered_before`` was delivered earlier. A durable member must get all messages behind
        it: missing messages are reported as lost. ``stored``: the last message stored by the
        application, or STORED_UNKNOWN; None if acks cover deliveries. Runs before the start count
        against ``budget``.
        """
        self.origin = origin
        self.epoch = epoch
        self.key = (origin, epoch)
        """What names the stream."""
        self.config = config
        self.profile = profile
        self.window: Window | None = None
        self.start = 0
        self.announced_high = 0
        self.gone_upto = 0
        self.loss_detector = LossDetector(config, rng)
        self.ack_scheduler = AckScheduler(config, profile.acks)
        self.kind = UNICAST if epoch >= FIRST_CONNECTION_EPOCH else GROUP
        self.reassembler = Reassembler(config.max_message_bytes, self.kind, epoch)
        self.retains_delivered = (
            profile.release is ReleasePolicy.STABILITY and not config.discard_delivered
        )
        self.retransmit_handler = (
            RetransmitHandler(config, epoch) if self.retains_delivered else None
        )
        self.ack_now = False
        self.ended = False
        self.stable = 0
        self.unvoted = 0
        self.unvoted_bytes = 0
        self._rng = rng
        self._scanned_upto = self._last_high = 0
        self.start_tries = 0
        self._nak_rounds = 0
        self._before_start: list[tuple[Run, bool]] = []
        self._budget = budget or EarlyBudget(config.early_bytes)
        self.delivered_before = delivered_before
        self._durable = durable
        self._must_not_skip = durable and delivered_before is not None
        self.stored = stored
        self._unstored: deque[tuple[int, int]] = deque()
        self._unstored_bytes = 0
        self._granted_bytes = 0
        if start is not None:
            self._create_window(start)

    def _create_window(self, start: int) -> None:
        config = self.config
        start = max(start, self.delivered_before or 0)
        # Messages retained for others, behind the delivered mark, take no room ahead of it.
        policy = (
            GrowingWindow(config.reach)
            if self.retains_delivered
            else window_policy(config.window, config.capacity, config.max_seqno_ahead)
        )
        self.window = Window(
            policy,
            offset=start,
            keep_delivered=self.retains_delivered,
            max_bytes=config.window_bytes,
        )
        self.start = start
        if self.stored == STORED_UNKNOWN:
            self.stored = start
        assert self.window.delivered == start, "delivery begins behind the start"

    # On reception of data

    def on_data(self, run: Run, repair: bool, out: ReadyBuilder) -> None:
        """Store a run, or buffer the run while the start of the stream is unknown."""
        window = self.window
        if window is None:
            self._buffer_before_start(run, repair, out)
            return
        if self.retains_delivered:
            # Messages retained for others must not keep a new message out of the window.
            window.evict_delivered(
                self.config.window_bytes
                if out.rarely and out.rarely(buggify.SHED)
                else run.size_bytes
            )
        added = window.add(run)
        if added.accepted:
            detector = self.loss_detector
            tries = detector.on_data(run, repair, out.now_ns) if detector.open_naks else 0
            if repair:
                out.count(REPAIRED_COUNTERS[min(tries, len(REPAIRED_COUNTERS) - 1)])
            if out.tracing:
                out.trace(
                    "STORE",
                    self.origin,
                    run.first,
                    run.last,
                    peer=self.origin,
                    k=added.accepted,
                    epoch=self.epoch,
                )
        if added.accepted < run.count:
            for reason in ("duplicate", "old", "far", "full"):
                if count := getattr(added, reason):
                    out.drop(
                        reason,
                        self.origin,
                        run.first,
                        run.last,
                        peer=self.origin,
                        message_count=count,
                        epoch=self.epoch,
                    )
            if added.duplicate or added.old:
                # The sender repeats what it takes for lost: perhaps our ack was (P-04).
                self.ack_scheduler.on_duplicate(run.flags & ACKED != 0)

    def _buffer_before_start(self, run: Run, repair: bool, out: ReadyBuilder) -> None:
        """Buffer a run before the start is known: a few, or all that may be needed (NR-10).

        From the start on the sender waits for this member, so a run that is a whole window behind
        the newest was sent before the start.
        """
        assert self.window is None, "an open stream stores its runs"
        dropped: list[Run] = []
        if self.config.retransmits:
            # A dropped run is repaired once the start is known, so a few are enough.
            if len(
                self._before_start
            ) < self.config.become_server_queue_size and self._budget.reserve(
                self.origin, run.size_bytes
            ):
                self._before_start.append((run, repair))
            else:
                dropped.append(run)
        elif any(
            kept.first <= run.first and run.last <= kept.last for kept, _ in self._before_start
        ) or not self._budget.reserve(self.origin, run.size_bytes):
            dropped.append(run)
        else:
            self._before_start.append((run, repair))
            past = max(kept.last for kept, _ in self._before_start) - self.config.reach
            dropped = [kept for kept, _ in self._before_start if kept.last <= past]
            if dropped:
                self._before_start = [kept for kept in self._before_start if kept[0].last > past]
                for kept in dropped:
                    self._budget.release(self.origin, kept.size_bytes)
        for one in dropped:
            first, last, count = one.first, one.last, one.count
            out.drop(
                "early",
                self.origin,
                first,
                last,
                peer=self.origin,
                message_count=count,
                epoch=self.epoch,
            )

    # On reception of a tail, of "gone"

    def on_tail(self, tail: Tail, me: Address, out: ReadyBuilder) -> None:
        """Handle an announcement; a start counts only if addressed to this incarnation."""
        assert tail.low <= tail.high, "the decoder checks the marks"
        out.trace(
            "TAIL_IN", self.origin, peer=self.origin, low=tail.low, high=tail.high, epoch=self.epoch
        )
        if self.window is None:
            if tail.start is None or tail.receiver_incarnation != me.incarnation:
                return  # the start of another member, or of a former incarnation of this member
            self.open_at(tail.start, out)
        elif tail.start is not None and tail.receiver_incarnation == me.incarnation:
            self._raise_start(self.window, tail.start, out)
        self._correct_hearsay(tail.high)
        self.announced_high = max(self.announced_high, tail.high)
        self.on_gone(tail.low)
        self.ack_now = tail.start is not None or self.profile.acks is not AckPolicy.ASKED

    def _correct_hearsay(self, high: int) -> None:
        """Replace an announced end beyond the window by the end that the origin itself announces.

        No origin sends beyond the window, so such a mark of a vote or a digest is an error or a
        lie, and the requests for messages that do not exist would never end.
        """
        window = self.window
        if window is not None and window.high <= high and self.announced_high > window.ceiling:
            self.announced_high = high

    def _raise_start(self, window: Window, start: int, out: ReadyBuilder) -> None:
        """Start where the sender says, rather than where a digest says (I-22).

        Messages sent before the sender knew of this member are not addressed to this member.
        """
        assert start >= 0, "a stream starts at a seqno"
        if window.delivered == self.start < start:
            if self._must_not_skip:
                out.emit(Lost(self.origin, self.start + 1, start))
            window.skip_to(start)
            self.start = start
            if not self._must_not_skip:
                self.on_stored(start)
            out.emit(Started(self.origin, start))

    def open_at(self, start: int, out: ReadyBuilder) -> None:
        """Open the stream at ``start`` and store the runs buffered before."""
        assert self.window is None, "a stream opens once"
        if self._durable and self.delivered_before is not None and start > self.delivered_before:
            out.emit(Lost(self.origin, self.delivered_before + 1, start))
        self._create_window(start)
        self.loss_detector.clear()
        out.emit(Started(self.origin, self.start))
        for run, repair in self.take_before_start():
            self.on_data(run, repair, out)
        assert not self._before_start, "buffered runs are stored"

    def take_before_start(self) -> list[tuple[Run, bool]]:
        """Return the runs buffered before the start, which are early no more."""
        early, self._before_start = self._before_start, []
        for run, _ in early:
            self._budget.release(self.origin, run.size_bytes)
        return early

    def on_gone(self, low: int) -> None:
        """Record up to where the origin has purged; delivery skips missing messages."""
        if self.window is not None:
            self.gone_upto = max(self.gone_upto, low)

    def on_stable(self, seqno: int, high: int) -> None:
        """Purge messages delivered by all; missing messages up to ``high`` are a gap (R-09)."""
        if self.window is not None:
            self.stable = max(self.stable, min(seqno, self.window.delivered))
            if self.retains_delivered:
                self.window.purge(seqno)
            self.learn_high(high)

    def learn_high(self, high: int) -> None:
        """Record that the stream goes up to ``high``; useless without retransmission (NR-05)."""
        if self.config.retransmits:
            self.announced_high = max(self.announced_high, high)

    def on_nak(self, peer: Address, asked: Sequence[Range], out: ReadyBuilder) -> None:
        """Retransmit stored messages that ``peer`` misses, in place of the origin."""
        window, repairs = self.window, self.retransmit_handler
        for first, last in asked:
            out.trace("NAK_IN", self.origin, first, last, peer=peer, epoch=self.epoch)
        if window is not None and repairs is not None:
            here = ranges.subtract(
                ranges.clip(asked, window.low + 1, window.high), window.missing()
            )
            send_repairs(repairs, window, peer, here, self.epoch, self.origin, out)

    def _skip_gone(self, window: Window, out: ReadyBuilder) -> None:
        first = window.delivered + 1
        if first > self.gone_upto or window.has_next:
            return  # the message was purged at its origin, but it is stored here
        # A connection starts where its sender says, and that is never below what this member has
        # acknowledged.
        pristine = window.delivered == self.start and self.kind == GROUP and not self._must_not_skip
        last = self.gone_upto if pristine else window.missing_in(first, self.gone_upto, 1)[0][1]
        out.trace("GONE_IN", self.origin, first, last, peer=self.origin, epoch=self.epoch)
        if dropped := window.skip_to(last):
            out.count("dropped.gone", dropped)
        self.reassembler.clear()
        if pristine:
            self.start = last
            self.on_stored(last)
            out.emit(Started(self.origin, last))
        else:
            out.emit(Lost(self.origin, first, last))

    # Delivery

    @property
    def can_deliver(self) -> bool:
        """Whether the next message is stored and only the application lacks room."""
        return self.window is not None and self.window.has_next

    def deliver(self, credit: DeliveryCredit, ack_bytes: int, out: ReadyBuilder) -> bool:
        """Deliver consecutive messages within the credit; return whether an ack is due at once.

        An ack is due after ``ack_bytes`` at the latest, so that a sender with a full share
        continues.
        """
        window = self.window
        due = asked = False
        while window is not None:
            if window.delivered < self.gone_upto:
                self._skip_gone(window, out)
            limit = credit.limit()
            runs = window.take(limit)
            if not runs:
                break
            size_bytes = 0
            for run in runs:
                self._deliver_run(run, credit, out)
                size_bytes += run.size_bytes
                asked = asked or run.flags & ACKED != 0
            messages = runs[-1].last - runs[0].first + 1
            self.unvoted += messages
            self.unvoted_bytes += size_bytes
            if self.stored is not None:
                # The ack waits until the application has stored these; their bytes are granted.
                self._unstored.append((runs[-1].last, size_bytes))
                self._unstored_bytes += size_bytes
            due = (
                self.ack_scheduler.on_delivery(messages, size_bytes, ack_bytes, out.now_ns, asked)
                or due
            )
            if self.gone_upto <= window.delivered and (
                limit is None or window.delivered == window.high
            ):
                break
        self.detect_gaps(out.now_ns)
        # An ack also grants room for messages behind a gap: they have left the network's buffer.
        behind_bytes = self._behind_gap_bytes if window is not None and window.stored else 0
        return due or behind_bytes - self._granted_bytes >= max(1, ack_bytes)

    @property
    def _behind_gap_bytes(self) -> int:
        """Number of bytes stored behind a gap; these bytes have left the network's buffer."""
        window = self.window
        if (
            window is None
            or not window.stored
            or self.profile.release is not ReleasePolicy.ACKS
            or window.has_next
        ):
            return 0
        return window.stored_bytes

    def _deliver_run(self, run: Run, credit: DeliveryCredit, out: ReadyBuilder) -> None:
        if run.flags & FRAGMENT:
            if (
                self._durable
                and self.reassembler.first_seqno is None
                and not run.flags & FIRST_FRAGMENT
            ):
                # The former incarnation had the first fragments, and lost them with its memory.
                out.emit(Lost(self.origin, run.first, run.last))
            if (whole := self.reassembler.add(run, out)) is not None:
                credit.spend(1, whole.size_bytes)
                out.deliver(whole)
            return
        credit.spend(run.count, run.size_bytes)
        out.deliver(Delivery(run.origin, run.first, run.last, run, self.kind, self.epoch))

    # Every pass over the gaps

    def detect_gaps(self, now_ns: int) -> None:
        """Start the grace of a gap, or record that no message is missing.

        While a gap is watched, only seqnos learned since the last check can hold a new gap. A gap
        known only from an announcement restarts its grace whenever the stream has come closer.
        """
        window = self.window
        if window is None or not self.profile.naks:
            return
        known = max(window.high, min(self.announced_high, window.ceiling))
        looked, self._scanned_upto = self._scanned_upto, known
        grown, self._last_high = window.high > self._last_high, window.high
        ahead = self.undelivered_count(window) if window.keep_delivered else window.stored
        if known - window.delivered <= ahead:
            # Everything that is known to exist is delivered or stored: no gap.
            if self.loss_detector.due_ns is not None:
                self.loss_detector.clear()
            return
        if grown and window.high - window.delivered <= ahead:
            self.loss_detector.restart_grace()
        if self.loss_detector.due_ns is None:
            self.loss_detector.on_gap(window.missing(known)[-1][1], now_ns)
        elif fresh := window.missing_in(max(looked, window.delivered) + 1, known):
            self.loss_detector.on_gap(fresh[-1][1], now_ns)

    @staticmethod
    def undelivered_count(window: Window) -> int:
        """Return how many messages are stored and not delivered."""
        return (
            window.stored - (window.delivered - window.low)
            if window.keep_delivered
            else window.stored
        )

    def send_naks(self, out: ReadyBuilder, holders: Sequence[Address] = ()) -> None:
        """Send the due NAKs to the origin, or to a random member of ``holders``."""
        if self.loss_detector.due_ns is None or self.loss_detector.due_ns > out.now_ns:
            return
        if not self.config.retransmits:
            # No member answers a NAK: the application decides what to do about the gap (NR-18).
            self._report_stall(out)
            return
        if self.window is None:
            self._request_start(out)
            return
        known = max(self.window.high, min(self.announced_high, self.window.ceiling))
        wanted = self.loss_detector.due_naks(self.window.missing(known), out.now_ns)
        if not wanted:
            return
        # Every other time the origin is asked: another member may have purged it.
        self._nak_rounds += 1
        to = self._rng.choice(holders) if holders and self._nak_rounds % 2 else self.origin
        per_frame = (
            self.config.max_frame_bytes - ADDRESSED_HEADER_BYTES - NAK_OVERHEAD_BYTES - 8
        ) // RANGE_BYTES
        for at in range(0, len(wanted), per_frame):
            part = tuple(wanted[at : at + per_frame])
            out.transmit(to, Nak(self.origin, part, self.epoch))
        for first, last in wanted:
            out.trace(
                "NAK_OUT",
                self.origin,
                first,
                last,
                peer=to,
                epoch=self.epoch,
                sent_ns=out.sent_ns,
            )
        out.count("naks.seqnos", ranges.count(wanted))

    def _report_stall(self, out: ReadyBuilder) -> None:
        """Report, repeatedly, that delivery stands still at a gap that no member will repair.

        A sender that never saw the view without this member does not send a start, so this member
        asks. A gap that opened after the watched gap had closed gets a time of its own.
        """
        seqno = 0 if self.window is None else self.window.delivered + 1
        if seqno > self.loss_detector.watched_upto:
            self.loss_detector.clear()
            self.detect_gaps(out.now_ns)
            return
        if self.window is None and self.delivered_before is not None:
            out.transmit(self.origin, Nak(self.origin, (), self.epoch))
        out.emit(Stalled(self.origin, seqno, self.loss_detector.noticed_ns))
        out.count("stalls")
        self.loss_detector.rearm_stall(out.now_ns)

    def apply_config(self, config: Config, now_ns: int) -> None:
        """Apply a configuration: an open gap is requested, or watched (NR-12, NR-14)."""
        self.config = config
        self.loss_detector.apply_config(config)
        if self.retransmit_handler is not None:
            self.retransmit_handler.apply_config(config)
        if self.window is None:
            self.loss_detector.on_gap(0, now_ns)
        else:
            self.detect_gaps(now_ns)

    def start_request_due(self, now_ns: int) -> bool:
        """Return whether the start is unknown and it is time to ask for it."""
        due_ns = self.loss_detector.due_ns
        return self.window is None and due_ns is not None and due_ns <= now_ns

    def _request_start(self, out: ReadyBuilder) -> None:
        assert self.window is None, "an open stream knows its start"
        out.transmit(self.origin, Nak(self.origin, (), self.epoch))
        self.loss_detector.schedule_start_retry(self.start_tries, out.now_ns)
        self.start_tries += 1
        assert self.loss_detector.due_ns is not None, "the request is repeated"

    # Acks

    def acknowledge(self, out: ReadyBuilder, senders: int = 1) -> None:
        """Send the owed ack; ``senders`` share the granted room."""
        assert senders > 0, "the origin sends"
        window = self.window
        if window is None:
            return
        self.ack_now = False
        self.ack_scheduler.on_ack_sent(out.now_ns)
        seqno = self._durable_ack_seqno(window) if self._durable else window.delivered
        self._granted_bytes = self._behind_gap_bytes
        config = self.config
        # No more than the window can take, beside a share of the buffer.
        taken_bytes = min(
            self._granted_bytes,
            max(0, config.window_bytes - config.receive_buffer_bytes // senders),
        )
        if self.stored is not None:
            first = self.reassembler.first_seqno
            if first is None or self.stored < first - 1:
                # Otherwise only an incomplete message is not stored: its fragments may be acked.
                seqno = min(seqno, self.stored)
            taken_bytes += self._unstored_bytes
        room_bytes = min(config.receive_buffer_bytes + senders * taken_bytes, U32_MAX)
        out.trace("ACK_OUT", self.origin, seqno_last=seqno, peer=self.origin, epoch=self.epoch)
        out.transmit(self.origin, Ack(self.origin, seqno, room_bytes, self.epoch))

    def on_stored(self, seqno: int) -> bool:
        """Record that the application has stored up to ``seqno``; return whether the mark rose."""
        if self.stored is None or seqno <= self.stored:
            return False
        self.stored = seqno
        while self._unstored and self._unstored[0][0] <= seqno:
            self._unstored_bytes -= self._unstored.popleft()[1]
        return True

    def _durable_ack_seqno(self, window: Window) -> int:
        """Return up to where a durable member acknowledges: whole messages only.

        An incomplete message is then sent again whole. A large message is acknowledged in part,
        because the sender cannot send the rest without the ack.
        """
        first, delivered = self.reassembler.first_seqno, window.delivered
        if (
            first is None
            or delivered == self.announced_high
            or delivered - first >= self.config.capacity // 4
        ):
            return delivered
        return (
            delivered
            if self.reassembler.held_bytes * 4 >= self.config.receive_buffer_bytes
            else first - 1
        )

    def drain(self, credit: DeliveryCredit, out: ReadyBuilder) -> int:
        """Deliver consecutive messages regardless of credit; return how many lie behind a gap."""
        if self.window is None:
            return sum(run.count for run, _ in self.take_before_start())
        for run in self.window.take():
            self._deliver_run(run, credit, out)
        return self.undelivered_count(self.window)

    @property
    def resume_seqno(self) -> int:
        """Where the same incarnation continues: no message is delivered twice (P-05)."""
        if self.window is None:
            return self.delivered_before or 0
        return (
            self.window.delivered
            if self.reassembler.first_seqno is None
            else self.reassembler.first_seqno - 1
        )

    def check_invariants(self) -> None:
        """Raise AssertionError if the stream contradicts the law of this file."""
        self.loss_detector.check_invariants()
        self.ack_scheduler.check_invariants()
        self.reassembler.check_invariants()
        if self.retransmit_handler is not None:
            self.retransmit_handler.check_invariants()
        unstored_bytes = sum(size_bytes for _, size_bytes in self._unstored)
        assert self._unstored_bytes == unstored_bytes, "bytes that are not stored add up"
        assert self._granted_bytes >= 0, "an ack grants room, it never takes any"
        if self.window is None:
            assert self.loss_detector.due_ns is not None, "a stream without a start asks for it"
            return
        self.window.check_invariants()
        assert not self._before_start, "an open stream buffers nothing in front of its start"
        assert self.window.keep_delivered == self.retains_delivered, "the profile sets the window"
        assert self.start <= self.window.delivered, "delivery begins behind the start"
        assert self.stable <= self.window.delivered, "what is stable was delivered here"
        first = self.reassembler.first_seqno
        assert first is None or first <= self.window.delivered, "a fragment was taken off"
        known = max(self.window.high, min(self.announced_high, self.window.ceiling))
        missing = known - self.window.delivered > self.undelivered_count(self.window)
        assert not missing or not self.profile.naks or self.loss_detector.due_ns is not None, (
            "a gap is being watched"
        )

    def snapshot(self) -> tuple[object, ...]:
        """Return the state without times."""
        window = None if self.window is None else self.window.snapshot()
        return (
            window,
            self.start,
            self.announced_high,
            self.gone_upto,
            self.loss_detector.snapshot(),
            self.ack_scheduler.snapshot(),
            self.reassembler.snapshot(),
            tuple(self._before_start),
            self.stored,
            tuple(self._unstored),
            self.stable,
            self._granted_bytes,
            self._nak_rounds % 2 if self.config.xmit_from_random_member else 0,
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Take the state of ``snapshot``, with every delay over."""
        (
            window,
            self.start,
            self.announced_high,
            self.gone_upto,
            gaps,
            owed,
            pieces,
            early,
            *rest,
        ) = snapshot  # type: ignore[assignment]
        self.stored, unstored, self.stable, self._granted_bytes, self._nak_rounds = rest  # type: ignore[assignment]
        self._unstored = deque(unstored)  # type: ignore[call-overload]
        self._unstored_bytes = sum(size_bytes for _, size_bytes in self._unstored)
        self.loss_detector.restore(gaps)  # type: ignore[arg-type]
        self.ack_scheduler.restore(owed)  # type: ignore[arg-type]
        self.reassembler.restore(pieces)  # type: ignore[arg-type]
        self._before_start = list(early)  # type: ignore[call-overload]
        for run, _ in self._before_start:
            self._budget.charge(self.origin, run.size_bytes)
        self._scanned_upto = 0
        if self.retransmit_handler is not None:
            self.retransmit_handler.reset()
        if window is None:
            self.window = None
            return
        if self.window is None:
            self._create_window(self.start)
        assert self.window is not None
        self.window.restore(window)  # type: ignore[arg-type]
        self._last_high = self.window.high
