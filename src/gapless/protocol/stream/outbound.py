"""The sending half of the machine: an own stream, to the group or to one member.

On sending: messages wait for room, then are numbered, stored and sent in one step (sending.py).

On reception of an ack from P: the entry of P rises; when the minimum rises the window is purged up
to it, and waiting sends go on. An ack beyond high is impossible and counts for nothing (N4-28).
Acknowledged sends up to the minimum are reported. Where stability releases, acks do only that; what
is stable is purged instead. What a durable member that is away has not acknowledged is not purged
either (holds.py), but nobody is told of it, and nothing waits for it.

On reception of a nak from P: what is stored is sent again (repairs.py); for what is purged the
answer is "gone up to low"; a nak without ranges is answered with the start that P has been given.

Every tail interval: while somebody has not acknowledged everything, and nothing was sent lately,
low and high are
announced: to the one that is behind, or to all; and to a new member that has not confirmed its
start, that start. The interval doubles up to ``xmit_interval``. Instead of an announcement a
connection sends its last message again, when two looks in a row see the same marks (unicast3), or
everything that is not acknowledged (unicast). Messages that are to be acknowledged are sent again
to those that have not acknowledged them. With retransmission off nothing of this happens, but for
the start of a new member.

Flow control: beside ``capacity`` and ``window_bytes``, the bytes outstanding never exceed the share
of this sender in the smallest receive buffer that a member has advertised (design rule 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gapless.protocol import buggify
from gapless.protocol.ready import Accepted, Acknowledged, Pinned, Unacknowledged
from gapless.protocol.stream import ranges
from gapless.protocol.stream.acks import AckTable
from gapless.protocol.stream.durable_retention import Holds, torn_send
from gapless.protocol.stream.flow_control import Shares
from gapless.protocol.stream.retransmit import Repairs, send_repairs
from gapless.protocol.stream.send_queue import SendQueue
from gapless.protocol.stream.window import Fixed, Window
from gapless.run import ACKED, LENGTH_BYTES, Run
from gapless.wire.codec import run_room_bytes
from gapless.wire.frames import Data, Gone, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gapless.config import Config
    from gapless.identity import Address
    from gapless.payloads import Payloads
    from gapless.profiles import Profile
    from gapless.protocol.ready_builder import Context
    from gapless.protocol.stream.send_queue import Batch, Tickets, Waiting
    from gapless.protocol.stream.stability import Stability
    from gapless.wire.frames import Range

_LEAST_SHARE_BYTES = 16_384
"""What a sender may have outstanding however many others send: less than a large frame, or many would fill a buffer."""


class Outbound:
    """The own stream: window, ack table, repairs, and the sends that wait."""

    def __init__(
        self,
        me: Address,
        config: Config,
        row: Profile,
        tickets: Tickets,
        epoch: int = 0,
        to: Address | None = None,
    ) -> None:
        """Begin the stream ``epoch``: to the group, or to one member."""
        self.me = me
        self.config = config
        self.row = row
        self.epoch = epoch
        self.to = to
        # A sender counts from low, not from its own delivery: no receiver is to see more than it
        # can take.
        self.window = Window(Fixed(config.reach), keep=True, max_bytes=config.window_bytes)
        self.acks = AckTable()
        self.holds = Holds()
        numbered = int(epoch > 0 or row.numbering == "view")
        self.repairs = Repairs(config, numbered, to_one=to is not None)
        self.queue = SendQueue(
            run_room_bytes(config.max_frame_bytes, numbered), tickets, config.max_run_bytes
        )
        self._cut_bytes = max(self.queue.room_bytes, config.max_run_bytes * config.whole_runs)
        self.starts: dict[Address, int] = {}
        self.closed = False
        self._skipped = self.stable = (
            0  # skipped: what had been sent when a view came that was not the next one
        )
        self._unconfirmed: set[Address] = set()
        self._tracked: dict[int, int] = {}
        self.view = 0
        self.shares = Shares()
        self.acked_ns: dict[Address, int] = {}
        self.senders = 0  # nobody has said yet
        self._tail_ns: int | None = None
        self._tail_interval_ns = config.tail_delay_ns
        self._seen: tuple[int, int] | None = None
        self._first_wanted = False
        self._stuck_since_ns: int | None = None
        self._pin_due_ns: int | None = None
        self._watched = 0

    # On sending

    def send(
        self, messages: Sequence[bytes], flags: int, deadline_ns: int | None, context: Context
    ) -> int:
        """Queue ``messages``, send what has room, return the ticket."""
        waiting = self.queue.put(messages, flags, deadline_ns)
        self.flush(context, "ack")
        if not waiting.done:
            waiting.blocked, waiting.since_ns = True, context.now_ns
            context.count("blocked")
            context.step("BLOCK", first=waiting.ticket)
        return waiting.ticket

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits, and nobody is still to be told anything."""
        return not len(self.queue) and not self._unfinished

    def has_room(self, messages: Payloads) -> bool:
        """Return whether a send of ``messages`` would be taken whole, without waiting."""
        window = self.window
        slots = self.queue.slots(messages)
        if self.closed or len(self.queue) or slots > window.room():
            return False
        room_bytes, cost_bytes = window.room_bytes(), messages.size_bytes + LENGTH_BYTES * slots
        return (
            room_bytes is None
            or cost_bytes <= room_bytes
            or (slots == 1 and window.low == window.high)
        )

    def flush(self, context: Context, reason: str) -> None:
        """Number, store and send what waits, as far as there is room; nothing before others know of this member."""
        window = self.window
        while not self.closed:
            room = 1 if context.rarely(buggify.SMALL_RUN) else window.ceiling
            batch = self.queue.next_batch(
                min(room, window.room()), window.room_bytes(), window.low == window.high
            )
            if batch is not None:
                self._send_batch(batch, context, reason)
            elif not len(self.queue) or not self._relieve(context):
                return

    def make_room(self, messages: Payloads, context: Context) -> bool:
        """Return whether a send of ``messages`` would be taken whole, if need be by releasing kept places."""
        while not self.closed and not self.has_room(messages):
            most = self.window.policy.ceiling(self.acks.minimum, 0) - self.window.high
            if len(self.queue) or self.queue.slots(messages) > most or not self._relieve(context):
                return False
        return not self.closed

    def _relieve(self, context: Context) -> bool:
        """See to a window that has no room: if that is because of kept places, say so, or release them."""
        window = self.window
        if not self.holds:
            return False
        crowded = window.max_bytes == self.config.window_bytes or self.acks.minimum == window.high
        if window.room() and not crowded:
            return False  # it is the members' buffers that are full
        if not self.holds.relieve(
            self.acks.minimum, context, release=self.config.on_hold_full == "release"
        ):
            return False
        self._purge(context)
        return True

    def _send_batch(self, batch: Batch, context: Context, reason: str) -> None:
        first = self.window.high + 1
        run = Run.of(
            self.me,
            first,
            batch.messages,
            batch.flags,
            self.view,
            context.sent_ns,
            batch.each_bytes,
        )
        added = self.window.add(run)
        assert added.accepted == run.count, f"{run} had room, yet {added}"
        self.shares.sent(run, self._cut_bytes)
        if context.tracing and self.to != self.me:
            for part in run.framed(self._cut_bytes):
                context.step(
                    "SEND", self.me, part.first, part.last, epoch=self.epoch, to=self.to, run=part
                )
        if self.to is None:
            context.transmit(None, Data(run, False, self.epoch))
        elif self.to != self.me:
            context.transmit(self.to, Data(run, False, self.epoch, first == 1))
            self.window.take()  # nobody here is to have it
        for waiting, count in batch.shares:
            waiting.number(first, first + count - 1)
            first += count
            if waiting.done:
                self._accept(waiting, context, reason)
        self._plan_tail(context.now_ns)
        if self._tail_ns is not None and context.rarely(buggify.EARLY_TAIL):
            self._tail_ns = context.now_ns
        if self._stuck_since_ns is None:
            self.watch(context.now_ns)

    def _accept(self, waiting: Waiting, context: Context, reason: str) -> None:
        if waiting.given_up:
            return
        if waiting.blocked:
            context.count("blocked_ns", context.now_ns - waiting.since_ns)
            context.step("UNBLOCK", first=waiting.ticket, reason=reason)
        context.event(Accepted(waiting.ticket, waiting.first, waiting.last))
        if waiting.flags & ACKED:
            self._tracked[waiting.ticket] = waiting.last

    def give_up(self, ticket: int, reason: str, context: Context) -> bool:
        """End a waiting send; return whether there was one."""
        event = self.queue.give_up(ticket, reason)
        if event is None:
            return False
        context.step("UNBLOCK", first=ticket, reason=reason)
        context.event(event)
        return True

    # On reception of an ack

    def on_ack(self, peer: Address, seqno: int, buffer_bytes: int, context: Context) -> None:
        """Take an ack of ``peer`` in."""
        if seqno > self.window.high:
            context.drop("ack beyond high", self.me, seqno, seqno, peer=peer, epoch=self.epoch)
            return
        context.step("ACK_IN", self.me, last=seqno, peer=peer, epoch=self.epoch)
        self.acked_ns[peer] = context.now_ns
        if seqno >= self.starts[peer]:
            self._unconfirmed.discard(peer)
        raised = self.acks.ack(peer, seqno)
        if self.shares.advertise(peer, buffer_bytes) or self.shares.uneven:
            self.limit_bytes(self.senders)
            if not raised and len(self.queue):
                self.flush(context, "ack")
        if raised:
            self.release(context, "ack")
        elif not self._unfinished:
            self._tail_ns = None

    def acknowledge_self(self, context: Context) -> None:
        """Let the own delivery count as the own ack (N4-26)."""
        if self.acks.ack(self.me, self.window.delivered):
            self.release(context, "ack")

    def on_stable(self, seqno: int, context: Context) -> None:
        """Take in that everybody has delivered up to ``seqno``; never beyond what was delivered here (N7-19)."""
        seqno = min(seqno, self.window.delivered)
        if seqno > self.stable:
            self.stable = seqno
            self.release(context, "stable")

    def forget_stable(self) -> None:
        """Begin anew to learn what is stable: a view has come."""
        self.stable = 0

    @property
    def _unfinished(self) -> bool:
        """Whether somebody is still to be told something."""
        tracked = (
            self._tracked and not self.holds
        )  # where places are kept, what members have to do is in _settled
        return bool(self._unconfirmed or tracked) or self._settled != self.window.high

    @property
    def _settled(self) -> int:
        """Up to where no member has anything to do: low, unless that stays behind for those that are away."""
        return self.acks.minimum if self.holds else self.window.low

    @property
    def delivered_by_members(self) -> bool:
        """Whether nothing waits, and every member of the view is known to have delivered everything."""
        return not len(self.queue) and self._settled == self.window.high

    def release(self, context: Context, reason: str) -> None:
        """Purge what everybody has, report what was acknowledged, and let waiting sends go on."""
        self._purge(context)
        if not self._unfinished:
            self._tail_ns = None
        self.flush(context, reason)

    def _purge(self, context: Context) -> None:
        low, upto = (
            self.window.low,
            self.acks.minimum if self.row.release == "acks" else self.stable,
        )
        known = max(
            self.acks.minimum, self.stable
        )  # what is stable has been delivered by all, acks or not
        if self.holds.minimum is not None:
            upto = known = min(upto, self.holds.minimum)
        for place, acked in self.holds.given_up():
            for ticket in [ticket for ticket, last in self._tracked.items() if last > acked]:
                del self._tracked[ticket]
                context.event(Unacknowledged(ticket, (place,)))
        for ticket in [ticket for ticket, last in self._tracked.items() if last <= known]:
            del self._tracked[ticket]
            context.event(Acknowledged(ticket))
        purged = self.window.purge(upto)
        if self.window.low > low:
            epoch, to = self.epoch, self.to
            context.step(
                "PURGE", self.me, low + 1, self.window.low, message_count=purged, epoch=epoch, to=to
            )
            if not self.row.naks:
                self._tail_ns = None
                self._plan_tail(context.now_ns)
        if self._settled != self._watched:
            self.watch(context.now_ns)
        self.shares.forget(self.window.low)
        self.limit_bytes(self.senders)

    def watch(self, now_ns: int) -> None:
        """Start anew to measure for how long the members have not moved."""
        self._watched = self._settled
        self._stuck_since_ns = now_ns if self._watched < self.window.high else None
        self._pin_due_ns = (
            None if self._stuck_since_ns is None else now_ns + self.config.pin_after_ns
        )

    # On reception of a nak

    def on_nak(self, peer: Address, asked: Sequence[Range], context: Context) -> None:
        """Answer a nak of ``peer``."""
        for first, last in asked:
            context.step("NAK_IN", self.me, first, last, peer=peer, epoch=self.epoch)
        if not asked:
            if self.to is None:
                self._tell_again(peer, context)
            else:
                self._send_first(context)
            return
        context.count("naks.answered", ranges.count(asked))
        if asked[0][0] <= self.window.low:
            context.step("GONE_OUT", self.me, last=self.window.low, peer=peer, epoch=self.epoch)
            context.transmit(peer, Gone(self.me, self.window.low, self.epoch))
        alive = ranges.within(asked, self.window.low + 1, self.window.high)
        send_repairs(self.repairs, self.window, peer, alive, self.epoch, self.me, context)

    def _send_first(self, context: Context) -> None:
        """Send the lowest message that is not acknowledged, marked as the first (U3-26); the rest follows by itself."""
        first = self.window.low + 1
        for run in self.window.get(first, first):
            self._first_wanted = not self.repairs.spend(run.size_bytes, context.now_ns)
            if not self._first_wanted:
                self._again(run, self.to, context, first=True)

    def _again(
        self, run: Run, to: Address | None, context: Context, *, first: bool = False
    ) -> None:
        context.step(
            "REPAIR",
            self.me,
            run.first,
            run.last,
            peer=to,
            reason="unasked",
            epoch=self.epoch,
            run=run,
        )
        context.transmit(to, Data(run, True, self.epoch, first))
        context.count("sent.repair")

    def tell_start(self, peer: Address, context: Context) -> None:
        """Tell ``peer`` where this stream starts for it."""
        context.step(
            "TAIL_OUT",
            self.me,
            peer=peer,
            low=self.window.low,
            high=self.window.high,
            epoch=self.epoch,
        )
        start, reader = self.starts[peer], peer.incarnation
        context.transmit(
            peer, Tail(self.me, self.window.low, self.window.high, start, reader, self.epoch)
        )

    def _tell_again(self, peer: Address, context: Context) -> None:
        """Tell ``peer`` its start; one that knew it was gone in a view that was not seen here: that is over for it."""
        if not self.config.retransmits and peer not in self._unconfirmed:
            self.starts[peer] = max(self.starts[peer], self._skipped)
            self._unconfirmed.add(peer)
        self.tell_start(peer, context)

    def welcome(self, peer: Address, context: Context) -> None:
        """Tell a new member its start, and again with every announcement until it has acknowledged that far."""
        self._unconfirmed.add(peer)
        self.tell_start(peer, context)
        if self._tail_ns is None:
            self._tail_interval_ns = self._least_interval_ns
            self._tail_ns = context.now_ns + self._tail_interval_ns

    # Every interval

    @property
    def tail_due_ns(self) -> int | None:
        """When the tail is to be announced next."""
        return self._tail_ns

    @property
    def _least_interval_ns(self) -> int:
        """How soon the end of the stream is announced; a receiver that reports now and then is given that time."""
        if self.row.acks == "periodic":
            return self.config.stability_interval_ns
        return self.config.tail_delay_ns

    def _plan_tail(self, now_ns: int) -> None:
        """Plan to announce the end of the stream, which has just moved.

        Where nobody asks for what is missing, a look that is planned stays: more data says nothing
        about what was lost.
        """
        if self._unconfirmed and self._tail_ns is not None:
            return  # a new member waits for its start, however much is sent meanwhile
        if self.config.retransmits and (self.row.naks or self._tail_ns is None):
            self._tail_interval_ns = self._least_interval_ns
            self._tail_ns = now_ns + self._tail_interval_ns

    def announce(self, context: Context) -> None:
        """Tell new members their start; see to the end of the stream, as the profile has it."""
        if self._tail_ns is None or self._tail_ns > context.now_ns:
            return
        told = not self._unconfirmed
        if not self._unfinished or (told and (not self.config.retransmits or self._waits_for_me)):
            self._tail_ns = None
            return
        for peer in sorted(self._unconfirmed):
            self.tell_start(peer, context)
        longest_ns = self.config.stability_interval_ns
        if self.config.retransmits:
            self._see_to_the_end(context)
            longest_ns = max(self.config.xmit_interval_ns, self._least_interval_ns)
        self._tail_interval_ns = min(2 * self._tail_interval_ns, longest_ns)
        self._tail_ns = context.now_ns + self._tail_interval_ns

    def _see_to_the_end(self, context: Context) -> None:
        window = self.window
        tail = self.row.tail
        starved, self.repairs.starved = self.repairs.starved, False
        if tail == "announce":
            self._announce_marks(context)
        elif starved:
            return  # what was asked for and held back goes first
        elif self._first_wanted:
            # Unasked the first message would be no answer, and leave no budget for one: let the
            # receiver ask anew.
            self._first_wanted = False
            self._tell_marks(self.to, context)
        elif tail == "resend all":
            self._resend(window.low + 1, window.high, self.to, context)
        elif self._stands_still:
            self._resend(window.high, window.high, self.to, context)
        self._seen = window.low, window.high
        if self._tracked and self.to is None and not starved:
            self._resend_tracked(context)

    @property
    def _stands_still(self) -> bool:
        """Whether the marks are those that the last look saw, where that matters."""
        return self.row.tail == "resend last" and self._seen == (self.window.low, self.window.high)

    def _announce_marks(self, context: Context) -> None:
        """Announce low and high: to the one that is behind, or to all where nobody knows who is."""
        window = self.window
        if window.low == window.high:
            return
        if self.row.release == "acks":
            behind = [
                peer
                for peer in self.acks.behind(window.high)
                if peer not in {self.me, *self._unconfirmed}
            ]
            if not behind:
                return
            to = behind[0] if len(behind) == 1 else None
        else:
            to = None
        self._tell_marks(to, context)

    def _tell_marks(self, to: Address | None, context: Context) -> None:
        low, high = self.window.low, self.window.high
        context.step("TAIL_OUT", self.me, peer=to, low=low, high=high, epoch=self.epoch)
        context.transmit(to, Tail(self.me, low, high, None, 0, self.epoch))

    def _resend(
        self, first: int, last: int, to: Address | None, context: Context, flags: int = 0
    ) -> None:
        """Send ``first .. last`` again without being asked, as far as the budget of repairs goes."""
        stored = self.window.get(max(first, self.window.low + 1), last)
        for run in [part for whole in stored for part in whole.framed(self.queue.room_bytes)]:
            if run.flags & flags == flags and self.repairs.spend(run.size_bytes, context.now_ns):
                self._again(run, to, context, first=run.first == 1 and self.to is not None)

    def _resend_tracked(self, context: Context) -> None:
        """Send messages that are to be acknowledged again to each member that has not done so (OL-20)."""
        last = max(self._tracked.values())
        for peer in self.acks.behind(last):
            if peer != self.me and peer not in self._unconfirmed:
                self._resend(self.acks[peer] + 1, last, peer, context, ACKED)

    @property
    def pin_due_ns(self) -> int | None:
        """When the member that pins the window is to be named."""
        return self._pin_due_ns

    def name_pinners(self, context: Context, stability: Stability | None) -> None:
        """Report who has kept low where it is for too long; without acks only the coordinator knows."""
        if self._pin_due_ns is None or self._pin_due_ns > context.now_ns:
            return
        window = self.window
        if self.row.release == "acks" or stability is None:
            members = tuple(self.acks.behind(self._settled + 1))
        else:
            members = stability.behind(self.me, window.low + 1)
        context.event(Pinned(members, self._settled, window.high, self._stuck_since_ns or 0))
        again_ns = context.now_ns + self.config.pin_after_ns
        self._pin_due_ns = None if self.config.on_pin == "wait" else again_ns

    # On a view

    def install(
        self,
        number: int,
        members: Iterable[Address],
        context: Context,
        kept: Mapping[str, Address] | None = None,
        back: Mapping[Address, Address] | None = None,
    ) -> None:
        """Count the acks of exactly ``members`` from now on; new ones start after what has been sent.

        ``kept`` and ``back`` are as in :meth:`gapless.protocol.endpoint.Member.install`.
        """
        members = tuple(members)
        high = self.window.high
        self._skipped = high if number > self.view + 1 else self._skipped
        self.view = number
        returned = self.holds.install(
            members, kept or {}, back or {}, self.acks, self.window, context
        )
        self.starts = {
            member: self.starts.get(member, returned.get(member, high)) for member in members
        }
        self._unconfirmed.intersection_update(members)
        self.shares.keep(members)
        self.acked_ns = {
            member: self.acked_ns[member] for member in members if member in self.acked_ns
        }
        self.acks.adjust(members, high)
        for member, acked in returned.items():
            self.acks.enter(member, acked)
            if member in (back or {}) and (
                ticket := torn_send(acked, self.window, self.queue, self._tracked)
            ):
                context.event(Unacknowledged(ticket, (member,)))
        self.limit_bytes(self.senders)
        self.release(context, "view")
        if returned and self._tail_ns is None and self._unfinished:
            self._plan_tail(context.now_ns)  # who is back is behind

    def connect(self) -> None:
        """Count the acks of the one member that this stream goes to, from the first message on."""
        assert self.to is not None
        self.starts = {self.to: 0}
        self.acks.adjust((self.to,), 0)

    def end(self, context: Context) -> tuple[int, int]:
        """Report the acknowledged sends that nobody will complete; return what is not known to have arrived."""
        for ticket, last in self._tracked.items():
            behind = (*self.acks.behind(last), *self.holds.behind(last))
            context.event(Unacknowledged(ticket, behind) if behind else Acknowledged(ticket))
        self._tracked = {}
        return max(self.window.low, self.acks.minimum) + 1, self.window.high

    def end_view(self, staying: Iterable[Address], context: Context) -> tuple[int, int]:
        """End the stream of a view, but for what waits; return what is not known to have arrived at ``staying``.

        Of a send that has gone out in part, that part belongs to the view. If it was to be
        acknowledged, and is not, that is said here, and the rest is sent without being tracked.
        """
        self.acks.ack(self.me, self.window.delivered)
        self.acks.adjust([member for member, _ in self.acks.items() if member in set(staying)], 0)
        for waiting in self.queue.waiting():
            part_out = waiting.flags & ACKED and waiting.taken and not waiting.given_up
            if part_out and (behind := self.acks.behind(waiting.last)):
                waiting.flags &= ~ACKED
                context.event(Unacknowledged(waiting.ticket, tuple(behind)))
        first, last = self.end(context)
        return first, last - self.queue.restart()

    def follow(self, before: Outbound) -> None:
        """Take the place of ``before``, whose stream has ended: what waits there is sent here."""
        self.queue = before.queue
        self.closed = before.closed
        self.shares = before.shares
        self.shares.begin((), 0)
        self.senders = before.senders

    def retune(self, config: Config, now_ns: int) -> None:
        """Go on with retransmission switched on or off."""
        self.config = config
        self.repairs.retune(config)
        if config.retransmits and self._unfinished:
            self._plan_tail(now_ns)

    def limit_bytes(self, senders: int) -> None:
        """Share the advertised receive buffers among ``senders``."""
        config = self.config
        self.senders = max(1, senders)
        if self.row.release != "acks":
            return  # what is outstanding there has mostly been delivered, and fills nobody's buffer
        least_bytes, default_bytes = (
            min(config.max_frame_bytes, _LEAST_SHARE_BYTES),
            config.receive_buffer_bytes,
        )
        room_bytes = self.shares.limit_bytes(
            self.acks, self.window.low, self.senders, least_bytes, default_bytes
        )
        self.window.max_bytes = min(config.window_bytes, room_bytes)

    def check_invariants(self) -> None:
        """Raise AssertionError if the sending half contradicts its own law."""
        self.window.check_invariants()
        acked = self.row.release != "acks" or self.window.low <= self.acks.minimum
        assert acked or not list(self.acks.items()), "nothing is purged before its acks"
        held_bytes = self.shares.upto(self.window.high) - self.shares.upto(self.window.low)
        assert self.window.stored_bytes <= held_bytes, "the bytes of the window are known"
        self.holds.check_invariants(self.window.low, self.window.high, self.acks)
        for member, ack in self.acks.items():
            assert ack <= self.window.high, (
                f"{member} acknowledged {ack}, beyond high {self.window.high}"
            )
        assert all(last <= self.window.high for last in self._tracked.values()), (
            "only what was sent is tracked"
        )
        watched = self._tail_ns is not None or not self.config.retransmits
        assert watched or self.window.low == self.window.high or self._waits_for_me, "tail armed"

    @property
    def _waits_for_me(self) -> bool:
        """Whether nobody but this member itself has still to acknowledge something."""
        return self.row.release == "acks" and all(
            member == self.me for member in self.acks.behind(self.window.high)
        )

    def snapshot(self) -> tuple[object, ...]:
        """Return the state without its times."""
        return (
            self.window.snapshot(),
            self.acks.snapshot(),
            self.queue.snapshot(),
            self._tail_ns is not None,
            self.stable,
            self._stands_still,
            tuple(sorted(self._tracked.values())),
            tuple(sorted(self._unconfirmed)),
            self.holds.snapshot(),
        )

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says, with every timer due."""
        window, acks, queue, tail, self.stable, stands_still, tracked, unconfirmed, holds = snapshot  # type: ignore[assignment]
        self._unconfirmed = set(unconfirmed)  # type: ignore[call-overload]
        self._tracked = {-at: last for at, last in enumerate(cast("tuple[int, ...]", tracked), 1)}
        self.window.restore(window)  # type: ignore[arg-type]
        self.acks.restore(acks)  # type: ignore[arg-type]
        self.holds.restore(holds)  # type: ignore[arg-type]
        self.queue.restore(queue)  # type: ignore[arg-type]
        self.repairs.forget()
        self._tail_ns = 0 if tail else None
        self._seen = (self.window.low, self.window.high) if stands_still else None
        self._first_wanted = False
        self._watched = self._settled
        self._stuck_since_ns = 0 if self._watched < self.window.high else None
        self._pin_due_ns = None
        self.shares.begin(self.window.get(self.window.low + 1, self.window.high), self.window.low)
        self.senders = 0
