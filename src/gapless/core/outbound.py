"""The sending half of the machine: the own stream.

On sending: messages wait for room, then are numbered, stored and sent in one step (sending.py).

On reception of an ack from P: the entry of P rises; when the minimum rises the window is purged up to it, and waiting
sends go on. An ack beyond high is impossible and counts for nothing (N4-28).

On reception of a nak from P: what is stored is sent again (repairs.py); for what is purged the answer is "gone up to
low"; a nak without ranges is answered with the start that P has been given.

Every tail interval: while somebody has not acknowledged everything, and nothing was sent lately, low and high are
announced: to the one that is behind, or to all; and to a new member that has not confirmed its start, that start. The
interval doubles up to ``xmit_interval``.

Flow control: beside ``capacity`` and ``window_bytes``, the bytes outstanding never exceed the share of this sender in
the smallest receive buffer that a member has advertised (design rule 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapless.core import ranges
from gapless.core.acks import AckTable
from gapless.core.ready import Accepted, Pinned
from gapless.core.repairs import Repairs
from gapless.core.sending import SendQueue
from gapless.core.window import Fixed, Window
from gapless.run import LENGTH_BYTES, Run
from gapless.wire.codec import run_room_bytes
from gapless.wire.frames import Data, Gone, Tail

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gapless.config import Config
    from gapless.core.context import Context
    from gapless.core.sending import Batch, Waiting
    from gapless.identity import Address
    from gapless.wire.frames import Range


class Outbound:
    """The own stream: window, ack table, repairs, and the sends that wait."""

    def __init__(self, me: Address, config: Config) -> None:
        self.me = me
        self.config = config
        # A sender counts from low, not from its own delivery: no receiver is to see more than it can take.
        capacity = config.capacity if config.window == "fixed" else config.far_limit
        self.window = Window(Fixed(capacity), keep=True, max_bytes=config.window_bytes)
        self.acks = AckTable()
        self.repairs = Repairs(config)
        self.queue = SendQueue(run_room_bytes(config.max_frame_bytes))
        self.starts: dict[Address, int] = {}
        self._unconfirmed: set[Address] = set()
        self.view = 0
        self._buffers: dict[Address, int] = {}
        self._senders = 1
        self._tail_ns: int | None = None
        self._tail_interval_ns = config.tail_delay_ns
        self._stuck_since_ns: int | None = None
        self._pin_due_ns: int | None = None

    # On sending

    def send(self, messages: Sequence[bytes], flags: int, deadline_ns: int | None, context: Context) -> int:
        """Queue ``messages``, send what has room, return the ticket."""
        waiting = self.queue.put(messages, flags, deadline_ns)
        self.flush(context, "ack")
        if not waiting.done:
            waiting.blocked = True
            context.step("BLOCK", first=waiting.ticket)
        return waiting.ticket

    def has_room(self, messages: Sequence[bytes]) -> bool:
        """Return whether a send of ``messages`` would be taken whole, without waiting."""
        window = self.window
        slots = self.queue.slots(messages)
        if len(self.queue) or slots > window.room():
            return False
        room_bytes = window.room_bytes()
        cost_bytes = sum(map(len, messages)) + LENGTH_BYTES * slots
        return room_bytes is None or cost_bytes <= room_bytes or (slots == 1 and window.low == window.high)

    def flush(self, context: Context, reason: str) -> None:
        """Number, store and send what waits, as far as there is room."""
        window = self.window
        while True:
            batch = self.queue.next_batch(window.room(), window.room_bytes(), window.low == window.high)
            if batch is None:
                return
            self._send_batch(batch, context, reason)

    def _send_batch(self, batch: Batch, context: Context, reason: str) -> None:
        first = self.window.high + 1
        run = Run.of(self.me, first, batch.messages, batch.flags, self.view, context.now_ns)
        added = self.window.add(run)
        assert added.accepted == run.count, f"{run} had room, yet {added}"
        context.step("SEND", self.me, run.first, run.last, size_bytes=run.size_bytes)
        context.transmit(None, Data(run))
        for waiting, count in batch.shares:
            waiting.number(first, first + count - 1)
            first += count
            if waiting.done:
                self._accept(waiting, context, reason)
        self._tail_interval_ns = self.config.tail_delay_ns
        self._tail_ns = context.now_ns + self._tail_interval_ns
        if self._stuck_since_ns is None:
            self._watch(context.now_ns)

    def _accept(self, waiting: Waiting, context: Context, reason: str) -> None:
        if waiting.blocked and not waiting.given_up:
            context.step("UNBLOCK", first=waiting.ticket, reason=reason)
        if not waiting.given_up:
            context.event(Accepted(waiting.ticket, waiting.first, waiting.last))

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
            context.drop("ack beyond high", self.me, seqno, seqno, peer=peer)
            return
        context.step("ACK_IN", self.me, last=seqno, peer=peer)
        if self._buffers.get(peer) != buffer_bytes:
            self._buffers[peer] = buffer_bytes
            self.limit_bytes(self._senders)
        if seqno >= self.starts[peer]:
            self._unconfirmed.discard(peer)
        if self.acks.ack(peer, seqno):
            self.release(context, "ack")
        elif not self._unconfirmed and self.window.low == self.window.high:
            self._tail_ns = None

    def acknowledge_self(self, context: Context) -> None:
        """Let the own delivery count as the own ack (N4-26)."""
        if self.acks.ack(self.me, self.window.delivered):
            self.release(context, "ack")

    def release(self, context: Context, reason: str) -> None:
        """Purge what everybody has, and let waiting sends go on."""
        low = self.window.low
        purged = self.window.purge(self.acks.minimum)
        if self.window.low > low:
            context.step("PURGE", self.me, low + 1, self.window.low, message_count=purged)
            self._watch(context.now_ns)
        if self.window.low == self.window.high and not self._unconfirmed:
            self._tail_ns = None
        self.flush(context, reason)

    def _watch(self, now_ns: int) -> None:
        """Start anew to measure for how long low has not moved."""
        self._stuck_since_ns = now_ns if self.window.low < self.window.high else None
        self._pin_due_ns = None if self._stuck_since_ns is None else now_ns + self.config.pin_after_ns

    # On reception of a nak

    def on_nak(self, peer: Address, asked: Sequence[Range], context: Context) -> None:
        """Answer a nak of ``peer``."""
        for first, last in asked:
            context.step("NAK_IN", self.me, first, last, peer=peer)
        if not asked:
            self.tell_start(peer, context)
            return
        if asked[0][0] <= self.window.low:
            context.step("GONE_OUT", self.me, last=self.window.low, peer=peer)
            context.transmit(peer, Gone(self.me, self.window.low))
        alive = ranges.within(asked, self.window.low + 1, self.window.high)
        answer = self.repairs.answer(peer, alive, self.window, context.now_ns)
        for run in answer.runs:
            context.step("REPAIR", self.me, run.first, run.last, peer=answer.to, size_bytes=run.size_bytes)
            context.transmit(answer.to, Data(run, repair=True))
            context.count("sent.repair")
        for reason, held in (("repeat", answer.repeated), ("budget", answer.over_budget)):
            for first, last in held:
                context.step("SUPPRESSED", self.me, first, last, peer=peer, reason=reason)

    def tell_start(self, peer: Address, context: Context) -> None:
        """Tell ``peer`` where this stream starts for it."""
        context.step("TAIL_OUT", self.me, peer=peer, low=self.window.low, high=self.window.high)
        context.transmit(peer, Tail(self.me, self.window.low, self.window.high, self.starts[peer], peer.incarnation))

    def welcome(self, peer: Address, context: Context) -> None:
        """Tell a new member its start, and again with every announcement until it has acknowledged that far."""
        self._unconfirmed.add(peer)
        self.tell_start(peer, context)
        if self._tail_ns is None:
            self._tail_interval_ns = self.config.tail_delay_ns
            self._tail_ns = context.now_ns + self._tail_interval_ns

    # Every interval

    @property
    def tail_due_ns(self) -> int | None:
        """When the tail is to be announced next."""
        return self._tail_ns

    def announce(self, context: Context) -> None:
        """Announce the tail to those that have not acknowledged everything."""
        if self._tail_ns is None or self._tail_ns > context.now_ns:
            return
        behind = [member for member in self.acks.behind(self.window.high) if member != self.me]
        behind = [member for member in behind if member not in self._unconfirmed]
        if not behind and not self._unconfirmed:
            self._tail_ns = None
            return
        for peer in sorted(self._unconfirmed):
            self.tell_start(peer, context)
        if behind:
            to = behind[0] if len(behind) == 1 else None
            context.step("TAIL_OUT", self.me, peer=to, low=self.window.low, high=self.window.high)
            context.transmit(to, Tail(self.me, self.window.low, self.window.high, None))
        self._tail_interval_ns = min(2 * self._tail_interval_ns, self.config.xmit_interval_ns)
        self._tail_ns = context.now_ns + self._tail_interval_ns

    @property
    def pin_due_ns(self) -> int | None:
        """When the member that pins the window is to be named."""
        return self._pin_due_ns

    def name_pinners(self, context: Context) -> None:
        """Report who has kept low where it is for too long."""
        if self._pin_due_ns is None or self._pin_due_ns > context.now_ns:
            return
        window = self.window
        members = tuple(self.acks.behind(window.low + 1))
        context.event(Pinned(members, window.low, window.high, self._stuck_since_ns or 0))
        self._pin_due_ns = context.now_ns + self.config.pin_after_ns

    # On a view

    def install(self, number: int, members: Iterable[Address], context: Context) -> None:
        """Count the acks of exactly ``members`` from now on; new ones start after what has been sent."""
        members = tuple(members)
        high = self.window.high
        self.view = number
        self.starts = {member: self.starts.get(member, high) for member in members}
        self._unconfirmed.intersection_update(members)
        self._buffers = {member: self._buffers[member] for member in members if member in self._buffers}
        self.limit_bytes(self._senders)
        self.acks.adjust(members, high)
        self.release(context, "view")

    def limit_bytes(self, senders: int) -> None:
        """Share the smallest advertised receive buffer among ``senders`` (design rule 7)."""
        config = self.config
        self._senders = max(1, senders)
        smallest_bytes = min(self._buffers.values(), default=config.receive_buffer_bytes)
        share_bytes = max(smallest_bytes // self._senders, config.max_frame_bytes)
        self.window.max_bytes = min(config.window_bytes, share_bytes)

    def check_invariants(self) -> None:
        """Raise AssertionError if the sending half contradicts its own law."""
        self.window.check_invariants()
        assert self.window.low <= self.acks.minimum or not list(self.acks.items()), "nothing is purged before its acks"
        for member, ack in self.acks.items():
            assert ack <= self.window.high, f"{member} acknowledged {ack}, beyond high {self.window.high}"
        assert self._tail_ns is not None or self.window.low == self.window.high or self._only_me_behind(), "tail armed"

    def _only_me_behind(self) -> bool:
        return all(member == self.me for member in self.acks.behind(self.window.high))

    def snapshot(self) -> tuple[object, ...]:
        """Return the state without its times."""
        return (self.window.snapshot(), self.acks.snapshot(), self.queue.snapshot(), self._tail_ns is not None)

    def restore(self, snapshot: tuple[object, ...]) -> None:
        """Become what ``snapshot`` says, with every timer due."""
        window, acks, queue, tail = snapshot
        self.window.restore(window)  # type: ignore[arg-type]
        self.acks.restore(acks)  # type: ignore[arg-type]
        self.queue.restore(queue)  # type: ignore[arg-type]
        self.repairs.forget()
        self._tail_ns = 0 if tail else None
        self._stuck_since_ns = 0 if self.window.low < self.window.high else None
        self._pin_due_ns = None
