"""The receiving half of the machine: the stream of one other member.

On reception of data: what is new and in the acceptance range is stored; what is not is dropped and
counted. Then consecutive messages are handed out until a gap, or until the application has no room
for more. An ack is owed.

On reception of a tail: everything up to the announced high is known to exist, so what is missing of
it is a gap; an ack goes out at once, the last one may have been lost. A start, if none is known
yet, opens the stream. A tail may overtake data, which wait in another buffer: as long as the stream
goes on without a gap, what is announced is on its way.

On reception of "gone": what lies at or below low will never come. A stream of which nothing was
delivered starts behind it; otherwise what is missing of it is reported as lost, never silently
waited for (P-01); what is here is delivered.

On reception of a nak for this stream, at one who keeps what it has delivered: what is here is sent
again.

On a stability message: what everybody has delivered is purged; the announced high is a tail like
any other.

Where the application stores what it gets (``stored`` is not None), an ack speaks of what it has
stored, not of what it was handed. What it was handed and has not stored fills no buffer any more,
so the ack grants that much more room.

What is here behind a gap fills no buffer either: an ack grants that much more room too, and is due
whenever a quarter of a share has come there. So one lost frame does not stop a stream, as long as
the window of the receiver has room.

Every pass over the gaps: what outlived its grace is asked for (gaps.py), from the origin or from
any member that may hold it. A stream without a start asks for that. With retransmission off a gap
that stays is reported as a stall.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from gapless.identity import U32_MAX
from gapless.protocol import buggify
from gapless.protocol.ready import GROUP, ONE, Delivery, Lost, Stalled, Started
from gapless.protocol.stream import ranges
from gapless.protocol.stream.acks import OwedAck
from gapless.protocol.stream.loss_detector import Gaps
from gapless.protocol.stream.reassembly import Pieces
from gapless.protocol.stream.retransmit import Repairs, send_repairs
from gapless.protocol.stream.window import Growing, Window, window_policy
from gapless.run import ACKED, BEGIN, PIECE
from gapless.wire.codec import ADDRESSED_HEADER_BYTES, NAK_OVERHEAD_BYTES, RANGE_BYTES
from gapless.wire.frames import CONNECTION, Ack, Nak

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import Context
    from gapless.protocol.stream.flow_control import Credit
    from gapless.run import Run
    from gapless.wire.frames import Range, Tail


REPAIRED = (
    "repaired.unasked",
    "repaired.1",
    "repaired.2",
    "repaired.3",
    "repaired.4",
    "repaired.more",
)
"""The counter of runs that a repair has brought, by how often they had been asked for."""

UNKNOWN = -1
"""Nothing was stored of a stream: it is where it starts."""


class Inbound:
    """The stream of ``origin`` as this member receives it."""

    def __init__(
        self,
        origin: Address,
        config: Config,
        row: Profile,
        rng: Random,
        start: int | None,
        former: int | None = None,
        epoch: int = 0,
        *,
        durable: bool = False,
        stored: int | None = None,
    ) -> None:
        """Open the stream at ``start``, or wait to be told; never below ``former``, which was delivered before.

        A durable member is to get everything behind ``former``: what it does not get is lost, and
        it is told so. ``stored``: up to where the application has stored it, or UNKNOWN; None if an
        ack says what was delivered.
        """
        self.origin = origin
        self.epoch = epoch
        self.config = config
        self.row = row
        self.window: Window | None = None
        self.start = 0
        self.announced = 0
        self.gone = 0
        self.gaps = Gaps(config, rng)
        self.owed = OwedAck(config, row.acks)
        self.kind = ONE if epoch >= CONNECTION else GROUP
        self.pieces = Pieces(config.max_message_bytes, self.kind, epoch)
        self.keeps = row.release == "stability" and not config.discard_delivered
        self.repairs = Repairs(config, epoch) if self.keeps else None
        self.ack_now = False
        self.ended = False
        self.stable = 0
        self.taken = 0
        self.taken_bytes = 0
        self._rng = rng
        self._looked = self._grown = 0
        self._start_tries = 0
        self._turns = 0
        self._early: list[tuple[Run, bool]] = []
        self.former = former
        self._durable = durable
        self._due = durable and former is not None
        self.stored = stored
        self._unstored: deque[tuple[int, int]] = deque()
        self._unstored_bytes = 0
        self._granted_bytes = 0
        if start is not None:
            self._open(start)

    @property
    def key(self) -> tuple[Address, int]:
        """What names the stream."""
        return self.origin, self.epoch

    def _open(self, start: int) -> None:
        config = self.config
        start = max(start, self.former or 0)
        # What is kept behind the delivered mark, for others, takes no room from what is ahead of
        # it.
        policy = (
            Growing(config.reach)
            if self.keeps
            else window_policy(config.window, config.capacity, config.far_limit)
        )
        self.window = Window(policy, offset=start, keep=self.keeps, max_bytes=config.window_bytes)
        self.start = start
        if self.stored == UNKNOWN:
            self.stored = start

    # On reception of data

    def on_data(self, run: Run, repair: bool, context: Context) -> None:
        """Store a run, or keep it for later if the start of the stream is not known yet."""
        window = self.window
        if window is None:
            self._keep_early(run, repair, context)
            return
        if self.keeps:
            window.shed(
                self.config.window_bytes if context.rarely(buggify.SHED) else run.size_bytes
            )
        added = window.add(run)
        if added.accepted:
            tries = self.gaps.arrived(run, repair, context.now_ns)
            if repair:
                context.count(REPAIRED[min(tries, len(REPAIRED) - 1)])
            context.step(
                "STORE",
                self.origin,
                run.first,
                run.last,
                peer=self.origin,
                message_count=added.accepted,
                epoch=self.epoch,
            )
        if added.accepted < run.count:
            for reason in ("duplicate", "old", "far", "full"):
                if count := getattr(added, reason):
                    context.drop(
                        reason,
                        self.origin,
                        run.first,
                        run.last,
                        peer=self.origin,
                        message_count=count,
                        epoch=self.epoch,
                    )
            if added.duplicate or added.old:
                self.owed.again(run.flags & ACKED != 0)

    def _keep_early(self, run: Run, repair: bool, context: Context) -> None:
        """Keep what comes before the start: a few runs, or whatever may be needed if nobody sends it again (NR-10).

        From the start on the sender waits for this member: what is a whole window behind the newest
        came before that.
        """
        dropped: list[Run] = []
        if self.config.retransmits:
            if len(self._early) < self.config.become_server_queue_size:
                self._early.append((run, repair))
            else:
                dropped.append(run)
        elif any(kept.first <= run.first and run.last <= kept.last for kept, _ in self._early):
            dropped.append(run)
        else:
            self._early.append((run, repair))
            past = max(kept.last for kept, _ in self._early) - self.config.reach
            dropped = [kept for kept, _ in self._early if kept.last <= past]
            if dropped:
                self._early = [kept for kept in self._early if kept[0].last > past]
        for one in dropped:
            first, last, count = one.first, one.last, one.count
            context.drop(
                "early",
                self.origin,
                first,
                last,
                peer=self.origin,
                message_count=count,
                epoch=self.epoch,
            )

    # On reception of a tail, of "gone"

    def on_tail(self, tail: Tail, me: Address, context: Context) -> None:
        """Take an announcement in; an ack goes out at once. A start counts only if it is meant for this life."""
        context.step(
            "TAIL_IN", self.origin, peer=self.origin, low=tail.low, high=tail.high, epoch=self.epoch
        )
        if self.window is None:
            if tail.start is None or tail.reader != me.incarnation:
                return
            self.begin(tail.start, context)
        elif tail.start is not None and tail.reader == me.incarnation:
            self._start_later(self.window, tail.start, context)
        self.announced = max(self.announced, tail.high)
        self.on_gone(tail.low)
        self.ack_now = tail.start is not None or self.row.acks != "asked"

    def _start_later(self, window: Window, start: int, context: Context) -> None:
        """Believe the sender rather than a digest: what it sent before it knew of this member is not for it (I-22)."""
        if window.delivered == self.start < start:
            if self._due:
                context.event(Lost(self.origin, self.start + 1, start))
            window.skip_to(start)
            self.start = start
            if not self._due:
                self.store(start)
            context.event(Started(self.origin, start))

    def begin(self, start: int, context: Context) -> None:
        """Open the stream at ``start`` and take in what came too early."""
        if self._durable and self.former is not None and start > self.former:
            context.event(Lost(self.origin, self.former + 1, start))
        self._open(start)
        self.gaps.close()
        context.event(Started(self.origin, self.start))
        early, self._early = self._early, []
        for run, repair in early:
            self.on_data(run, repair, context)

    def on_gone(self, low: int) -> None:
        """Note up to where nothing exists any more at the origin; delivery steps over what is missing of it."""
        if self.window is not None:
            self.gone = max(self.gone, low)

    def on_stable(self, seqno: int, high: int) -> None:
        """Forget what everybody has delivered; what exists up to ``high`` and is not here is a gap (R-09)."""
        if self.window is not None:
            self.stable = max(self.stable, min(seqno, self.window.delivered))
            if self.keeps:
                self.window.purge(seqno)
            self.hint(high)

    def hint(self, high: int) -> None:
        """Take in that somebody knows the stream to go up to ``high``; with retransmission off it is of no use."""
        if self.config.retransmits:
            self.announced = max(self.announced, high)

    def answer(self, peer: Address, asked: Sequence[Range], context: Context) -> None:
        """Send what ``peer`` asks for, as far as it is kept here, in the place of the origin."""
        window, repairs = self.window, self.repairs
        for first, last in asked:
            context.step("NAK_IN", self.origin, first, last, peer=peer, epoch=self.epoch)
        if window is not None and repairs is not None:
            here = ranges.minus(ranges.within(asked, window.low + 1, window.high), window.missing())
            send_repairs(repairs, window, peer, here, self.epoch, self.origin, context)

    def _step_over_gone(self, window: Window, context: Context) -> None:
        first = window.delivered + 1
        if first > self.gone or window.next_is_there:
            return
        # A connection starts where its sender says, and that is never below what this member has
        # acknowledged.
        pristine = window.delivered == self.start and self.kind == GROUP and not self._due
        last = self.gone if pristine else window._free(first, self.gone, 1)[0][1]
        context.step("GONE_IN", self.origin, first, last, peer=self.origin, epoch=self.epoch)
        if dropped := window.skip_to(last):
            context.count("dropped.gone", dropped)
        self.pieces.clear()
        if pristine:
            self.start = last
            self.store(last)
            context.event(Started(self.origin, last))
        else:
            context.event(Lost(self.origin, first, last))

    # Delivery

    @property
    def can_deliver(self) -> bool:
        """Whether the next message is there and only the application's room is lacking."""
        return self.window is not None and self.window.next_is_there

    def deliver(self, credit: Credit, ack_bytes: int, context: Context) -> bool:
        """Hand out what is consecutive, as far as the application has room; return whether an ack is due at once.

        It is due after ``ack_bytes`` at the latest, so that a sender that fills its share of the
        buffer goes on.
        """
        window = self.window
        due = asked = False
        while window is not None:
            self._step_over_gone(window, context)
            limit = credit.limit()
            runs = window.take(limit)
            if not runs:
                break
            size_bytes = 0
            for run in runs:
                self._hand_out(run, credit, context)
                size_bytes += run.size_bytes
                asked = asked or run.flags & ACKED != 0
            messages = runs[-1].last - runs[0].first + 1
            self.taken += messages
            self.taken_bytes += size_bytes
            if self.stored is not None:
                self._unstored.append((runs[-1].last, size_bytes))
                self._unstored_bytes += size_bytes
            due = self.owed.deliver(messages, size_bytes, ack_bytes, context.now_ns, asked) or due
            if limit is None and self.gone <= window.delivered:
                break
        self.look_for_gaps(context.now_ns)
        return due or self._behind_gap_bytes - self._granted_bytes >= max(1, ack_bytes)

    @property
    def _behind_gap_bytes(self) -> int:
        """How much is here that cannot be handed out before something else comes; it is off the network's buffer."""
        window = self.window
        if (
            window is None
            or not window.stored
            or self.row.release != "acks"
            or window.next_is_there
        ):
            return 0
        return window.stored_bytes

    def _hand_out(self, run: Run, credit: Credit, context: Context) -> None:
        if run.flags & PIECE:
            if self._durable and self.pieces.first is None and not run.flags & BEGIN:
                context.event(Lost(self.origin, run.first, run.last))
            delivery = self.pieces.add(run, context)
        else:
            delivery = Delivery(run.origin, run.first, run.last, run, self.kind, self.epoch)
        if delivery is not None:
            credit.spend(delivery.message_count)
            context.deliver(delivery)

    # Every pass over the gaps

    def look_for_gaps(self, now_ns: int) -> None:
        """Start the grace of a gap, or note that there is none.

        While one gap is watched, only what became known since the last look can hold a fresh one. A
        gap that is only announced has its grace anew whenever the stream has come closer to it.
        """
        window = self.window
        if window is None or not self.row.naks:
            return
        known = max(window.high, min(self.announced, window.ceiling))
        looked, self._looked = self._looked, known
        grown, self._grown = window.high > self._grown, window.high
        ahead = self._ahead(window)
        if known - window.delivered <= ahead:
            if self.gaps.due_ns is not None:
                self.gaps.close()
            return
        if grown and window.high - window.delivered <= ahead:
            self.gaps.renew()
        if self.gaps.due_ns is None:
            self.gaps.notice(window.missing(known)[-1][1], now_ns)
        elif fresh := window._free(max(looked, window.delivered) + 1, known):
            self.gaps.notice(fresh[-1][1], now_ns)

    @staticmethod
    def _ahead(window: Window) -> int:
        """Return how much is stored and not delivered."""
        return window.stored - (window.delivered - window.low) if window.keep else window.stored

    def ask(self, context: Context, holders: Sequence[Address] = ()) -> None:
        """Ask for what is missing and due: the origin, or one of ``holders``, drawn by chance."""
        if self.gaps.due_ns is None or self.gaps.due_ns > context.now_ns:
            return
        if not self.config.retransmits:
            self._watch_stall(context)
            return
        if self.window is None:
            self._ask_start(context)
            return
        known = max(self.window.high, self.announced)
        wanted = self.gaps.ask(self.window.missing(known), context.now_ns)
        if not wanted:
            return
        # Every other time the origin is asked: it has everything, while another may have let it go.
        self._turns += 1
        to = self._rng.choice(holders) if holders and self._turns % 2 else self.origin
        per_frame = (
            self.config.max_frame_bytes - ADDRESSED_HEADER_BYTES - NAK_OVERHEAD_BYTES - 8
        ) // RANGE_BYTES
        for at in range(0, len(wanted), per_frame):
            part = tuple(wanted[at : at + per_frame])
            context.transmit(to, Nak(self.origin, part, self.epoch))
        for first, last in wanted:
            context.step(
                "NAK_OUT",
                self.origin,
                first,
                last,
                peer=to,
                epoch=self.epoch,
                sent_ns=context.sent_ns,
            )
        context.count("naks.seqnos", ranges.count(wanted))

    def _watch_stall(self, context: Context) -> None:
        """Say that delivery stands still at a gap that nobody will repair; it is said again while it lasts.

        A sender that was here before may not know that it was gone in between, if it never saw that
        view. So it does not tell its start by itself, and is asked for it. A gap that opened after
        the one that was watched, which has closed, has its own time to close.
        """
        seqno = 0 if self.window is None else self.window.delivered + 1
        if seqno > self.gaps.remembered:
            self.gaps.close()
            self.look_for_gaps(context.now_ns)
            return
        if self.window is None and self.former is not None:
            context.transmit(self.origin, Nak(self.origin, (), self.epoch))
        context.event(Stalled(self.origin, seqno, self.gaps.noticed_ns))
        context.count("stalls")
        self.gaps.watch_on(context.now_ns)

    def retune(self, config: Config, now_ns: int) -> None:
        """Go on with retransmission switched on or off: a gap that is here is asked for, or watched (NR-12, NR-14)."""
        self.config = config
        self.gaps.retune(config)
        if self.repairs is not None:
            self.repairs.retune(config)
        if self.window is None:
            self.gaps.notice(0, now_ns)
        else:
            self.look_for_gaps(now_ns)

    def _ask_start(self, context: Context) -> None:
        context.transmit(self.origin, Nak(self.origin, (), self.epoch))
        self.gaps.postpone(self._start_tries, context.now_ns)
        self._start_tries += 1

    # Acks

    def acknowledge(self, context: Context, senders: int = 1) -> None:
        """Send the ack that is owed; the room it grants is shared by ``senders``."""
        window = self.window
        if window is None:
            return
        self.ack_now = False
        self.owed.settle(context.now_ns)
        seqno = self._whole(window) if self._durable else window.delivered
        self._granted_bytes = self._behind_gap_bytes
        config = self.config
        # No more than the window can take, beside a share of the buffer.
        taken_bytes = min(
            self._granted_bytes,
            max(0, config.window_bytes - config.receive_buffer_bytes // senders),
        )
        if self.stored is not None:
            first = self.pieces.first
            if first is None or self.stored < first - 1:
                # Otherwise only an incomplete message is not stored yet, and its fragments may be acked.
                seqno = min(seqno, self.stored)
            taken_bytes += self._unstored_bytes
        room_bytes = min(config.receive_buffer_bytes + senders * taken_bytes, U32_MAX)
        context.step("ACK_OUT", self.origin, last=seqno, peer=self.origin, epoch=self.epoch)
        context.transmit(self.origin, Ack(self.origin, seqno, room_bytes, self.epoch))

    def store(self, seqno: int) -> bool:
        """Take in that the application has stored everything up to ``seqno``; return whether that is news."""
        if self.stored is None or seqno <= self.stored:
            return False
        self.stored = seqno
        while self._unstored and self._unstored[0][0] <= seqno:
            self._unstored_bytes -= self._unstored.popleft()[1]
        return True

    def _whole(self, window: Window) -> int:
        """Return up to where a durable member acknowledges: whole messages, so that it gets the others again whole.

        A sender that cannot send the rest of a message without that ack gets it; a large message
        cannot wait for it.
        """
        first, delivered = self.pieces.first, window.delivered
        if (
            first is None
            or delivered == self.announced
            or delivered - first >= self.config.capacity // 4
        ):
            return delivered
        return (
            delivered
            if self.pieces.held_bytes * 4 >= self.config.receive_buffer_bytes
            else first - 1
        )

    def abandon(self, credit: Credit, context: Context) -> int:
        """Deliver what is consecutive whatever the application's room, and return how much lies behind a gap."""
        if self.window is None:
            return sum(run.count for run, _ in self._early)
        for run in self.window.take():
            self._hand_out(run, credit, context)
        return self._ahead(self.window)

    @property
    def resume(self) -> int:
        """Where the stream goes on if the same life comes back: nothing delivered is delivered again (P-05)."""
        if self.window is None:
            return self.former or 0
        return self.window.delivered if self.pieces.first is None else self.pieces.first - 1

    def check_invariants(self) -> None:
        """Raise AssertionError if the receiving half contradicts its own law."""
        self.gaps.check_invariants()
        if self.window is None:
            assert self.gaps.due_ns is not None, "a stream without a start asks for it"
            return
        self.window.check_invariants()
        assert not self._early, "an open stream keeps nothing aside"
        known = max(self.window.high, min(self.announced, self.window.ceiling))
        missing = known - self.window.delivered > self._ahead(self.window)
        assert not missing or not self.row.naks or self.gaps.due_ns is not None, (
            "a gap is being watched"
        )

    def snapshot(self) -> tuple[object, ...]:
        """Return the state without its times."""
        window = None if self.window is None else self.window.snapshot()
        return (
            window,
            self.start,
            self.announced,
            self.gone,
            self.gaps.snapshot(),
            self.owed.snapshot(),
            self.pieces.snapshot(),
            tuple(self._early),
            self.stored,
            tuple(self._unstored),
            self.stable,
            self._granted_bytes,
            self._turns % 2 if self.config.xmit_from_random_member else 0,
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says, with every rest over."""
        window, self.start, self.announced, self.gone, gaps, owed, pieces, early, *rest = snapshot  # type: ignore[assignment]
        self.stored, unstored, self.stable, self._granted_bytes, self._turns = rest  # type: ignore[assignment]
        self._unstored = deque(unstored)  # type: ignore[call-overload]
        self._unstored_bytes = sum(size_bytes for _, size_bytes in self._unstored)
        self.gaps.restore(gaps)  # type: ignore[arg-type]
        self.owed.restore(owed)  # type: ignore[arg-type]
        self.pieces.restore(pieces)  # type: ignore[arg-type]
        self._early = list(early)  # type: ignore[call-overload]
        self._looked = 0
        if self.repairs is not None:
            self.repairs.forget()
        if window is None:
            self.window = None
            return
        if self.window is None:
            self._open(self.start)
        assert self.window is not None
        self.window.restore(window)  # type: ignore[arg-type]
        self._grown = self.window.high
